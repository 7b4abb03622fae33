#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/names_file.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "cluster/collectives_json.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

using nlohmann::json;

// The keys of a cluster file.
const std::vector<std::string>& file_keys() {
  static const std::vector<std::string> kKeys = {"preset",
                                                 "name",
                                                 "nodes",
                                                 "devices_per_node",
                                                 "intra_gbytes_per_s",
                                                 "inter_gbytes_per_s_per_node",
                                                 "attention_tflops",
                                                 "memory_bytes",
                                                 "peak_tflops",
                                                 "memory_gbytes_per_s",
                                                 "intra_latency_us",
                                                 "inter_latency_us",
                                                 "launch_us",
                                                 "nics_per_node",
                                                 "rails",
                                                 "flow_gbytes_per_s",
                                                 "launches",
                                                 "collectives",
                                                 "sms",
                                                 "transfer_sms",
                                                 "sm_fraction",
                                                 "transfer_compute_us_per_mb",
                                                 "compute_slots_per_node",
                                                 "attention",
                                                 "kernel",
                                                 "engine"};
  return kKeys;
}

// "4x8" → nodes, devices per node.
void read_size(std::string_view text, std::string_view found, Cluster& cluster) {
  const char* const end = text.data() + text.size();
  const auto [cross, first] = std::from_chars(text.data(), end, cluster.nodes);
  const bool has_cross = first == std::errc{} && cross != end && *cross == 'x';
  const auto [stop, second] =
      std::from_chars(has_cross ? cross + 1 : end, end, cluster.devices_per_node);
  CONTEXTILE_CHECK(has_cross && second == std::errc{} && stop == end,
                   "cluster {}: expected NODESxDEVICES (as 4x8) after the colon, found {}",
                   quote(found), quote(text));
}

// "transfer_sms=6", "kernel=fa2" or "engine=torch", which also becomes part of the name.
void read_setting(std::string_view text, std::string_view found, std::string_view preset,
                  Cluster& cluster) {
  constexpr std::string_view kSms = "transfer_sms=";
  constexpr std::string_view kKernel = "kernel=";
  constexpr std::string_view kEngine = "engine=";
  bool is_setting = false;
  if (text.starts_with(kSms)) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] =
        std::from_chars(text.data() + kSms.size(), end, cluster.transfer_sms);
    is_setting = error == std::errc{} && stop == end;
  } else if (text.starts_with(kKernel)) {
    use_gpu_kernel(preset, text.substr(kKernel.size()), cluster);
    is_setting = true;
  } else if (text.starts_with(kEngine)) {
    cluster.engine = find_engine(text.substr(kEngine.size()));
    is_setting = true;
  }
  CONTEXTILE_CHECK(is_setting,
                   "cluster {}: expected transfer_sms=N (as transfer_sms=6), kernel=NAME or "
                   "engine=NAME after the comma, found {}{}",
                   quote(found), quote(text),
                   did_you_mean(text.substr(0, text.find('=')),
                                std::vector<std::string>{"transfer_sms", "kernel", "engine"}));
  cluster.name += fmt::format(",{}", text);
}

// "NAME" or "NAME:NODESxDEVICES", each perhaps with ",transfer_sms=N", ",kernel=NAME" and
// ",engine=NAME".
Cluster find_preset(std::string_view text) {
  const std::string_view machine = without_settings(text);
  const std::size_t colon = machine.find(':');
  const std::string_view name = machine.substr(0, colon);
  const std::vector<ClusterPreset>& presets = cluster_presets();
  const auto preset = std::ranges::find(presets, name, &ClusterPreset::name);
  if (preset == presets.end()) {
    std::vector<std::string> names;
    std::ranges::transform(presets, std::back_inserter(names),
                           [](const ClusterPreset& p) { return std::string(p.name); });
    fail_argument("cluster: expected one of {} or a JSON file, found {}{}", fmt::join(names, ", "),
                  quote(name), did_you_mean(name, names));
  }
  Cluster cluster = preset->cluster;
  if (colon != std::string_view::npos) read_size(machine.substr(colon + 1), text, cluster);
  std::vector<std::string_view> keys;
  for (std::size_t at = text.find(','); at != std::string_view::npos;) {
    const std::size_t next = text.find(',', at + 1);
    const std::string_view setting =
        text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    const std::string_view key = setting.substr(0, setting.find('='));
    CONTEXTILE_CHECK(std::ranges::find(keys, key) == keys.end(),
                     "cluster {}: expected transfer_sms=N, kernel=NAME and engine=NAME once each, "
                     "found {} twice",
                     quote(text), quote(key));
    keys.push_back(key);
    read_setting(setting, text, name, cluster);
    at = next;
  }
  cluster.nics_per_node = std::min(cluster.nics_per_node, std::max(1, cluster.devices_per_node));
  check_cluster(cluster);
  return cluster;
}

