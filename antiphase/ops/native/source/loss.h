// Cross-entropy of each row of logits, forward and backward, without log-probabilities in memory.
#pragma once
#include <cmath>
#include <limits>

#include "attention.h"

namespace {

template <typename In> class Loss {
  using T = typename Statistics<In>::type;
  static constexpr int64_t BLOCK = 32 * LANES<T>;  // columns of a partial sum: few numbers are added in low precision
  static constexpr int64_t IGNORED = -100;
  static constexpr int64_t ROWS_OF_CHUNK = 8;

 public:
  explicit Loss(const antiphase_loss_problem &call) : call_(call) {}

  int run() {
    for (int64_t r = 0; r < call_.rows; ++r)
      if (const int64_t t = call_.targets[r]; (t < 0 || t >= call_.width) && t != IGNORED) return 3;
    for_chunks(call_, ROWS_OF_CHUNK, [this](int64_t, int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) call_.grad ? backward(r) : forward(r);
    });
    return 0;
  }

 private:
  const In *row(int64_t r) const { return static_cast<const In *>(call_.logits) + r * call_.row_stride; }
  T *statistics(int64_t r) const { return static_cast<T *>(call_.statistics) + 2 * r; }

  // log Σ exp(x) - x[target], with a running maximum so that each logit is read from memory once.
  void forward(int64_t r) {
    T &loss = static_cast<T *>(call_.losses)[r];
    const int64_t target = call_.targets[r];
    if (target == IGNORED) {
      loss = statistics(r)[0] = statistics(r)[1] = 0;
      return;
    }
    constexpr T LOWEST = -std::numeric_limits<T>::infinity();
    const In *from = row(r);
    T largest = LOWEST;
    double sum = 0;
    for (int64_t first = 0; first < call_.width; first += BLOCK) {
      const int64_t end = first + BLOCK < call_.width ? first + BLOCK : call_.width;
      Vec<T> top = splat(largest);
      for_columns<T>(first, end, [&](int64_t c, auto count) { top = larger<T>(top, load_part(from + c, count, LOWEST)); });
      const T now = max_of<T>(top);
      const T base = now == LOWEST ? T(0) : now;  // a row may begin with -inf
      if (now > largest) sum *= std::exp(double(largest) - double(now)), largest = now;
      Vec<T> sums{};
      for_columns<T>(first, end, [&](int64_t c, auto count) {
        sums += exp_of<T>(load_part(from + c, count, LOWEST) - base);
      });
      sum += sum_of<T>(sums);
    }
    const double log_sum = std::log(sum);
    loss = T(log_sum + (double(largest) - double(number(from[target]))));
    statistics(r)[0] = largest;
    statistics(r)[1] = T(log_sum);
  }

  // grad · (softmax(x) - one at the target)
  void backward(int64_t r) {
    const In *from = row(r);
    In *to = static_cast<In *>(call_.grad_logits) + r * call_.width;
    const int64_t target = call_.targets[r];
    if (target == IGNORED) {
      for_columns<T>(0, call_.width, [&](int64_t c, auto count) { store_part(to + c, Vec<T>{}, count); });
      return;
    }
    const T grad = static_cast<const T *>(call_.grad)[r], base = statistics(r)[0], log_sum = statistics(r)[1];
    for_columns<T>(0, call_.width, [&](int64_t c, auto count) {
      store_part(to + c, exp_of<T>((load_part(from + c, count) - base) - log_sum) * grad, count);
    });
    put(to + target, T(std::expm1((double(number(from[target])) - base) - log_sum) * grad));
  }

  const antiphase_loss_problem &call_;
};

}  // namespace
