// A decoding step as operators of PyTorch, through its stable C interface: reading a step's tensors through Python takes
// longer than attention to a few hundred keys. The interface's functions come by address, so that neither building nor
// loading the library needs PyTorch.
#include <cmath>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "problem.h"

extern "C" float antiphase_lambda(const float *const vectors[4], int64_t width, double initial);
extern "C" int antiphase_run(const antiphase_problem *call);

// In the order of INTERFACE in steps.py; functions as in torch/csrc/inductor/aoti_torch/c/shim.h and
// torch/csrc/stable/c/shim.h, which return 0 for success.
struct antiphase_torch {
  int32_t (*get_dim)(void *tensor, int64_t *rank);
  int32_t (*get_sizes)(void *tensor, int64_t **sizes);
  int32_t (*get_strides)(void *tensor, int64_t **strides);
  int32_t (*get_dtype)(void *tensor, int32_t *dtype);
  int32_t (*get_const_data_ptr)(void *tensor, const void **data);
  int32_t (*get_data_ptr)(void *tensor, void **data);
  int32_t (*empty_strided)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device,
                           int32_t index, void **tensor);
  int32_t (*copy)(void *to, void *from, int32_t non_blocking);
  int32_t (*delete_tensor)(void *tensor);
  int32_t (*get_num_threads)(uint32_t *threads);
  int32_t (*library_init_impl)(const char *space, const char *key, const char *file, uint32_t line, void **library);
  int32_t (*library_impl)(void *library, const char *name, void (*function)(uint64_t *, uint64_t, uint64_t),
                          uint64_t version);
  void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);
  int (*thread)(void);
};

namespace {
// Numbers of PyTorch's ScalarType, which its stable interface keeps; those of CPU and of version 2.11.
enum { FLOAT = 6, DOUBLE = 7, BOOL = 11, BFLOAT16 = 15, CPU = 0 };
constexpr uint64_t VERSION = uint64_t{2} << 56 | uint64_t{11} << 48;

antiphase_torch torch;

void check(int32_t status) {
  if (status) throw std::runtime_error("PyTorch's stable C interface refused a call");
}

// A tensor that this owns, or none.
struct Tensor {
  void *handle = nullptr;
  int64_t rank = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = -1;

  explicit Tensor(void *owned) : handle(owned) { read(); }
  Tensor(const Tensor &) = delete;
  void read() {
    if (!handle) return;
    check(torch.get_dim(handle, &rank));
    check(torch.get_sizes(handle, &sizes));
    check(torch.get_strides(handle, &strides));
    check(torch.get_dtype(handle, &dtype));
  }
  // Copies it unless its rows are contiguous; of rank 1 to 4.
  void make_rows_contiguous() {
    if (!handle || has_contiguous_rows()) return;
    int64_t whole[4] = {1, 1, 1, 1};
    for (int64_t i = rank - 1; i > 0; --i) whole[i - 1] = whole[i] * sizes[i];
    void *copy;
    check(torch.empty_strided(rank, sizes, whole, dtype, CPU, -1, &copy));
    std::swap(handle, copy);
    const Tensor old(copy);
    check(torch.copy(handle, old.handle, 0));
    read();
  }
  ~Tensor() {
    if (handle) torch.delete_tensor(handle);
  }
  explicit operator bool() const { return handle; }
  const void *data() const {
    const void *found = nullptr;
    if (handle) check(torch.get_const_data_ptr(handle, &found));
    return found;
  }
  int64_t count() const {
    int64_t all = 1;
    for (int64_t i = 0; i < rank; ++i) all *= sizes[i];
    return all;
  }
  bool has_contiguous_rows() const { return strides[rank - 1] == 1 || sizes[rank - 1] == 1; }
  bool is_vector(int64_t width, int32_t of) const {
    return rank == 1 && dtype == of && sizes[0] == width && has_contiguous_rows();
  }
  // Whether it broadcasts to these sizes, and the strides of the first three dimensions there.
  bool broadcasts(std::initializer_list<int64_t> wanted, int64_t to[3]) const {
    if (rank > int64_t(wanted.size())) return false;
    int64_t i = rank - int64_t(wanted.size()), at = 0;  // negative: a dimension that it does not have
    for (int64_t target : wanted) {
      if (i >= 0 && sizes[i] != target && sizes[i] != 1) return false;
      if (at < 3) to[at++] = i < 0 || sizes[i] == 1 ? 0 : strides[i];
      ++i;
    }
    return true;
  }
  std::string shape() const {
    if (!handle) return "none";
    std::string text = "(";
    for (int64_t i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
    return text + ")";
  }
};

// The arguments of an operator, from the first on; those it takes become its own.
struct Arguments {
  uint64_t *next;
  void *tensor() { return reinterpret_cast<void *>(*next++); }
  void *optional_tensor() {
    const std::unique_ptr<uint64_t> held(reinterpret_cast<uint64_t *>(*next++));
    return held ? reinterpret_cast<void *>(*held) : nullptr;
  }
  int64_t integer() { return static_cast<int64_t>(*next++); }
  bool boolean() { return *next++ & 1; }
  double number() {
    double found;
    __builtin_memcpy(&found, next++, sizeof found);
    return found;
  }
};

void strides_of(const Tensor &tensor, int64_t to[3]) {
  for (int i = 0; i < 3; ++i) to[i] = tensor.strides[i];
}

// A few queries over many keys; λ is a tensor, or a number of the call.
struct Step {
  Tensor query, key, value, lam, mask;
  int64_t groups, window;
  bool causal;
  double scale;