void read_profile_value(const json& value, std::string_view key, double& result) {
  CONTEXTILE_CHECK(value.is_number(), "attention: {}: expected a number, found {}", key,
                   quote(value.dump()));
  result = value.get<double>();
}

void read_profile_value(const json& value, std::string_view key, std::int64_t& result) {
  const std::optional<std::int64_t> integer = json_integer(value);
  CONTEXTILE_CHECK(integer, "attention: {}: expected an integer, found {}", key,
                   quote(value.dump()));
  result = *integer;
}

template <typename Number>
void read_profile_value(const json& value, std::string_view key, std::vector<Number>& result) {
  CONTEXTILE_CHECK(value.is_array(), "attention: {}: expected an array of numbers, found {}", key,
                   quote(value.dump()));
  result.resize(value.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    read_profile_value(value[i], fmt::format("{}[{}]", key, i), result[i]);
  }
}

// Reads the "attention" object: keys not given keep the values of `profile`; a grid comes whole.
AttentionProfile read_profile(const json& object, AttentionProfile profile) {
  CONTEXTILE_CHECK(object.is_object(), "attention: expected an object, found {}",
                   quote(object.dump()));
  static const std::vector<std::string> kKeys = {"q_rows",   "kv_rows", "forward",
                                                 "backward", "call_us", "kernel_tile_rows"};
  for (const auto& [key, value] : object.items()) {
    CONTEXTILE_CHECK(std::ranges::find(kKeys, key) != kKeys.end(),
                     "attention: expected the keys {}, found {}{}", fmt::join(kKeys, ", "),
                     quote(key), did_you_mean(key, kKeys));
  }
  const auto read = [&](const char* key, auto& result) {
    if (object.contains(key)) read_profile_value(object[key], key, result);
  };
  read("q_rows", profile.q_rows);
  read("kv_rows", profile.kv_rows);
  read("forward", profile.forward);
  read("backward", profile.backward);
  read("call_us", profile.call_us);
  read("kernel_tile_rows", profile.kernel_tile_rows);
  check_profile(profile);
  return profile;
}

// Reads 43, for any number of nodes, or [[2, 43], [8, 26]]: nodes and rate. [] and null: no limit.
std::vector<FlowRate> read_flow_rates(const json& value) {
  if (value.is_null()) return {};
  if (value.is_number()) return {{.nodes = 2, .gbytes_per_s = value.get<double>()}};
  const auto is_pair = [](const json& entry) {
    return entry.is_array() && entry.size() == 2 &&
           json_integer(entry[0], 1, std::numeric_limits<std::int32_t>::max()) &&
           entry[1].is_number();
  };
  CONTEXTILE_CHECK(value.is_array() && std::all_of(value.begin(), value.end(), is_pair),
                   "flow_gbytes_per_s: expected a rate or [[nodes, rate], …], found {}",
                   quote(value.dump()));
  std::vector<FlowRate> rates;
  for (const json& entry : value) {
    rates.push_back(
        {.nodes = entry[0].get<std::int32_t>(), .gbytes_per_s = entry[1].get<double>()});
  }
  return rates;
}

