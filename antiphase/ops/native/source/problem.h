// One call of the library, as described by the caller. Plain C, so that any language can fill it in.
//
// Sizes: B batch, G value heads (groups), R heads per group, S maps per head (2: differential, 1: softmax), K keys per
// group (S, or 1 if both maps share one), N queries, M keys, d and dv widths. Strides count elements; the last
// dimension of every tensor except lam is contiguous. `shared` neighbouring heads subtract the second map of the first
// of them, which is formed once: the second queries of the others are not read, and have gradient 0. Such heads have one
// mask.
#pragma once
#include <stdint.h>

enum { ANTIPHASE_FLOAT32 = 0, ANTIPHASE_BFLOAT16 = 1, ANTIPHASE_FLOAT64 = 2 };
enum { ANTIPHASE_FORWARD = 0, ANTIPHASE_BACKWARD = 1, ANTIPHASE_FEW = 2 };

typedef struct {
  const void *query;  // (B, G R S, N, d)
  const void *key;    // (B, G K, M, d)
  const void *value;  // (B, G parts, M, dv / parts)
  const void *lam;    // (B, G R, N) by strides; float, or double in float64 problems. Not read if S = 1
  const uint8_t *mask;  // (B, G R, N, M) by strides, nonzero = may attend; or null
  const int32_t *query_edges, *key_edges;  // (sequences + 1,) for packed sequences with B = 1; or null
  void *out;         // (B, G R, N, dv)
  void *statistics;  // (B, G R S, N, 2), contiguous: largest score and 1 / sum of each row; float or double; or null
  const void *grad;  // (B, G R, N, dv)
  void *grad_query, *grad_key, *grad_value;  // contiguous
  void *grad_lam;    // (B, G R, N), contiguous, float or double
  const void *norm_weight;  // (dv,); for few queries: a norm of every output row follows, as below; or null
  int64_t query_stride[3], key_stride[3], value_stride[3], lam_stride[3], mask_stride[3], out_stride[3], grad_stride[3];
  int64_t batch, groups, repeats, maps, key_maps, queries, keys, width, value_width, value_parts, sequences;
  int64_t shared;  // a divisor of repeats, at most 4; 1: each head has its own second map
  int64_t window;  // 0: no window
  double scale;    // above 0
  double norm_epsilon, norm_factor;
  int32_t causal, dtype, task, threads;
  // runs function(data) on the given number of threads, as GOMP_parallel does
  void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);
  int (*thread)(void);  // index of the calling thread, from 0, as in omp_get_thread_num
} antiphase_problem;

// y = factor · x / √(mean of x² + epsilon) · weight for each row; with `grad`, the gradients of x and of weight
// instead.
typedef struct {
  const void *input, *weight;  // (rows, width) and (width,), contiguous
  const void *grad;            // (rows, width), contiguous; null in forward
  void *output;                // (rows, width): y, or the gradient of x
  void *grad_weight;           // (width,)
  int64_t rows, width;
  double epsilon, factor;
  int32_t dtype, threads;
  void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);  // as above
} antiphase_norm_problem;

// Cross-entropy of each row: -log softmax(logits)[target], or 0 where the target is -100; with `grad`, the gradient of
// the logits instead.
typedef struct {
  const void *logits;      // (rows, width), rows contiguous
  const int64_t *targets;  // (rows,), contiguous, from 0 to width - 1, or -100
  const void *grad;        // (rows,), contiguous, float or double; null in forward
  void *losses;            // (rows,), float or double
  void *statistics;        // (rows, 2): largest logit x and log Σ exp(… - x) of each row, float or double
  void *grad_logits;       // (rows, width), contiguous
  int64_t rows, width, row_stride;
  int32_t dtype, threads;
  void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);  // as above
} antiphase_loss_problem;

// An inner loop alone, `rounds` times on each thread: a product of scores, of weights and values or of the gradient of
// keys, or the exponentials.
enum { ANTIPHASE_LOOP_SCORES = 0, ANTIPHASE_LOOP_VALUES = 1, ANTIPHASE_LOOP_KEYS = 2, ANTIPHASE_LOOP_EXPONENTIALS = 3 };
typedef struct {
  int64_t *operations;  // of all threads: additions and multiplications, or exponentials
  int64_t rounds;
  int32_t loop, dtype, threads;
  void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);  // as above
} antiphase_meter_problem;
