// JSON: it is read as nlohmann's own parser reads it, or refused, in time linear in its bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/parse_json.h"
#include "contextile/base.h"

namespace {

// An array that repeats the input up to a mebibyte. A quadratic reader runs into the fuzzer's limit
// of time.
std::string repeated(std::string_view text) {
  std::string whole = "[";
  while (whole.size() < std::size_t{1} << 20) {
    whole += text;
    whole += ',';
  }
  whole.back() = ']';
  return whole;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;
  constexpr int kBetweenLongInputs = 500;
  static int num_inputs = 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    if (parse_json(text, "input") != nlohmann::json::parse(text)) std::abort();
    if (num_inputs++ % kBetweenLongInputs == 0 && size > 0) {
      static_cast<void>(parse_json(repeated(text), "input"));
    }
  } catch (const InvalidArgument&) {
  }
  return 0;
}