// Reads the name of an engine, or an object with its name and other costs than the engine's own. A
// name that no engine has needs an object, whose missing costs are 0.
EngineCosts read_engine(const json& value) {
  if (value.is_string()) return find_engine(value.get<std::string>());
  CONTEXTILE_CHECK(value.is_object() && value.contains("name") && value["name"].is_string(),
                   "engine: expected a name, or an object with a \"name\", found {}",
                   quote(value.dump()));
  EngineCosts costs{.name = value["name"].get<std::string>()};
  const auto known = std::ranges::find(engine_presets(), costs.name, &EnginePreset::name);
  if (known != engine_presets().end()) costs = known->costs;
  std::vector<std::string> keys = {"name"};
  for (const EngineCost& cost : engine_costs()) keys.emplace_back(cost.key);
  for (const auto& [key, cost] : value.items()) {
    if (key == "name") continue;
    const auto member = std::ranges::find(
        engine_costs(), key, [](const EngineCost& cost) { return std::string_view(cost.key); });
    CONTEXTILE_CHECK(member != engine_costs().end(), "engine: expected the keys {}, found {}{}",
                     fmt::join(keys, ", "), quote(key), did_you_mean(key, keys));
    CONTEXTILE_CHECK(cost.is_number(), "engine: {}: expected a number, found {}", key,
                     quote(cost.dump()));
    costs.*member->member = cost.get<double>();
  }
  return costs;
}

// Reads the keys of one object into a cluster.
class ClusterReader {
 public:
  explicit ClusterReader(const json& object) : object_(object) {}

  Cluster read() {
    check_keys();
    Cluster cluster;
    if (object_.contains("preset")) {
      cluster = find_preset(text("preset"));
      is_complete_ = true;
    }
    read_choices(cluster);
    if (has_own_values()) cluster.name = Cluster().name;
    if (object_.contains("name")) cluster.name = given_name();
    read_integer("nodes", cluster.nodes);
    read_integer("devices_per_node", cluster.devices_per_node);
    read_number("intra_gbytes_per_s", cluster.intra_gbytes_per_s);
    read_number("inter_gbytes_per_s_per_node", cluster.inter_gbytes_per_s_per_node);
    read_number("attention_tflops", cluster.attention_tflops);
    if (object_.contains("memory_bytes")) read_integer("memory_bytes", cluster.memory_bytes);
    read_cost_model(cluster);
    check_cluster(cluster);
    return cluster;
  }

 private:
  // Reads the preset's kernel, and the engine. They become part of its name, as behind a preset on
  // the command line. No name says what an engine of other costs is, so the cluster is custom then.
  void read_choices(Cluster& cluster) const {
    if (object_.contains("kernel")) {
      CONTEXTILE_CHECK(is_complete_, "kernel: expected a \"preset\" that has it, found none");
      refuse_twice("kernel");
      use_gpu_kernel(text("preset"), text("kernel"), cluster);
      cluster.name += ",kernel=" + text("kernel");
    }
    if (object_.contains("engine")) {
      refuse_twice("engine");
      const json& engine = object_["engine"];
      cluster.engine = read_engine(engine);
      if (engine.is_object()) {
        cluster.name = Cluster().name;
      } else if (is_complete_) {
        cluster.name += ",engine=" + cluster.engine.name;
      }
    }
  }

  // Plans are predicted on the preset whose name their cluster has, so no changed preset has one.
  [[nodiscard]] std::string given_name() const {
    std::string name = text("name");
    const bool is_presets = std::ranges::find(cluster_presets(), without_settings(name),
                                              &ClusterPreset::name) != cluster_presets().end();
    CONTEXTILE_CHECK(!is_presets || !is_complete_ || !has_own_values(),
                     "name: expected another name than a preset's, because other keys change the "
                     "preset, found {}",
                     quote(name));
    return name;
  }

  // True if a value differs from the preset's. No preset's name says what the cluster is then: a
  // plan for it would be predicted on the preset.
  [[nodiscard]] bool has_own_values() const {
    static const std::vector<std::string_view> kNamed = {"preset",           "name",   "nodes",
                                                         "devices_per_node", "kernel", "engine"};
    return std::any_of(object_.items().begin(), object_.items().end(), [](const auto& item) {
      return std::ranges::find(kNamed, item.key()) == kNamed.end();
    });
  }