  uint64_t run(int64_t maps, const float *number, const Tensor *weight, double epsilon, double factor) {
    const bool is_double = query.dtype == DOUBLE;
    if ((query.dtype != FLOAT && query.dtype != BFLOAT16 && !is_double) || key.dtype != query.dtype ||
        value.dtype != query.dtype || (lam && lam.dtype != (is_double ? DOUBLE : FLOAT)) || (mask && mask.dtype != BOOL))
      throw std::invalid_argument("query, key and value must share a dtype, fp32, bf16 or fp64, lam must be fp32 (fp64 "
                                  "for fp64), and mask boolean");
    if (groups < 1 || window < 0 || !(scale > 0) || std::isinf(scale))
      throw std::invalid_argument("groups must be at least 1, sliding_window at least 0, scale above 0 and finite");
    if (query.rank != 4 || key.rank != 4 || value.rank != 4) refuse(maps, weight);
    for (Tensor *tensor : {&query, &key, &value, &mask})
      if (tensor != &mask || (mask && mask.rank > 0 && mask.rank <= 4)) tensor->make_rows_contiguous();
    const int64_t batch = query.sizes[0], heads = query.sizes[1] / maps, queries = query.sizes[2], width = query.sizes[3];
    const int64_t keys = key.sizes[2], key_maps = key.sizes[1] / groups, parts = value.sizes[1] / groups;
    const int64_t value_width = parts * value.sizes[3];
    const int64_t sizes[4] = {batch, heads, queries, value_width};
    antiphase_problem call{};
    if (!(heads > 0 && width > 0 && key.sizes[3] == width && value_width > 0 && 1 <= key_maps && key_maps <= maps &&
          1 <= parts && parts <= 2 && query.sizes[1] == heads / groups * groups * maps && key.sizes[0] == batch &&
          value.sizes[0] == batch && key.sizes[1] == groups * key_maps && value.sizes[1] == groups * parts &&
          value.sizes[2] == keys && (!lam || lam.count() == 1 || lam.broadcasts({batch, heads, queries}, call.lam_stride)) &&
          (!mask || (mask.broadcasts({batch, heads, queries, keys}, call.mask_stride) && mask.rank > 0 &&
                     mask.sizes[mask.rank - 1] == keys)) &&
          (!weight || weight->is_vector(value_width, query.dtype))))
      refuse(maps, weight);
    // stored as (B, N, H, dv), so that the layer's reshape costs nothing
    const int64_t strides[4] = {queries * heads * value_width, value_width, heads * value_width, 1};
    void *out;
    check(torch.empty_strided(4, sizes, strides, query.dtype, CPU, -1, &out));
    Tensor result(out);
    const double exact = number ? *number : 0;
    uint32_t threads;
    check(torch.get_num_threads(&threads));
    call.query = query.data(), call.key = key.data(), call.value = value.data();
    call.mask = static_cast<const uint8_t *>(mask.data());
    call.lam = !number ? lam.data() : is_double ? static_cast<const void *>(&exact) : number;
    check(torch.get_data_ptr(out, &call.out));
    strides_of(query, call.query_stride), strides_of(key, call.key_stride), strides_of(value, call.value_stride);
    strides_of(result, call.out_stride);
    call.batch = batch, call.groups = groups, call.repeats = heads / groups, call.maps = maps, call.key_maps = key_maps;
    call.queries = queries, call.keys = keys, call.width = width, call.value_width = value_width;
    call.value_parts = parts, call.shared = 1, call.window = window, call.scale = scale, call.causal = causal;
    call.dtype = is_double ? ANTIPHASE_FLOAT64 : query.dtype == FLOAT ? ANTIPHASE_FLOAT32 : ANTIPHASE_BFLOAT16;
    if (weight) call.norm_weight = weight->data(), call.norm_epsilon = epsilon, call.norm_factor = factor;
    call.task = ANTIPHASE_FEW, call.threads = torch.parallel ? int32_t(threads) : 1;
    call.parallel = torch.parallel, call.thread = torch.thread;
    if (const int status = antiphase_run(&call)) {
      if (status == 1) throw std::bad_alloc();
      throw std::runtime_error("the native kernels refused the problem");
    }
    return reinterpret_cast<uint64_t>(std::exchange(result.handle, nullptr));
  }

