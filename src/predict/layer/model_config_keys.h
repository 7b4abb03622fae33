// The keys of models in JSON: how they are read, and those of config.json that may be ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace contextile {

// Reads a required integer of 32 bits. A number with a fraction, such as 32.0, is refused. Throws
// InvalidArgument.
[[nodiscard]] std::int32_t integer_at(const nlohmann::json& object, std::string_view key);

// True for keys of config.json that change neither time nor memory of a training step.
[[nodiscard]] bool changes_nothing(std::string_view key);

// Reads an object and remembers which keys were asked for. A key whose value is null is absent.
class ModelConfigReader {
 public:
  // `object` must outlive the reader.
  explicit ModelConfigReader(const nlohmann::json& object) : object_(object) {}

  // Returns the value, or nullptr.
  [[nodiscard]] const nlohmann::json* find(std::string_view key);
  [[nodiscard]] std::int32_t required(std::string_view key);
  [[nodiscard]] std::optional<std::int32_t> integer(std::string_view key);
  [[nodiscard]] std::int32_t integer_or(std::string_view key, std::int32_t otherwise) {
    return integer(key).value_or(otherwise);
  }
  [[nodiscard]] bool boolean_or(std::string_view key, bool otherwise);
  // The text; empty if there is none.
  [[nodiscard]] std::string text(std::string_view key);

  // Throws InvalidArgument with the names of all keys that were not asked for and may change
  // something. `what` names the object.
  void refuse_others(std::string_view what) const;

 private:
  const nlohmann::json& object_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace contextile
