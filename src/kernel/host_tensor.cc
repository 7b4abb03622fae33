#include "kernel/host_tensor.h"

namespace contextile {

HostTensor normal_tensor(Rng& rng, Dtype dtype, std::int64_t tokens, std::int32_t heads,
                         std::int32_t dim) {
  HostTensor tensor(dtype, tokens, heads, dim);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int32_t h = 0; h < heads; ++h) {
      for (float& value : row) value = static_cast<float>(rng.normal());
      write_row(tensor.view(), n, h, row);
    }
  }
  return tensor;
}

}  // namespace contextile
