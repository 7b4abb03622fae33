#include "serving/server/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace contextile {
namespace {

using Characters = std::vector<utf8proc_int32_t>;

[[noreturn]] void fail_text(utf8proc_ssize_t error) {
  fail_argument("text: expected UTF-8, found something else: {}", utf8proc_errmsg(error));
}

int class_of(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// The characters that those of the text are made of, not yet in order.
Characters decomposed(std::string_view text) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
  constexpr utf8proc_ssize_t kMostParts = 32;  // of one character; Unicode has 4
  Characters characters;
  characters.reserve(text.size());
  while (!text.empty()) {
    utf8proc_int32_t character = 0;
    const utf8proc_ssize_t size =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                         static_cast<utf8proc_ssize_t>(text.size()), &character);
    if (size < 0) fail_text(size);
    text.remove_prefix(static_cast<std::size_t>(size));
    std::array<utf8proc_int32_t, kMostParts> parts{};
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(character, parts.data(), kMostParts, kOptions, nullptr);
    if (count < 0) fail_text(count);
    characters.insert(characters.end(), parts.begin(), parts.begin() + count);
  }
  return characters;
}

// Puts marks in the order of their classes. utf8proc_map would insert them one by one, which takes
// quadratic time for a long run of marks.
void order_marks(Characters& characters) {
  const auto is_mark = [](utf8proc_int32_t character) { return class_of(character) != 0; };
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), is_mark);
    const auto end = std::find_if_not(begin, characters.end(), is_mark);
    std::ranges::stable_sort(begin, end, {}, class_of);
    begin = end;
  }
}

std::string utf8_of(const Characters& characters) {
  std::string text;
  for (const utf8proc_int32_t character : characters) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const utf8proc_ssize_t size = utf8proc_encode_char(character, bytes.data());
    text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  const bool is_ascii =
      std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return std::string(text);
  Characters characters = decomposed(text);
  order_marks(characters);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (count < 0) fail_text(count);
  characters.resize(static_cast<std::size_t>(count));
  return utf8_of(characters);
}

}  // namespace contextile
