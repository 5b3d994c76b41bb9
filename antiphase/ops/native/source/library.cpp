// The library's way in: takes the kernels that the processor at hand can run.
#include "problem.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int antiphase_run_portable(const antiphase_problem *);
#if defined(__x86_64__)
extern "C" int antiphase_run_avx2(const antiphase_problem *);
extern "C" int antiphase_run_avx512(const antiphase_problem *);
#endif

namespace {
enum { PORTABLE = 0, AVX2 = 1, AVX512 = 2 };

int best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return AVX512;
  if (has_avx2) return AVX2;
#endif
  return PORTABLE;
}
int chosen = best();
}  // namespace

// What these sources are, by antiphase/ops/native/build.py.
EXPORT const char *antiphase_sources() { return ANTIPHASE_SOURCES; }
EXPORT int64_t antiphase_problem_bytes() { return sizeof(antiphase_problem); }

// Which kernels run: 0 portable, 1 AVX2, 2 AVX-512.
EXPORT int antiphase_kernels() { return chosen; }

// Takes other kernels, for tests; returns whether this processor can run them.
EXPORT int antiphase_choose(int kernels) {
  if (kernels < PORTABLE || kernels > best()) return 0;
  chosen = kernels;
  return 1;
}

// 0: done; 1: no memory left; 2: a problem that no kernel knows.
EXPORT int antiphase_run(const antiphase_problem *call) {
#if defined(__x86_64__)
  if (chosen == AVX512) return antiphase_run_avx512(call);
  if (chosen == AVX2) return antiphase_run_avx2(call);
#endif
  return antiphase_run_portable(call);
}
