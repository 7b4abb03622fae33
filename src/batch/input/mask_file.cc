#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/data.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::size_t kNumbersPerBand = 6;

std::int64_t read_integer(const json& value, std::string_view where, std::size_t band,
                          std::size_t entry) {
  const std::optional<std::int64_t> integer = json_integer(value);
  CONTEXTILE_CHECK(integer, "{}: bands[{}][{}]: expected a 64-bit integer{}, found {}", where, band,
                   entry, entry < 4 ? "" : " or null", quote(value.dump()));
  return *integer;
}

Band read_band(const json& value, std::string_view where, std::size_t index) {
  CONTEXTILE_CHECK(value.is_array() && value.size() == kNumbersPerBand,
                   "{}: bands[{}]: expected [q0, q1, k0, k1, lo, hi], found {}", where, index,
                   quote(value.dump()));
  const auto number = [&](std::size_t i) { return read_integer(value[i], where, index, i); };
  const auto bound = [&](std::size_t i, std::int64_t infinite) {
    return value[i].is_null() ? infinite : std::clamp(number(i), -kUnbounded, kUnbounded);
  };
  const Band band{.q = {number(0), number(1)},
                  .k = {number(2), number(3)},
                  .lo = bound(4, -kUnbounded),
                  .hi = bound(5, kUnbounded)};
  CONTEXTILE_CHECK(!band.q.empty() && !band.k.empty() && band.lo <= band.hi,
                   "{}: bands[{}]: expected q0 < q1, k0 < k1 and lo <= hi, found {}", where, index,
                   quote(value.dump()));
  return band;
}

}  // namespace

Mask parse_mask_json(std::string_view text, std::int64_t num_tokens, std::string_view where) {
  const json document = parse_json(text, where);
  CONTEXTILE_CHECK(document.is_object() && document.size() == 1 && document.contains("bands") &&
                       document["bands"].is_array(),
                   "{}: expected {{\"bands\": [[q0, q1, k0, k1, lo, hi], ...]}}, found {}", where,
                   quote(document.dump()));
  const json& bands = document["bands"];
  Mask mask;
  mask.bands.reserve(bands.size());
  for (std::size_t i = 0; i < bands.size(); ++i) {
    mask.bands.push_back(read_band(bands[i], where, i));
  }
  try {
    check_mask(mask, num_tokens);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where, error.what());
  }
  return mask;
}

Mask read_mask_file(const std::string& path, std::int64_t num_tokens) {
  const FileBytes file(path, expect_text("a mask as JSON"));
  return parse_mask_json(file.text(), num_tokens, file.name());
}

}  // namespace contextile
