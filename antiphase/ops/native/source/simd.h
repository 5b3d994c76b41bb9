// Vectors of the compiled width, by the vector extensions that GCC and Clang share.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

template <typename T, int COUNT> struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * COUNT)));
};
template <typename T> constexpr int LANES = VECTOR_BYTES / sizeof(T);
template <typename T> using Vec = typename VectorOf<T, LANES<T>>::type;
template <typename T> struct IntegerOf;
template <> struct IntegerOf<float> { using type = int32_t; };
template <> struct IntegerOf<double> { using type = int64_t; };
template <typename T> using Int = typename IntegerOf<T>::type;
template <typename T> using IntVec = typename VectorOf<Int<T>, LANES<T>>::type;
template <typename T> using ByteVec = typename VectorOf<int8_t, LANES<T>>::type;

template <typename T> INLINE Vec<T> load(const T *from) {
  Vec<T> v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <typename T> INLINE void store(T *to, Vec<T> v) { std::memcpy(to, &v, sizeof(v)); }
template <typename T> INLINE Vec<T> splat(T x) { return x - Vec<T>{}; }  // 0 + x would be an addition: it turns -0 into 0
template <typename T> INLINE IntVec<T> iota() {
  IntVec<T> v{};
  for (int i = 0; i < LANES<T>; ++i) v[i] = i;
  return v;
}
// GCC supports Clang's name since version 12.
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLED(V, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
template <typename V> using IndexVec = decltype(V{} < V{});
#define SHUFFLED(V, a, b, ...) __builtin_shuffle(a, b, IndexVec<V>{__VA_ARGS__})
#endif
// Every lane gets the value HALF lanes away, in blocks of twice that size.
template <typename V, int HALF, int... I> INLINE V swapped(V v, std::integer_sequence<int, I...>) {
  return SHUFFLED(V, v, v, (I ^ HALF)...);
}
// One instruction where there is one, which GCC does not find: b for NaN, as the comparison says.
template <typename T> INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) return (Vec<T>)_mm512_max_ps((__m512)a, (__m512)b);
  else return (Vec<T>)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) return (Vec<T>)_mm256_max_ps((__m256)a, (__m256)b);
  else return (Vec<T>)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
  return a > b ? a : b;
#endif
}
template <typename T, int HALF = LANES<T> / 2> INLINE T sum_of(Vec<T> v) {
  if constexpr (HALF == 0) return v[0];
  else return sum_of<T, HALF / 2>(v + swapped<Vec<T>, HALF>(v, std::make_integer_sequence<int, LANES<T>>{}));
}
template <typename T, int HALF = LANES<T> / 2> INLINE T max_of(Vec<T> v) {
  if constexpr (HALF == 0) return v[0];
  else return max_of<T, HALF / 2>(larger<T>(v, swapped<Vec<T>, HALF>(v, std::make_integer_sequence<int, LANES<T>>{})));
}

// The nearest whole number, for |x| < 2^22 (2^51), and the same after an addition that leaves it in the lowest bits.
template <typename T> struct Whole { Vec<T> number, shifted; };
template <typename T> INLINE Whole<T> whole(Vec<T> x) {
  constexpr T SHIFT = std::is_same_v<T, float> ? T(12582912) : T(6755399441055744);
  const Vec<T> shifted = x + SHIFT;
  return {shifted - SHIFT, shifted};
}

// 2^(n + f) for whole n and f in [-1/2, 1/2]. Relative error: 2.5e-9 before rounding in float (degree 6, interpolated at
// the Chebyshev nodes), 5e-18 in double (Taylor).
INLINE Vec<float> power(Whole<float> n, Vec<float> f) {
  Vec<float> p = splat(1.5461444693294768e-4f);
  p = p * f + 1.34004281782533e-3f;
  p = p * f + 9.618056678553505e-3f;
  p = p * f + 5.550327226668675e-2f;
  p = p * f + 2.4022650922288294e-1f;
  p = p * f + 6.931472067028335e-1f;
  p = p * f + 1.f;
#if defined(__AVX512DQ__)
  return _mm512_scalef_ps(p, n.number);
#else
  const IntVec<float> exponent = ((IntVec<float>)n.shifted + 127) << 23;
  return p * (Vec<float>)exponent;
#endif
}
INLINE Vec<double> power(Whole<double> n, Vec<double> f) {
  f = f * 0.693147180559945309417232;
  Vec<double> p = splat(1. / 87178291200.);
  constexpr double inverse[] = {1. / 6227020800, 1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320,
                                1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1., 1.};
  for (double c : inverse) p = p * f + c;
  const IntVec<double> exponent = ((IntVec<double>)n.shifted + 1023) << 52;
  return p * (Vec<double>)exponent;
}