  // The text of the preset may have the setting, too.
  void refuse_twice(std::string_view key) const {
    if (!is_complete_) return;
    const std::string preset = text("preset");
    CONTEXTILE_CHECK(preset.find(fmt::format(",{}=", key)) == std::string::npos,
                     "{}: expected it once, found it also in the preset {}", key, quote(preset));
  }

  // Keys that may be left out even without a preset.
  void read_cost_model(Cluster& cluster) const {
    const auto number = [&](const char* key, double& result) {
      if (object_.contains(key)) read_number(key, result);
    };
    number("peak_tflops", cluster.peak_tflops);
    number("memory_gbytes_per_s", cluster.memory_gbytes_per_s);
    number("intra_latency_us", cluster.intra_latency_us);
    number("inter_latency_us", cluster.inter_latency_us);
    number("launch_us", cluster.launch_us);
    if (object_.contains("sms")) read_integer("sms", cluster.sms);
    if (object_.contains("transfer_sms")) read_integer("transfer_sms", cluster.transfer_sms);
    number("sm_fraction", cluster.sm_fraction);
    number("transfer_compute_us_per_mb", cluster.transfer_compute_us_per_mb);
    number("compute_slots_per_node", cluster.compute_slots_per_node);
    cluster.nics_per_node = std::min(cluster.nics_per_node, cluster.devices_per_node);
    if (object_.contains("nics_per_node")) read_integer("nics_per_node", cluster.nics_per_node);
    if (object_.contains("rails")) {
      const json& rails = object_["rails"];
      CONTEXTILE_CHECK(rails.is_boolean(), "rails: expected true or false, found {}",
                       quote(rails.dump()));
      cluster.rails = rails.get<bool>();
    }
    if (object_.contains("flow_gbytes_per_s")) {
      cluster.flow_gbytes_per_s = read_flow_rates(object_["flow_gbytes_per_s"]);
    }
    if (object_.contains("launches")) {
      const std::string order = text("launches");
      CONTEXTILE_CHECK(order == "concurrent" || order == "grouped",
                       "launches: expected \"concurrent\" or \"grouped\", found {}", quote(order));
      cluster.launches = order == "grouped" ? LaunchOrder::kGrouped : LaunchOrder::kConcurrent;
    }
    read_collective_costs(cluster);
    if (object_.contains("attention")) {
      cluster.attention = read_profile(object_["attention"], cluster.attention);
    }
  }

  // Costs measured on a preset's links do not hold for links with other constants.
  void read_collective_costs(Cluster& cluster) const {
    const bool intra =
        object_.contains("intra_gbytes_per_s") || object_.contains("intra_latency_us");
    const bool inter =
        object_.contains("inter_gbytes_per_s_per_node") || object_.contains("inter_latency_us");
    std::erase_if(cluster.collectives,
                  [&](const CollectiveCost& cost) { return cost.nodes == 0 ? intra : inter; });
    if (object_.contains("collectives")) {
      cluster.collectives = read_collectives(object_["collectives"]);
    }
  }

  void check_keys() const {
    for (const auto& [key, value] : object_.items()) {
      CONTEXTILE_CHECK(std::ranges::find(file_keys(), key) != file_keys().end(),
                       "expected the keys {}, found {}{}", fmt::join(file_keys(), ", "), quote(key),
                       did_you_mean(key, file_keys()));
    }
  }

  // True if the key is given. It may be missing only when a preset holds the value.
  [[nodiscard]] bool has(const char* key) const {
    const bool given = object_.contains(key);
    CONTEXTILE_CHECK(given || is_complete_, "{}: expected a value (or a \"preset\"), found none",
                     key);
    return given;
  }

  [[nodiscard]] std::string text(const char* key) const {
    const json& value = object_[key];
    CONTEXTILE_CHECK(value.is_string(), "{}: expected text, found {}", key, quote(value.dump()));
    return value.get<std::string>();
  }

  template <typename Integer>
  void read_integer(const char* key, Integer& result) const {
    if (!has(key)) return;
    const json& value = object_[key];
    const std::optional<std::int64_t> integer = json_integer(
        value, std::numeric_limits<Integer>::min(), std::numeric_limits<Integer>::max());
    CONTEXTILE_CHECK(integer, "{}: expected an integer of at most {}, found {}", key,
                     std::numeric_limits<Integer>::max(), quote(value.dump()));
    result = static_cast<Integer>(*integer);
  }

