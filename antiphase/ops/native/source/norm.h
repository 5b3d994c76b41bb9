// RMSNorm of every row, forward and backward. The head norm is this with a factor.
//
// The weight's gradient is summed by chunks of a fixed size, so that its order does not depend on the number of threads.
#pragma once
#include <algorithm>
#include <cmath>

#include "attention.h"

namespace {

template <typename In> class Norm {
  using T = typename Statistics<In>::type;
  static constexpr int L = LANES<T>;
  static constexpr int64_t ROWS_OF_CHUNK = 128;

 public:
  explicit Norm(const antiphase_norm_problem &call)
      : call_(call), chunks_(divide_up(call.rows, ROWS_OF_CHUNK)), columns_(round_up(call.width, L)) {}

  int run() {
    if (call_.grad) {
      weight_sums_ = reinterpret_cast<T *>(shared_room.take((chunks_ * columns_ + 1) * sizeof(T)));
      if (!weight_sums_) return 1;
      std::fill(weight_sums_, weight_sums_ + chunks_ * columns_, T(0));
    }
    for_chunks(call_, ROWS_OF_CHUNK, [this](int64_t chunk, int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) call_.grad ? backward(r, weight_sums_ + chunk * columns_) : forward(r);
    });
    if (!call_.grad) return 0;
    for (int64_t c = 0; c < call_.width; ++c) {
      T total = 0;
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) total += weight_sums_[chunk * columns_ + c];
      put(static_cast<In *>(call_.grad_weight) + c, total);
    }
    shared_room.trim();
    return 0;
  }

 private:
  template <typename What> INLINE void columns(What what) const { for_columns<T>(0, call_.width, what); }

  // 1 / √(mean of squares + epsilon)
  T scale_of(const In *row) const {
    Vec<T> sums{};
    columns([&](int64_t c, auto count) {
      const Vec<T> x = load_part(row + c, count);
      sums += x * x;
    });
    return T(1) / std::sqrt(sum_of<T>(sums) / T(call_.width) + T(call_.epsilon));
  }

  void forward(int64_t r) {
    const In *from = static_cast<const In *>(call_.input) + r * call_.width;
    const In *weight = static_cast<const In *>(call_.weight);
    In *to = static_cast<In *>(call_.output) + r * call_.width;
    const T scale = scale_of(from) * T(call_.factor);
    columns([&](int64_t c, auto count) {
      store_part(to + c, load_part(from + c, count) * scale * load_part(weight + c, count), count);
    });
  }

  // With s = 1 / √(…) and g = factor · weight ∘ dy: dx = s g - x s³ (g · x) / width, dweight = Σ factor · s dy ∘ x.
  void backward(int64_t r, T *weight_sums) {
    const In *from = static_cast<const In *>(call_.input) + r * call_.width;
    const In *grad = static_cast<const In *>(call_.grad) + r * call_.width;
    const In *weight = static_cast<const In *>(call_.weight);
    In *to = static_cast<In *>(call_.output) + r * call_.width;
    const T scale = scale_of(from), whole = scale * T(call_.factor);
    Vec<T> products{};
    columns([&](int64_t c, auto count) {
      const Vec<T> one = load_part(grad + c, count) * load_part(from + c, count);
      store<T>(weight_sums + c, load(weight_sums + c) + one * whole);
      products += one * load_part(weight + c, count);
    });
    const T back = sum_of<T>(products) * whole * scale * scale / T(call_.width);
    columns([&](int64_t c, auto count) {
      store_part(to + c, load_part(grad + c, count) * load_part(weight + c, count) * whole - load_part(from + c, count) * back, count);
    });
  }

  const antiphase_norm_problem &call_;
  const int64_t chunks_, columns_;
  T *weight_sums_ = nullptr;
};

}  // namespace
