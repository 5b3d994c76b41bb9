// Calls of every kind through the library's own interface, without Python: inputs that are equal on every processor, and
// all that comes out.
#pragma once
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "problem.h"

extern "C" int antiphase_run(const antiphase_problem *);
extern "C" int antiphase_norm(const antiphase_norm_problem *);
extern "C" int antiphase_loss(const antiphase_loss_problem *);
extern "C" float antiphase_lambda(const float *const vectors[4], int64_t, double);
extern "C" int antiphase_choose(int);

namespace {

constexpr int64_t B = 2, G = 2, R = 2, N = 150, D = 24, DV = 64, CACHE = 1100;
thread_local int own_index = 0;

void parallel(void (*function)(void *), void *data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i)
    others.emplace_back([=] {
      own_index = int(i);
      function(data);
    });
  own_index = 0;
  function(data);
  for (std::thread &other : others) other.join();
}
int thread_index() { return own_index; }

using Bytes = std::vector<unsigned char>;

size_t size_of(int dtype) { return dtype == ANTIPHASE_FLOAT64 ? 8 : dtype == ANTIPHASE_BFLOAT16 ? 2 : 4; }

Bytes numbers(int64_t count, int dtype, unsigned seed) {
  std::mt19937 generator(seed);
  const auto uniform = [&] { return int32_t(generator()) * 0x1p-31; };
  Bytes found(count * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float x = float(uniform() + uniform() + uniform());  // of variance 1; the library's normal numbers round
    const double wide = x;
    if (dtype == ANTIPHASE_FLOAT64) std::memcpy(&found[i * 8], &wide, 8);
    else if (dtype == ANTIPHASE_FLOAT32) std::memcpy(&found[i * 4], &x, 4);
    else std::memcpy(&found[i * 2], reinterpret_cast<const unsigned char *>(&x) + 2, 2);
  }
  return found;
}

struct Form {
  int dtype, maps, key_maps, causal, parts;
  int64_t window, shared;
};

struct Part {
  int dtype;
  Bytes bytes;
  bool operator==(const Part &) const = default;
};
struct Results {
  int status;
  std::vector<Part> parts;
  bool operator==(const Results &) const = default;
};