  void read_number(const char* key, double& result) const {
    if (!has(key)) return;
    const json& value = object_[key];
    CONTEXTILE_CHECK(value.is_number(), "{}: expected a number, found {}", key,
                     quote(value.dump()));
    result = value.get<double>();
  }

  const json& object_;
  bool is_complete_ = false;  // a preset gave every value
};

}  // namespace

Cluster parse_cluster_json(std::string_view text, std::string_view where) {
  const json document = parse_json(text, where);
  CONTEXTILE_CHECK(document.is_object(), "{}: expected a JSON object, found {}", where,
                   quote(document.dump()));
  try {
    return ClusterReader(document).read();
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where, error.what());
  }
}

std::string_view without_settings(std::string_view name) { return name.substr(0, name.find(',')); }

void use_gpu_kernel(std::string_view preset, std::string_view name, Cluster& cluster) {
  const GpuKernel& kernel = find_gpu_kernel(preset.substr(0, preset.find_first_of(":,")), name);
  cluster.attention_tflops = kernel.attention_tflops;
  cluster.attention = kernel.attention;
}

Cluster load_cluster(std::string_view text) {
  if (!names_file(text)) return find_preset(text);
  const std::string path(text);
  const FileBytes file(path, expect_text("a cluster as JSON"));
  return parse_cluster_json(file.text(), file.name());
}

std::string to_json(const Cluster& cluster) {
  nlohmann::ordered_json object;
  object["name"] = cluster.name;
  object["nodes"] = cluster.nodes;
  object["devices_per_node"] = cluster.devices_per_node;
  object["intra_gbytes_per_s"] = cluster.intra_gbytes_per_s;
  object["inter_gbytes_per_s_per_node"] = cluster.inter_gbytes_per_s_per_node;
  object["attention_tflops"] = cluster.attention_tflops;
  object["memory_bytes"] = cluster.memory_bytes;
  object["peak_tflops"] = cluster.peak_tflops;
  object["memory_gbytes_per_s"] = cluster.memory_gbytes_per_s;
  object["intra_latency_us"] = cluster.intra_latency_us;
  object["inter_latency_us"] = cluster.inter_latency_us;
  object["launch_us"] = cluster.launch_us;
  object["nics_per_node"] = cluster.nics_per_node;
  object["rails"] = cluster.rails;
  if (!cluster.flow_gbytes_per_s.empty()) {
    nlohmann::ordered_json rates = nlohmann::ordered_json::array();
    for (const FlowRate& rate : cluster.flow_gbytes_per_s) {
      rates.push_back({rate.nodes, rate.gbytes_per_s});
    }
    object["flow_gbytes_per_s"] = std::move(rates);
  }
  object["launches"] = cluster.launches == LaunchOrder::kGrouped ? "grouped" : "concurrent";
  if (!cluster.collectives.empty()) {
    object["collectives"] = collectives_json(cluster.collectives);
  }
  object["sms"] = cluster.sms;
  object["transfer_sms"] = cluster.transfer_sms;
  object["sm_fraction"] = cluster.sm_fraction;
  object["transfer_compute_us_per_mb"] = cluster.transfer_compute_us_per_mb;
  object["compute_slots_per_node"] = cluster.compute_slots_per_node;
  const AttentionProfile& profile = cluster.attention;
  object["attention"] = {
      {"q_rows", profile.q_rows},   {"kv_rows", profile.kv_rows},
      {"forward", profile.forward}, {"backward", profile.backward},
      {"call_us", profile.call_us}, {"kernel_tile_rows", profile.kernel_tile_rows}};
  if (cluster.engine != EngineCosts{}) {
    nlohmann::ordered_json engine = {{"name", cluster.engine.name}};
    for (const EngineCost& cost : engine_costs()) engine[cost.key] = cluster.engine.*cost.member;
    object["engine"] = std::move(engine);
  }
  // A name that is no UTF-8 is repaired, not refused. Programs can set one; files cannot hold it.
  return with_escaped_controls(
      object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace contextile
