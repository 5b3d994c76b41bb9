// Writes what the kernels compute to standard output, so that two processors can be compared: for each part its dtype,
// its size in bytes, and the bytes. Exit code 1 where a call is refused.
#include <cstdio>

#include "calls.h"

int main() {
  if (!antiphase_choose(0)) return 1;
  for (int dtype : {ANTIPHASE_FLOAT32, ANTIPHASE_BFLOAT16, ANTIPHASE_FLOAT64})
    for (const auto [maps, key_maps, causal, parts, window, shared] : FORMS) {
      const Results found = results({dtype, maps, key_maps, causal, parts, window, shared}, 1);
      if (found.status) return 1;
      for (const Part &part : found.parts) {
        const int64_t header[] = {part.dtype, int64_t(part.bytes.size())};
        std::fwrite(header, sizeof(header), 1, stdout);
        std::fwrite(part.bytes.data(), 1, part.bytes.size(), stdout);
      }
    }
}
