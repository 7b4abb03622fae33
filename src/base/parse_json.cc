#include "base/parse_json.h"

#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/quote.h"

namespace contextile {
namespace {

using nlohmann::json;

// Levels of nesting are limited, so that this may recur.
void free_items(json& value) noexcept {
  if (value.is_array()) {
    auto& items = value.get_ref<json::array_t&>();
    for (json& item : items) free_items(item);
    items.clear();
  } else if (value.is_object()) {
    auto& items = value.get_ref<json::object_t&>();
    for (auto& [key, item] : items) free_items(item);
    items.clear();
  }
}

// Builds the value of a document from the events of nlohmann's parser. Its own builder with a
// callback looks through the whole parent at the end of every object, which takes quadratic time.
class ValueBuilder {
 public:
  ValueBuilder(std::string_view where, const JsonLimits& limits)
      : where_(where),
        max_values_(limits.max_values),
        max_nodes_(limits.max_nodes),
        look_(limits.look) {}

  [[nodiscard]] json take() && { return std::move(*root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string& /*text*/) { return add(value); }
  bool string(std::string& value) {
    count_node();
    return add(std::move(value));
  }
  bool binary(json::binary_t& value) { return add(std::move(value)); }
  bool start_object(std::size_t /*unknown*/) { return open(json::value_t::object); }
  bool start_array(std::size_t /*unknown*/) { return open(json::value_t::array); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    count_node();
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [place, is_new] = object.try_emplace(std::move(name), nullptr);
    CONTEXTILE_CHECK(is_new, "{}: expected every key once in an object, found {} twice", where_,
                     quote(place->first));
    next_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& error) {
    fail_argument("{}: expected JSON: {}", where_, without_orders(json_reason(error)));
  }

 private:
  static constexpr std::size_t kMaxDepth = 64;

  void count_node() {
    CONTEXTILE_CHECK(num_nodes_++ < max_nodes_,
                     "{}: expected at most {} objects, arrays, keys and texts, found more", where_,
                     max_nodes_);
  }
  // Puts a value where the next one belongs, and keeps its place.
  template <typename Value>
  bool add(Value&& value) {
    CONTEXTILE_CHECK(num_values_++ < max_values_, "{}: expected at most {} values, found more",
                     where_, max_values_);
    look_();
    if (!open_.empty() && open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      next_ = &array.emplace_back(std::forward<Value>(value));
    } else {
      *next_ = json(std::forward<Value>(value));
    }
    return true;
  }
  bool open(json::value_t type) {
    CONTEXTILE_CHECK(open_.size() < kMaxDepth,
                     "{}: expected at most {} levels of nesting, found more", where_, kMaxDepth);
    count_node();
    add(json(type));
    open_.push_back(next_);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  std::size_t max_values_;
  std::size_t max_nodes_;
  RareLook look_;
  LargeJson root_;
  json* next_ = &*root_;     // outside of arrays: the place of the next value
  std::vector<json*> open_;  // the containers around the next value
  std::size_t num_values_ = 0;
  std::size_t num_nodes_ = 0;
};

}  // namespace

LargeJson::~LargeJson() { free_items(value_); }

std::optional<std::int64_t> json_integer(const json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>())) {
    return std::nullopt;
  }
  return value.get<std::int64_t>();
}

std::optional<std::int64_t> json_integer(const json& value, std::int64_t least, std::int64_t most) {
  const std::optional<std::int64_t> integer = json_integer(value);
  return integer && *integer >= least && *integer <= most ? integer : std::nullopt;
}

std::string_view json_reason(const json::exception& error) {
  constexpr std::size_t kMostBytes = 200;  // it may quote a number of any length
  const std::string_view message = error.what();
  const std::size_t end = message.find("] ");
  const std::size_t begin =
      message.starts_with("[json.exception") && end != std::string_view::npos ? end + 2 : 0;
  return message.substr(begin, kMostBytes);
}

json parse_json(std::string_view text, std::string_view where, const JsonLimits& limits) {
  return with_memory_for([&] { return fmt::format("{}, {} bytes of JSON", where, text.size()); },
                         [&] {
                           ValueBuilder builder(where, limits);
                           json::sax_parse(text.begin(), text.end(), &builder);
                           return std::move(builder).take();
                         });
}

}  // namespace contextile
