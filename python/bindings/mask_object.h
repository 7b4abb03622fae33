// A mask as Python holds it, with the number of tokens it was made for.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "contextile/mask.h"

namespace contextile::python {

struct MaskObject {
  Mask mask;
  std::optional<std::int64_t> num_tokens = {};  // if known
};

// q begin and end, k begin and end, lo, hi; an empty optional is no bound.
using BandRow = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                           std::optional<std::int64_t>, std::optional<std::int64_t>>;

[[nodiscard]] std::vector<BandRow> rows_of(const Mask& mask);
// Throws InvalidArgument if two bands share a pair or one leaves the tokens.
[[nodiscard]] MaskObject mask_of_bands(const std::vector<BandRow>& rows,
                                       std::optional<std::int64_t> num_tokens);

}  // namespace contextile::python
