// Tokenizers, and text: the first half of the input is a tokenizer.json, the second the text that
// it encodes.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "contextile/base.h"
#include "contextile/serving/completion_server.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;
  static const std::filesystem::path folder = [] {
    const auto path = std::filesystem::temp_directory_path() /
                      ("contextile_fuzz_tokenizer_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t middle = std::min(input.find('\0'), size);
  std::ofstream(folder / "tokenizer.json", std::ios::binary)
      .write(input.data(), static_cast<std::streamsize>(middle));
  try {
    const auto tokenizer = load_tokenizer(folder.string());
    const std::string_view text = input.substr(std::min(middle + 1, size));
    for (const std::int32_t token : tokenizer->encode(text)) {
      static_cast<void>(tokenizer->bytes(token));
    }
    // Quadratic work on a long text runs into the fuzzer's limit of time.
    constexpr int kBetweenLongTexts = 500;
    static int num_texts = 0;
    if (num_texts++ % kBetweenLongTexts == 0 && !text.empty()) {
      std::string whole;
      while (whole.size() < std::size_t{1} << 18) whole += text;
      static_cast<void>(tokenizer->encode(whole));
    }
  } catch (const Error&) {
  }
  return 0;
}
