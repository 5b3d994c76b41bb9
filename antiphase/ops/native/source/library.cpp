// Entry points of the library: select the kernels that the processor supports.
#include <cmath>
#if defined(__x86_64__)
#include <setjmp.h>
#include <signal.h>
#endif
#if defined(ANTIPHASE_TILES)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "problem.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// Kinds that multiply pairs of bfloat16 have these two alone.
#define PAIRS(kind)                                               \
  extern "C" int antiphase_run_##kind(const antiphase_problem *); \
  extern "C" int antiphase_meter_##kind(const antiphase_meter_problem *);
#define KERNELS(kind)                                    \
  PAIRS(kind)                                            \
  extern "C" int antiphase_norm_##kind(const antiphase_norm_problem *); \
  extern "C" int antiphase_loss_##kind(const antiphase_loss_problem *);

KERNELS(portable)
#if defined(__x86_64__)
KERNELS(avx2)
KERNELS(avx512)
PAIRS(avx512bf16)
#endif
#if defined(ANTIPHASE_TILES)
PAIRS(amx)
#endif

namespace {
enum { PORTABLE = 0, AVX2 = 1, AVX512 = 2, AVX512BF16 = 3, AMX = 4 };

bool refused = false;  // the processor has tiles, and the system does not let this process use them
bool failed = false;  // the processor claims instructions that it does not run

#if defined(__x86_64__)
#if defined(ANTIPHASE_LYING)  // for tests: it claims them all
#define CLAIMS(feature) true
#else
#define CLAIMS(feature) __builtin_cpu_supports(feature)
#endif

#if defined(ANTIPHASE_TILES)
// Whether the processor claims to multiply tiles of bfloat16 and Linux permits it to this process, which must request it.
bool has_tiles() {
#if defined(ANTIPHASE_EMULATED_TILES)
  return true;
#else
  constexpr unsigned TILES = 1u << 24, BFLOAT16 = 1u << 22;
  constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILES) && (d & BFLOAT16);
  refused = known && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) != 0;
#if defined(ANTIPHASE_LYING)
  return !refused;
#else
  return known && !refused;
#endif
#endif
}
#else
bool has_tiles() { return false; }
#endif

int claimed() {
  __builtin_cpu_init();
  const bool has_avx2 = CLAIMS("avx2") && CLAIMS("fma");
  if (has_avx2 && CLAIMS("avx512f") && CLAIMS("avx512bw") && CLAIMS("avx512dq") && CLAIMS("avx512vl"))
    return !CLAIMS("avx512bf16") ? AVX512 : has_tiles() ? AMX : AVX512BF16;
  return has_avx2 ? AVX2 : PORTABLE;
}

sigjmp_buf after_fault;
void fault(int) { siglongjmp(after_fault, 1); }

// Whether instructions of a kind run.
bool runs(int kind) {
  struct sigaction own = {}, before;
  own.sa_handler = fault;
  sigaction(SIGILL, &own, &before);
  if (sigsetjmp(after_fault, 1)) {
    sigaction(SIGILL, &before, nullptr);
    return false;
  }
#if defined(ANTIPHASE_TILES) && !defined(ANTIPHASE_EMULATED_TILES)
  if (kind == AMX) asm volatile("tilerelease");
#endif
  if (kind >= AVX512BF16) asm volatile("vdpbf16ps %%zmm0, %%zmm0, %%zmm0; vzeroupper" ::: "xmm0");
  if (kind >= AVX512) asm volatile("vpaddd %%zmm0, %%zmm0, %%zmm0; vzeroupper" ::: "xmm0");
  if (kind >= AVX2) asm volatile("vpaddd %%ymm0, %%ymm0, %%ymm0; vzeroupper" ::: "xmm0");
  sigaction(SIGILL, &before, nullptr);
  return true;
}

