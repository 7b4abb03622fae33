// Tokenizers of Hugging Face's tokenizer.json whose model is byte-pair encoding: on bytes (GPT-2,
// Llama 3, Qwen) or on characters with a token for each byte that has none (Llama 2, Mistral).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/look.h"
#include "base/quote.h"
#include "base/utf8.h"
#include "contextile/serving/completion_server.h"
#include "serving/server/added_tokens.h"
#include "serving/server/bpe_merges.h"
#include "serving/server/tokenizer_file.h"
#include "serving/server/word_pattern.h"

namespace contextile {
namespace {

std::string utf8_of(unsigned code) {  // of codes below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0U | (code >> 6)), static_cast<char>(0x80U | (code & 0x3fU))};
}

// The characters that represent bytes in the texts of tokens (GPT-2): printable ones represent
// themselves, the others follow in their order from U+0100 on.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> characters;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    characters[byte] = utf8_of(printable ? byte : next++);
  }
  return characters;
}

// The byte that a token such as <0x0A> represents, if characters fall back to bytes.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const char* end = token.data() + 5;
  std::uint8_t byte = 0;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(byte);
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(TokenizerFile given)
      : file_(std::move(given)),
        merges_(file_.tokens, file_.merges),
        characters_(byte_characters()) {
    for (const WordStep& step : file_.steps) {
      if (step.kind == WordStep::Kind::kPattern) patterns_.emplace_back(step.pattern);
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      bytes_of_characters_.emplace(characters_[byte], static_cast<char>(byte));
    }
    for (const auto& [text, token] : file_.tokens) texts_[token] = text_of(text);
    std::set<std::string> special;
    for (const AddedToken& added : file_.added) {
      if (added.is_special) special.insert(added.text);
    }
    // Special tokens come first among those that have one text in normalized text.
    std::stable_partition(file_.added.begin(), file_.added.end(),
                          [](const AddedToken& added) { return added.is_special; });
    std::vector<AddedToken> raw;
    std::vector<AddedToken> of_normalized;
    for (AddedToken added : file_.added) {
      longest_bytes_ = std::max(longest_bytes_, std::ssize(added.text));
      if (added.is_normalized) added.text = normalized(added.text, file_.normalizers);
      // As in the library whose files these are, a special token shows if normalizing changes it.
      const bool is_hidden = special.contains(added.text);
      if (is_hidden) names_[added.token] = added.text;
      texts_[added.token] = is_hidden ? std::string() : text_of(added.text);
      (added.is_normalized ? of_normalized : raw).push_back(added);
    }
    added_.emplace(raw);
    normalized_added_.emplace(of_normalized);
    for (const auto& [token, text] : texts_) {
      num_ids_ = std::max(num_ids_, token + 1);
      longest_bytes_ = std::max(longest_bytes_, std::ssize(text));
    }
    for (const auto* around : {&file_.prefix, &file_.suffix}) {
      for (const std::int32_t token : *around) num_ids_ = std::max(num_ids_, token + 1);
    }
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 SpecialTokens special) const override {
    return encode_watched(text, special, {});
  }
  [[nodiscard]] std::vector<std::int32_t> encode_watched(std::string_view text,
                                                         SpecialTokens special,
                                                         const Look& watch) const override {
    RareLook look(watch);
    check_utf8(text);
    std::vector<std::int32_t> tokens;
    bool is_first = true;  // nothing but this piece begins the text
    for_pieces(text, *added_, tokens, [&](std::string_view piece) {
      const std::string changed = normalized(piece, file_.normalizers);
      for_pieces(changed, *normalized_added_, tokens, [&](std::string_view part) {
        const bool begins =
            is_first && piece.data() == text.data() && part.data() == changed.data();
        look();
        encode_plain(part, begins, tokens, look);
      });
      is_first = false;
    });
    if (special == SpecialTokens::kNone) return tokens;
    const std::vector<std::int32_t>& prefix = file_.prefix;
    const bool has_prefix =
        tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
    if (!has_prefix) tokens.insert(tokens.begin(), prefix.begin(), prefix.end());
    tokens.insert(tokens.end(), file_.suffix.begin(), file_.suffix.end());
    return tokens;
  }
  [[nodiscard]] std::int32_t num_ids() const override { return num_ids_; }
  [[nodiscard]] std::int64_t longest_token_bytes() const override { return longest_bytes_; }
  [[nodiscard]] std::optional<std::int32_t> special_token(std::string_view text) const override {
    const auto token = added_->special(text);
    return token ? token : normalized_added_->special(text);
  }

  [[nodiscard]] std::string_view name(std::int32_t token) const override {
    const auto found = names_.find(token);
    return found == names_.end() ? bytes(token) : found->second;
  }
  [[nodiscard]] std::string_view bytes(std::int32_t token) const override {
    const auto found = texts_.find(token);
    return found == texts_.end() ? std::string_view() : std::string_view(found->second);
  }

 private:
  static void check_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = utf8_bytes(text.substr(at));
      CONTEXTILE_CHECK(size > 0, "text: expected UTF-8, found byte {:#04x} at {}",
                       static_cast<unsigned char>(text[at]), at);
      at += size;
    }
  }

  // Adds the added tokens in the text, and gives the pieces between them to `take`, in order.
  template <typename Take>
  void for_pieces(std::string_view text, const AddedTokens& added,
                  std::vector<std::int32_t>& tokens, const Take& take) const {
    std::size_t done = 0;  // up to where the text was given
    std::size_t at = 0;
    std::size_t space_begin = 0;  // behind the last token that took space
    std::size_t space_end = 0;
    while (at < text.size()) {
      const auto found = added.find(text, at);
      if (!found) break;
      std::size_t begin = found->begin;
      std::size_t end = begin + found->size;
      at = end;
      const AddedToken& token = *found->added;
      if (token.is_single_word &&
          (ends_in_word(text.substr(0, begin)) || begins_in_word(text.substr(end)))) {
        continue;
      }
      if (token.takes_space_before) {
        begin = begin > done ? begin - space_at_end(text.substr(done, begin - done)) : done;
      }
      if (token.takes_space_after) {
        // Looks at each white space once, however many tokens are found in it.
        if (end < space_begin || end > space_end) {
          space_begin = end;
          space_end = end + space_at_begin(text.substr(end));
        }
        end = space_end;
      }
      if (begin > done) take(text.substr(done, begin - done));
      // Tokens of white space are found in the space that another token has taken, too, as in the
      // library whose files these are.
      if (begin < end) tokens.push_back(token.token);
      done = end;
    }
    if (done < text.size()) take(text.substr(done));
  }

  [[nodiscard]] static std::string_view first_of(std::string_view text) {
    return text.substr(0, text.empty() ? 0 : utf8_bytes(text));
  }
  [[nodiscard]] static std::string_view last_of(std::string_view text) {
    std::size_t size = std::min<std::size_t>(1, text.size());
    const auto is_inside = [&] {
      return size < text.size() && (text[text.size() - size] & 0xc0) == 0x80;
    };
    while (is_inside()) ++size;
    return text.substr(text.size() - size);
  }
  [[nodiscard]] bool begins_in_word(std::string_view text) const {
    return !text.empty() && word_character_.matches(first_of(text));
  }
  [[nodiscard]] bool ends_in_word(std::string_view text) const {
    return !text.empty() && word_character_.matches(last_of(text));
  }
  // The number of bytes of white space at one end of the text.
  [[nodiscard]] std::size_t space_at_begin(std::string_view text) const {
    std::size_t size = 0;
    while (size < text.size() && white_space_.matches(first_of(text.substr(size)))) {
      size += first_of(text.substr(size)).size();
    }
    return size;
  }
  [[nodiscard]] std::size_t space_at_end(std::string_view text) const {
    std::size_t size = 0;
    const auto rest = [&] { return text.substr(0, text.size() - size); };
    while (size < text.size() && white_space_.matches(last_of(rest()))) {
      size += last_of(rest()).size();
    }
    return size;
  }

  // begins: whether the text begins with this piece of it.
  void encode_plain(std::string_view piece, bool begins, std::vector<std::int32_t>& tokens,
                    RareLook& look) const {
    std::deque<std::string> changed;  // what words that were changed refer to
    std::vector<std::string_view> words = {piece};
    auto pattern = patterns_.begin();
    for (const WordStep& step : file_.steps) {
      std::vector<std::string_view> next;
      for (const std::string_view word : words) {
        if (step.kind == WordStep::Kind::kPattern) {
          for (const std::string_view part : pattern->words(word, look)) next.push_back(part);
        } else {
          const bool is_first = begins && next.empty();
          next.push_back(changed.emplace_back(with_spaces(word, step.kind, is_first)));
        }
      }
      if (step.kind == WordStep::Kind::kPattern) ++pattern;
      words = std::move(next);
    }
    for (const std::string_view word : words) encode_word(word, tokens, look);
  }

  [[nodiscard]] static std::string with_spaces(std::string_view word, WordStep::Kind kind,
                                               bool is_first) {
    if (kind == WordStep::Kind::kSpace) {
      return word.starts_with(' ') ? std::string(word) : " " + std::string(word);
    }
    std::string changed;
    for (const char c : word) {
      if (c == ' ') {
        changed += kSpace;
      } else {
        changed += c;
      }
    }
    const bool wants_space = kind == WordStep::Kind::kMetaspaces ||
                             (kind == WordStep::Kind::kFirstMetaspace && is_first);
    if (wants_space && !changed.starts_with(kSpace)) changed.insert(0, kSpace);
    return changed;
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens, RareLook& look) const {
    look();
    if (file_.whole_words) {
      std::string whole;
      for_characters(word, [&](const std::string& character) { whole += character; });
      if (const auto token = merges_.token(whole)) {
        tokens.push_back(*token);
        return;
      }
    }
    std::vector<std::int32_t> pieces;
    for_characters(word, [&](const std::string& character) { add_pieces(character, pieces); });
    const std::vector<std::int32_t> joined = merges_.join(pieces, look);
    tokens.insert(tokens.end(), joined.begin(), joined.end());
  }

  // Gives `take` the characters that represent the word's bytes, or are those of the word.
  template <typename Take>
  void for_characters(std::string_view word, const Take& take) const {
    if (file_.on_bytes) {
      for (const char c : word) take(characters_[static_cast<unsigned char>(c)]);
      return;
    }
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t size = utf8_bytes(word.substr(at));
      take(std::string(word.substr(at, size)));
      at += size;
    }
  }

  // A character's token, or those of its bytes.
  void add_pieces(const std::string& character, std::vector<std::int32_t>& pieces) const {
    if (const auto token = merges_.token(character)) {
      pieces.push_back(*token);
      return;
    }
    for (const char c : character) {
      const auto token = merges_.token(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
      CONTEXTILE_CHECK(token, "text: expected characters that the tokenizer has, found {}",
                       quote(character));
      pieces.push_back(*token);
    }
  }

  // The bytes that a token's text stands for.
  [[nodiscard]] std::string text_of(const std::string& token) const {
    if (const auto byte = byte_of(token); byte && !file_.on_bytes) return {*byte};
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      const std::size_t size =
          std::max<std::size_t>(utf8_bytes(std::string_view(token).substr(at)), 1);
      const std::string character = token.substr(at, size);
      const auto byte = bytes_of_characters_.find(character);
      if (!file_.on_bytes) {
        text += character == kSpace ? " " : character;
      } else if (byte != bytes_of_characters_.end()) {
        text += byte->second;
      } else {
        return token;  // not written in characters of bytes
      }
      at += size;
    }
    return text;
  }

  TokenizerFile file_;
  BpeMerges merges_;
  std::optional<AddedTokens> added_;             // found in text as it comes
  std::optional<AddedTokens> normalized_added_;  // found between those, in normalized text
  WordPattern white_space_{fmt::format("[{}]", kWhiteSpace)};
  WordPattern word_character_{fmt::format("[{}]", kWordCharacters)};
  std::int32_t num_ids_ = 0;
  std::unordered_map<std::int32_t, std::string> names_;  // of special tokens
  std::int64_t longest_bytes_ = 1;
  std::array<std::string, 256> characters_;
  std::map<std::string, char> bytes_of_characters_;
  std::vector<WordPattern> patterns_;
  std::unordered_map<std::int32_t, std::string> texts_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  return std::make_unique<BpeTokenizer>(
      read_tokenizer_file((std::filesystem::path(folder) / "tokenizer.json").string()));
}

}  // namespace contextile
