// The three matrix products of attention, each a block of scores at a time and all sums in registers. Sums begin at zero
// and are added to what is there at the end: in two steps they lose less to rounding than in one.
#pragma once
#include "simd.h"

namespace {

// Rows of a block that go through a product together. Two vectors of sums a row: 12 of AVX2's 16 registers, 24 of
// AVX-512's 32.
constexpr int ROWS = VECTOR_BYTES == 64 ? 12 : 6;
// Keys of a panel: two vectors.
template <typename T> constexpr int PANEL = 2 * LANES<T>;

// scores (ROWS, PANEL) = rows (ROWS, depth) · panel (depth, PANEL)
template <typename T>
INLINE void multiply(const T *rows, int64_t row_stride, const T *panel, int64_t depth, T *scores) {
  Vec<T> sums[ROWS][2] = {};
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    const Vec<T> first = load(panel + k * PANEL<T>), second = load(panel + k * PANEL<T> + LANES<T>);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Vec<T> number = splat(rows[r * row_stride + k]);
      sums[r][0] += number * first;
      sums[r][1] += number * second;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    store(scores + r * PANEL<T>, sums[r][0]);
    store(scores + r * PANEL<T> + LANES<T>, sums[r][1]);
  }
}

// result (ROWS, VECTORS · LANES) += weights (panels, ROWS, PANEL) · values (panels, PANEL, VECTORS · LANES)
template <typename T, int VECTORS>
INLINE void weigh(const T *weights, int64_t weights_stride, const T *values, int64_t values_stride, T *result,
                  int64_t result_stride, int64_t panels) {
  constexpr int L = LANES<T>;
  Vec<T> sums[ROWS][VECTORS] = {};
  for (int64_t p = 0; p < panels; ++p, weights += weights_stride, values += values_stride)
#pragma GCC unroll 2
    for (int k = 0; k < PANEL<T>; ++k) {
      Vec<T> value[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) value[v] = load(values + (k * VECTORS + v) * L);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const Vec<T> weight = splat(weights[r * PANEL<T> + k]);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) sums[r][v] += weight * value[v];
      }
    }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) {
      T *const to = result + r * result_stride + v * L;
      store<T>(to, load(to) + sums[r][v]);
    }
}

// result (KEYS, VECTORS · LANES) += scores (rows, PANEL)ᵀ · rows (rows, VECTORS · LANES), KEYS columns of the scores
template <typename T, int KEYS, int VECTORS>
INLINE void collect_keys(const T *scores, const T *rows, int64_t row_stride, T *result, int64_t result_stride,
                         int count) {
  constexpr int L = LANES<T>;
  for (int j = 0; j < KEYS; ++j)
    for (int v = 0; v < VECTORS; ++v) __builtin_prefetch(result + j * result_stride + v * L, 1);
  Vec<T> sums[KEYS][VECTORS] = {};
#pragma GCC unroll 2
  for (int r = 0; r < count; ++r) {
    Vec<T> value[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) value[v] = load(rows + r * row_stride + v * L);
#pragma GCC unroll 16
    for (int j = 0; j < KEYS; ++j) {
      const Vec<T> score = splat(scores[r * PANEL<T> + j]);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) sums[j][v] += score * value[v];
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < KEYS; ++j)
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) {
      T *const to = result + j * result_stride + v * L;
      store<T>(to, load(to) + sums[j][v]);
    }
}
// The same for any number of keys.
template <typename T, int VECTORS>
inline void collect(int keys, const T *scores, const T *rows, int64_t row_stride, T *result, int64_t result_stride,
                    int count) {
  const auto take = [&]<int KEYS>(std::integral_constant<int, KEYS>) {
    for (; keys >= KEYS; keys -= KEYS, scores += KEYS, result += KEYS * result_stride)
      collect_keys<T, KEYS, VECTORS>(scores, rows, row_stride, result, result_stride, count);
  };
  take(std::integral_constant<int, ROWS>{});
  take(std::integral_constant<int, ROWS / 3 * 2>{});
  take(std::integral_constant<int, 1>{});
}

}  // namespace
