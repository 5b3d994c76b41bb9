// The inner loops by themselves, each in a function of its name, for test_inner_loops.py to read what a compiler makes
// of them.
#include "products.h"

using E = Operand<BFloat16>;  // float, or pairs where the processor multiplies them

#define LOOP extern "C" __attribute__((noinline)) void

LOOP scores(const E *rows, int64_t stride, const E *panel, int64_t depth, float *out) {
  multiply<E>(rows, stride, panel, depth, out);
}
LOOP weights_values(const E *weights, const E *values, float *out, int64_t panels) {
  constexpr int KEYS = PANEL<float> / STEPS<E>;
  weigh<E, 2>(weights, ROWS * PANEL<float>, values, KEYS * 2 * LANES<float>, out, 2 * LANES<float>, panels);
}
LOOP gradient_of_keys(const E *weights, const E *rows, int64_t stride, float *out, int count) {
  collect_keys<E, ROWS, 2>(weights, PANEL<float>, rows, stride, out, 2 * LANES<float>, count);
}
LOOP exponentials(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES<float>) store<float>(x + i, exp2_of(load(x + i)));
}
