// Reading of a model's config.json, with errors that name the key.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"

namespace contextile {

// Values of a config.json; null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const nlohmann::json& object, std::string where)
      : object_(object), where_(std::move(where)) {
    CONTEXTILE_CHECK(object.is_object(), "{}: expected an object, found {}", where_,
                     object.type_name());
  }

  [[nodiscard]] bool has(const char* key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }
  [[nodiscard]] bool is_null(const char* key) const {
    return object_.contains(key) && object_.at(key).is_null();
  }
  [[nodiscard]] const nlohmann::json& at(const char* key) const {
    CONTEXTILE_CHECK(has(key), "{}: expected a key {}, found none", where_, key);
    return object_.at(key);
  }
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const nlohmann::json& value = at(key);
    const std::optional<std::int64_t> integer = json_integer(value, least, most);
    CONTEXTILE_CHECK(integer, "{}, {}: expected an integer of {} to {}, found {}", where_, key,
                     least, most, text(value));
    return *integer;
  }
  [[nodiscard]] std::int32_t count(const char* key) const {
    return static_cast<std::int32_t>(integer(key, 1, std::numeric_limits<std::int32_t>::max()));
  }
  [[nodiscard]] double positive(const char* key) const {
    const nlohmann::json& value = at(key);
    CONTEXTILE_CHECK(value.is_number() && value > 0 && value.get<double>() < 1e300,
                     "{}, {}: expected a positive number, found {}", where_, key, text(value));
    return value.get<double>();
  }
  [[nodiscard]] std::int32_t count(const char* key, std::int32_t unless_there) const {
    return has(key) ? count(key) : unless_there;
  }
  [[nodiscard]] double positive(const char* key, double unless_there) const {
    return has(key) ? positive(key) : unless_there;
  }
  [[nodiscard]] bool flag(const char* key, bool unless_there) const {
    if (!has(key)) return unless_there;
    CONTEXTILE_CHECK(at(key).is_boolean(), "{}, {}: expected true or false, found {}", where_, key,
                     text(at(key)));
    return at(key).get<bool>();
  }
  [[nodiscard]] std::string word(const char* key) const {
    CONTEXTILE_CHECK(at(key).is_string(), "{}, {}: expected text, found {}", where_, key,
                     text(at(key)));
    return at(key).get<std::string>();
  }
  // Throws unless the key is absent or has the value, the only one that this model has.
  void expect(const char* key, const nlohmann::json& value) const {
    if (has(key) && at(key) != value)
      fail(key, "expected {}, found {}", value.dump(), text(at(key)));
  }
  template <typename... Args>
  [[noreturn]] void fail(const char* key, fmt::format_string<Args...> format,
                         Args&&... args) const {
    fail_argument("{}, {}: {}", where_, key, fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] static std::string text(const nlohmann::json& value) { return quote(value.dump()); }

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace contextile
