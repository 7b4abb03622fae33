#include "serving/server/http_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::string_view kEndOfHead = "\r\n\r\n";

// A refusal on its way out of the parser.
struct Refused {
  HeadProblem problem;
};

template <typename... Args>
[[noreturn]] void refuse(int status, fmt::format_string<Args...> format, Args&&... args) {
  throw Refused{{status, fmt::format(format, std::forward<Args>(args)...)}};
}

bool is_token_char(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         kOthers.find(c) != std::string_view::npos;
}
bool is_token(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, is_token_char);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

class HeadParser {
 public:
  explicit HeadParser(const HeadLimits& limits) : limits_(limits) {}

  [[nodiscard]] RequestHead parse(std::string_view head) {
    read_first_line(next_line(head));
    std::size_t num_fields = 0;
    for (std::string_view line = next_line(head); !line.empty(); line = next_line(head)) {
      if (++num_fields > limits_.max_fields) {
        refuse(431, "request: expected at most {} header fields, found more", limits_.max_fields);
      }
      read_field(line);
    }
    check();
    return std::move(parsed_);
  }

 private:
  // Takes a line and its end off the head, which ends with an empty line.
  static std::string_view next_line(std::string_view& head) {
    const std::size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end == std::string_view::npos ? head.size() : end + 2);
    return line;
  }

  void read_first_line(std::string_view line) {
    const std::size_t first = line.find(' ');
    const std::size_t last = line.rfind(' ');
    if (first == std::string_view::npos || first == last) {
      refuse(400, "request: expected METHOD TARGET HTTP/1.1, found {}", quote(line));
    }
    const std::string_view method = line.substr(0, first);
    const std::string_view target = line.substr(first + 1, last - first - 1);
    const std::string_view version = line.substr(last + 1);
    if (!is_token(method)) refuse(400, "request: expected a method, found {}", quote(method));
    if (target.size() > limits_.max_target_bytes) {
      refuse(414, "request: expected a target of at most {} bytes, found {}",
             limits_.max_target_bytes, target.size());
    }
    const bool is_visible = std::ranges::all_of(target, [](char c) { return c > ' ' && c < 0x7f; });
    if (!is_visible || !(target.starts_with('/') || target == "*")) {
      refuse(400, "request: expected a target that begins with /, found {}", quote(target));
    }
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
      refuse(version.starts_with("HTTP/") ? 505 : 400,
             "request: expected HTTP/1.1 or HTTP/1.0, found {}", quote(version));
    }
    is_1_0_ = version == "HTTP/1.0";
    parsed_.closes = is_1_0_;
    parsed_.method = method;
    parsed_.path = target.substr(0, target.find('?'));
  }

  void read_field(std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
      refuse(400, "request: expected a header field NAME: VALUE, found {}", quote(line));
    }
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    const bool is_clean = std::ranges::none_of(value, [](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return (byte < ' ' && c != '\t') || byte == 0x7f;
    });
    if (!is_clean) refuse(400, "request, {}: expected no control characters, found some", name);
    if (name == "host") ++num_hosts_;
    if (name == "content-length") read_length(value);
    if (name == "transfer-encoding") read_coding(value);
    if (name == "connection") read_connection(value);
    if (name == "expect" && lower(value) != "100-continue") {
      refuse(417, "request, expect: expected 100-continue, found {}", quote(value));
    }
  }

  void read_connection(std::string_view value) {
    for (std::size_t begin = 0; begin <= value.size();) {
      const std::size_t end = std::min(value.find(',', begin), value.size());
      if (lower(trimmed(value.substr(begin, end - begin))) == "close") parsed_.closes = true;
      begin = end + 1;
    }
  }

  void read_length(std::string_view value) {
    std::uint64_t length = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), length);
    const bool is_number = !value.empty() && end == value.data() + value.size();
    if (error == std::errc::result_out_of_range && is_number) length = UINT64_MAX;
    if (!is_number || (error != std::errc() && error != std::errc::result_out_of_range)) {
      refuse(400, "request, content-length: expected a number, found {}", quote(value));
    }
    if (length_ && *length_ != length) {
      refuse(400, "request, content-length: expected one length, found two");
    }
    length_ = length;
  }

  void read_coding(std::string_view value) {
    if (parsed_.is_chunked) {
      refuse(400, "request, transfer-encoding: expected it once, found it again");
    }
    if (lower(value) != "chunked") {
      refuse(501, "request, transfer-encoding: expected chunked, found {}", quote(value));
    }
    parsed_.is_chunked = true;
  }

  void check() {
    if (num_hosts_ > 1 || (num_hosts_ == 0 && !is_1_0_)) {
      refuse(400, "request: expected one header field host, found {}", num_hosts_);
    }
    if (parsed_.is_chunked && (length_ || is_1_0_)) {
      refuse(400, "request: expected a length or chunks of HTTP/1.1, found {}",
             length_ ? "both" : "chunks of HTTP/1.0");
    }
    parsed_.content_length = length_.value_or(0);
    if (parsed_.content_length > limits_.max_body_bytes) {
      refuse(413, "request: expected a body of at most {} bytes (--max-body-bytes), found {}",
             limits_.max_body_bytes, parsed_.content_length);
    }
  }

  const HeadLimits& limits_;
  RequestHead parsed_;
  std::optional<std::uint64_t> length_;
  std::size_t num_hosts_ = 0;
  bool is_1_0_ = false;
};

}  // namespace

std::optional<std::size_t> head_size(std::string_view bytes, std::size_t num_searched) {
  const std::size_t end =
      bytes.find(kEndOfHead, num_searched - std::min(num_searched, kEndOfHead.size() - 1));
  if (end == std::string_view::npos) return std::nullopt;
  return end + kEndOfHead.size();
}

bool is_usual_name(std::string_view name) {
  constexpr std::size_t kMostBytes = 128;
  return !name.empty() && name.size() <= kMostBytes && std::ranges::all_of(name, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
  });
}

std::variant<RequestHead, HeadProblem> parse_head(std::string_view head, const HeadLimits& limits) {
  try {
    return HeadParser(limits).parse(head);
  } catch (const Refused& refused) {
    return refused.problem;
  }
}

}  // namespace contextile
