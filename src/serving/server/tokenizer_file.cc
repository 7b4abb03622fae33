#include "serving/server/tokenizer_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "serving/model/model_file.h"
#include "serving/server/nfc.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_empty_text(const json& value) {
  return value == "";  // NOLINT(readability-container-size-empty): of a text, empty() is false
}

class TokenizerReader {
 public:
  TokenizerReader(const json& document, std::string where)
      : document_(document), where_(std::move(where)) {}

  [[nodiscard]] TokenizerFile read() {
    try {
      read_model(document_.at("model"));
      read_added();
      if (has(document_, "normalizer")) read_normalizer(document_.at("normalizer"));
      if (has(document_, "pre_tokenizer")) read_words(document_.at("pre_tokenizer"));
      if (has(document_, "post_processor")) read_around(document_.at("post_processor"));
      if (has(document_, "decoder")) check_decoder(document_.at("decoder"));
      CONTEXTILE_CHECK(file_.on_bytes != falls_back_,
                       "{}: expected a pre_tokenizer ByteLevel or a model with byte_fallback, "
                       "found {}",
                       where_, falls_back_ ? "both" : "neither");
      return std::move(file_);
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
    CONTEXTILE_CHECK(json_integer(id, 0, 1 << 24), "{}: expected token ids of 0 to {}, found {}",
                     where_, 1 << 24, quote(id.dump()));
    return id.get<std::int32_t>();
  }

  void read_model(const json& model) {
    const auto type = model.value("type", std::string("BPE"));
    CONTEXTILE_CHECK(type == "BPE", "{}, model: expected BPE, found {}", where_, quote(type));
    for (const auto& [text, id] : model.at("vocab").items()) {
      file_.tokens.emplace(text, token_of(id));
    }
    for (const json& merge : model.at("merges")) {
      if (merge.is_string()) {
        const auto text = merge.get<std::string>();
        const std::size_t middle = text.find(' ');
        CONTEXTILE_CHECK(middle != std::string::npos, "{}, merges: expected two texts, found {}",
                         where_, quote(text));
        file_.merges.emplace_back(text.substr(0, middle), text.substr(middle + 1));
      } else {
        file_.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
      }
    }
    falls_back_ = has(model, "byte_fallback") && model.at("byte_fallback").get<bool>();
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      CONTEXTILE_CHECK(!has(model, key) || is_empty_text(model.at(key)),
                       "{}, model, {}: expected none, found {}", where_, key,
                       quote(model.at(key).dump()));
    }
    CONTEXTILE_CHECK(!has(model, "dropout") || model.at("dropout") == 0,
                     "{}, model, dropout: expected none, found {}", where_,
                     quote(model.at("dropout").dump()));
    file_.whole_words = model.value("ignore_merges", false);
  }

