// The doors to the readers of every engine.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/advanced/engine_setup.h"
#include "training/setup/setting_reader.h"
#include "training/setup/shell_words.h"

namespace contextile {
namespace {

// ------------------------------------------------------------------------- Megatron's names

// Fields of Megatron's configuration whose arguments are called otherwise.
constexpr std::pair<std::string_view, std::string_view> kFieldNames[] = {
    {"num-moe-experts", "num-experts"},
    {"virtual-pipeline-model-parallel-size", "num-virtual-stages-per-pipeline-rank"},
    {"gated-linear-unit", "swiglu"},
    {"sequence-length", "seq-length"},
    {"fp8", "fp8-format"},
};

std::string megatron_name(std::string_view key) {
  std::string name(key.substr(key.rfind('.') == key.npos ? 0 : key.rfind('.') + 1));
  std::replace(name.begin(), name.end(), '_', '-');
  const auto* const field = std::find_if(std::begin(kFieldNames), std::end(kFieldNames),
                                         [&](const auto& pair) { return pair.first == name; });
  return field == std::end(kFieldNames) ? name : std::string(field->second);
}

// Adds the options among words, with all words up to the next option as the value.
std::vector<GivenSetting> options_of(const std::vector<ShellWord>& words, std::size_t begin) {
  std::vector<GivenSetting> options;
  for (std::size_t i = begin; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (!word.text.starts_with("--")) {
      if (options.empty()) {
        fail_argument("megatron: expected an option that begins with --, found {}",
                      quote(word.text));
      }
      GivenSetting& last = options.back();
      if (!last.value.empty()) last.value += ' ';
      last.value += word.text;
      if (last.variable.empty()) last.variable = word.variable;
      continue;
    }
    const std::size_t equals = word.text.find('=');
    const std::string key = word.text.substr(0, equals);
    options.push_back({.key = key,
                       .name = key.substr(2),
                       .value = equals == std::string::npos ? "" : word.text.substr(equals + 1),
                       .variable = word.variable});
  }
  return options;
}

// ---------------------------------------------------------------------------- the launcher

// The number of one of torchrun's options; nothing where the launcher finds it out.
std::optional<std::int32_t> launcher_count(SettingReader& reader, std::string_view name) {
  const auto text = reader.text(name);
  if (!text || *text == "gpu" || *text == "auto") return std::nullopt;
  return reader.count(name);
}

void read_launcher(const std::vector<ShellWord>& words, std::size_t end, ReadSetup& result) {
  std::vector<GivenSetting> settings;
  bool torchrun = false;
  for (std::size_t i = 0; i < end; ++i) {
    const ShellWord& word = words[i];
    torchrun = torchrun || word.text.find("torchrun") != word.text.npos ||
               word.text.find("torch.distributed") != word.text.npos;
    const std::size_t equals = word.text.find('=');
    std::string name = word.text.substr(0, equals);
    std::replace(name.begin(), name.end(), '_', '-');
    if (!name.starts_with("--")) {
      const bool environment = equals != std::string::npos;
      settings.push_back({.key = word.text, .name = environment ? "=" : "word", .value = ""});
      continue;
    }
    GivenSetting setting = {.key = word.text.substr(0, equals),
                            .name = name.substr(2),
                            .value = "",
                            .variable = word.variable};
    if (equals != std::string::npos) {
      setting.value = word.text.substr(equals + 1);
    } else if (i + 1 < end && !words[i + 1].text.starts_with('-')) {
      setting.value = words[++i].text;
      setting.variable = words[i].variable;
    }
    settings.push_back(std::move(setting));
  }
  SettingReader reader("launcher", std::move(settings));
  if (torchrun) {
    const bool known = reader.text("nproc-per-node").has_value();
    const auto per_node = launcher_count(reader, "nproc-per-node");
    const auto nodes = reader.count("nnodes");
    if (per_node || !known) {
      const std::int64_t gpus =
          checked_product({per_node.value_or(1), nodes.value_or(1)}, "launcher: GPUs");
      set_gpus(reader, "nproc-per-node", gpus, result);
    }
  }
  static constexpr ApproximatedName kEnvironment[] = {
      {"=", "variables of the environment are not predicted"}};
  static constexpr std::string_view kOthers[] = {"*"};
  reader.finish({.approximated = kEnvironment, .without_effect = kOthers}, result);
}

// ----------------------------------------------------------------------------------- JSON

using FlatPairs = std::vector<std::pair<std::string, std::string>>;

std::string scalar_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// parse_json has limited the depth.
void flatten_value(const nlohmann::json& value, const std::string& key, FlatPairs& pairs) {
  const auto inside = [&](const std::string& name) {
    return key.empty() ? name : key + "." + name;
  };
  if (value.is_object()) {
    for (const auto& [name, item] : value.items()) flatten_value(item, inside(name), pairs);
    return;
  }
  if (!value.is_array()) {
    pairs.emplace_back(key, scalar_text(value));
    return;
  }
  const bool plain = std::none_of(value.begin(), value.end(),
                                  [](const auto& item) { return item.is_structured(); });
  if (!plain) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      flatten_value(value[i], inside(std::to_string(i)), pairs);
    }
    return;
  }
  std::string words;
  for (const auto& item : value) words += (words.empty() ? "" : " ") + scalar_text(item);
  pairs.emplace_back(key, std::move(words));
}

}  // namespace