// What forward, backward, a few queries, the norm and the loss give.
Results results(const Form &form, int threads) {
  const int exact = form.dtype == ANTIPHASE_FLOAT64 ? ANTIPHASE_FLOAT64 : ANTIPHASE_FLOAT32;
  const int64_t maps = G * R * form.maps, key_maps = G * form.key_maps, heads = G * R;
  const Bytes query = numbers(B * maps * N * D, form.dtype, 1), key = numbers(B * key_maps * N * D, form.dtype, 2);
  const Bytes value = numbers(B * G * N * DV, form.dtype, 3), lam = numbers(B * heads * N, exact, 4);
  const Bytes grad = numbers(B * heads * N * DV, form.dtype, 5), weight = numbers(DV, form.dtype, 6);
  Bytes out(grad.size()), statistics(B * maps * N * 2 * size_of(exact)), grad_query(query.size()), grad_key(key.size());
  Bytes grad_value(value.size()), grad_lam(lam.size()), step(B * heads * 2 * DV * size_of(form.dtype));
  const Bytes cached_key = numbers(B * key_maps * CACHE * D, form.dtype, 7);
  const Bytes cached_value = numbers(B * G * CACHE * DV, form.dtype, 8);
  const Bytes vectors = numbers(4 * D, ANTIPHASE_FLOAT32, 9);
  Bytes normed(out.size()), grad_input(out.size()), grad_weight(weight.size());
  antiphase_problem call{};
  call.query = query.data(), call.key = key.data(), call.value = value.data(), call.lam = lam.data();
  call.out = out.data(), call.statistics = statistics.data(), call.grad = grad.data();
  call.grad_query = grad_query.data(), call.grad_key = grad_key.data(), call.grad_value = grad_value.data();
  call.grad_lam = grad_lam.data();
  const auto by_head = [](int64_t *stride, int64_t all, int64_t rows, int64_t width) {
    stride[0] = all * rows * width, stride[1] = rows * width, stride[2] = width;
  };
  by_head(call.query_stride, maps, N, D), by_head(call.key_stride, key_maps, N, D), by_head(call.value_stride, G * form.parts, N, DV / form.parts);
  by_head(call.lam_stride, heads, N, 1), by_head(call.out_stride, heads, N, DV), by_head(call.grad_stride, heads, N, DV);
  call.batch = B, call.groups = G, call.repeats = R, call.maps = form.maps, call.key_maps = form.key_maps;
  call.queries = call.keys = N, call.width = D, call.value_width = DV, call.value_parts = form.parts;
  call.shared = form.shared, call.window = form.window, call.scale = 0.3, call.causal = form.causal, call.dtype = form.dtype;
  call.threads = threads, call.parallel = parallel, call.thread = thread_index;
  int status = antiphase_run(&call);
  call.task = ANTIPHASE_BACKWARD;
  status |= antiphase_run(&call);
  call.task = ANTIPHASE_FEW, call.queries = 2, call.keys = CACHE, call.out = step.data(), call.statistics = nullptr;
  call.key = cached_key.data(), call.value = cached_value.data();
  by_head(call.key_stride, key_maps, CACHE, D), by_head(call.value_stride, G * form.parts, CACHE, DV / form.parts);
  const float *by_vector[4];
  for (int i = 0; i < 4; ++i) by_vector[i] = reinterpret_cast<const float *>(vectors.data()) + i * D;
  const float single = antiphase_lambda(by_vector, D, 0.2);
  const double exact_single = single;
  call.lam = form.dtype == ANTIPHASE_FLOAT64 ? static_cast<const void *>(&exact_single) : &single;
  by_head(call.lam_stride, 0, 0, 0);
  call.norm_weight = weight.data(), call.norm_epsilon = 1e-5, call.norm_factor = 0.8;
  by_head(call.out_stride, heads, 2, DV);
  status |= antiphase_run(&call);
  antiphase_norm_problem norm{};
  norm.input = out.data(), norm.weight = weight.data(), norm.output = normed.data();
  norm.rows = B * heads * N, norm.width = DV, norm.epsilon = 1e-5, norm.factor = 0.8, norm.dtype = form.dtype;
  norm.threads = threads, norm.parallel = parallel;
  status |= antiphase_norm(&norm);
  norm.grad = grad.data(), norm.output = grad_input.data(), norm.grad_weight = grad_weight.data();
  status |= antiphase_norm(&norm);
  antiphase_loss_problem loss{};
  const int64_t rows = B * heads * N;
  std::vector<int64_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = r % 7 == 3 ? -100 : r % DV;
  const Bytes grad_losses = numbers(rows, exact, 10);
  Bytes losses(grad_losses.size()), loss_statistics(2 * grad_losses.size()), grad_logits(out.size());
  loss.logits = out.data(), loss.targets = targets.data(), loss.losses = losses.data();
  loss.statistics = loss_statistics.data(), loss.rows = rows, loss.width = loss.row_stride = DV;
  loss.dtype = form.dtype, loss.threads = threads, loss.parallel = parallel;
  status |= antiphase_loss(&loss);
  loss.grad = grad_losses.data(), loss.grad_logits = grad_logits.data();
  status |= antiphase_loss(&loss);
  Results all{status, {}};
  for (const Bytes *part : {&out, &grad_query, &grad_key, &grad_value, &step, &normed, &grad_input, &grad_weight, &grad_logits})
    all.parts.push_back({form.dtype, *part});
  for (const Bytes *part : {&statistics, &grad_lam, &losses, &loss_statistics}) all.parts.push_back({exact, *part});
  return all;
}

// Both maps with keys of their own, shared keys and a window, softmax attention, and second maps that heads share.
constexpr std::array<std::array<int, 6>, 4> FORMS{
    {{2, 2, 1, 2, 0, 1}, {2, 1, 1, 1, 40, 1}, {1, 1, 0, 1, 0, 1}, {2, 2, 1, 2, 0, 2}}};

}  // namespace
