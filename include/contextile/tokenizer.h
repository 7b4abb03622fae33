// Text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Throws InvalidArgument where the text cannot be had in tokens.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // The bytes of a token, which need not be whole characters. Empty for tokens that stand for no
  // text.
  [[nodiscard]] virtual std::string_view bytes(std::int32_t token) const = 0;
};

// A token for each of the 256 bytes: for models that nobody trained.
[[nodiscard]] std::unique_ptr<Tokenizer> byte_tokenizer();
// That of a model's folder. Throws IoError and InvalidArgument.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace contextile
