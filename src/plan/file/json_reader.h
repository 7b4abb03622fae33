// Reads one JSON document from front to back for a caller that knows what should be in it. There is
// no tree: memory holds only the data that the caller keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/base.h"

namespace contextile {

enum class Presence : std::uint8_t { kRequired, kOptional };

// A member of an object, with the function that reads its value.
class JsonMember {
 public:
  // `name` must outlive the reader, `read` the call that it is passed to.
  template <typename Read>
  JsonMember(std::string_view name, const Read& read, Presence presence = Presence::kRequired)
      : name_(name),
        read_(&read),
        call_([](const void* function) { (*static_cast<const Read*>(function))(); }),
        presence_(presence) {}

  [[nodiscard]] std::string_view name() const { return name_; }
  [[nodiscard]] bool required() const { return presence_ == Presence::kRequired; }
  void read() const { call_(read_); }

 private:
  std::string_view name_;
  const void* read_;
  void (*call_)(const void*);
  Presence presence_;
};

// Every function takes one value or throws InvalidPlan, which names the document and the path of
// the value in it ("plan.json: rounds[0].blocks[2].owner: expected …, found …"), with line and
// column if it is not JSON. Nesting is as deep as the caller's calls; nothing is allocated for text
// that has not been read.
class JsonReader {
 public:
  // Both must outlive the reader.
  JsonReader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  // Reads at most 32 members in any order, each at most once, the required ones exactly once, and
  // no others.
  void object(std::initializer_list<JsonMember> members);
  // Calls read(index) before each element.
  template <typename Read>
  void array(const Read& read) {
    open('[', "an array");
    path_.push_back({});
    for (std::int64_t i = 0; more(']', i); ++i) {
      path_.back().index = i;
      read(static_cast<std::size_t>(i));
    }
    path_.pop_back();
  }
  // Reads an array of exactly `size` elements, or of `size` to `most`.
  template <typename Read>
  void tuple(std::int64_t size, const Read& read) {
    tuple(size, size, read);
  }
  template <typename Read>
  void tuple(std::int64_t size, std::int64_t most, const Read& read) {
    std::int64_t found = 0;
    array([&](std::size_t i) {
      ++found;
      if (found <= most) return read(i);
      path_.pop_back();
      fail("expected {} elements, found more", most);
    });
    if (found < size) fail("expected {} elements, found {}", size, found);
  }
  // Reads an object with any keys: calls read(key) before each value.
  template <typename Read>
  void map(const Read& read) {
    open('{', "an object");
    for (std::int64_t i = 0; more('}', i); ++i) {
      std::string key(this->key());
      read(std::move(key));
    }
  }

  // Reads a whole number in [low, high), written without fraction and exponent.
  [[nodiscard]] std::int64_t whole(std::int64_t low, std::int64_t high, std::string_view what);
  [[nodiscard]] double number(std::string_view what);  // finite
  [[nodiscard]] bool boolean();
  // Returns the unescaped string; valid until the next call.
  [[nodiscard]] std::string_view string(std::string_view what);
  // Returns the index of a string in `names`.
  [[nodiscard]] std::size_t one_of(std::span<const std::string_view> names);
  // Returns true if the next value is null, which it then takes.
  [[nodiscard]] bool null();
  // Checks that nothing follows.
  void end();

  // Throws InvalidPlan with the path of the current value, then the message.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidPlan(
        fmt::format("{}: {}", place(), fmt::format(format, std::forward<Args>(args)...)));
  }

 private:
  struct Step {
    std::string_view key = {};  // empty: an element of an array
    std::int64_t index = 0;
  };

  // Returns true if another element follows those `taken`; takes the separator before it.
  bool more(char close, std::int64_t taken);
  void open(char bracket, std::string_view what);
  std::string_view key();
  void skip_space();
  [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
  [[nodiscard]] char next() const { return at_end() ? '\0' : text_[at_]; }
  bool take_word(std::string_view word);
  bool take_digits();
  // Takes the number at this place; returns an empty text if there is none.
  std::string_view take_number();
  std::string_view take_escaped_string();
  void take_escape();
  std::uint32_t take_hex();

  [[nodiscard]] std::string place() const;
  // Describes the text at this place, for messages.
  [[nodiscard]] std::string found() const;
  [[noreturn]] void fail_syntax(std::string_view expected) const;

  std::string_view text_;
  std::string_view where_;
  std::size_t at_ = 0;
  std::vector<Step> path_;
  std::string unescaped_;
};

}  // namespace contextile
