#include <array>

#include "contextile/serving/completion_server.h"

namespace contextile {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t i = 0; i < all_.size(); ++i) all_[i] = static_cast<char>(i);
  }
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 SpecialTokens /*special*/) const override {
    std::vector<std::int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  [[nodiscard]] std::string_view bytes(std::int32_t token) const override {
    if (token < 0 || token >= static_cast<std::int32_t>(all_.size())) return {};
    return {&all_[static_cast<std::size_t>(token)], 1};
  }
  [[nodiscard]] std::int32_t num_ids() const override { return 256; }
  [[nodiscard]] std::int64_t longest_token_bytes() const override { return 1; }
  [[nodiscard]] std::optional<std::int32_t> special_token(
      std::string_view /*text*/) const override {
    return std::nullopt;
  }

 private:
  std::array<char, 256> all_;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace contextile
