// The kernels for one kind of processor: compiled once per kind, which ANTIPHASE_KIND names.
#include <new>

#include "few.h"
#include "loss.h"
#include "meter.h"
#include "norm.h"

#define JOINED(a, b) a##b
#define NAMED(name, kind) JOINED(name, kind)

namespace {

template <typename In, bool BACKWARD> int run(const antiphase_problem &call) {
  return call.maps == 2 ? Attention<In, 2, BACKWARD>(call).run() : Attention<In, 1, BACKWARD>(call).run();
}
template <typename In> int run(const antiphase_problem &call) {
  if (call.shared < 1 || call.shared > (call.maps == 2 ? MOST_SHARED : 1) || call.repeats % call.shared) return 2;
  return call.task == ANTIPHASE_BACKWARD ? run<In, true>(call) : run<In, false>(call);
}
template <typename In> int dispatch(const antiphase_problem &call) {
  if (call.task == ANTIPHASE_FEW)
    return call.maps == 2 ? FewQueries<In, 2>(call).run() : FewQueries<In, 1>(call).run();
  return run<In>(call);
}

}  // namespace

#if !defined(__AVX512BF16__)
extern "C" int NAMED(antiphase_norm_, ANTIPHASE_KIND)(const antiphase_norm_problem *call) {
  switch (call->dtype) {
    case ANTIPHASE_FLOAT32: return Norm<float>(*call).run();
    case ANTIPHASE_BFLOAT16: return Norm<BFloat16>(*call).run();
    case ANTIPHASE_FLOAT64: return Norm<double>(*call).run();
    default: return 2;
  }
}

extern "C" int NAMED(antiphase_loss_, ANTIPHASE_KIND)(const antiphase_loss_problem *call) {
  switch (call->dtype) {
    case ANTIPHASE_FLOAT32: return Loss<float>(*call).run();
    case ANTIPHASE_BFLOAT16: return Loss<BFloat16>(*call).run();
    case ANTIPHASE_FLOAT64: return Loss<double>(*call).run();
    default: return 2;
  }
}

extern "C" int NAMED(antiphase_meter_, ANTIPHASE_KIND)(const antiphase_meter_problem *call) {
  switch (call->dtype) {
    case ANTIPHASE_FLOAT32: return Meter<float>(*call).run();
    case ANTIPHASE_BFLOAT16: return Meter<BFloat16>(*call).run();
    case ANTIPHASE_FLOAT64: return Meter<double>(*call).run();
    default: return 2;
  }
}

extern "C" int NAMED(antiphase_run_, ANTIPHASE_KIND)(const antiphase_problem *call) {
  try {
    switch (call->dtype) {
      case ANTIPHASE_FLOAT32: return dispatch<float>(*call);
      case ANTIPHASE_BFLOAT16: return dispatch<BFloat16>(*call);
      case ANTIPHASE_FLOAT64: return dispatch<double>(*call);
      default: return 2;
    }
  } catch (const std::bad_alloc &) {  // worker threads never throw
    return 1;
  }
}
#else
extern "C" int NAMED(antiphase_meter_, ANTIPHASE_KIND)(const antiphase_meter_problem *call) {
  return call->dtype == ANTIPHASE_BFLOAT16 ? Meter<BFloat16>(*call).run() : 2;
}

// For this kind, only the kernels that multiply pairs of bfloat16 are compiled; the others are the same as without.
extern "C" int NAMED(antiphase_run_, ANTIPHASE_KIND)(const antiphase_problem *call) {
  try {
    return call->dtype == ANTIPHASE_BFLOAT16 && call->task != ANTIPHASE_FEW ? run<BFloat16>(*call) : 2;
  } catch (const std::bad_alloc &) {  // as above
    return 1;
  }
}
#endif
