// Tokenizers of Hugging Face's tokenizer.json whose model is byte-pair encoding: on bytes (GPT-2,
// Llama 3, Qwen) or on characters with a token for each byte that has none (Llama 2, Mistral).
#include <nlohmann/json.hpp>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/utf8.h"
#include "contextile/serving/completion_server.h"
#include "serving/server/added_tokens.h"
#include "serving/server/bpe_merges.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, which represents a space

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

// A pattern that cuts text into words.
class WordPattern {
 public:
  explicit WordPattern(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &at, nullptr));
    CONTEXTILE_CHECK(code_ != nullptr,
                     "tokenizer: expected a pattern of words, found {}, wrong at {}",
                     quote(pattern), at);
  }

  // Matches and the texts between them, in order.
  [[nodiscard]] std::vector<std::string_view> words(std::string_view text) const {
    const std::unique_ptr<pcre2_match_data, Free> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    std::vector<std::string_view> words;
    std::size_t end = 0;
    std::size_t from = 0;
    while (from < text.size()) {
      const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                    text.size(), from, PCRE2_NO_UTF_CHECK, match.get(), nullptr);
      if (found == PCRE2_ERROR_NOMATCH) break;
      CONTEXTILE_CHECK(
          found > 0,
          "tokenizer: expected text that can be cut into words, found error {} at byte {}", found,
          from);
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
      if (range[0] > end) words.push_back(text.substr(end, range[0] - end));
      if (range[1] > range[0]) words.push_back(text.substr(range[0], range[1] - range[0]));
      end = range[1];
      from = std::max(range[1],
                      range[0] + std::max<std::size_t>(utf8_bytes(text.substr(range[0])), 1));
      if (range[1] > range[0]) from = range[1];
    }
    if (end < text.size()) words.push_back(text.substr(end));
    return words;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
};

// The byte that a token such as <0x0A> represents, if characters fall back to bytes.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const char* end = token.data() + 5;
  std::uint8_t byte = 0;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return static_cast<char>(byte);
}

// The places where a space is put before text, which added tokens cut into pieces.
enum class SpaceBefore : std::uint8_t {
  kNothing,
  kText,       // unless it begins with one or with an added token
  kPieces,     // unless they begin with one
  kAllPieces,  // even then
};

// The contents of a tokenizer.json.
struct Description {
  std::unordered_map<std::string, std::int32_t> tokens;
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedToken> added;
  std::vector<std::int32_t> prefix;  // tokens before every text
  bool on_bytes = true;
  bool whole_words = false;           // a word that is a token is not split
  std::vector<std::string> patterns;  // each cuts the pieces that the one before left
  SpaceBefore space_before = SpaceBefore::kNothing;
};

class TokenizerReader {
 public:
  TokenizerReader(const json& document, std::string where)
      : document_(document), where_(std::move(where)) {}

  [[nodiscard]] Description read() {
    try {
      read_model(document_.at("model"));
      read_added();
      if (has(document_, "normalizer")) read_normalizer(document_.at("normalizer"));
      if (has(document_, "pre_tokenizer")) read_words(document_.at("pre_tokenizer"));
      if (has(document_, "post_processor")) read_prefix(document_.at("post_processor"));
      return std::move(description_);
    } catch (const json::exception& error) {
      fail_argument("{}: expected a tokenizer of Hugging Face's format: {}", where_,
                    json_reason(error));
    }
  }

 private:
  static bool has(const json& object, const char* key) {
    return object.contains(key) && !object.at(key).is_null();
  }
  [[nodiscard]] std::int32_t token_of(const json& id) const {
    CONTEXTILE_CHECK(id.is_number_integer() && id >= 0 && id <= 1 << 24,
                     "{}: expected token ids of 0 to {}, found {}", where_, 1 << 24,
                     quote(id.dump()));
    return id.get<std::int32_t>();
  }

