// The body of a request that comes in chunks (RFC 9112, 7.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace contextile {

// Reads a body in chunks and writes it again, without extensions and trailers. Two readers can only
// read the output in the same way: the input is refused wherever they could differ.
class ChunkReader {
 public:
  // Bytes of the line that begins a chunk, and of all trailers.
  static constexpr std::size_t kMostLineBytes = 256;
  static constexpr std::size_t kMostTrailerBytes = 4 << 10;

  // Takes bytes up to the end of the body at most, and appends what they mean to `out`. Returns the
  // number of bytes that were taken.
  std::size_t read(std::string_view bytes, std::string& out);

  // True once the last chunk and its trailers were taken.
  [[nodiscard]] bool is_done() const { return state_ == State::kDone; }
  // True if the bytes were no body in chunks; no more are taken then.
  [[nodiscard]] bool is_malformed() const { return state_ == State::kMalformed; }

 private:
  enum class State : std::uint8_t {
    kSize,       // digits of a chunk's size
    kExtension,  // the rest of that line
    kSizeEnd,    // its LF
    kData,
    kDataEnd,  // CR, then LF
    kDataEndLf,
    kTrailer,  // at the beginning of a line behind the last chunk
    kTrailerLine,
    kTrailerLineLf,
    kLastLf,
    kDone,
    kMalformed,
  };

  // The state after a byte that is no data.
  [[nodiscard]] State next(char c, std::string& out);

  State state_ = State::kSize;
  std::uint64_t size_ = 0;  // bytes of the chunk that are to come
  std::size_t num_digits_ = 0;
  std::size_t num_line_bytes_ = 0;  // of this line, or of all trailers
};

}  // namespace contextile
