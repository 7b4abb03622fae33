#include "cli/options/served_model.h"

#include <filesystem>
#include <string_view>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/quote.h"

namespace contextile {
namespace {

void set_size(ServedModel& model, std::string_view option, std::string_view key,
              std::string_view value) {
  DecoderConfig& config = model.config;
  const std::pair<std::string_view, std::int32_t*> sizes[] = {
      {"vocab", &config.vocab_size},  {"hidden", &config.hidden_size},
      {"layers", &config.num_layers}, {"heads", &config.q_heads},
      {"kv_heads", &config.kv_heads}, {"head_dim", &config.head_dim},
      {"ffn", &config.ffn_size}};
  const std::string name = fmt::format("{}: {}", option, key);
  for (const auto& [size, target] : sizes) {
    if (key != size) continue;
    *target = checked_cast<std::int32_t>(parse_size(name, std::string(value), 1), name);
    return;
  }
  if (key == "seed") {
    model.seed = static_cast<std::uint64_t>(parse_size(name, std::string(value), 0));
  } else if (key == "length") {
    config.max_length = parse_size(name, std::string(value), 1);
  } else if (key == "window") {  // of every second layer
    config.windows = {0, checked_cast<std::int32_t>(parse_size(name, std::string(value), 1), name)};
  } else {
    fail_argument(
        "{}: expected vocab, hidden, layers, heads, kv_heads, head_dim, ffn, window, length or "
        "seed, "
        "found {}",
        option, quote(key));
  }
}

ServedModel random_model(std::string_view sizes, std::string_view option) {
  ServedModel model;
  model.name = "random";
  while (!sizes.empty()) {
    const std::string_view pair = sizes.substr(0, sizes.find(','));
    const std::size_t middle = pair.find('=');
    CONTEXTILE_CHECK(middle != std::string_view::npos,
                     "{}: expected sizes as NAME=NUMBER, found {}", option, quote(pair));
    set_size(model, option, pair.substr(0, middle), pair.substr(middle + 1));
    sizes.remove_prefix(std::min(sizes.size(), pair.size() + 1));
  }
  if (!model.config.windows.empty()) {
    const std::int32_t window = model.config.windows.back();
    model.config.windows.clear();
    for (std::int32_t i = 0; i < model.config.num_layers; ++i) {
      model.config.windows.push_back(i % 2 == 0 ? 0 : window);
    }
  }
  check_decoder_config(model.config);
  return model;
}

std::string experts_text(const DecoderConfig& config) {
  if (!config.experts) return "no experts";
  const ExpertsConfig& experts = *config.experts;
  return fmt::format("{} of {} experts of {}, groups {}/{}, shared {}, weights {} {} {}, dense {}",
                     experts.top_k, experts.num_experts, experts.ffn_size, experts.top_groups,
                     experts.num_groups, experts.shared_size, static_cast<int>(experts.weights),
                     experts.norm_weights, experts.weight_factor,
                     fmt::join(config.dense_layers, " "));
}

}  // namespace

std::string config_text(const DecoderConfig& config) {
  const LatentConfig latent = config.latent.value_or(LatentConfig{0, 0, 0, 0});
  return fmt::format(
      "{} layers, hidden {}, heads {}/{} of {}, feed-forward {}, vocabulary {}, "
      "windows {}, rope {} / {}, length {}, latent {} {} {} {}, {}",
      config.num_layers, config.hidden_size, config.q_heads, config.kv_heads, config.head_dim,
      config.ffn_size, config.vocab_size, fmt::join(config.windows, " "), config.rope.theta,
      config.rope.factor, config.max_length, latent.q_rank, latent.kv_rank, latent.rope_dim,
      latent.value_dim, experts_text(config));
}

ServedModel parse_served_model(const std::string& text, std::string_view option) {
  constexpr std::string_view kRandom = "random";
  if (text == kRandom) return random_model("", option);
  if (text.starts_with("random:")) return random_model(std::string_view(text).substr(7), option);
  ServedModel model;
  CONTEXTILE_CHECK(
      std::filesystem::is_directory(text),
      "{}: expected a folder with config.json and model.safetensors, or random, found {}", option,
      quote(text));
  model.folder = text;
  const std::filesystem::path path = std::filesystem::path(text).lexically_normal();
  model.name = (path.has_filename() ? path : path.parent_path()).filename().string();
  model.config = read_decoder_config(text);
  return model;
}

std::string weights_identity(const ServedModel& model) {
  return model.folder.empty() ? fmt::format("random, seed {}", model.seed)
                              : fmt::format("{:016x}", weights_digest(model.folder));
}

DecoderWeights weights_of(const ServedModel& model, const DecoderPart& part) {
  return model.folder.empty() ? random_weights(model.config, part, model.seed)
                              : load_weights(model.folder, model.config, part);
}

std::unique_ptr<Tokenizer> tokenizer_of(const ServedModel& model) {
  return model.folder.empty() ? byte_tokenizer() : load_tokenizer(model.folder);
}

}  // namespace contextile
