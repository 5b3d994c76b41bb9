/* Loaded before the C library: counts what a program writes below one folder, and makes one of these calls fail.
 *
 * ATTACK_FOLDER: the folder, as an absolute path. ATTACK_FAULT: "N ERRNO LAST": the N-th call fails with ERRNO, and so
 * do all after it if LAST is 1; ERRNO 0 kills the process instead. Calls: open for writing, write, fsync, rename, mkdir.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static long at, lasting;
static int fault;
static char folder[PATH_MAX];

/* Begin to count, and to fail if the environment says so; forked processes call it again. */
__attribute__((constructor)) void attack_arm(void)
{
    const char *given = getenv("ATTACK_FOLDER"), *plan = getenv("ATTACK_FAULT");
    atomic_store(&calls, 0);
    at = lasting = fault = 0;
    snprintf(folder, sizeof folder, "%s", given ? given : "");
    if (plan)
        sscanf(plan, "%ld %d %ld", &at, &fault, &lasting);
}

long attack_calls(void) { return atomic_load(&calls); }

static int is_below(const char *path)
{
    size_t length = strlen(folder);
    return length && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

static int is_named_below(int home, const char *path)
{
    char whole[2 * PATH_MAX], base[PATH_MAX] = "", place[64];
    if (!*folder || !path)
        return 0;
    if (path[0] == '/')
        return is_below(path);
    if (home == AT_FDCWD) {
        if (!getcwd(base, sizeof base))
            return 0;
    } else {
        snprintf(place, sizeof place, "/proc/self/fd/%d", home);
        ssize_t size = readlink(place, base, sizeof base - 1);
        if (size < 0)
            return 0;
        base[size] = 0;
    }
    snprintf(whole, sizeof whole, "%s/%s", base, path);
    return is_below(whole);
}

static int is_open_below(int file)
{
    char place[64], path[PATH_MAX];
    struct stat found;
    if (!*folder || file < 3 || fstat(file, &found) || !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode)))
        return 0;
    snprintf(place, sizeof place, "/proc/self/fd/%d", file);
    ssize_t size = readlink(place, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return is_below(path);
}

/* Whether this call is to fail; sets errno. */
static int fails(int concerned)
{
    if (!concerned)
        return 0;
    long number = atomic_fetch_add(&calls, 1) + 1;
    if (!at || number < at || (number > at && !lasting))
        return 0;
    if (!fault)
        kill(getpid(), SIGKILL);
    errno = fault;
    return 1;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int file, const void *data, size_t size)
{
    if (fails(is_open_below(file))) {
        if (errno == ENOSPC && size > 1 && at == atomic_load(&calls)) { /* a disk fills up in the middle of a write */
            lasting = 1;
            return REAL(write)(file, data, size / 2);
        }
        return -1;
    }
    return REAL(write)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t where)
{
    return fails(is_open_below(file)) ? -1 : REAL(pwrite)(file, data, size, where);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t where)
{
    return fails(is_open_below(file)) ? -1 : REAL(pwrite64)(file, data, size, where);
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    return fails(is_open_below(file)) ? -1 : REAL(writev)(file, parts, count);
}

int fsync(int file) { return fails(is_open_below(file)) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(is_open_below(file)) ? -1 : REAL(fdatasync)(file); }
int ftruncate(int file, off_t size) { return fails(is_open_below(file)) ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return fails(is_open_below(file)) ? -1 : REAL(ftruncate64)(file, size); }

int mkdir(const char *path, mode_t mode)
{
    struct stat found;
    return fails(is_named_below(AT_FDCWD, path) && stat(path, &found)) ? -1 : REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to)
{
    return fails(is_named_below(AT_FDCWD, to)) ? -1 : REAL(rename)(from, to);
}

int renameat(int home, const char *from, int other, const char *to)
{
    return fails(is_named_below(other, to)) ? -1 : REAL(renameat)(home, from, other, to);
}

#define OPENS(name, first, home, path)                                                                              \
    {                                                                                                               \
        mode_t mode = 0;                                                                                            \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                                      \
            va_list rest;                                                                                           \
            va_start(rest, flags);                                                                                  \
            mode = va_arg(rest, mode_t);                                                                            \
            va_end(rest);                                                                                           \
        }                                                                                                           \
        int writes = (flags & O_ACCMODE) != O_RDONLY;                                                               \
        return fails(writes && is_named_below(home, path)) ? -1 : REAL(name) first;                                 \
    }

int open(const char *path, int flags, ...) OPENS(open, (path, flags, mode), AT_FDCWD, path)
int open64(const char *path, int flags, ...) OPENS(open64, (path, flags, mode), AT_FDCWD, path)
int openat(int home, const char *path, int flags, ...) OPENS(openat, (home, path, flags, mode), home, path)
int openat64(int home, const char *path, int flags, ...) OPENS(openat64, (home, path, flags, mode), home, path)
