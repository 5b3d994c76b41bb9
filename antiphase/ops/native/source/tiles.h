// The products of products.h with AMX: tiles of 16 × 16 pairs of bfloat16, with sums in float. Dimensions of sums are
// padded with zeros to 16 pairs, or to 8 for a block's queries.
#pragma once
#include "simd.h"

#if defined(__AMX_BF16__)
#define HAS_TILES 1
#else
#define HAS_TILES 0
#endif

namespace {

#if HAS_TILES
constexpr int TILE_STEPS = 16;  // pairs in a row of a tile, and rows of a tile

// Shapes of the eight tiles in the processor's format. Tiles 0 and 1 contain sums, 2 the left factor, 3 and 4 the right
// one; 5, 6 and 7 are the factors if only 8 pairs are left.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, none[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
};

#if defined(ANTIPHASE_EMULATED_TILES)
// Emulation of the instructions in plain C++, for tests on processors without them.
inline thread_local Pair emulated[8][16][16];
inline thread_local TileShapes shapes;
inline void tile_load(int tile, const void *from, int64_t stride) {
  for (int r = 0; r < shapes.rows[tile]; ++r)
    std::memcpy(emulated[tile][r], static_cast<const char *>(from) + r * stride, shapes.bytes[tile]);
}
inline void tile_store(int tile, void *to, int64_t stride) {
  for (int r = 0; r < shapes.rows[tile]; ++r)
    std::memcpy(static_cast<char *>(to) + r * stride, emulated[tile][r], shapes.bytes[tile]);
}
inline void tile_zero(int tile) { std::memset(emulated[tile], 0, sizeof(emulated[tile])); }
inline void tile_multiply(int sums, int left, int right) {
  for (int r = 0; r < shapes.rows[sums]; ++r)
    for (int c = 0; c < shapes.bytes[sums] / 4; ++c) {
      float sum;
      std::memcpy(&sum, &emulated[sums][r][c], 4);
      for (int k = 0; k < shapes.bytes[left] / 4; ++k) {
        const Pair a = emulated[left][r][k], b = emulated[right][k][c];
        sum += number(BFloat16{uint16_t(a)}) * number(BFloat16{uint16_t(b)});
        sum += number(BFloat16{uint16_t(a >> 16)}) * number(BFloat16{uint16_t(b >> 16)});
      }
      std::memcpy(&emulated[sums][r][c], &sum, 4);
    }
}
#define TILE_LOAD(tile, from, stride) tile_load(tile, from, stride)
#define TILE_STORE(tile, to, stride) tile_store(tile, to, stride)
#define TILE_ZERO(tile) tile_zero(tile)
#define TILE_MULTIPLY(sums, left, right) tile_multiply(sums, left, right)
inline void shape_tiles(const TileShapes &given) { shapes = given; }
inline void release_tiles() {}
#else
// Forces earlier writes to memory: GCC's intrinsic does not declare that it reads memory.
#define TILE_LOAD(tile, from, stride)     \
  do {                                    \
    __asm__ volatile("" ::: "memory");    \
    _tile_loadd(tile, from, stride);      \
  } while (0)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_MULTIPLY(sums, left, right) _tile_dpbf16ps(sums, left, right)
// Not by GCC's intrinsic, which declares that it reads 8 of the 64 bytes: the others may never be written.
inline void shape_tiles(const TileShapes &given) { __asm__ volatile("ldtilecfg %0" ::"m"(given)); }
inline void release_tiles() { _tile_release(); }
#endif

// Gives the tiles of a thread these shapes until the end of the scope.
class Tiles {
 public:
  Tiles() { shape_tiles(TileShapes{}); }
  ~Tiles() { release_tiles(); }
  Tiles(const Tiles &) = delete;
};

