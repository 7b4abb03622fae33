// DistCA, Appendix A: the number of shards into which a document can be cut with its transfers
// hidden.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/training.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Values per token of a layer. In a document of s shards, each shard sends its queries, and sends
// its keys to the shards after it, (s - 1) / 2 on average. That hides while the linear layers take
// as long.
struct HiddenShards {
  double linear_flops = 0;
  double hidden_bytes = 0;  // bytes that move meanwhile
  double q_bytes = 0;
  double kv_bytes = 0;

  [[nodiscard]] double most() const {
    return q_bytes > hidden_bytes ? 1 : std::floor(2 * (hidden_bytes - q_bytes) / kv_bytes) + 1;
  }
};

HiddenShards hidden_shards(std::string_view model_name, double gbytes_per_s, double tflops) {
  constexpr double kMfu = 0.5;
  const ModelSpec model = load_model(model_name);
  const AttentionShape shape = attention_shape_of(model, 1);
  HiddenShards hidden;
  hidden.linear_flops = linear_flops_of(model).layer();
  hidden.hidden_bytes = hidden.linear_flops / (1e12 * tflops * kMfu) * 1e9 * gbytes_per_s;
  hidden.q_bytes = static_cast<double>(unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype));
  hidden.kv_bytes = static_cast<double>(unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype));
  return hidden;
}

// `by_size`: FLOPs of a token and shards of every model.
Finding larger_finding(std::vector<std::pair<double, double>> by_size) {
  std::ranges::sort(by_size);
  std::vector<std::string> texts;
  bool more = true;
  for (std::size_t i = 0; i < by_size.size(); ++i) {
    more = more && (i == 0 || by_size[i].second > by_size[i - 1].second);
    texts.push_back(fmt::format("{:.0f}", by_size[i].second));
  }
  return {"larger models: more shards",
          fmt::format("{} from the smallest to the largest", fmt::join(texts, ", ")), more,
          "every model has more than the smaller ones"};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "distca-appa", {"--cluster"});
  constexpr std::string_view kPaperModel = "llama-34b";
  double gbytes_per_s = 50;
  double tflops = 990;
  std::string machine = "the paper's";
  if (!overrides.cluster.empty()) {
    const Cluster cluster = load_cluster(overrides.cluster);
    gbytes_per_s = cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node;
    tflops = peak_tflops_of(cluster);
    machine = cluster.name;
  }
  Table table({{"model", "model"},
               {"linear_flops", "MFLOP\na token"},
               {"hidden_bytes", "bytes that\nhide"},
               {"q_bytes", "bytes of\nQ"},
               {"kv_bytes", "bytes of\nKV"},
               {"most_shards", "most\nshards"}});
  double ours = 0;
  std::vector<std::pair<double, double>> by_size;  // FLOPs of a token, shards
  for (const std::string_view model :
       {kPaperModel, std::string_view("llama-3-8b"), std::string_view("llama-3-70b")}) {
    const HiddenShards hidden = hidden_shards(model, gbytes_per_s, tflops);
    if (model == kPaperModel) ours = hidden.most();
    by_size.emplace_back(hidden.linear_flops, hidden.most());
    table.add_row({std::string(model), 1e-6 * hidden.linear_flops, hidden.hidden_bytes,
                   hidden.q_bytes, hidden.kv_bytes, static_cast<std::int64_t>(hidden.most())});
  }
  PaperResult result{
      .setting = {{"machine",
                   fmt::format("{}: {} GB/s between devices, {} TFLOP/s at an MFU of 50%", machine,
                               format_number(gbytes_per_s), format_number(tflops))}},
      .table = std::move(table)};
  result.findings = {{"Llama-34B: up to 31 shards of a document with communication hidden",
                      fmt::format("{:.0f}", ours), ours == 31},
                     larger_finding(std::move(by_size))};
  result.differences = {
      "No plan stands behind this: it is the formula 2 bytes · (hidden + (s - 1) · KV) <= "
      "bandwidth "
      "· time of a token in the layer's linear products.",
      "FLOPs count the projections of keys and of values; only llama-34b is in the paper."};
  result.plots = {{.x = "model", .y = {"most_shards"}}};
  return result;
}

}  // namespace

PaperTable distca_appa() {
  return {"distca-appa", "DistCA, Appendix A",
          "shards of a document whose transfers hide under the linear layers", make};
}

}  // namespace contextile