  void read_model(const json& model) {
    const auto type = model.value("type", std::string("BPE"));
    CONTEXTILE_CHECK(type == "BPE", "{}, model: expected BPE, found {}", where_, quote(type));
    for (const auto& [text, id] : model.at("vocab").items()) {
      description_.tokens.emplace(text, token_of(id));
    }
    for (const json& merge : model.at("merges")) {
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const std::size_t middle = text.find(' ');
        CONTEXTILE_CHECK(middle != std::string::npos, "{}, merges: expected two texts, found {}",
                         where_, quote(text));
        description_.merges.emplace_back(text.substr(0, middle), text.substr(middle + 1));
      } else {
        description_.merges.emplace_back(merge.at(0).get<std::string>(),
                                         merge.at(1).get<std::string>());
      }
    }
    description_.on_bytes = !model.value("byte_fallback", false);
    description_.whole_words = model.value("ignore_merges", false);
  }

  void read_added() {
    if (!has(document_, "added_tokens")) return;
    for (const json& entry : document_.at("added_tokens")) {
      AddedToken token = {entry.at("content").get<std::string>(), token_of(entry.at("id")),
                          entry.value("special", false)};
      CONTEXTILE_CHECK(!token.text.empty(), "{}, added_tokens: expected texts, found an empty one",
                       where_);
      description_.added.push_back(std::move(token));
    }
  }

  // Accepts NFC but does not apply it: nearly all text is in NFC already.
  void read_normalizer(const json& entry) {
    const auto type = entry.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& part : entry.at("normalizers")) read_normalizer(part);
    } else if (type == "Prepend" && entry.at("prepend") == kSpace) {
      description_.space_before = SpaceBefore::kAllPieces;
    } else if (type != "NFC" && !(type == "Replace" && entry.at("content") == kSpace)) {
      fail_argument("{}, normalizer: expected NFC, or spaces as U+2581, found {}", where_,
                    quote(type));
    }
  }

  void read_words(const json& entry) {
    const auto type = entry.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& part : entry.at("pretokenizers")) read_words(part);
    } else if (type == "Split") {
      const json& pattern = entry.at("pattern");
      CONTEXTILE_CHECK(pattern.contains("Regex") && entry.at("behavior") == "Isolated",
                       "{}, pre_tokenizer: expected words that are isolated by a pattern, found {}",
                       where_, quote(entry.dump()));
      description_.patterns.push_back(pattern.at("Regex").get<std::string>());
    } else if (type == "Digits") {
      description_.patterns.emplace_back(entry.value("individual_digits", false) ? R"(\p{N})"
                                                                                 : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
      if (entry.value("add_prefix_space", false)) {
        description_.space_before = SpaceBefore::kPieces;
      }
      if (entry.value("use_regex", true)) description_.patterns.emplace_back(kGpt2Words);
    } else if (type == "Metaspace" && !entry.value("split", true)) {
      const auto scheme = entry.value("prepend_scheme", std::string("always"));
      if (scheme == "first") description_.space_before = SpaceBefore::kText;
      if (scheme == "always") description_.space_before = SpaceBefore::kPieces;
    } else {
      fail_argument("{}, pre_tokenizer: expected ByteLevel, Split, Digits or Metaspace, found {}",
                    where_, quote(type));
    }
  }

  void read_prefix(const json& entry) {
    const auto type = entry.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& part : entry.at("processors")) read_prefix(part);
    } else if (type == "TemplateProcessing") {
      for (const json& part : entry.at("single")) {
        if (!part.contains("SpecialToken")) break;
        const auto text = part.at("SpecialToken").at("id").get<std::string>();
        for (const json& id : entry.at("special_tokens").at(text).at("ids")) {
          description_.prefix.push_back(token_of(id));
        }
      }
    } else if (type != "ByteLevel") {
      fail_argument("{}, post_processor: expected ByteLevel or TemplateProcessing, found {}",
                    where_, quote(type));
    }
  }

  const json& document_;
  std::string where_;
  Description description_;
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(Description given)
      : description_(std::move(given)),
        merges_(description_.tokens, description_.merges),
        added_(description_.added),
        characters_(byte_characters()) {
    for (const std::string& pattern : description_.patterns) patterns_.emplace_back(pattern);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      bytes_of_characters_.emplace(characters_[byte], static_cast<char>(byte));
    }
    for (const auto& [text, token] : description_.tokens) texts_[token] = text_of(text);
    for (const AddedToken& added : description_.added) {
      texts_[added.token] = added.is_special ? std::string() : added.text;
      longest_bytes_ = std::max(longest_bytes_, std::ssize(added.text));
    }
    for (const auto& [token, text] : texts_) {
      num_ids_ = std::max(num_ids_, token + 1);
      longest_bytes_ = std::max(longest_bytes_, std::ssize(text));
    }
    for (const std::int32_t token : description_.prefix) num_ids_ = std::max(num_ids_, token + 1);
  }

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 SpecialTokens special) const override {
    check_utf8(text);
    std::vector<std::int32_t> tokens;
    std::size_t at = 0;
    while (at < text.size()) {
      const auto added = added_.find(text, at);
      const std::size_t end = added ? added->begin : text.size();
      if (end > at) encode_plain(text.substr(at, end - at), at == 0, tokens);
      if (!added) break;
      tokens.push_back(added->token);
      at = end + added->size;
    }
    const std::vector<std::int32_t>& prefix = description_.prefix;
    const bool has_prefix =
        tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
    if (special == SpecialTokens::kAdd && !has_prefix) {
      tokens.insert(tokens.begin(), prefix.begin(), prefix.end());
    }
    return tokens;
  }
  [[nodiscard]] std::int32_t num_ids() const override { return num_ids_; }
  [[nodiscard]] std::int64_t longest_token_bytes() const override { return longest_bytes_; }
  [[nodiscard]] std::optional<std::int32_t> special_token(std::string_view text) const override {
    return added_.special(text);
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

  [[nodiscard]] bool wants_space(std::string_view piece, bool is_first) const {
    const bool has_one =
        piece.starts_with(' ') || (!description_.on_bytes && piece.starts_with(kSpace));
    switch (description_.space_before) {
      case SpaceBefore::kText:
        return is_first && !has_one;
      case SpaceBefore::kPieces:
        return !has_one;
      case SpaceBefore::kAllPieces:
        return true;
      case SpaceBefore::kNothing:
        break;
    }
    return false;
  }

  void encode_plain(std::string_view text, bool is_first, std::vector<std::int32_t>& tokens) const {
    std::string spaced;
    if (wants_space(text, is_first)) {
      spaced = " " + std::string(text);
      text = spaced;
    }
    std::vector<std::string_view> words = {text};
    for (const WordPattern& pattern : patterns_) {
      std::vector<std::string_view> smaller;
      for (const std::string_view word : words) {
        for (const std::string_view part : pattern.words(word)) smaller.push_back(part);
      }
      words = std::move(smaller);
    }
    for (const std::string_view word : words) encode_word(word, tokens);
  }

  void encode_word(std::string_view word, std::vector<std::int32_t>& tokens) const {
    std::vector<std::string> characters =
        description_.on_bytes ? by_byte(word) : by_character(word);
    if (description_.whole_words) {
      std::string whole;
      for (const std::string& character : characters) whole += character;
      if (const auto token = merges_.token(whole)) {
        tokens.push_back(*token);
        return;
      }
    }
    std::vector<std::int32_t> pieces;
    for (const std::string& character : characters) add_pieces(character, pieces);
    const std::vector<std::int32_t> joined = merges_.join(pieces);
    tokens.insert(tokens.end(), joined.begin(), joined.end());
  }

  [[nodiscard]] std::vector<std::string> by_byte(std::string_view word) const {
    std::vector<std::string> characters;
    for (const char c : word) characters.push_back(characters_[static_cast<unsigned char>(c)]);
    return characters;
  }
  [[nodiscard]] static std::vector<std::string> by_character(std::string_view word) {
    std::vector<std::string> characters;
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t size = utf8_bytes(word.substr(at));
      const std::string_view character = word.substr(at, size);
      characters.emplace_back(character == " " ? kSpace : character);
      at += size;
    }
    return characters;
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

  // The bytes that a token's text represents.
  [[nodiscard]] std::string text_of(const std::string& token) const {
    if (const auto byte = byte_of(token); byte && !description_.on_bytes) return {*byte};
    std::string text;
    for (std::size_t at = 0; at < token.size();) {
      const std::size_t size =
          std::max<std::size_t>(utf8_bytes(std::string_view(token).substr(at)), 1);
      const std::string character = token.substr(at, size);
      const auto byte = bytes_of_characters_.find(character);
      if (description_.on_bytes && byte != bytes_of_characters_.end()) {
        text += byte->second;
      } else {
        text += !description_.on_bytes && character == kSpace ? " " : character;
      }
      at += size;
    }
    return text;
  }

  Description description_;
  BpeMerges merges_;
  AddedTokens added_;
  std::int32_t num_ids_ = 0;
  std::int64_t longest_bytes_ = 1;
  std::array<std::string, 256> characters_;
  std::map<std::string, char> bytes_of_characters_;
  std::vector<WordPattern> patterns_;
  std::unordered_map<std::int32_t, std::string> texts_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  const FileBytes file((std::filesystem::path(folder) / "tokenizer.json").string(),
                       expect_text("a tokenizer"));
  const json document = parse_json(file.text(), file.name());
  CONTEXTILE_CHECK(document.is_object(), "{}: expected an object, found {}", file.name(),
                   document.type_name());
  return std::make_unique<BpeTokenizer>(TokenizerReader(document, file.name()).read());
}

}  // namespace contextile