template <typename T> constexpr T LOWEST_POWER = std::is_same_v<T, float> ? -127 : -1023;

// 2^x, which is 0 far below the smallest normal number and NaN for NaN.
INLINE Vec<float> exp2_of(Vec<float> x) {
#if defined(__AVX512DQ__)
  const Vec<float> f = _mm512_reduce_ps(x, 0);
  return power({x - f, x}, f);
#else
  x = larger<float>(splat(LOWEST_POWER<float>), x);
  const Whole<float> n = whole<float>(x);
  return power(n, x - n.number);
#endif
}
INLINE Vec<double> exp2_of(Vec<double> x) {
  x = larger<double>(splat(LOWEST_POWER<double>), x);
  const Whole<double> n = whole<double>(x);
  return power(n, x - n.number);
}

// e^x for x ≤ 0, with the same ends, and 0 below every number that the type holds. Its error does not grow with |x|:
// n · HIGH is exact.
template <typename T> INLINE Vec<T> exp_of(Vec<T> x) {
  constexpr bool SINGLE = std::is_same_v<T, float>;
  constexpr T LOG2_E = T(1.442695040888963407359924681);
  constexpr T HIGH = SINGLE ? T(0.693359375) : T(0.693147180369123816490);  // HIGH + LOW = log 2
  constexpr T LOW = SINGLE ? T(-2.12194440054690583e-4) : T(1.90821492927058781614e-10);
#if defined(__AVX512DQ__)
  constexpr T LOWEST = SINGLE ? T(-151) : LOWEST_POWER<T>;  // `power` gives denormal numbers, and 2^-151 is below them
#else
  constexpr T LOWEST = LOWEST_POWER<T>;
#endif
  x = larger<T>(splat(LOWEST / LOG2_E), x);
  const Whole<T> n = whole<T>(x * LOG2_E);
  return power(n, ((x - n.number * HIGH) - n.number * LOW) * LOG2_E);
}
template <typename T> inline T exp2_one(T x) { return exp2_of(splat(x))[0]; }

