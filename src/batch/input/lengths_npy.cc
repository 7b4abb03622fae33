#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>

#include "base/quote.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"

// NumPy's format (NEP 1): magic, major and minor version, the header's size (2 bytes in
// version 1.0, 4 in 2.0 and 3.0, little endian), the header (a Python dict as text), the elements.
namespace contextile {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are loaded as they lie");

struct Header {
  std::optional<std::string> descr;
  std::optional<std::vector<std::uint64_t>> shape;
  bool has_order = false;
};

// Reads the dict: three keys in any order, as Python writes them.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  Header read() {
    Header header;
    expect('{');
    while (!accept('}')) {
      read_item(header);
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail("the end of the header");
    if (!header.descr || !header.shape || !header.has_order) {
      fail("the keys 'descr', 'fortran_order' and 'shape'");
    }
    return header;
  }

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    fail_argument("{}: .npy header: expected {} at character {}, found {}", where_, expected, at_,
                  quote(text_.substr(at_)));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool accept(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(quote({&c, 1}));
  }

  bool accept_word(std::string_view word) {
    skip_space();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string read_string(std::string_view expected) {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail(expected);
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) fail("a closed quote");
    std::string result(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return result;
  }

  std::vector<std::uint64_t> read_shape() {
    std::vector<std::uint64_t> shape;
    expect('(');
    while (!accept(')')) {
      skip_space();
      std::uint64_t value = 0;
      const char* const begin = text_.data() + at_;
      const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), value);
      if (error != std::errc{}) fail("a 64-bit integer");
      at_ += static_cast<std::size_t>(stop - begin);
      accept_word("L");  // Python 2's long
      shape.push_back(value);
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  void read_item(Header& header) {
    const std::size_t start = at_;
    const std::string key = read_string("a key");
    expect(':');
    if (key == "descr" && !header.descr) {
      header.descr = read_string("one element type (no fields)");
    } else if (key == "shape" && !header.shape) {
      header.shape = read_shape();
    } else if (key == "fortran_order" && !header.has_order) {
      if (!accept_word("True") && !accept_word("False")) fail("True or False");
      header.has_order = true;  // without meaning for one dimension
    } else {
      at_ = start;
      fail("'descr', 'fortran_order' and 'shape' once each");
    }
  }

  std::string_view text_;
  std::string_view where_;
  std::size_t at_ = 0;
};

template <typename T>
std::vector<std::int64_t> load(std::span<const std::uint8_t> data, std::string_view where) {
  const std::size_t count = data.size() / sizeof(T);
  std::vector<std::int64_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
    lengths[i] = checked_length(value, where, "index", i);
  }
  return lengths;
}

struct ElementType {
  std::string_view descr;
  std::uint64_t size_bytes;
  std::vector<std::int64_t> (*load)(std::span<const std::uint8_t>, std::string_view);
};
constexpr std::array<ElementType, 8> kElementTypes = {{
    {"<i8", 8, load<std::int64_t>},
    {"<i4", 4, load<std::int32_t>},
    {"<i2", 2, load<std::int16_t>},
    {"|i1", 1, load<std::int8_t>},
    {"<u8", 8, load<std::uint64_t>},
    {"<u4", 4, load<std::uint32_t>},
    {"<u2", 2, load<std::uint16_t>},
    {"|u1", 1, load<std::uint8_t>},
}};

const ElementType& find_element_type(std::string_view descr, std::string_view where) {
  const auto* const found = std::ranges::find(kElementTypes, descr, &ElementType::descr);
  CONTEXTILE_CHECK(
      found != kElementTypes.end(),
      "{}: expected elements of a little-endian integer type (<i8, <i4, <i2, |i1, <u8, "
      "<u4, <u2, |u1), found {}",
      where, quote(descr));
  return *found;
}

// Splits the file into header text and element bytes.
std::pair<std::string_view, std::span<const std::uint8_t>> split_npy(
    std::span<const std::uint8_t> bytes, std::string_view where) {
  constexpr std::size_t kVersionAt = 6;
  constexpr std::size_t kSizeAt = 8;
  const std::string_view text = as_text(bytes);
  CONTEXTILE_CHECK(text.starts_with(kNpyMagic), "{}: expected a .npy file ({}), found {}", where,
                   quote(kNpyMagic), quote(text.substr(0, kNpyMagic.size())));
  CONTEXTILE_CHECK(bytes.size() >= kSizeAt,
                   "{}: expected the .npy version at byte {}, found the end of the file", where,
                   kVersionAt);
  const int major = bytes[kVersionAt];
  const int minor = bytes[kVersionAt + 1];
  CONTEXTILE_CHECK(major >= 1 && major <= 3 && minor == 0,
                   "{}: expected .npy version 1.0, 2.0 or 3.0, found {}.{}", where, major, minor);
  const std::size_t header_at = kSizeAt + (major == 1 ? 2 : 4);
  CONTEXTILE_CHECK(bytes.size() >= header_at,
                   "{}: expected the .npy header's size at byte {}, found the end of the file",
                   where, kSizeAt);
  std::uint32_t header_size = 0;
  std::memcpy(&header_size, bytes.data() + kSizeAt, header_at - kSizeAt);
  CONTEXTILE_CHECK(header_size <= bytes.size() - header_at,
                   "{}: expected a .npy header of {} bytes at byte {}, found {} bytes (truncated?)",
                   where, header_size, header_at, bytes.size() - header_at);
  return {text.substr(header_at, header_size), bytes.subspan(header_at + header_size)};
}

}  // namespace

std::vector<std::int64_t> parse_lengths_npy(std::span<const std::uint8_t> bytes,
                                            std::string_view where) {
  const auto [text, data] = split_npy(bytes, where);
  const Header header = HeaderReader(text, where).read();
  const ElementType& type = find_element_type(*header.descr, where);
  CONTEXTILE_CHECK(header.shape->size() == 1, "{}: expected 1 dimension, found {}", where,
                   header.shape->size());
  const std::uint64_t count = header.shape->front();
  CONTEXTILE_CHECK(count > 0, "{}: expected at least one length, found none", where);
  CONTEXTILE_CHECK(data.size() % type.size_bytes == 0 && data.size() / type.size_bytes == count,
                   "{}: expected {} elements of {} bytes after the .npy header, found {} bytes",
                   where, count, type.size_bytes, data.size());
  return type.load(data, where);
}

}  // namespace contextile
