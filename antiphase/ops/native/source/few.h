// Attention of a few queries over many keys: a decoding step, whose time is that of reading keys and values, once each
// and in the layout of the cache. Has no derivatives.
//
// Keys are split into chunks of a fixed size, independent of the number of threads, so that every sum is computed in
// the same order. First the scores and exponentials of all chunks are computed; when a group's rows are complete, the
// product with the values follows. A thread starts with its own share of the groups, which is the same in every call:
// memory that it read in the previous step, or copied when the cache grew, is close to it. Then it takes remaining
// parts of other shares.
#pragma once
#include <cmath>

#include "attention.h"

namespace {

constexpr int CHUNK = 512;  // keys

// Lane i of the result is the sum of the lanes of vectors[i].
template <typename T, int HALF = LANES<T> / 2> INLINE Vec<T> sums_of(Vec<T> *vectors) {
  if constexpr (HALF == 0) {
    return vectors[0];
  } else {
    using Order = std::make_integer_sequence<int, LANES<T>>;
#pragma GCC unroll 16
    for (int i = 0; i < HALF; ++i)
      vectors[i] = exchange<Vec<T>, HALF, false>(vectors[i], vectors[i + HALF], Order{}) +
                   exchange<Vec<T>, HALF, true>(vectors[i], vectors[i + HALF], Order{});
    return sums_of<T, HALF / 2>(vectors);
  }
}

template <typename In, int S> class FewQueries {
  using T = typename Statistics<In>::type;
  static constexpr int L = LANES<T>;

 public:
  explicit FewQueries(const antiphase_problem &call) : call_(call) {
    d_columns_ = round_up(call.width, L), dv_columns_ = round_up(call.value_width, L);
    units_ = call.batch * call.groups, rows_ = call.repeats * call.queries;
    chunks_ = std::max<int64_t>(1, divide_up(call.keys, CHUNK)), keys_ = chunks_ * CHUNK;
    factor_ = T(call.scale * 1.4426950408889634074);
    threads_ = call.parallel ? int(std::max<int64_t>(1, std::min<int64_t>(call.threads, units_ * chunks_))) : 1;
  }

  int run() {
    Cutter counted(nullptr);
    cut(counted);
    char *base = shared_room.take(counted.used() + 64);
    if (!base) return 1;
    Cutter cutter(base);
    cut(cutter);
    for (int64_t u = 0; u < units_; ++u) scored_[u].store(0), weighed_[u].store(0);
    for (int share = 0; share < threads_; ++share)
      to_score_[share].next.store(begin(share)), to_weigh_[share].next.store(begin(share));
    if (threads_ == 1)
      work(0);
    else
      call_.parallel(
          [](void *self) {
            auto *few = static_cast<FewQueries *>(self);
            few->work(few->call_.thread() % few->threads_);
          },
          this, unsigned(threads_), 0);
    bool is_done = true;
    for (int share = 0; share < threads_; ++share) is_done &= to_weigh_[share].next.load() >= begin(share + 1);
    shared_room.trim();
    return is_done ? 0 : 1;
  }

 private:
  struct alignas(64) Share {  // the parts: a group and a chunk of its keys
    std::atomic<int64_t> next;
  };

  void cut(Cutter &cutter) {
    scores_ = cutter.cut<T>(units_ * S * rows_ * keys_);
    maximum_ = cutter.cut<T>(units_ * chunks_ * S * rows_);
    sum_ = cutter.cut<T>(units_ * chunks_ * S * rows_);
    query_ = cutter.cut<T>(units_ * chunks_ * S * rows_ * d_columns_);
    result_ = cutter.cut<T>(units_ * chunks_ * rows_ * dv_columns_);
    scored_ = cutter.cut<std::atomic<int64_t>>(units_);
    weighed_ = cutter.cut<std::atomic<int64_t>>(units_);
    to_score_ = cutter.cut<Share>(threads_);
    to_weigh_ = cutter.cut<Share>(threads_);
  }

  int64_t begin(int share) const { return units_ * chunks_ * share / threads_; }

  // Calls what(unit, chunk) for the parts of a thread's own share, then for remaining parts of other shares.
  template <typename What> void each(Share *shares, int thread, What what) const {
    for (int i = 0; i < threads_; ++i) {
      const int share = (thread + i) % threads_;
      for (int64_t part; (part = shares[share].next.fetch_add(1)) < begin(share + 1);)
        what(part / chunks_, part % chunks_);
    }
  }

  void work(int thread) {
    each(to_score_, thread, [&](int64_t unit, int64_t chunk) {
      score(unit, chunk);
      scored_[unit].fetch_add(1);
    });
    each(to_weigh_, thread, [&](int64_t unit, int64_t chunk) {  // all scores are already taken, so waits are short
      wait_until([&] { return scored_[unit].load() == chunks_; });
      weigh_chunk(unit, chunk);
      if (weighed_[unit].fetch_add(1) + 1 == chunks_) write(unit);
    });
  }

  // Row r of a group is query r % N of its head r / N.
  int64_t head_of(int64_t unit, int64_t row) const {
    return unit % call_.groups * call_.repeats + row / call_.queries;
  }
  T *scores_of(int64_t unit, int map, int64_t row, int64_t chunk) const {
    return scores_ + ((unit * S + map) * rows_ + row) * keys_ + chunk * CHUNK;
  }
  int64_t place(int64_t unit, int64_t chunk, int map, int64_t row) const {
    return ((unit * chunks_ + chunk) * S + map) * rows_ + row;
  }

  void score(int64_t unit, int64_t chunk) {
    const int64_t batch = unit / call_.groups, group = unit % call_.groups;
    const int64_t first = chunk * CHUNK, count = std::min<int64_t>(CHUNK, call_.keys - first);
    T *const queries = query_ + (unit * chunks_ + chunk) * S * rows_ * d_columns_;
    for (int m = 0; m < S; ++m)
      for (int64_t r = 0; r < rows_; ++r) {
        const In *from = static_cast<const In *>(call_.query) + batch * call_.query_stride[0] +
                         (head_of(unit, r) * S + m) * call_.query_stride[1] +
                         r % call_.queries * call_.query_stride[2];
        for (int64_t c = 0; c < call_.width; ++c) queries[(m * rows_ + r) * d_columns_ + c] = number(from[c]);
      }
    const bool is_seen = seen(unit, first, count);
    for (int m = 0; m < S; ++m) {
      const In *keys = static_cast<const In *>(call_.key) + batch * call_.key_stride[0] +
                       (group * call_.key_maps + m % call_.key_maps) * call_.key_stride[1] +
                       first * call_.key_stride[2];
      for (int64_t j = 0; j < count && is_seen; j += L)
        for (int64_t r = 0; r < rows_; ++r)
          store<T>(scores_of(unit, m, r, chunk) + j,
                   dot(queries + (m * rows_ + r) * d_columns_, keys + j * call_.key_stride[2],
                       int(std::min<int64_t>(L, count - j))));
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = place(unit, chunk, m, r);
        maximum_[at] = -std::numeric_limits<T>::infinity(), sum_[at] = 0;
        if (is_seen) exponentials(unit, r, first, count, scores_of(unit, m, r, chunk), maximum_[at], sum_[at]);
      }
    }
  }

