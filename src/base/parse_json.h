// JSON from outside: every failure is an InvalidArgument that names the source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/look.h"

namespace contextile {

struct JsonLimits {
  // Values of a document, those inside others included. Each takes 16 bytes of memory.
  std::size_t max_values = 100'000'000;
  // Objects, arrays, keys and texts. Each takes up to 100 bytes more.
  std::size_t max_nodes = 100'000'000;
  Look look = {};
};

// One JSON document, in time linear in its bytes. `where` names the source in messages. Throws
// InvalidArgument on anything that is no JSON, on keys that occur twice in an object, on more
// values than allowed, and on nesting deeper than 64 levels (nlohmann's values are compared, copied
// and printed recursively).
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::string_view where,
                                        const JsonLimits& limits = {});

// Owns a value that may be large. nlohmann's destructor takes memory for every item of an array, so
// it ends the program where memory has run out; this one takes none.
class LargeJson {
 public:
  LargeJson() = default;
  explicit LargeJson(nlohmann::json value) : value_(std::move(value)) {}
  LargeJson(LargeJson&&) = default;
  LargeJson& operator=(LargeJson&&) = delete;
  ~LargeJson();

  [[nodiscard]] const nlohmann::json& operator*() const { return value_; }
  [[nodiscard]] nlohmann::json& operator*() { return value_; }
  [[nodiscard]] const nlohmann::json* operator->() const { return &value_; }

 private:
  nlohmann::json value_;
};

// Returns an integer that fits into 64 bits; nothing for any other value. Conversions and
// comparisons of nlohmann's wrap numbers of 2^63 and more.
[[nodiscard]] std::optional<std::int64_t> json_integer(const nlohmann::json& value);
// The same within limits, both included.
[[nodiscard]] std::optional<std::int64_t> json_integer(const nlohmann::json& value,
                                                       std::int64_t least, std::int64_t most);

// The reason in an exception of nlohmann's, without its internal name.
[[nodiscard]] std::string_view json_reason(const nlohmann::json::exception& error);

}  // namespace contextile