// Conversion of the caller's types.
struct BFloat16 { uint16_t bits; };
template <typename In> struct Statistics { using type = In; };
template <> struct Statistics<BFloat16> { using type = float; };
INLINE float number(float x) { return x; }
INLINE double number(double x) { return x; }
INLINE float number(BFloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
INLINE void put(float *to, float x) { *to = x; }
INLINE void put(double *to, double x) { *to = x; }
INLINE void put(BFloat16 *to, float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to->bits = uint16_t((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
}

template <typename In> INLINE Vec<typename Statistics<In>::type> load_wide(const In *from) {
  if constexpr (std::is_same_v<In, BFloat16>) {
    typename VectorOf<uint16_t, LANES<float>>::type half;
    std::memcpy(&half, from, sizeof(half));
    using Wide = typename VectorOf<uint32_t, LANES<float>>::type;
    return (Vec<float>)(__builtin_convertvector(half, Wide) << 16);
  } else {
    return load(from);
  }
}

template <typename In> INLINE void store_narrow(In *to, Vec<typename Statistics<In>::type> v) {
  if constexpr (std::is_same_v<In, BFloat16>) {  // as in put
    using Wide = typename VectorOf<uint32_t, LANES<float>>::type;
    const Wide bits = (Wide)v, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Wide kept = (Wide)((bits & 0x7fffffff) > 0x7f800000 ? (bits >> 16) | 0x40 : rounded);
    const auto half = __builtin_convertvector(kept, typename VectorOf<uint16_t, LANES<float>>::type);
    std::memcpy(to, &half, sizeof(half));
  } else {
    store(to, v);
  }
}

// Calls what(column, how many) from `first` to `end`, LANES columns at a time, and fewer at the end.
template <typename T, typename What> INLINE void for_columns(int64_t first, int64_t end, What what) {
  int64_t c = first;
  for (; c + LANES<T> <= end; c += LANES<T>) what(c, std::integral_constant<int, LANES<T>>{});
  if (c < end) what(c, int(end - c));
}
// A part of a row; lanes beyond `count` have the value `beyond`.
template <typename In, typename T = typename Statistics<In>::type>
INLINE Vec<T> load_part(const In *from, int count, T beyond = 0) {
  Vec<T> v = splat(beyond);
  for (int i = 0; i < count; ++i) v[i] = number(from[i]);
  return v;
}
template <typename In, typename T = typename Statistics<In>::type>
INLINE Vec<T> load_part(const In *from, std::integral_constant<int, LANES<T>>, T = 0) {
  return load_wide(from);
}
template <typename In> INLINE void store_part(In *to, Vec<typename Statistics<In>::type> v, int count) {
  for (int i = 0; i < count; ++i) put(to + i, v[i]);
}
template <typename In, typename T = typename Statistics<In>::type>
INLINE void store_part(In *to, Vec<T> v, std::integral_constant<int, LANES<T>>) {
  store_narrow(to, v);
}

// Operand of the products with STEPS numbers: two bfloat16, the earlier one in the low half, if the processor
// multiplies such pairs; else one number of the type of the sums.
using Pair = uint32_t;
#if defined(__AVX512BF16__)
constexpr bool HAS_PAIRS = true;
#else
constexpr bool HAS_PAIRS = false;
#endif
template <typename In>
using Operand =
    std::conditional_t<std::is_same_v<In, BFloat16> && HAS_PAIRS, Pair, typename Statistics<In>::type>;
template <typename E> constexpr int STEPS = std::is_same_v<E, Pair> ? 2 : 1;
template <typename E> using SumOf = std::conditional_t<std::is_same_v<E, Pair>, float, E>;

template <typename E> INLINE Vec<SumOf<E>> add_product(Vec<SumOf<E>> sums, Vec<E> a, Vec<E> b) {
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<E, Pair>) return (Vec<float>)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
  else
#endif
    return sums + a * b;
}
INLINE Pair pair_of(BFloat16 low, BFloat16 high) { return low.bits | Pair(high.bits) << 16; }
#if defined(__AVX512BF16__)
// Two vectors rounded: neighbours 2i and 2i + 1 of their concatenation form pair i.
INLINE Vec<Pair> pairs_along(Vec<float> first, Vec<float> second) {
  return (Vec<Pair>)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}
// Number i of the first and number i of the second form pair i.
INLINE Vec<Pair> pairs_across(Vec<float> first, Vec<float> second) {
  const auto wide = [](Vec<float> v) { return (Vec<Pair>)_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v)); };
  return wide(first) | wide(second) << 16;
}
#endif

// Transposes LANES × LANES numbers in registers: log2(LANES) rounds, each of which exchanges blocks of half the size.
template <typename V, int HALF, bool HIGH, int... I>
INLINE V exchange(V a, V b, std::integer_sequence<int, I...>) {
  constexpr int count = sizeof...(I);
  return SHUFFLED(
      V, a, b, ((I & HALF) ? (HIGH ? count + I : count + I - HALF) : (HIGH ? I + HALF : I))...);
}
template <typename T, int HALF> INLINE void transpose_round(Vec<T> *rows) {
  if constexpr (HALF > 0) {
    using Order = std::make_integer_sequence<int, LANES<T>>;
#pragma GCC unroll 16
    for (int i = 0; i < LANES<T>; ++i)
      if (!(i & HALF)) {
        const Vec<T> a = rows[i], b = rows[i + HALF];
        rows[i] = exchange<Vec<T>, HALF, false>(a, b, Order{});
        rows[i + HALF] = exchange<Vec<T>, HALF, true>(a, b, Order{});
      }
    transpose_round<T, HALF / 2>(rows);
  }
}
template <typename T> INLINE void transpose(Vec<T> *rows) { transpose_round<T, LANES<T> / 2>(rows); }

}  // namespace