  // One query with `count` keys, at most LANES: key by key, in memory order.
  INLINE Vec<T> dot(const T *query, const In *keys, int count) const {
    const In *rows[L];
    for (int i = 0; i < L; ++i) rows[i] = keys + std::min(i, count - 1) * call_.key_stride[2];
    Vec<T> sums[L] = {};
    const int64_t ahead = L * call_.key_stride[2];
    int64_t c = 0;
    for (; c + 4 * L <= call_.width; c += 4 * L) add_columns<4>(query + c, rows, c, ahead, sums);
    for (; c + L <= call_.width; c += L) add_columns<1>(query + c, rows, c, ahead, sums);
    Vec<T> total = sums_of<T>(sums);
    for (; c < call_.width; ++c) {
      Vec<T> column{};
      for (int i = 0; i < L; ++i) column[i] = number(rows[i][c]);
      total += column * query[c];
    }
    return total;
  }
  template <int VECTORS>
  static INLINE void add_columns(const T *query, const In *const *rows, int64_t column, int64_t ahead, Vec<T> *sums) {
    Vec<T> q[VECTORS];
    for (int v = 0; v < VECTORS; ++v) q[v] = load(query + v * L);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        __builtin_prefetch(rows[i] + column + v * L + ahead);
        sums[i] += q[v] * load_wide(rows[i] + column + v * L);
      }
  }

  int64_t keys_end(int64_t row) const {
    return call_.causal || call_.window
               ? std::max<int64_t>(0, call_.keys - call_.queries + row % call_.queries + 1)
               : call_.keys;
  }
  int64_t keys_begin(int64_t row) const {
    return call_.window ? std::max<int64_t>(0, call_.keys - call_.queries + row % call_.queries + 1 - call_.window) : 0;
  }
  const uint8_t *mask_of(int64_t unit, int64_t row) const {
    return call_.mask + unit / call_.groups * call_.mask_stride[0] + head_of(unit, row) * call_.mask_stride[1] +
           row % call_.queries * call_.mask_stride[2];
  }

  // Whether a row sees any of these keys; and whether any row does.
  bool sees(int64_t unit, int64_t row, int64_t first, int64_t count) const {
    const int64_t begin = std::max(first, keys_begin(row)), end = std::min(first + count, keys_end(row));
    if (begin >= end || !call_.mask) return begin < end;
    return std::any_of(mask_of(unit, row) + begin, mask_of(unit, row) + end, [](uint8_t b) { return b; });
  }
  bool seen(int64_t unit, int64_t first, int64_t count) const {
    for (int64_t r = 0; r < rows_; ++r)
      if (sees(unit, r, first, count)) return true;
    return false;
  }

  void exponentials(int64_t unit, int64_t row, int64_t first, int64_t count, T *scores, T &maximum, T &sum) const {
    const T hidden = -std::numeric_limits<T>::infinity();
    const int64_t begin = std::max<int64_t>(0, keys_begin(row) - first);
    const int64_t end = std::max(begin, std::min(count, keys_end(row) - first)), whole = round_up(count, L);
    std::fill(scores, scores + std::min(begin, whole), hidden);
    std::fill(scores + std::min(end, whole), scores + whole, hidden);
    if (call_.mask) {
      const uint8_t *mask = mask_of(unit, row) + first;
      for (int64_t j = begin; j < end; ++j) scores[j] = mask[j] ? scores[j] : hidden;
    }
    Vec<T> most = splat(hidden), sums{};
    for (int64_t j = 0; j < whole; j += L) most = larger<T>(most, load(scores + j));
    maximum = max_of<T>(most);
    const Vec<T> less = splat(maximum == hidden ? T(0) : maximum);
    for (int64_t j = 0; j < whole; j += L) {
      const Vec<T> x = exp2_of((load(scores + j) - less) * factor_);
      store<T>(scores + j, x);
      sums += x;
    }
    sum = sum_of<T>(sums);
  }

  // The factor of a chunk's exponentials in the whole row.
  T share(int64_t unit, int64_t chunk, int map, int64_t row) const {
    T most = -std::numeric_limits<T>::infinity(), total = 0;
    for (int64_t c = 0; c < chunks_; ++c) {
      const T other = maximum_[place(unit, c, map, row)];
      most = other > most || other != other ? other : most;
    }
    if (most == -std::numeric_limits<T>::infinity())  // largest score: no key is visible, or all scores are -inf
      return sees(unit, row, 0, call_.keys) ? std::numeric_limits<T>::quiet_NaN() : T(0);
    for (int64_t c = 0; c < chunks_; ++c) {
      const int64_t at = place(unit, c, map, row);
      if (sum_[at] != 0) total += sum_[at] * exp2_one((maximum_[at] - most) * factor_);
    }
    return exp2_one((maximum_[place(unit, chunk, map, row)] - most) * factor_) / total;
  }

  void weigh_chunk(int64_t unit, int64_t chunk) {
    const int64_t batch = unit / call_.groups, group = unit % call_.groups;
    const int64_t first = chunk * CHUNK, count = std::min<int64_t>(CHUNK, call_.keys - first);
    T *const result = result_ + (unit * chunks_ + chunk) * rows_ * dv_columns_;
    std::fill(result, result + rows_ * dv_columns_, T(0));
    bool is_seen = false;
    for (int m = 0; m < S; ++m)
      for (int64_t r = 0; r < rows_; ++r) is_seen |= sum_[place(unit, chunk, m, r)] != 0 || sees(unit, r, first, count);
    if (!is_seen) return;
    for (int64_t r = 0; r < rows_; ++r) {
      T *x = scores_of(unit, 0, r, chunk);
      const T *y = scores_of(unit, S - 1, r, chunk);
      const int64_t head = head_of(unit, r);
      const T lam = S == 1 ? T(0)
                           : static_cast<const T *>(call_.lam)[batch * call_.lam_stride[0] + head * call_.lam_stride[1] +
                                                               r % call_.queries * call_.lam_stride[2]];
      const Vec<T> a = splat(share(unit, chunk, 0, r)), b = splat(S == 1 ? T(0) : lam * share(unit, chunk, S - 1, r));
      for (int64_t j = 0; j < count; j += L) store<T>(x + j, S == 1 ? a * load(x + j) : a * load(x + j) - b * load(y + j));
    }
    const int64_t parts = call_.value_parts, width = call_.value_width / parts;
    for (int64_t part = 0; part < parts; ++part) {
      const In *values = static_cast<const In *>(call_.value) + batch * call_.value_stride[0] +
                         (group * parts + part) * call_.value_stride[1] + first * call_.value_stride[2];
      for (int64_t r = 0; r < rows_;) {
        const T *weights = scores_of(unit, 0, r, chunk);
        T *to = result + r * dv_columns_ + part * width;
        if (rows_ - r >= 4)
          strips<4>(weights, values, width, count, to), r += 4;
        else if (rows_ - r >= 2)
          strips<2>(weights, values, width, count, to), r += 2;
        else
          strips<1>(weights, values, width, count, to), r += 1;
      }
    }
  }

  template <int R>
  void strips(const T *weights, const In *values, int64_t width, int64_t count, T *to) const {
    int64_t c = 0;
    for (; c + 4 * L <= width; c += 4 * L) strip<R, 4>(weights, values + c, count, to + c);
    for (; c + L <= width; c += L) strip<R, 1>(weights, values + c, count, to + c);
    for (; c < width; ++c)
      for (int r = 0; r < R; ++r) {
        T total = 0;
        for (int64_t j = 0; j < count; ++j) total += weights[r * keys_ + j] * number(values[j * call_.value_stride[2] + c]);
        to[r * dv_columns_ + c] = total;
      }
  }
  template <int R, int VECTORS>
  INLINE void strip(const T *weights, const In *values, int64_t count, T *to) const {
    Vec<T> sums[R][VECTORS] = {};
    const int64_t stride = call_.value_stride[2];
    for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        __builtin_prefetch(values + (j + 8) * stride + v * L);
        const Vec<T> value = load_wide(values + j * stride + v * L);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[r][v] += value * weights[r * keys_ + j];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < VECTORS; ++v) store<T>(to + r * dv_columns_ + v * L, sums[r][v]);
  }

  void write(int64_t unit) {
    const int64_t batch = unit / call_.groups;
    T *const total = result_ + unit * chunks_ * rows_ * dv_columns_;
    for (int64_t chunk = 1; chunk < chunks_; ++chunk)
      for (int64_t i = 0; i < rows_ * dv_columns_; ++i) total[i] += total[chunk * rows_ * dv_columns_ + i];
    for (int64_t r = 0; r < rows_; ++r) {
      In *out = static_cast<In *>(call_.out) + batch * call_.out_stride[0] + head_of(unit, r) * call_.out_stride[1] +
                r % call_.queries * call_.out_stride[2];
      T *const row = total + r * dv_columns_;
      if (call_.norm_weight) normalize(row);
      for (int64_t c = 0; c < call_.value_width; ++c) put(out + c, row[c]);
    }
  }

  // As in norm.h; padding after the row is zero.
  void normalize(T *row) const {
    const In *weight = static_cast<const In *>(call_.norm_weight);
    Vec<T> squares{};
    for (int64_t c = 0; c < dv_columns_; c += L) squares += load(row + c) * load(row + c);
    const T mean = sum_of<T>(squares) / T(call_.value_width);
    const T scale = T(call_.norm_factor) / std::sqrt(mean + T(call_.norm_epsilon));
    for (int64_t c = 0; c < call_.value_width; ++c) row[c] *= scale * number(weight[c]);
  }

  const antiphase_problem &call_;
  int64_t d_columns_, dv_columns_, units_, rows_, chunks_, keys_;
  T factor_;
  T *scores_, *maximum_, *sum_, *query_, *result_;
  std::atomic<int64_t> *scored_, *weighed_;
  int threads_;
  Share *to_score_, *to_weigh_;
};

}  // namespace