  [[noreturn]] void refuse(int64_t maps, const Tensor *weight) const {
    throw std::invalid_argument(
        "query " + query.shape() + ", key " + key.shape() + ", value " + value.shape() + ", lam " + lam.shape() +
        ", mask " + mask.shape() + (weight ? ", norm " + weight->shape() : "") + " do not fit together for " +
        std::to_string(groups) + " value heads and " + std::to_string(maps) + " maps a head");
  }
};

void attend_few(uint64_t *stack, uint64_t, uint64_t) {
  Arguments given{stack};
  void *const query = given.tensor(), *const key = given.tensor(), *const value = given.tensor();
  void *const lam = given.optional_tensor(), *const mask = given.optional_tensor();
  const int64_t groups = given.integer();
  const bool causal = given.boolean();
  const int64_t window = given.integer();
  Step step{Tensor(query), Tensor(key), Tensor(value), Tensor(lam), Tensor(mask), groups, window, causal,
            given.number()};
  stack[0] = step.run(step.lam ? 2 : 1, nullptr, nullptr, 0, 0);
}

void v1_step(uint64_t *stack, uint64_t, uint64_t) {
  Arguments given{stack};
  void *const query = given.tensor(), *const key = given.tensor(), *const value = given.tensor();
  const Tensor vectors[4]{Tensor(given.tensor()), Tensor(given.tensor()), Tensor(given.tensor()), Tensor(given.tensor())};
  const Tensor weight(given.tensor());
  void *const mask = given.optional_tensor();
  const int64_t groups = given.integer();
  const bool causal = given.boolean();
  const int64_t window = given.integer();
  Step step{Tensor(query), Tensor(key), Tensor(value), Tensor(nullptr), Tensor(mask), groups, window, causal,
            given.number()};
  const float *data[4];
  for (int i = 0; i < 4; ++i) {
    if (step.query.rank != 4 || !vectors[i].is_vector(step.query.sizes[3], FLOAT))
      throw std::invalid_argument("λ takes four contiguous fp32 vectors as wide as the queries " + step.query.shape() +
                                  ", got " + vectors[i].shape());
    data[i] = static_cast<const float *>(vectors[i].data());
  }
  const double initial = given.number(), epsilon = given.number(), factor = given.number();
  const float lam = antiphase_lambda(data, step.query.sizes[3], initial);
  stack[0] = step.run(2, &lam, &weight, epsilon, factor);
}
}  // namespace

// Registers both operators, whose schemas exist; 0: success.
extern "C" __attribute__((visibility("default"))) int antiphase_register(const antiphase_torch *interface) {
  torch = *interface;
  void *library;  // never deleted, which would take the operators back
  return torch.library_init_impl("antiphase", "CPU", "steps.cpp", 0, &library) ||
         torch.library_impl(library, "native_attention_of_few", attend_few, VERSION) ||
         torch.library_impl(library, "native_v1_step", v1_step, VERSION);
}
