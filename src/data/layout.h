// Home layouts: which rank already holds which tokens (--layout).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/workload.h"

namespace contextile {

// `text` is
//   contiguous  rank r holds [T·r/R, T·(r+1)/R) of the packed batch,
//   zigzag      rank r holds chunks r and 2R-1-r of the 2R equal chunks of every sequence, clipped
//   to the
//               sequence (Transformer Engine's layout without its padding),
//   anything else: a file, {"home": [[begin, end, rank], …]}.
// Throws InvalidArgument or IoError.
[[nodiscard]] std::vector<HomeRange> load_layout(const std::string& text,
                                                 std::span<const Range> sequences,
                                                 std::int32_t num_ranks);
[[nodiscard]] std::vector<HomeRange> parse_layout_json(std::string_view text,
                                                       std::int32_t num_ranks,
                                                       std::string_view where);

}  // namespace contextile
