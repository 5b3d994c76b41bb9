// The kernels for one kind of processor: compiled once for each, with ANTIPHASE_ENTRY naming the way in.
#include <new>

#include "few.h"

namespace {

template <typename In, bool BACKWARD> int run(const antiphase_problem &call) {
  return call.maps == 2 ? Attention<In, 2, BACKWARD>(call).run() : Attention<In, 1, BACKWARD>(call).run();
}
template <typename In> int dispatch(const antiphase_problem &call) {
  if (call.task == ANTIPHASE_FEW)
    return call.maps == 2 ? FewQueries<In, 2>(call).run() : FewQueries<In, 1>(call).run();
  return call.task == ANTIPHASE_BACKWARD ? run<In, true>(call) : run<In, false>(call);
}

}  // namespace

extern "C" int ANTIPHASE_ENTRY(const antiphase_problem *call) {
  try {
    switch (call->dtype) {
      case ANTIPHASE_FLOAT32: return dispatch<float>(*call);
      case ANTIPHASE_BFLOAT16: return dispatch<BFloat16>(*call);
      case ANTIPHASE_FLOAT64: return dispatch<double>(*call);
      default: return 2;
    }
  } catch (const std::bad_alloc &) {  // nothing throws where several threads work
    return 1;
  }
}
