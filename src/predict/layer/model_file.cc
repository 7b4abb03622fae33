// Models from files: those of this library, and config.json of Hugging Face.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/names_file.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/advanced/model.h"
#include "predict/layer/model_config.h"
#include "predict/layer/model_config_keys.h"

namespace contextile {
namespace {

using nlohmann::json;

// Keys of a model file. Any other key is an error, because a misspelled optional key would silently
// leave its default.
const std::vector<std::string>& file_keys() {
  static const std::vector<std::string> kKeys = {"name",
                                                 "layers",
                                                 "hidden",
                                                 "heads",
                                                 "kv_heads",
                                                 "head_dim",
                                                 "ffn",
                                                 "vocabulary",
                                                 "gated_ffn",
                                                 "value_dim",
                                                 "tied_embeddings",
                                                 "experts",
                                                 "dense_layers",
                                                 "experts_per_token",
                                                 "expert_ffn",
                                                 "shared_expert_ffn"};
  return kKeys;
}

void read_bool(const json& object, const char* key, bool& value) {
  if (!object.contains(key)) return;
  CONTEXTILE_CHECK(object[key].is_boolean(), "{}: expected true or false, found {}", key,
                   quote(object[key].dump()));
  value = object[key].get<bool>();
}

std::int32_t optional_integer(const json& object, const char* key) {
  return object.contains(key) ? integer_at(object, key) : 0;
}

void read_experts(const json& object, ModelSpec& model) {
  ModelExperts& experts = model.experts;
  experts.experts = optional_integer(object, "experts");
  experts.shared_ffn = optional_integer(object, "shared_expert_ffn");
  experts.dense_layers = optional_integer(object, "dense_layers");
  if (model.has_experts()) {
    experts.per_token = integer_at(object, "experts_per_token");
    experts.ffn = integer_at(object, "expert_ffn");
  } else {
    experts.per_token = optional_integer(object, "experts_per_token");
    experts.ffn = optional_integer(object, "expert_ffn");
  }
}

ModelSpec read_model(const json& object) {
  // Unknown keys come first: a misspelled required key is then named, not reported as missing.
  for (const auto& [key, value] : object.items()) {
    CONTEXTILE_CHECK(std::ranges::find(file_keys(), key) != file_keys().end(),
                     "expected the keys {}, found {}{}", fmt::join(file_keys(), ", "), quote(key),
                     did_you_mean(key, file_keys()));
  }
  ModelSpec model;
  if (object.contains("name")) {
    CONTEXTILE_CHECK(object["name"].is_string(), "name: expected text, found {}",
                     quote(object["name"].dump()));
    model.name = object["name"].get<std::string>();
  }
  model.layers = integer_at(object, "layers");
  model.hidden = integer_at(object, "hidden");
  model.q_heads = integer_at(object, "heads");
  model.kv_heads = integer_at(object, "kv_heads");
  model.head_dim = integer_at(object, "head_dim");
  read_experts(object, model);
  const bool has_ffn = !model.has_experts() || model.experts.dense_layers > 0;
  model.ffn = has_ffn ? integer_at(object, "ffn") : optional_integer(object, "ffn");
  model.vocabulary = integer_at(object, "vocabulary");
  model.value_dim = optional_integer(object, "value_dim");
  read_bool(object, "gated_ffn", model.gated_ffn);
  read_bool(object, "tied_embeddings", model.tied_embeddings);
  check_model(model);
  return model;
}

// Parses an object and reads it with `read`, which does not know the source of its text. The source
// is put before its messages.
template <typename Read>
auto read_object(std::string_view text, std::string_view where, Read read) {
  const json document = parse_json(text, where);
  CONTEXTILE_CHECK(document.is_object(), "{}: expected a JSON object, found {}", where,
                   quote(document.dump()));
  try {
    return read(document);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where, error.what());
  }
}

// A config.json has no name. Its model gets that of its folder, and from a file with a name of its
// own that of the file.
LoadedModel read_any(const json& object, const std::filesystem::path& path) {
  if (!is_model_config(object)) return {.model = read_model(object), .masks = {}, .left_out = {}};
  LoadedModel loaded = read_model_config(object);
  const std::filesystem::path name =
      path.stem() == "config" ? path.parent_path().filename() : path.stem();
  if (!name.empty() && name != ".") loaded.model.name = printable(name.string());
  return loaded;
}

// The file that a path means: a folder's is its config.json.
std::filesystem::path file_of(std::string_view text) {
  std::error_code ignored;  // reading says what is wrong with a path
  const std::filesystem::path path(text);
  return std::filesystem::is_directory(path, ignored) ? path / "config.json" : path;
}

}  // namespace

ModelSpec parse_model_json(std::string_view text, std::string_view where) {
  return read_object(text, where, read_model);
}

LoadedModel parse_model_config(std::string_view text, std::string_view where) {
  return read_object(text, where, read_model_config);
}

LoadedModel load_described_model(std::string_view text) {
  if (names_file(text)) {
    const std::filesystem::path path = file_of(text);
    const FileBytes file(path.string(), expect_text("a model as JSON"));
    return read_object(file.text(), file.name(),
                       [&](const json& object) { return read_any(object, path); });
  }
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.model.name == text) return {.model = preset.model, .masks = {}, .left_out = {}};
    names.push_back(preset.model.name);
  }
  fail_argument("model: expected one of {}, a JSON file or a folder with a config.json, found {}{}",
                fmt::join(names, ", "), quote(text), did_you_mean(text, names));
}

ModelSpec load_model(std::string_view text) { return load_described_model(text).model; }

}  // namespace contextile
