// The head of an HTTP/1.1 request: its first line and its fields (RFC 9112).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace contextile {

struct HeadLimits {
  std::size_t max_bytes = 16 << 10;  // of a whole head
  std::size_t max_target_bytes = 4 << 10;
  std::size_t max_fields = 100;
  std::uint64_t max_body_bytes = 8 << 20;
};

struct RequestHead {
  std::string method;
  std::string path;  // without the query
  std::uint64_t content_length = 0;
  bool is_chunked = false;
  bool closes = false;  // the client sends no request after this one
};

// The status and the reason with which a request is refused.
struct HeadProblem {
  int status = 400;
  std::string message;
};

// The number of bytes of the head that `bytes` begins with, the empty line included; none while the
// head has no end. No head ends within the first `num_searched` bytes.
[[nodiscard]] std::optional<std::size_t> head_size(std::string_view bytes,
                                                   std::size_t num_searched = 0);

// True if a client's name for its request may go into answers and logs.
[[nodiscard]] bool is_usual_name(std::string_view name);

// Checks a whole head. Anything on which two servers could disagree is refused: two lengths, a
// length next to a transfer coding, folded lines, spaces before a colon, control characters.
[[nodiscard]] std::variant<RequestHead, HeadProblem> parse_head(std::string_view head,
                                                                const HeadLimits& limits);

}  // namespace contextile