// As in products.h, with 16 rows; depth is a multiple of 16 pairs.
INLINE void multiply_tiles(const Pair *rows, int64_t row_stride, const Pair *panel, int64_t depth, float *scores) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (int64_t k = 0; k < depth; k += TILE_STEPS) {
    TILE_LOAD(2, rows + k, row_stride * 4);
    TILE_LOAD(3, panel + k * 32, 128);
    TILE_LOAD(4, panel + k * 32 + 16, 128);
    TILE_MULTIPLY(0, 2, 3);
    TILE_MULTIPLY(1, 2, 4);
  }
  TILE_STORE(0, scores, 128);
  TILE_STORE(1, scores + 16, 128);
}

// result (rows, VECTORS · 16) += contents of tiles 0 and 1
template <int VECTORS> INLINE void add_tiles(float *result, int64_t result_stride, int rows) {
  alignas(64) float sums[16][32];
  TILE_STORE(0, sums[0], 128);
  if (VECTORS == 2) TILE_STORE(1, sums[0] + 16, 128);
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < VECTORS; ++v) {
      float *const to = result + r * result_stride + v * 16;
      store<float>(to, load(to) + load(sums[r] + v * 16));
    }
}

// As in products.h, with 16 rows.
template <int VECTORS>
INLINE void weigh_tiles(const Pair *weights, int64_t weights_stride, const Pair *values, int64_t values_stride,
                        float *result, int64_t result_stride, int64_t panels) {
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (int64_t p = 0; p < panels; ++p, weights += weights_stride, values += values_stride) {
    TILE_LOAD(2, weights, 128);
    TILE_LOAD(3, values, VECTORS * 64);
    TILE_MULTIPLY(0, 2, 3);
    if (VECTORS == 2) {
      TILE_LOAD(4, values + 16, VECTORS * 64);
      TILE_MULTIPLY(1, 2, 4);
    }
  }
  add_tiles<VECTORS>(result, result_stride, TILE_STEPS);
}

// result (keys, columns) += scores (count, PANEL)ᵀ · rows (count, columns), count in pairs, at most 32, columns a
// multiple of 16; up to 8 pairs of rows after the last one are zero.
inline void collect_tiles(int keys, const Pair *scores, int64_t scores_stride, const Pair *rows, int64_t row_stride,
                          int64_t columns, float *result, int count) {
  const int steps = (count + 7) / 8 * 8;
  for (int half = 0; half < keys; half += 16) {
    alignas(64) Pair turned[16][32];  // for 16 keys: the scores of one key per row
    for (int k = 0; k < steps; k += 16) {
      Vec<Pair> block[16];
      for (int i = 0; i < 16; ++i) block[i] = k + i < count ? load(scores + (k + i) * scores_stride + half) : Vec<Pair>{};
      transpose<Pair>(block);
      for (int i = 0; i < 16; ++i) store(turned[i] + k, block[i]);
    }
    for (int64_t c = 0; c < columns; c += 32) {
      const bool is_wide = columns - c >= 32;
      TILE_ZERO(0);
      TILE_ZERO(1);
      int k = 0;
      for (; k + 16 <= steps; k += 16) {
        TILE_LOAD(2, turned[0] + k, 128);
        TILE_LOAD(3, rows + k * row_stride + c, row_stride * 4);
        TILE_MULTIPLY(0, 2, 3);
        if (is_wide) {
          TILE_LOAD(4, rows + k * row_stride + c + 16, row_stride * 4);
          TILE_MULTIPLY(1, 2, 4);
        }
      }
      if (k < steps) {
        TILE_LOAD(5, turned[0] + k, 128);
        TILE_LOAD(6, rows + k * row_stride + c, row_stride * 4);
        TILE_MULTIPLY(0, 5, 6);
        if (is_wide) {
          TILE_LOAD(7, rows + k * row_stride + c + 16, row_stride * 4);
          TILE_MULTIPLY(1, 5, 7);
        }
      }
      float *const to = result + half * columns + c;
      const int here = keys - half < 16 ? keys - half : 16;
      if (is_wide) add_tiles<2>(to, columns, here);
      else add_tiles<1>(to, columns, here);
    }
  }
}
#else
constexpr int TILE_STEPS = 1;
struct Tiles {};
#endif

}  // namespace
