#include "serving/server/text_stream.h"

#include <algorithm>
#include <cstdint>

#include "base/utf8.h"

namespace contextile {
namespace {

// Number of bytes of a character by its first one; 0 if no character begins with it.
std::size_t length_by_first(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte < 0x80) return 1;
  if (byte < 0xc2 || byte > 0xf4) return 0;
  return byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Number of bytes at the end that may be the beginning of a character.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const char c = text[text.size() - back];
    if ((static_cast<unsigned char>(c) & 0xc0U) == 0x80U) continue;
    return length_by_first(c) > back ? back : 0;
  }
  return 0;
}

// Number of bytes at the end that begin the stop sequence.
std::size_t begun(std::string_view text, std::string_view stop) {
  for (std::size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.substr(text.size() - size) == stop.substr(0, size)) return size;
  }
  return 0;
}

// Number of bytes, at least one, that a single U+FFFD replaces at the beginning, where no whole
// character is: those with which a character may begin, as in other decoders (Unicode, "maximal
// subpart").
std::size_t broken(std::string_view text) {
  const std::size_t length = length_by_first(text.front());
  std::size_t size = 1;
  for (; size < std::min(length, text.size()); ++size) {
    std::string whole(text.substr(0, size + 1));
    whole.resize(length, '\x80');
    if (utf8_bytes(whole) != length) break;
  }
  return size;
}

std::string as_utf8(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t size = utf8_bytes(bytes);
    text += size == 0 ? "\xef\xbf\xbd" : std::string(bytes.substr(0, size));
    bytes.remove_prefix(size == 0 ? broken(bytes) : size);
  }
  return text;
}

}  // namespace

std::string TextStream::give(std::size_t end) {
  std::string text = as_utf8(std::string_view(held_).substr(0, end));
  held_.erase(0, end);
  return text;
}

std::string TextStream::add(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  std::size_t first = std::string::npos;
  std::size_t kept = unfinished(held_);
  for (const std::string& stop : stops_) {
    first = std::min(first, held_.find(stop));
    kept = std::max(kept, begun(held_, stop));
  }
  if (first == std::string::npos) return give(held_.size() - kept);
  stopped_ = true;
  const std::string text = give(first);
  held_.clear();
  return text;
}

std::string TextStream::finish() { return give(held_.size()); }

}  // namespace contextile