  void read_added() {
    if (!has(document_, "added_tokens")) return;
    for (const json& entry : document_.at("added_tokens")) {
      AddedToken token = {.text = entry.at("content").get<std::string>(),
                          .token = token_of(entry.at("id")),
                          .is_special = entry.value("special", false),
                          .is_normalized = entry.value("normalized", false),
                          .is_single_word = entry.value("single_word", false),
                          .takes_space_before = entry.value("lstrip", false),
                          .takes_space_after = entry.value("rstrip", false)};
      CONTEXTILE_CHECK(!token.text.empty(), "{}, added_tokens: expected texts, found an empty one",
                       where_);
      file_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const json& entry) {
    using Kind = Normalizer::Kind;
    const auto type = entry.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& part : entry.at("normalizers")) read_normalizer(part);
    } else if (type == "NFC") {
      file_.normalizers.push_back({Kind::kNfc, "", ""});
    } else if (type == "Prepend") {
      file_.normalizers.push_back({Kind::kPrepend, "", entry.at("prepend").get<std::string>()});
    } else if (type == "Replace" && entry.at("pattern").contains("String") &&
               !is_empty_text(entry.at("pattern").at("String"))) {
      file_.normalizers.push_back({Kind::kReplace,
                                   entry.at("pattern").at("String").get<std::string>(),
                                   entry.at("content").get<std::string>()});
    } else {
      fail_argument("{}, normalizer: expected NFC, Prepend, or Replace of a text, found {}", where_,
                    quote(entry.dump()));
    }
  }

  void read_words(const json& entry) {
    using Kind = WordStep::Kind;
    const auto type = entry.at("type").get<std::string>();
    const auto add = [&](Kind kind, const std::string& pattern = "") {
      file_.steps.push_back({kind, pattern});
    };
    CONTEXTILE_CHECK(!file_.on_bytes,
                     "{}, pre_tokenizer: expected ByteLevel as the last one, found {} behind it",
                     where_, quote(type));
    if (type == "Sequence") {
      for (const json& part : entry.at("pretokenizers")) read_words(part);
    } else if (type == "Split") {
      const json& pattern = entry.at("pattern");
      CONTEXTILE_CHECK(pattern.contains("Regex") && entry.at("behavior") == "Isolated" &&
                           !entry.value("invert", false),
                       "{}, pre_tokenizer: expected words that are isolated by a pattern, found {}",
                       where_, quote(entry.dump()));
      add(Kind::kPattern, pattern.at("Regex").get<std::string>());
    } else if (type == "Digits") {
      add(Kind::kPattern, entry.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    } else if (type == "ByteLevel") {
      if (entry.value("add_prefix_space", true)) add(Kind::kSpace);
      if (entry.value("use_regex", true)) add(Kind::kPattern, kGpt2Words);
      file_.on_bytes = true;
    } else if (type == "Metaspace" && !entry.value("split", true) &&
               entry.value("replacement", std::string(kSpace)) == kSpace) {
      const auto scheme = entry.value("prepend_scheme", std::string("always"));
      add(scheme == "always"  ? Kind::kMetaspaces
          : scheme == "first" ? Kind::kFirstMetaspace
                              : Kind::kMetaspace);
    } else {
      fail_argument(
          "{}, pre_tokenizer: expected ByteLevel, Split, Digits, or Metaspace of U+2581 without "
          "split, found {}",
          where_, quote(entry.dump()));
    }
  }

  void read_around(const json& entry) {
    const auto type = entry.at("type").get<std::string>();
    if (type == "Sequence") {
      for (const json& part : entry.at("processors")) read_around(part);
    } else if (type == "TemplateProcessing") {
      bool is_behind = false;
      for (const json& part : entry.at("single")) {
        if (!part.contains("SpecialToken")) {
          CONTEXTILE_CHECK(!is_behind && part.at("Sequence").at("id") == "A",
                           "{}, post_processor: expected one text, found {}", where_,
                           quote(entry.at("single").dump()));
          is_behind = true;
          continue;
        }
        const auto text = part.at("SpecialToken").at("id").get<std::string>();
        for (const json& id : entry.at("special_tokens").at(text).at("ids")) {
          (is_behind ? file_.suffix : file_.prefix).push_back(token_of(id));
        }
      }
    } else if (type != "ByteLevel") {
      fail_argument("{}, post_processor: expected ByteLevel or TemplateProcessing, found {}",
                    where_, quote(type));
    }
  }

  // The texts of tokens follow from the model. Parts that take a space off the beginning of a text
  // have no effect: a completion is no beginning.
  void check_decoder(const json& entry) const {
    const auto type = entry.at("type").get<std::string>();
    const bool is_right =
        file_.on_bytes
            ? type == "ByteLevel" || type == "Fuse"
            : type == "ByteFallback" || type == "Fuse" || type == "Metaspace" ||
                  (type == "Strip" && entry.at("content") == " " && entry.at("stop") == 0) ||
                  (type == "Replace" && entry.at("content") == " " &&
                   entry.at("pattern") == json{{"String", kSpace}});
    if (type == "Sequence") {
      for (const json& part : entry.at("decoders")) check_decoder(part);
    } else if (!is_right) {
      fail_argument(
          "{}, decoder: expected ByteLevel, or spaces for U+2581 and byte fallback, "
          "found {}",
          where_, quote(entry.dump()));
    }
  }

  const json& document_;
  std::string where_;
  TokenizerFile file_;
  bool falls_back_ = false;  // characters without a token become tokens of their bytes
};

}  // namespace

std::string normalized(std::string_view text, const std::vector<Normalizer>& normalizers) {
  std::string result(text);
  for (const Normalizer& one : normalizers) {
    if (one.kind == Normalizer::Kind::kNfc) {
      result = to_nfc(result);
    } else if (one.kind == Normalizer::Kind::kPrepend) {
      if (!result.empty()) result.insert(0, one.after);
    } else {
      std::string replaced;
      std::size_t at = 0;
      for (std::size_t next = result.find(one.before); next != std::string::npos;
           next = result.find(one.before, at)) {
        replaced += result.substr(at, next - at) + one.after;
        at = next + one.before.size();
      }
      replaced.append(result, at);
      result = std::move(replaced);
    }
  }
  return result;
}

TokenizerFile read_tokenizer_file(const std::string& path) {
  const FileBytes file(model_file(path), expect_text("a tokenizer"));
  const json document = parse_json(file.text(), file.name());
  CONTEXTILE_CHECK(document.is_object(), "{}: expected an object, found {}", file.name(),
                   document.type_name());
  return TokenizerReader(document, file.name()).read();
}

}  // namespace contextile