int best() {
  int kind = claimed();
  for (; kind > PORTABLE && !runs(kind); --kind) failed = true;
  return kind;
}
#else
int best() { return PORTABLE; }
#endif
const int most = best();
int chosen = most;
}  // namespace

// Fingerprint of the sources, set by antiphase/ops/native/build.py.
EXPORT const char *antiphase_sources() { return ANTIPHASE_SOURCES; }
EXPORT int64_t antiphase_problem_bytes() { return sizeof(antiphase_problem); }
EXPORT int64_t antiphase_norm_bytes() { return sizeof(antiphase_norm_problem); }
EXPORT int64_t antiphase_loss_bytes() { return sizeof(antiphase_loss_problem); }
EXPORT int64_t antiphase_meter_bytes() { return sizeof(antiphase_meter_problem); }

// The selected kernels: 0 portable, 1 AVX2, 2 AVX-512, 3 and 4 the same with products of bfloat16, 4 with tiles.
EXPORT int antiphase_kernels() { return chosen; }
// 0: they are what the processor claims to have; 1: the system refuses its tiles; 2: it claims what it does not run.
EXPORT int antiphase_lacks() { return refused ? 1 : failed ? 2 : 0; }

// Selects other kernels, for tests; returns whether this processor supports them.
EXPORT int antiphase_choose(int kernels) {
  if (kernels < PORTABLE || kernels > most) return 0;
  chosen = kernels;
  return 1;
}

// λ = exp(q1 · k1) - exp(q2 · k2) + initial (2410.05258, equation 2), summed in double, whose rounding error is
// negligible.
EXPORT float antiphase_lambda(const float *const vectors[4], int64_t width, double initial) {
  double first = 0, second = 0;
  for (int64_t i = 0; i < width; ++i)
    first += double(vectors[0][i]) * vectors[1][i], second += double(vectors[2][i]) * vectors[3][i];
  return float(std::exp(first) - std::exp(second) + initial);
}

// 0: success; 1: out of memory; 2: a problem that no kernel supports.
EXPORT int antiphase_run(const antiphase_problem *call) {
#if defined(__x86_64__)
  if (chosen >= AVX512BF16 && call->dtype == ANTIPHASE_BFLOAT16 && call->task != ANTIPHASE_FEW) {
#if defined(ANTIPHASE_TILES)
    if (chosen == AMX) return antiphase_run_amx(call);
#endif
    return antiphase_run_avx512bf16(call);
  }
  if (chosen >= AVX512) return antiphase_run_avx512(call);
  if (chosen == AVX2) return antiphase_run_avx2(call);
#endif
  return antiphase_run_portable(call);
}
EXPORT int antiphase_norm(const antiphase_norm_problem *call) {
#if defined(__x86_64__)
  if (chosen >= AVX512) return antiphase_norm_avx512(call);
  if (chosen == AVX2) return antiphase_norm_avx2(call);
#endif
  return antiphase_norm_portable(call);
}
// As antiphase_run; 3: a target that is not a column.
EXPORT int antiphase_loss(const antiphase_loss_problem *call) {
#if defined(__x86_64__)
  if (chosen >= AVX512) return antiphase_loss_avx512(call);
  if (chosen == AVX2) return antiphase_loss_avx2(call);
#endif
  return antiphase_loss_portable(call);
}
// As antiphase_run, with the kernels that it would select.
EXPORT int antiphase_meter(const antiphase_meter_problem *call) {
#if defined(__x86_64__)
  if (chosen >= AVX512BF16 && call->dtype == ANTIPHASE_BFLOAT16) {
#if defined(ANTIPHASE_TILES)
    if (chosen == AMX) return antiphase_meter_amx(call);
#endif
    return antiphase_meter_avx512bf16(call);
  }
  if (chosen >= AVX512) return antiphase_meter_avx512(call);
  if (chosen == AVX2) return antiphase_meter_avx2(call);
#endif
  return antiphase_meter_portable(call);
}
