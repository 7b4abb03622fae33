#include "report/helix_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "report/json.h"

namespace contextile {
namespace {

constexpr HelixFamily kFamilies[] = {HelixFamily::kTensorParallel, HelixFamily::kDataParallel,
                                     HelixFamily::kContextParallel, HelixFamily::kHelix};

// "8x8/64x1": KVP x TPA / TPF x EP, or DP x TPA / TPF x EP, depending on the family.
std::string short_text(const HelixLayout& layout) {
  return fmt::format("{}x{}/{}x{}", layout.dp * layout.kvp, layout.tpa, layout.tpf, layout.ep);
}

double seconds(double us) { return 1e-6 * us; }
Cell time_cell(const std::optional<HelixPoint>& point) {
  return point ? Cell(seconds(point->step.total_us())) : Cell();
}
Cell layout_cell(const std::optional<HelixPoint>& point) {
  return point ? Cell(short_text(point->layout)) : Cell();
}
Cell ratio_cell(double numerator, double denominator) {
  return numerator > 0 && denominator > 0 ? Cell(numerator / denominator) : Cell();
}

using Point = std::optional<HelixPoint>;

const Point& faster(const Point& a, const Point& b) {
  if (!a || !b) return a ? a : b;
  return a->step.total_us() <= b->step.total_us() ? a : b;
}

// The fastest layouts of all families with one load.
struct Fastest {
  Point tensor_parallel, data_parallel, context_parallel, helix;

  Fastest(const HelixStudy& study, std::int32_t devices, const HelixLoad& load) {
    const auto of = [&](HelixFamily family) {
      return fastest_helix(study.model, study.hardware, devices, load, study.hop_b, family);
    };
    tensor_parallel = of(HelixFamily::kTensorParallel);
    data_parallel = of(HelixFamily::kDataParallel);
    context_parallel = of(HelixFamily::kContextParallel);
    helix = of(HelixFamily::kHelix);
  }

