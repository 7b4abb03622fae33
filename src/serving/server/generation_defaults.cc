#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/serving/completion_server.h"
#include "serving/model/model_file.h"

namespace contextile {
namespace {

using nlohmann::json;

// Fields that change what `generate` of transformers returns, that this server does not have, and
// their values without an effect. A field whose value is null has none either.
const json& unsupported() {
  static const json kNeutral = {{"encoder_repetition_penalty", 1.0},
                                {"no_repeat_ngram_size", 0},
                                {"top_h", nullptr},
                                {"typical_p", 1.0},
                                {"epsilon_cutoff", 0.0},
                                {"eta_cutoff", 0.0},
                                {"penalty_alpha", 0.0},
                                {"guidance_scale", 1.0},
                                {"num_beams", 1},
                                {"num_beam_groups", 1},
                                {"dola_layers", nullptr},
                                {"min_length", 0},
                                {"min_new_tokens", 0},
                                {"max_new_tokens", nullptr},
                                {"max_time", nullptr},
                                {"stop_strings", nullptr},
                                {"bad_words_ids", nullptr},
                                {"sequence_bias", nullptr},
                                {"suppress_tokens", nullptr},
                                {"begin_suppress_tokens", nullptr},
                                {"forced_bos_token_id", nullptr},
                                {"forced_eos_token_id", nullptr},
                                {"forced_decoder_ids", nullptr},
                                {"exponential_decay_length_penalty", nullptr},
                                {"watermarking_config", nullptr},
                                {"prompt_lookup_num_tokens", nullptr}};
  return kNeutral;
}

class GenerationReader {
 public:
  GenerationReader(const json& object, std::string where)
      : object_(object), where_(std::move(where)) {}

  [[nodiscard]] const json* find(std::string_view key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] double number(const char* key, double unless, double least, double most) const {
    const json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_number() || value->get<double>() < least || value->get<double>() > most) {
      fail(key, fmt::format("a number of {:g} to {:g}", least, most), *value);
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool unless) const {
    const json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_boolean()) fail(key, "true or false", *value);
    return value->get<bool>();
  }
  [[nodiscard]] std::int32_t top_k() const {
    const json* value = find("top_k");
    if (value == nullptr) return 0;
    const std::optional<std::int64_t> top_k = json_integer(*value, -1, 1 << 30);
    if (!top_k) fail("top_k", "a whole number of -1 to 2^30", *value);
    return static_cast<std::int32_t>(std::max<std::int64_t>(*top_k, 0));
  }

 private:
  [[noreturn]] void fail(const char* key, const std::string& expected, const json& found) const {
    fail_argument("{}, {}: expected {}, found {} (--generation-config none does not read it)",
                  where_, key, expected, quote(found.dump()));
  }

  const json& object_;
  std::string where_;
};

}  // namespace

GenerationDefaults read_generation_defaults(const std::string& folder) {
  GenerationDefaults defaults;
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return defaults;
  const FileBytes file(model_file(path.string()), expect_text("a configuration of generation"));
  const json document = parse_json(file.text(), file.name());
  CONTEXTILE_CHECK(document.is_object(), "{}: expected an object, found {}", file.name(),
                   document.type_name());
  const GenerationReader reader(document, file.name());
  SamplingParams& sampling = defaults.sampling;
  sampling.temperature = reader.number("temperature", sampling.temperature, 0, 2);
  sampling.top_p = reader.number("top_p", sampling.top_p, 1e-6, 1);
  sampling.top_k = reader.top_k();
  sampling.min_p = reader.number("min_p", sampling.min_p, 0, 1);
  sampling.repetition_penalty =
      reader.number("repetition_penalty", sampling.repetition_penalty, 0.01, 100);
  // Files that leave do_sample out mean sampling to other servers, whatever `generate` does.
  if (!reader.flag("do_sample", true)) sampling.temperature = 0;
  for (const auto& [key, neutral] : unsupported().items()) {
    const json* value = reader.find(key);
    if (value != nullptr && *value != neutral) {
      defaults.ignored.push_back(fmt::format("{} {}", key, value->dump()));
    }
  }
  return defaults;
}

}  // namespace contextile