bool ReadSetup::has(std::string_view field) const {
  return std::find(given.begin(), given.end(), field) != given.end();
}

ReadSetup read_engine_setup(TrainingEngine engine, FlatSettings flat,
                            std::optional<std::int64_t> num_gpus) {
  CONTEXTILE_CHECK(!num_gpus || *num_gpus >= 1, "{}: expected at least 1 GPU, found {}",
                   to_string(engine), *num_gpus);
  std::vector<GivenSetting> settings;
  for (const auto& [key, value] : flat) {
    settings.push_back({.key = key,
                        .name = engine == TrainingEngine::kMegatron ? megatron_name(key) : key,
                        .value = value});
  }
  ReadSetup result;
  result.num_gpus = num_gpus;
  switch (engine) {
    case TrainingEngine::kMegatron:
      read_megatron(std::move(settings), result);
      return result;
    case TrainingEngine::kTorchtitan:
      read_torchtitan(std::move(settings), result);
      return result;
    case TrainingEngine::kTrl:
      read_trl(std::move(settings), result);
      return result;
    case TrainingEngine::kDeepspeed:
      read_deepspeed(std::move(settings), result);
      return result;
    case TrainingEngine::kContextile:
      break;
  }
  fail_argument(
      "engine: expected megatron, torchtitan, trl or deepspeed, found {}, whose set-up is no file",
      to_string(engine));
}

ReadSetup read_megatron_arguments(std::string_view shell_text,
                                  std::optional<std::int64_t> num_gpus) {
  CONTEXTILE_CHECK(!num_gpus || *num_gpus >= 1, "megatron: expected at least 1 GPU, found {}",
                   *num_gpus);
  const std::vector<ShellWord> words = shell_words(shell_text);
  ReadSetup result;
  result.num_gpus = num_gpus;
  // Text that begins with an option is Megatron's options alone: a .py in it is a value.
  const bool command = !words.empty() && !words.front().text.starts_with("--");
  const auto script =
      !command ? words.end() : std::find_if(words.begin(), words.end(), [](const ShellWord& word) {
        return word.text.ends_with(".py") && !word.text.starts_with("--");
      });
  std::size_t begin = 0;
  if (script != words.end()) {
    begin = static_cast<std::size_t>(script - words.begin()) + 1;
    read_launcher(words, begin - 1, result);
    result.without_effect.push_back({.key = script->text, .value = "", .note = ""});
  }
  read_megatron(options_of(words, begin), result);
  return result;
}

std::vector<std::pair<std::string, std::string>> flatten_json(std::string_view text) {
  const LargeJson json(parse_json(text, "settings"));
  CONTEXTILE_CHECK(json->is_object(), "settings: expected a JSON object, found {}",
                   json->type_name());
  FlatPairs pairs;
  flatten_value(*json, "", pairs);
  return pairs;
}

}  // namespace contextile
