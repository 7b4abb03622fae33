#include "base/parse_json.h"

#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/quote.h"

namespace contextile {

std::string_view json_reason(const nlohmann::json::exception& error) {
  constexpr std::size_t kMostBytes = 200;  // it may quote a number of any length
  const std::string_view message = error.what();
  const std::size_t end = message.find("] ");
  const std::size_t begin =
      message.starts_with("[json.exception") && end != std::string_view::npos ? end + 2 : 0;
  return message.substr(begin, kMostBytes);
}

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int kMaxDepth = 64;
  std::vector<std::set<std::string>> keys;  // of the objects around the current value
  const auto watch = [&](int depth, Event event, nlohmann::json& parsed) {
    CONTEXTILE_CHECK(depth <= kMaxDepth, "{}: expected at most {} levels of nesting, found more",
                     where, kMaxDepth);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      CONTEXTILE_CHECK(keys.back().insert(key).second,
                       "{}: expected every key once in an object, found {} twice", where,
                       quote(key));
    }
    return true;
  };
  try {
    return with_memory_for([&] { return fmt::format("{}, {} bytes of JSON", where, text.size()); },
                           [&] { return nlohmann::json::parse(text.begin(), text.end(), watch); });
  } catch (const nlohmann::json::exception& error) {
    fail_argument("{}: expected JSON: {}", where, without_orders(json_reason(error)));
  }
}

}  // namespace contextile
