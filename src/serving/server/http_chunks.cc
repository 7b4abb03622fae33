#include "serving/server/http_chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace contextile {
namespace {

constexpr std::size_t kMostDigits = 15;  // a size stays below 2^60

std::optional<std::uint64_t> digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

bool is_text(char c) { return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != 0x7f); }

}  // namespace

std::size_t ChunkReader::read(std::string_view bytes, std::string& out) {
  std::size_t at = 0;
  while (at < bytes.size() && !is_done() && !is_malformed()) {
    if (state_ != State::kData) {
      state_ = next(bytes[at++], out);
      continue;
    }
    // Each piece of a chunk becomes a chunk of its own, so that nothing is held back.
    const std::size_t count = std::min<std::uint64_t>(size_, bytes.size() - at);
    out += fmt::format("{:x}\r\n{}\r\n", count, bytes.substr(at, count));
    at += count;
    size_ -= count;
    if (size_ == 0) state_ = State::kDataEnd;
  }
  return at;
}

ChunkReader::State ChunkReader::next(char c, std::string& out) {
  const bool is_trailer = state_ >= State::kTrailer;
  if (++num_line_bytes_ > (is_trailer ? kMostTrailerBytes : kMostLineBytes)) {
    return State::kMalformed;
  }
  switch (state_) {
    case State::kSize:
      if (const auto digit = digit_of(c)) {
        size_ = size_ * 16 + *digit;
        return ++num_digits_ > kMostDigits ? State::kMalformed : State::kSize;
      }
      if (num_digits_ == 0) return State::kMalformed;
      num_digits_ = 0;
      return c == '\r' ? State::kSizeEnd : c == ';' ? State::kExtension : State::kMalformed;
    case State::kExtension:
      return c == '\r' ? State::kSizeEnd : is_text(c) ? State::kExtension : State::kMalformed;
    case State::kSizeEnd:
      num_line_bytes_ = 0;
      if (c != '\n') return State::kMalformed;
      return size_ > 0 ? State::kData : State::kTrailer;
    case State::kDataEnd:
      return c == '\r' ? State::kDataEndLf : State::kMalformed;
    case State::kDataEndLf:
      num_line_bytes_ = 0;
      return c == '\n' ? State::kSize : State::kMalformed;
    case State::kTrailer:
      return c == '\r' ? State::kLastLf : is_text(c) ? State::kTrailerLine : State::kMalformed;
    case State::kTrailerLine:
      return c == '\r'    ? State::kTrailerLineLf
             : is_text(c) ? State::kTrailerLine
                          : State::kMalformed;
    case State::kTrailerLineLf:
      return c == '\n' ? State::kTrailer : State::kMalformed;
    case State::kLastLf:
      if (c != '\n') return State::kMalformed;
      out += "0\r\n\r\n";
      return State::kDone;
    case State::kData:
    case State::kDone:
    case State::kMalformed:
      break;
  }
  return state_;
}

}  // namespace contextile
