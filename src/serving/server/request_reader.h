// Fields of a request's JSON object: expected, found, where.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "serving/server/protocol.h"

namespace contextile {

// Refuses the request for one of its fields.
template <typename... Args>
[[noreturn]] void fail_field(const char* param, fmt::format_string<Args...> format,
                             Args&&... args) {
  throw ProtocolFailure(
      {.message = fmt::format("{}: {}", param, fmt::format(format, std::forward<Args>(args)...)),
       .param = param,
       .logged = param});
}

// The beginning of a value as JSON, in quotes.
inline std::string shown(const nlohmann::json& value) {
  return quote(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

// A JSON object of a request. Every failure is a ProtocolFailure.
class RequestReader {
 public:
  explicit RequestReader(const nlohmann::json& object) : object_(object) {}

  // Null means that the key is absent.
  [[nodiscard]] const nlohmann::json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t unless, std::int64_t least,
                                     std::int64_t most) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return unless;
    if (!json_integer(*value, least, most)) {
      fail_field(key, "expected an integer of {} to {}, found {}", least, most, shown(*value));
    }
    return value->get<std::int64_t>();
  }
  // Refuses keys that are none of `known`, unless their value is null.
  void check_keys(const char* where, const std::set<std::string>& known) const {
    for (const auto& [key, value] : object_.items()) {
      if (known.contains(key) || value.is_null()) continue;
      fail_field(where, "expected {}, found {}", fmt::join(known, ", "), quote(key));
    }
  }
  [[nodiscard]] double number(const char* key, double unless, double least, double most) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      fail_field(key, "expected a number of {} to {}, found {}", least, most, shown(*value));
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool unless) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_boolean()) fail_field(key, "expected true or false, found {}", shown(*value));
    return value->get<bool>();
  }

 private:
  const nlohmann::json& object_;
};

}  // namespace contextile
