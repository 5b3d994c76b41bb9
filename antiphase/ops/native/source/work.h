// Memory that threads keep between calls, and work that they take in a fixed order.
#pragma once
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t KEPT_BYTES = size_t(16) << 20;  // memory that a thread keeps of its largest call so far

// Memory that a thread keeps between calls, because fresh memory from the system costs a page fault per 4 KiB.
class Arena {
 public:
  ~Arena() { std::free(memory_); }
  // Room for this many bytes, with undefined contents; null if the system is out of memory.
  char *take(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = (bytes + 4095) / 4096 * 4096;
      memory_ = static_cast<char *>(std::aligned_alloc(4096, size_));
      if (!memory_) size_ = 0;
    }
    return memory_;
  }
  void trim() {
    if (size_ > KEPT_BYTES) {
      std::free(memory_);
      memory_ = nullptr;
      size_ = 0;
    }
  }

 private:
  char *memory_ = nullptr;
  size_t size_ = 0;
};

// Hands out parts of one piece of memory or, with a null base, only counts them.
class Cutter {
 public:
  explicit Cutter(char *base) : base_(base) {}
  template <typename T> T *cut(int64_t count) {
    T *part = reinterpret_cast<T *>(base_ ? base_ + used_ : nullptr);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  size_t used() const { return used_; }

 private:
  char *base_;
  size_t used_ = 0;
};

constexpr int64_t NUMBERS_OF_THREAD = 32768;  // with fewer, another thread costs more than it saves

// Calls work(chunk, first row, last row + 1) for chunks of `size` rows on the threads of the call.
template <typename Call, typename Work> void for_chunks(const Call &call, int64_t size, Work work) {
  const int64_t chunks = (call.rows + size - 1) / size;
  struct Shared {
    const Call &call;
    const int64_t size, chunks;
    Work &work;
    std::atomic<int64_t> next{0};
    void run() {
      for (int64_t chunk; (chunk = next.fetch_add(1)) < chunks;) {
        const int64_t first = chunk * size, end = first + size;
        work(chunk, first, end < call.rows ? end : call.rows);
      }
    }
  } shared{call, size, chunks, work};
  int64_t threads = call.rows * call.width / NUMBERS_OF_THREAD;
  if (threads > chunks) threads = chunks;
  if (threads > call.threads) threads = call.threads;
  if (threads <= 1 || !call.parallel)
    shared.run();
  else
    call.parallel([](void *self) { static_cast<Shared *>(self)->run(); }, &shared, unsigned(threads), 0);
}

inline void wait_a_moment(int &turns) {
  if (++turns < 1000) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  } else {
    sched_yield();  // the thread that we wait for may need this core
  }
}
template <typename Ready> inline void wait_until(Ready ready) {
  for (int turns = 0; !ready();) wait_a_moment(turns);
}

}  // namespace
