// The three matrix products of attention, each for a block of scores with all sums in registers. Sums start at zero and
// are added to memory at the end; these two steps lose less to rounding than one. Operands E contain STEPS numbers
// each, neighbours in the dimension of the sum.
#pragma once
#include "tiles.h"

namespace {

// Rows of a block that are multiplied together. Two vectors of sums per row: 12 of AVX2's 16 registers, 24 of AVX-512's
// 32; or the rows of a tile.
constexpr int ROWS = HAS_TILES ? 16 : VECTOR_BYTES == 64 ? 12 : 6;
// Keys in a panel: two vectors.
template <typename T> constexpr int PANEL = 2 * LANES<T>;

// scores (ROWS, PANEL) = rows (ROWS, depth) · panel (depth, PANEL), depth in operands
template <typename E>
INLINE void multiply(const E *rows, int64_t row_stride, const E *panel, int64_t depth, SumOf<E> *scores) {
#if HAS_TILES
  return multiply_tiles(rows, row_stride, panel, depth, scores);
#endif
  using T = SumOf<E>;
  Vec<T> sums[ROWS][2] = {};
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    const Vec<E> first = load(panel + k * PANEL<T>), second = load(panel + k * PANEL<T> + LANES<T>);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Vec<E> number = splat(rows[r * row_stride + k]);
      sums[r][0] = add_product<E>(sums[r][0], first, number);
      sums[r][1] = add_product<E>(sums[r][1], second, number);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r) {
    store(scores + r * PANEL<T>, sums[r][0]);
    store(scores + r * PANEL<T> + LANES<T>, sums[r][1]);
  }
}

// result (ROWS, VECTORS · LANES) += weights (panels, ROWS, PANEL) · values (panels, PANEL, VECTORS · LANES), PANEL keys
// in operands; the weights of a row start PANEL operands after those of the previous row
template <typename E, int VECTORS>
INLINE void weigh(const E *weights, int64_t weights_stride, const E *values, int64_t values_stride, SumOf<E> *result,
                  int64_t result_stride, int64_t panels) {
#if HAS_TILES
  return weigh_tiles<VECTORS>(weights, weights_stride, values, values_stride, result, result_stride, panels);
#endif
  using T = SumOf<E>;
  constexpr int L = LANES<T>;
  Vec<T> sums[ROWS][VECTORS] = {};
  for (int64_t p = 0; p < panels; ++p, weights += weights_stride, values += values_stride)
#pragma GCC unroll 2
    for (int k = 0; k < PANEL<T> / STEPS<E>; ++k) {
      Vec<E> value[VECTORS];
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) value[v] = load(values + (k * VECTORS + v) * L);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) {
        const Vec<E> weight = splat(weights[r * PANEL<T> + k]);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = add_product<E>(sums[r][v], value[v], weight);
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

// result (KEYS, VECTORS · LANES) += scores (count, PANEL)ᵀ · rows (count, VECTORS · LANES), KEYS columns of the scores and
// count rows in operands
template <typename E, int KEYS, int VECTORS>
INLINE void collect_keys(const E *scores, int64_t scores_stride, const E *rows, int64_t row_stride, SumOf<E> *result,
                         int64_t result_stride, int count) {
  using T = SumOf<E>;
  constexpr int L = LANES<T>;
  for (int j = 0; j < KEYS; ++j)
    for (int v = 0; v < VECTORS; ++v) __builtin_prefetch(result + j * result_stride + v * L, 1);
  Vec<T> sums[KEYS][VECTORS] = {};
#pragma GCC unroll 2
  for (int r = 0; r < count; ++r) {
    Vec<E> value[VECTORS];
#pragma GCC unroll 2
    for (int v = 0; v < VECTORS; ++v) value[v] = load(rows + r * row_stride + v * L);
#pragma GCC unroll 16
    for (int j = 0; j < KEYS; ++j) {
      const Vec<E> score = splat(scores[r * scores_stride + j]);
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; ++v) sums[j][v] = add_product<E>(sums[j][v], value[v], score);
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
template <typename E, int VECTORS>
inline void collect(int keys, const E *scores, int64_t scores_stride, const E *rows, int64_t row_stride,
                    SumOf<E> *result, int64_t result_stride, int count) {
  const auto take = [&]<int KEYS>(std::integral_constant<int, KEYS>) {
    for (; keys >= KEYS; keys -= KEYS, scores += KEYS, result += KEYS * result_stride)
      collect_keys<E, KEYS, VECTORS>(scores, scores_stride, rows, row_stride, result, result_stride, count);
  };
  take(std::integral_constant<int, ROWS>{});
  take(std::integral_constant<int, ROWS / 3 * 2>{});
  take(std::integral_constant<int, 1>{});
}

}  // namespace
