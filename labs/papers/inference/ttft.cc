// Inference: the time to the first token of a prompt of 100K tokens under tensor and context
// parallelism, and the causes that could make one 4.5 times as long as the other.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "labs/papers/inference/setting.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Seconds of a prompt on T x C devices; context-parallel ranks exchange at `exchange` GB/s.
double ttft_s(const HelixModel& model, std::int32_t tp, std::int32_t cp, double gbytes_per_s,
              double exchange) {
  const HelixRows rows = prompt_rows(kLongPrompt);
  HelixLayout layout = {cp, tp, tp * cp};
  if (cp == 1) {
    return 1e-6 * helix_mixed_step(model, h100_devices(gbytes_per_s), layout, rows).total_us();
  }
  layout.prompts = HelixPrompts::kOwnRows;
  const HelixStep within = helix_prefill(model, h100_devices(gbytes_per_s), layout, rows).step;
  const HelixStep between = helix_prefill(model, h100_devices(exchange), layout, rows).step;
  return 1e-6 * (within.total_us() - within.exposed_us + between.exposed_us);
}

bool is_near(double seconds) { return seconds > 7 && seconds < 11; }  // 9 s

std::string layout_text(std::int32_t tp, std::int32_t cp) {
  if (cp == 1) return fmt::format("TP {}", tp);
  return tp == 1 ? fmt::format("CP {}", cp) : fmt::format("TP {} x CP {}", tp, cp);
}

class Times {
 public:
  double add(const std::string& name, std::int32_t tp, std::int32_t cp, double gbytes_per_s,
             double exchange) {
    const double seconds = ttft_s(bf16_model(name), tp, cp, gbytes_per_s, exchange);
    table_.add_row(
        {name, std::int64_t{tp} * cp, layout_text(tp, cp), gbytes_per_s, exchange, seconds});
    return seconds;
  }
  [[nodiscard]] Table take() { return std::move(table_); }

 private:
  Table table_{{{"model", "model"},
                {"devices", "N"},
                {"layout", "layout"},
                {"gbytes_per_s", "GB/s"},
                {"exchange_gbytes_per_s", "GB/s\nof CP"},
                {"ttft_s", "TTFT\ns"}}};
};

constexpr const char* kModel = "llama-3-70b";
constexpr const char* kSmallModel = "llama-3-8b";
constexpr double kNvlink = 450;

// The suspected causes on 8 devices: the network, the model.
struct Causes {
  std::string both = "no rate";  // of a model at which both statements hold
  double small_tensor = 0;       // seconds of the small model on TP 8 and CP 8
  double small = 0;
};

Causes causes_of(Times& times) {
  Causes causes;
  for (const char* model : {kModel, kSmallModel}) {
    for (const double gbytes_per_s : {kNvlink, 50.0, 25.0, 12.5, 6.25}) {
      if (model == kModel && gbytes_per_s == kNvlink) continue;
      const double its_tensor = times.add(model, 8, 1, gbytes_per_s, gbytes_per_s);
      const double its_context = times.add(model, 1, 8, gbytes_per_s, gbytes_per_s);
      if (gbytes_per_s == kNvlink) {
        causes.small_tensor = its_tensor;
        causes.small = its_context;
      }
      if (is_near(its_tensor) && its_context < 2) {
        causes.both = fmt::format("{} at {:g} GB/s: {:.1f} s on TP 8, {:.1f} s on CP 8", model,
                                  gbytes_per_s, its_tensor, its_context);
      }
    }
  }
  return causes;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "inference-ttft", {});
  Times times;
  const double tensor = times.add(kModel, 8, 1, kNvlink, kNvlink);
  const double mixed = times.add(kModel, 2, 4, kNvlink, kNvlink);
  const double context = times.add(kModel, 1, 8, kNvlink, kNvlink);
  const Causes causes = causes_of(times);
  std::int32_t nodes = 0;
  double on_nodes = 0;
  for (const std::int32_t count : {2, 4, 8}) {
    const double seconds = times.add(kModel, 8, count, kNvlink, kBetweenNodes);
    if (nodes == 0 && seconds < 2) {
      nodes = count;
      on_nodes = seconds;
    }
  }
  PaperResult result{
      .setting = {{"prompt", fmt::format("{} tokens in one step", kLongPrompt)},
                  {"devices", "H100 at 50% of 989 TFLOP/s, bf16; nodes of 8, 50 GB/s a device"}},
      .table = times.take()};
  result.findings = {
      {"TP 8 takes near 9 s", fmt::format("{:.1f} s", tensor), is_near(tensor), "7 to 11 s"},
      {"context parallelism takes under 2 s",
       fmt::format("{:.1f} s on CP 8, {:.1f} s on TP 2 x CP 4", context, mixed), context < 2},
      {"the number of devices explains it: CP spans several nodes",
       fmt::format("TP 8 x CP {} on {} nodes: {:.2f} s", nodes, nodes, on_nodes), nodes > 1,
       "under 2 s on 2, 4 or 8 nodes"},
      {"a slow network explains it on 8 devices", causes.both, causes.both != "no rate",
       "7 to 11 s and under 2 s at 50, 25, 12.5 or 6.25 GB/s"},
      {"the model's size explains it on 8 devices",
       fmt::format("8B: {:.2f} s on TP 8, {:.2f} s on CP 8", causes.small_tensor, causes.small),
       is_near(causes.small_tensor) && causes.small < 2, "7 to 11 s and under 2 s"}};
  result.differences = {
      "The source names no model and no devices. Its figures are those of a prefill engine that "
      "spreads a prompt over several nodes, next to TP 8 on one (moreh.io/blog, 2025-12-26).",
      "CP 8 of 70B does not fit into 80 GB, because each device holds all weights.",
      "Kernels are equally fast in all layouts."};
  result.plots = {{.x = "devices", .y = {"ttft_s"}, .series = {"layout"}}};
  return result;
}

}  // namespace

PaperTable inference_ttft() {
  return {"inference-ttft", "survey of inference, section 6.3",
          "time to the first token at 100K tokens under TP, CP and both", make};
}

}  // namespace contextile
