#include <string>

#include "base/parse_json.h"
#include "base/quote.h"
#include "batch/input/length_formats.h"

namespace contextile {
namespace {

using nlohmann::json;

// Passes every value to `Derived::value(integer)` or, if it is none, to `Derived::other(what)`, and
// containers and keys to the functions of the same name. Nothing is built, so neither depth nor
// size of the input costs memory.
template <typename Derived>
class LengthEvents {
 public:
  bool number_integer(json::number_integer_t value) { return self().value(value); }
  bool number_unsigned(json::number_unsigned_t value) { return self().value(value); }
  bool number_float(json::number_float_t, const std::string& text) { return self().other(text); }
  bool null() { return self().other("null"); }
  bool boolean(bool value) { return self().other(value ? "true" : "false"); }
  bool string(const std::string& text) { return self().other("the text " + quote(text)); }
  bool binary(json::binary_t&) { return self().other("bytes"); }
  bool end_object() { return self().close(); }
  bool end_array() { return self().close(); }
  bool start_object(std::size_t) { return self().open("an object"); }
  bool start_array(std::size_t) { return self().open("an array"); }

 private:
  Derived& self() { return static_cast<Derived&>(*this); }
};

class ArrayEvents : public LengthEvents<ArrayEvents> {
 public:
  explicit ArrayEvents(std::string_view where) : where_(where) {}

  template <typename Integer>
  bool value(Integer value) {
    lengths_.push_back(checked_length(value, where_, "index", lengths_.size()));
    return true;
  }
  bool other(std::string_view what) {
    fail_argument("{}: index {}: expected a length of 1 to {} tokens, found {}", where_,
                  lengths_.size(), kMaxLength, what);
  }
  bool open(std::string_view what) {
    if (inside_) return other(what);
    inside_ = true;
    return true;
  }
  bool close() { return true; }
  bool key(const std::string&) { return true; }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    fail_argument("{}: expected a JSON array of lengths: {}", where_, json_reason(error));
  }

  std::vector<std::int64_t> take() && { return std::move(lengths_); }

 private:
  std::string_view where_;
  std::vector<std::int64_t> lengths_;
  bool inside_ = false;
};

class ObjectEvents : public LengthEvents<ObjectEvents> {
 public:
  ObjectEvents(std::string_view field, std::string_view where, std::size_t line)
      : field_(field), where_(where), line_(line) {}

  template <typename Integer>
  bool value(Integer value) {
    if (depth_ == 0) return other("a number");
    if (at_field_) length_ = checked_length(value, where_, "line", line_);
    at_field_ = false;
    return true;
  }
  bool other(std::string_view what) {
    CONTEXTILE_CHECK(depth_ > 0, "{}: line {}: expected an object, found {}", where_, line_, what);
    CONTEXTILE_CHECK(!at_field_, "{}: line {}: expected a length of 1 to {} tokens in {}, found {}",
                     where_, line_, kMaxLength, quote(field_), what);
    return true;
  }
  bool open(std::string_view what) {
    if (depth_ > 0 || what != "an object") static_cast<void>(other(what));
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  bool key(const std::string& name) {
    at_field_ = depth_ == 1 && name == field_;
    CONTEXTILE_CHECK(!at_field_ || length_ == 0, "{}: line {}: expected {} once, found it twice",
                     where_, line_, quote(field_));
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    fail_argument("{}: line {}: expected a JSON object: {}", where_, line_, json_reason(error));
  }

  [[nodiscard]] std::int64_t length() const {
    CONTEXTILE_CHECK(length_ > 0, "{}: line {}: expected a length in {}, found no such field",
                     where_, line_, quote(field_));
    return length_;
  }

 private:
  std::string_view field_;
  std::string_view where_;
  std::size_t line_;
  std::size_t depth_ = 0;
  bool at_field_ = false;    // the next value is the field's
  std::int64_t length_ = 0;  // 0: not yet found
};

}  // namespace

std::vector<std::int64_t> parse_lengths_json_array(std::string_view text, std::string_view where) {
  ArrayEvents events(where);
  json::sax_parse(text.begin(), text.end(), &events);
  std::vector<std::int64_t> lengths = std::move(events).take();
  CONTEXTILE_CHECK(!lengths.empty(), "{}: expected at least one length, found an empty array",
                   where);
  return lengths;
}

std::int64_t parse_length_json_object(std::string_view line, std::string_view field,
                                      std::string_view where, std::size_t line_number) {
  ObjectEvents events(field, where, line_number);
  json::sax_parse(line.begin(), line.end(), &events);
  return events.length();
}

}  // namespace contextile
