// Heads of HTTP requests: whatever the bytes are, a head is refused or has one meaning.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "serving/server/http_head.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto head = head_size(bytes);
  if (!head) return 0;
  const HeadLimits limits;
  const auto parsed = parse_head(bytes.substr(0, *head), limits);
  if (const auto* problem = std::get_if<HeadProblem>(&parsed)) {
    if (problem->status < 400 || problem->status > 599 || problem->message.empty()) std::abort();
    return 0;
  }
  const RequestHead& taken = std::get<RequestHead>(parsed);
  if (taken.is_chunked && taken.content_length != 0) std::abort();
  if (taken.content_length > limits.max_body_bytes || taken.method.empty()) std::abort();
  return 0;
}
