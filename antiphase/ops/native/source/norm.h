// RMSNorm of every row, forward and backward. The head norm is this with a factor.
//
// Rows are split into chunks of a fixed size, independent of the number of threads, so that the weight's gradient is
// always summed in the same order.
#pragma once
#include <algorithm>
#include <cmath>

#include "attention.h"

namespace {

constexpr int64_t ROWS_OF_CHUNK = 128;
constexpr int64_t NUMBERS_OF_THREAD = 32768;  // with fewer, another thread costs more than it saves

template <typename In> class Norm {
  using T = typename Statistics<In>::type;
  static constexpr int L = LANES<T>;

 public:
  explicit Norm(const antiphase_norm_problem &call)
      : call_(call), chunks_(divide_up(call.rows, ROWS_OF_CHUNK)), columns_(round_up(call.width, L)) {}

  int run() {
    if (call_.grad) {
      weight_sums_ = reinterpret_cast<T *>(shared_room.take((chunks_ * columns_ + 1) * sizeof(T)));
      if (!weight_sums_) return 1;
      std::fill(weight_sums_, weight_sums_ + chunks_ * columns_, T(0));
    }
    const int64_t useful = std::min(chunks_, call_.rows * call_.width / NUMBERS_OF_THREAD);
    const unsigned threads = unsigned(std::min<int64_t>(call_.threads, useful));
    if (threads <= 1 || !call_.parallel)
      work();
    else
      call_.parallel([](void *self) { static_cast<Norm *>(self)->work(); }, this, threads, 0);
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
  void work() {
    for (int64_t chunk; (chunk = next_.fetch_add(1)) < chunks_;)
      for (int64_t r = chunk * ROWS_OF_CHUNK, end = std::min(call_.rows, r + ROWS_OF_CHUNK); r < end; ++r)
        call_.grad ? backward(r, weight_sums_ + chunk * columns_) : forward(r);
  }

  // Calls what(column, how many) for the row, LANES columns at a time, and fewer at its end.
  template <typename What> INLINE void columns(What what) const {
    int64_t c = 0;
    for (; c + L <= call_.width; c += L) what(c, std::integral_constant<int, L>{});
    if (c < call_.width) what(c, int(call_.width - c));
  }
  static INLINE Vec<T> part(const In *from, int count) {
    Vec<T> v{};
    for (int i = 0; i < count; ++i) v[i] = number(from[i]);
    return v;
  }
  static INLINE Vec<T> part(const In *from, std::integral_constant<int, L>) { return load_wide(from); }
  template <typename Count> static INLINE void put_part(In *to, Vec<T> v, Count count) {
    for (int i = 0; i < count; ++i) put(to + i, v[i]);
  }
  static INLINE void put_part(T *to, Vec<T> v, std::integral_constant<int, L>) { store<T>(to, v); }

  // 1 / √(mean of squares + epsilon)
  T scale_of(const In *row) const {
    Vec<T> sums{};
    columns([&](int64_t c, auto count) {
      const Vec<T> x = part(row + c, count);
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
      put_part(to + c, part(from + c, count) * scale * part(weight + c, count), count);
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
      const Vec<T> one = part(grad + c, count) * part(from + c, count);
      store<T>(weight_sums + c, load(weight_sums + c) + one * whole);
      products += one * part(weight + c, count);
    });
    const T back = sum_of<T>(products) * whole * scale * scale / T(call_.width);
    columns([&](int64_t c, auto count) {
      put_part(to + c, part(grad + c, count) * part(weight + c, count) * whole - part(from + c, count) * back, count);
    });
  }

  const antiphase_norm_problem &call_;
  const int64_t chunks_, columns_;
  T *weight_sums_ = nullptr;
  std::atomic<int64_t> next_{0};
};

}  // namespace
