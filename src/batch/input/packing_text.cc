#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/data.h"

namespace contextile {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::int64_t> parse_levels(std::string_view text) {
  std::vector<std::int64_t> levels;
  if (text == "none") return levels;
  for (const std::string_view level : split(text, ':')) {
    levels.push_back(parse_size("packing levels", level, 1));
  }
  return levels;
}

Packing parse_defer(std::string_view text) {
  if (text == "on") return Packing::kWlb;
  if (text == "off") return Packing::kWlbNoDefer;
  fail_argument("packing defer: expected on or off, found {}", quote(text));
}

void parse_key(std::string_view key, std::string_view value, BatchOptions& options) {
  WlbPackingOptions& wlb = options.wlb;
  if (key == "micro_batches") {
    wlb.micro_batches = checked_cast<std::int32_t>(parse_size("packing micro_batches", value, 1),
                                                   "packing micro_batches");
  } else if (key == "max_tokens") {
    wlb.max_tokens = parse_size("packing max_tokens", value, 1);
  } else if (key == "levels") {
    wlb.outlier_levels_tokens = parse_levels(value);
  } else if (key == "balance") {
    wlb.balance_tokens = parse_size("packing balance", value, 1);
  } else if (key == "defer") {
    options.packing = parse_defer(value);
  } else {
    const std::vector<std::string> keys = {"micro_batches", "max_tokens", "levels", "balance",
                                           "defer"};
    fail_argument("packing wlb: expected one of {}, found {}{}", fmt::join(keys, ", "), quote(key),
                  did_you_mean(key, keys));
  }
}

}  // namespace

void parse_packing(std::string_view text, BatchOptions& options) {
  options.wlb = {};
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view method = text.substr(0, colon);
  if (text == "sequential") {
    options.packing = Packing::kSequential;
    return;
  }
  if (method != "wlb") {
    fail_argument("packing: expected sequential or wlb[:key=value,...], found {}", quote(text));
  }
  options.packing = Packing::kWlb;
  if (colon == text.size()) return;
  std::vector<std::string_view> seen;
  for (const std::string_view item : split(text.substr(colon + 1), ',')) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      fail_argument("packing wlb: expected key=value, found {}", quote(item));
    }
    const std::string_view key = item.substr(0, equals);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      fail_argument("packing wlb: expected every key once, found {} twice", quote(key));
    }
    seen.push_back(key);
    parse_key(key, item.substr(equals + 1), options);
  }
}

}  // namespace contextile
