// Calls of every kind on threads of its own, for the thread sanitizer, which follows std::thread but not the threads of
// OpenMP. Exit code 1 where a result depends on the number of threads; the sanitizer has its own. `make full` runs it.
#include <cstdio>

#include "calls.h"

constexpr int KERNELS = 5, THREADS = 4;

int main() {
  int calls = 0, wrong = 0;
  for (int kernels = 0; kernels < KERNELS; ++kernels) {
    if (!antiphase_choose(kernels)) continue;
    for (int dtype : {ANTIPHASE_FLOAT32, ANTIPHASE_BFLOAT16, ANTIPHASE_FLOAT64})
      for (const auto [maps, key_maps, causal, parts, window, shared] : FORMS) {
        const Form form{dtype, maps, key_maps, causal, parts, window, shared};
        const Results alone = results(form, 1);
        Results beside;
        std::thread other([&] { beside = results(form, THREADS); });  // two callers at once
        const Results together = results(form, THREADS);
        other.join();
        const bool is_right = alone.status == 0 && alone == together && alone == beside;
        ++calls, wrong += !is_right;
        if (!is_right) std::printf("kernels %d, dtype %d, maps %d: the number of threads shows\n", kernels, dtype, maps);
      }
  }
  std::printf("%d forms, %d wrong\n", calls, wrong);
  return wrong != 0;
}
