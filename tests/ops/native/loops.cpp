// The inner loops by themselves, each in a function of its name, for test_inner_loops.py to read what a compiler makes
// of them.
#include "products.h"

#define LOOP extern "C" __attribute__((noinline)) void

LOOP scores(const float *rows, int64_t stride, const float *panel, int64_t depth, float *out) {
  multiply<float>(rows, stride, panel, depth, out);
}
LOOP weights_values(const float *weights, const float *values, float *out, int64_t panels) {
  weigh<float, 2>(weights, ROWS * PANEL<float>, values, PANEL<float> * 2 * LANES<float>, out, 2 * LANES<float>, panels);
}
LOOP gradient_of_keys(const float *weights, const float *rows, int64_t stride, float *out, int count) {
  collect_keys<float, ROWS, 2>(weights, PANEL<float>, rows, stride, out, 2 * LANES<float>, count);
}
LOOP exponentials(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i += LANES<float>) store<float>(x + i, exp2_of(load(x + i)));
}