  // The faster of the families that share tokens.
  [[nodiscard]] const Point& sharing() const { return faster(context_parallel, helix); }
  [[nodiscard]] const Point& others() const { return faster(tensor_parallel, data_parallel); }
  [[nodiscard]] Cell gain() const {
    if (!others() || !sharing()) return {};
    return others()->step.total_us() / sharing()->step.total_us();
  }
};

std::vector<Column> with_families(std::vector<Column> columns, const std::string& key) {
  columns.push_back({"tensor_parallel_" + key, "TP"});
  columns.push_back({"data_parallel_" + key, "DP"});
  columns.push_back({"context_parallel_" + key, "CP"});
  columns.push_back({"helix_" + key, "Helix"});
  columns.push_back({"gain", "Helix\nx TP"});
  return columns;
}

std::int64_t longest_context(const HelixStudy& study, HelixFamily family, std::int32_t devices,
                             std::int32_t batch) {
  std::int64_t longest = 0;
  for (const HelixLayout& layout : helix_layouts(study.model, devices)) {
    if (family_of(layout) != family) continue;
    longest = std::max(longest, helix_max_context(study.model, study.hardware, layout, batch));
  }
  return longest;
}

std::int64_t most_requests(const HelixStudy& study, HelixFamily family, std::int32_t devices,
                           std::int64_t context) {
  std::int32_t most = 0;
  for (const HelixLayout& layout : helix_layouts(study.model, devices)) {
    if (family_of(layout) != family) continue;
    most = std::max(most, helix_max_batch(study.model, study.hardware, layout, context));
  }
  return most;
}

// Cells of the three families and the last one's gain over the first.
template <typename Capacity>
void append_capacity(std::vector<Cell>& cells, const Capacity& capacity) {
  for (const HelixFamily family : kFamilies) cells.emplace_back(capacity(family));
  cells.push_back(ratio_cell(static_cast<double>(capacity(HelixFamily::kHelix)),
                             static_cast<double>(capacity(HelixFamily::kTensorParallel))));
}

}  // namespace

std::string describe_helix(const HelixStudy& study) {
  const HelixModel& model = study.model;
  const HelixHardware& hardware = study.hardware;
  return fmt::format(
      "model     {}, {} layers, {:.4g}e9 weights\n"
      "bytes     {} of a weight, {} of a cached element, {} of an activation\n"
      "hardware  {}: memory {} GB, {} in reserve, at {} GB/s\n"
      "network   {} GB/s, {} us an exchange or all-reduce\n"
      "hop-b     {}\n",
      printable(model.shape.name), model.shape.layers,
      1e-9 * static_cast<double>(num_weights(model)), model.weight_bytes, model.kv_bytes,
      model.activation_bytes, printable(hardware.name),
      1e-9 * static_cast<double>(hardware.memory_bytes),
      1e-9 * static_cast<double>(hardware.reserve_bytes), hardware.memory_gbytes_per_s,
      hardware.network_gbytes_per_s, hardware.latency_us, to_string(study.hop_b.reading));
}

Json helix_setting_json(const HelixStudy& study) {
  return {{"model", study.model.shape.name},
          {"weights", num_weights(study.model)},
          {"weight_bytes", study.model.weight_bytes},
          {"kv_bytes", study.model.kv_bytes},
          {"activation_bytes", study.model.activation_bytes},
          {"hardware", study.hardware.name},
          {"memory_gbytes_per_s", study.hardware.memory_gbytes_per_s},
          {"network_gbytes_per_s", study.hardware.network_gbytes_per_s},
          {"latency_us", study.hardware.latency_us},
          {"memory_bytes", study.hardware.memory_bytes},
          {"reserve_bytes", study.hardware.reserve_bytes},
          {"hop_b", to_string(study.hop_b.reading)},
          {"groups", study.hop_b.groups}};
}

Table helix_time_table(const HelixStudy& study) {
  Table table({{"context_tokens", "context"},
               {"batch", "batch"},
               {"devices", "N"},
               {"tensor_parallel_s", "TP\nms", Format::kMilliseconds},
               {"tensor_parallel_layout", ""},
               {"data_parallel_s", "DP\nms", Format::kMilliseconds},
               {"data_parallel_layout", ""},
               {"context_parallel_s", "CP\nms", Format::kMilliseconds},
               {"context_parallel_layout", ""},
               {"helix_s", "Helix\nms", Format::kMilliseconds},
               {"helix_exposed_s", ""},
               {"helix_layout", "Helix\nlayout"},
               {"gain", "TP, DP /\nCP, Helix"}});
  for (const std::int64_t context : study.contexts) {
    for (const std::int32_t batch : study.batches) {
      for (const std::int32_t devices : study.devices) {
        const Fastest fastest(study, devices, {batch, context});
        const auto& helix = fastest.helix;
        table.add_row({context, std::int64_t{batch}, std::int64_t{devices},
                       time_cell(fastest.tensor_parallel), layout_cell(fastest.tensor_parallel),
                       time_cell(fastest.data_parallel), layout_cell(fastest.data_parallel),
                       time_cell(fastest.context_parallel), layout_cell(fastest.context_parallel),
                       time_cell(helix), helix ? Cell(seconds(helix->step.exposed_us)) : Cell(),
                       layout_cell(helix), fastest.gain()});
      }
    }
  }
  return table;
}

Table helix_loss_table(const HelixStudy& study) {
  const auto [shortest, longest] = std::ranges::minmax(study.contexts);
  HelixStudy roomy = study;
  roomy.hardware.memory_bytes = std::numeric_limits<std::int64_t>::max();
  Table table({{"devices", "N"},
               {"batch", "batch"},
               {"others_s", "TP, DP\nms", Format::kMilliseconds},
               {"sharing_s", "CP, Helix\nms", Format::kMilliseconds},
               {"loss", "loss", Format::kPercent},
               {"crossover_tokens", ""},
               {"verdict", "sharing tokens"}});
  for (const std::int32_t devices : study.devices) {
    for (const std::int32_t batch : study.batches) {
      const Fastest fastest(roomy, devices, {batch, shortest});
      const std::optional<std::int64_t> crossover =
          helix_crossover(study.model, study.hardware, devices, batch, study.hop_b, longest);
      std::string verdict = fmt::format("loses up to {} tokens", longest);
      if (crossover && *crossover <= shortest) {
        verdict = fmt::format("pays from {} tokens on", *crossover);
      } else if (crossover) {
        verdict = fmt::format("loses below {} tokens", *crossover);
      }
      const Cell gain = fastest.gain();
      const auto* ratio = std::get_if<double>(&gain);
      table.add_row({std::int64_t{devices}, std::int64_t{batch}, time_cell(fastest.others()),
                     time_cell(fastest.sharing()), ratio != nullptr ? Cell(1 / *ratio - 1) : Cell(),
                     crossover ? Cell(*crossover) : Cell(), verdict});
    }
  }
  return table;
}

Table helix_context_table(const HelixStudy& study) {
  Table table(with_families({{"batch", "batch"}, {"devices", "N"}}, "context_tokens"));
  for (const std::int32_t batch : study.batches) {
    for (const std::int32_t devices : study.devices) {
      std::vector<Cell> cells = {std::int64_t{batch}, std::int64_t{devices}};
      append_capacity(cells, [&](HelixFamily family) {
        return longest_context(study, family, devices, batch);
      });
      table.add_row(std::move(cells));
    }
  }
  return table;
}

Table helix_batch_table(const HelixStudy& study) {
  Table table(with_families({{"context_tokens", "context"}, {"devices", "N"}}, "requests"));
  for (const std::int64_t context : study.contexts) {
    for (const std::int32_t devices : study.devices) {
      std::vector<Cell> cells = {context, std::int64_t{devices}};
      append_capacity(cells, [&](HelixFamily family) {
        return most_requests(study, family, devices, context);
      });
      table.add_row(std::move(cells));
    }
  }
  return table;
}

Table helix_parts_table(const HelixStudy& study) {
  Table table({{"family", "family"},
               {"hop_b", "hop-b"},
               {"layout", ""},
               {"groups", "groups"},
               {"kv_s", "KV\nms", Format::kMilliseconds},
               {"weights_s", "weights\nms", Format::kMilliseconds},
               {"all_reduce_s", "all-\nreduce", Format::kMilliseconds},
               {"exchange_s", "ex-\nchange", Format::kMilliseconds},
               {"exposed_s", "ex-\nposed", Format::kMilliseconds},
               {"time_s", "step\nms", Format::kMilliseconds},
               {"kv_bytes", "", Format::kGigabytes},
               {"weights_bytes", "", Format::kGigabytes}});
  const HelixLoad load = {study.batches.back(), study.contexts.back()};
  const auto add_row = [&](HelixFamily family, const HopB& hop_b) {
    const auto point =
        fastest_helix(study.model, study.hardware, study.devices.back(), load, hop_b, family);
    if (!point) return;
    const HelixStep& step = point->step;
    const HelixMemory memory = helix_memory(study.model, point->layout, load);
    table.add_row({std::string(to_string(family)), std::string(to_string(hop_b.reading)),
                   short_text(point->layout), std::int64_t{step.groups}, seconds(step.kv_us),
                   seconds(step.weights_us), seconds(step.all_reduce_us), seconds(step.exchange_us),
                   seconds(step.exposed_us), seconds(step.total_us()), memory.kv, memory.weights});
  };
  add_row(HelixFamily::kTensorParallel, {HopBReading::kOff});
  add_row(HelixFamily::kDataParallel, {HopBReading::kOff});
  for (const HelixFamily family : {HelixFamily::kContextParallel, HelixFamily::kHelix}) {
    for (const HopBReading reading :
         {HopBReading::kOff, HopBReading::kAttention, HopBReading::kFeedForward}) {
      add_row(family, {reading, reading == HopBReading::kOff ? 0 : study.hop_b.groups});
    }
  }
  return table;
}

Table helix_prompt_table(const HelixStudy& study) {
  Table table({{"prompt_tokens", "prompt"},
               {"devices", "N"},
               {"layout", "layout"},
               {"rows", ""},
               {"mode", "own rows"},
               {"attention_s", "attend\nms", Format::kMilliseconds},
               {"weights_s", "matrices\nms", Format::kMilliseconds},
               {"all_reduce_s", "all-\nreduce", Format::kMilliseconds},
               {"exchange_s", ""},
               {"exposed_s", "ex-\nposed", Format::kMilliseconds},
               {"time_s", "TTFT\nms", Format::kMilliseconds},
               {"weights_bytes", ""},
               {"fits", "fits"}});
  const auto add_row = [&](std::int64_t tokens, const HelixLayout& layout) {
    const auto count = static_cast<double>(tokens);
    const HelixRows rows = {tokens, 1, tokens, count * (count + 1) / 2};
    const bool owns = layout.prompts == HelixPrompts::kOwnRows;
    HelixPrefill found;
    if (owns) {
      found = helix_prefill(study.model, study.hardware, layout, rows);
    } else {
      found.step = helix_mixed_step(study.model, study.hardware, layout, rows);
    }
    const HelixStep& step = found.step;
    const double weights = helix_memory(study.model, layout, {}).weights;
    const bool fits = helix_max_context(study.model, study.hardware, layout, 1) >= tokens;
    table.add_row({tokens, std::int64_t{layout.devices()}, short_text(layout),
                   std::string(owns ? "own" : "all"),
                   owns ? Cell(std::string(to_string(found.mode))) : Cell(), seconds(step.kv_us),
                   seconds(step.weights_us), seconds(step.all_reduce_us), seconds(step.exchange_us),
                   seconds(step.exposed_us), seconds(step.total_us()), weights,
                   std::string(fits ? "yes" : "no")});
  };
  for (const std::int64_t tokens : study.prompts) {
    for (const std::int32_t devices : study.devices) {
      for (HelixLayout layout : helix_layouts(study.model, devices)) {
        // Layouts differ in how they split experts: this is the one that splits them most.
        if (layout.dp > 1 || layout.ffn_devices() != devices) continue;
        if (study.model.experts ? layout.ep != std::min(devices, study.model.experts->routed)
                                : layout.ep != 1) {
          continue;
        }
        add_row(tokens, layout);
        if (layout.kvp == 1) continue;
        layout.prompts = HelixPrompts::kOwnRows;
        add_row(tokens, layout);
      }
    }
  }
  return table;
}

HelixSearch helix_search_of(const HelixStudy& study, std::int32_t most_requests) {
  HelixSearch search{.devices = study.devices,
                     .batches = {},
                     .context = study.contexts.back(),
                     .hop_b = study.hop_b};
  for (std::int64_t batch = 1; batch <= most_requests; batch *= 2) {
    search.batches.push_back(static_cast<std::int32_t>(batch));
  }
  return search;
}

Table helix_front_table(const HelixStudy& study, const HelixSearch& search) {
  Table table({{"family", "family"},
               {"layout", "layout"},
               {"devices", "N"},
               {"batch", "batch"},
               {"time_s", "step\nms", Format::kMilliseconds},
               {"tokens_per_s_user", "tokens/s\na user"},
               {"tokens_per_s_device", "tokens/s\na device"}});
  for (const HelixPoint& point : helix_front(study.model, study.hardware, search)) {
    table.add_row({std::string(to_string(family_of(point.layout))), short_text(point.layout),
                   std::int64_t{point.layout.devices()}, std::int64_t{point.load.batch},
                   seconds(point.step.total_us()), point.tokens_per_s_user(),
                   point.tokens_per_s_device()});
  }
  return table;
}

Table helix_gain_table(const HelixStudy& study, const HelixSearch& search) {
  Table table({{"against", "against"},
               {"interactivity", "x in most\ntokens/s a user"},
               {"throughput", "x in tokens/s\na device"},
               {"latency", "x in time\nat one batch"},
               {"batch", "x in batch\nwithin one time"}});
  const auto add_row = [&](const char* against, std::vector<HelixFamily> families) {
    HelixSearch others = search;
    others.families = std::move(families);
    const HelixGain gain = helix_gain(study.model, study.hardware, others);
    table.add_row(
        {std::string(against), gain.interactivity, gain.throughput, gain.latency, gain.batch});
  };
  add_row("TP", {HelixFamily::kTensorParallel});
  add_row("TP, DP", {HelixFamily::kTensorParallel, HelixFamily::kDataParallel});
  add_row("TP, DP, CP", search.families);
  return table;
}

}  // namespace contextile
