// JSON from outside: every failure is an InvalidArgument that names the source.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace contextile {

// One JSON document. `where` names the source in messages. Throws InvalidArgument on anything that
// is no JSON, on keys that occur twice in an object, and on nesting deeper than 64 levels
// (nlohmann's values are compared, copied and printed recursively).
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::string_view where);

// The reason in an exception of nlohmann's, without its internal name.
[[nodiscard]] std::string_view json_reason(const nlohmann::json::exception& error);

}  // namespace contextile
