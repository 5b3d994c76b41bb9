// The inner loops alone, on data that stays in the first cache, so that a processor's speed in each can be measured.
#pragma once
#include "attention.h"

namespace {

template <typename In> class Meter {
  using T = typename Statistics<In>::type;
  using E = Operand<In>;
  static constexpr int L = LANES<T>, PW = PANEL<T>, PW_STEPS = PW / STEPS<E>, WIDTH = 64, PANELS = 2, EXPONENTS = 1024;
  static constexpr int D_STEPS = WIDTH / STEPS<E>;

  // Operands as in attention.h. Zeros: their products take as long as others, and sums never overflow.
  struct alignas(64) Data {
    E rows[BLOCK * WIDTH] = {}, weights[PANELS * BLOCK * PW] = {}, panel[WIDTH * PW] = {}, values[PANELS * PW * 2 * L] = {};
    T scores[BLOCK * PW] = {}, result[PW * WIDTH + BLOCK * 2 * L] = {}, exponents[EXPONENTS] = {};
  };

 public:
  explicit Meter(const antiphase_meter_problem &call) : call_(call) {}

  int run() {
    *call_.operations = 0;
    if (call_.threads == 1 || !call_.parallel)
      work();
    else
      call_.parallel([](void *self) { static_cast<const Meter *>(self)->work(); }, this, unsigned(call_.threads), 0);
    return 0;
  }

 private:
  // Of one round: additions and multiplications, or exponentials.
  int64_t operations() const {
    switch (call_.loop) {
      case ANTIPHASE_LOOP_SCORES: return 2 * BLOCK * PW * WIDTH;
      case ANTIPHASE_LOOP_VALUES: return 2 * BLOCK * PANELS * PW * 2 * L;
      case ANTIPHASE_LOOP_KEYS: return 2 * BLOCK * PW * WIDTH;
      default: return EXPONENTS;
    }
  }

  void work() const {
    const Tiles tiles;
    Data data;
    for (int64_t i = 0; i < call_.rounds; ++i) {
      __asm__ volatile("" ::"r"(&data) : "memory");  // every round reads and writes memory anew
      round(data);
    }
    __atomic_fetch_add(call_.operations, call_.rounds * operations(), __ATOMIC_RELAXED);  // of threads that there were
  }

  void round(Data &data) const {
    switch (call_.loop) {
      case ANTIPHASE_LOOP_SCORES:
        for (int r = 0; r < BLOCK; r += ROWS)
          multiply<E>(data.rows + r * D_STEPS, D_STEPS, data.panel, D_STEPS, data.scores + r * PW);
        break;
      case ANTIPHASE_LOOP_VALUES:
        for (int r = 0; r < BLOCK; r += ROWS)
          weigh<E, 2>(data.weights + r * PW, BLOCK * PW, data.values, PW_STEPS * 2 * L, data.result + r * 2 * L, 2 * L,
                      PANELS);
        break;
      case ANTIPHASE_LOOP_KEYS:
#if HAS_TILES
        collect_tiles(PW, data.weights, PW, data.rows, WIDTH, WIDTH, data.result, BLOCK / STEPS<E>);
#else
        for (int c = 0; c < WIDTH; c += 2 * L)
          collect<E, 2>(PW, data.weights, PW, data.rows + c, WIDTH, data.result + c, WIDTH, BLOCK / STEPS<E>);
#endif
        break;
      default:
        for (int i = 0; i < EXPONENTS; i += L) store<T>(data.exponents + i, exp2_of(load(data.exponents + i) - T(1)));
    }
  }

  const antiphase_meter_problem &call_;
};

}  // namespace
