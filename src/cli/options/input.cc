#include "cli/options/input.h"

#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cli/options/types.h"
#include "contextile/cluster.h"
#include "contextile/registry.h"

namespace contextile {
namespace {

std::string join_names(const auto& items) {
  std::string names;
  for (const auto& item : items) {
    names += names.empty() ? "" : ", ";
    names += item.name;
  }
  return names;
}

}  // namespace

void add_batch_options(CLI::App& app, InputOptions& options) {
  add_value(
      app, "--lengths",
      {"FILE",
       "sequence lengths in tokens: one per line, a JSON array, JSONL, .npy, or a Megatron-LM "
       ".idx; either this or --dataset",
       ""},
      [&options](const std::string& path) { options.lengths_path = path; });
  add_text(app, "--length-field", options.length_field,
           {"KEY", "field of a JSONL line that holds the length", ""});
  add_value(app, "--dataset",
            {"NAME", "built-in length distribution to sample: " + join_names(datasets()), ""},
            [&options](const std::string& name) { options.dataset = name; });
  add_size_as<std::int64_t>(app, "--tokens", options.batch.tokens, 1,
                            {"N",
                             "tokens of one batch: documents fill batches in order, the last one "
                             "is cut; a dataset needs it",
                             "all lengths are one batch"});
  add_value(
      app, "--packing",
      {"NAME[:KEY=VALUE,...]",
       "how documents are put together: sequential, or wlb: in steps, the documents of "
       "micro_batches=4 sequential batches are packed anew into micro-batches of about equal "
       "work and at most max_tokens (twice --tokens); documents of levels=T1:T2:... (max_tokens "
       "/ 4; none) tokens wait for others as long; balance=128K: tokens at which attention "
       "costs as much as the rest; defer=off: nothing waits; every micro-batch is a batch",
       "sequential"},
      [&options](const std::string& text) { parse_packing(text, options.batch); });
  add_size_as<std::int64_t>(app, "--max-length", options.batch.max_length, 1,
                            {"N", "longer documents are cut to N tokens", "no limit"});
  add_value(app, "--scale", {"X", "every length is multiplied by X", "1"},
            [&options](const std::string& text) {
              options.batch.scale = parse_number("--scale", text);
              if (options.batch.scale <= 0) {
                fail_argument("--scale: expected a number above 0, found {}", quote(text));
              }
            });
  add_size_as<std::uint64_t>(app, "--seed", options.seed, 0,
                             {"N", "seed of dataset samples and of strategies that draw", "0"});
}

void add_mask_rule_option(CLI::App& app, InputOptions& options) {
  add_repeatable(
      app, "--mask",
      {"[NAME=]SPEC[@LAYERS]",
       "mask rule, applied to every sequence; LAYERS of the model use it (1); repeat for several "
       "masks: "
       "causal, full, sliding_window:W, lambda:SINK,WINDOW, causal_blockwise:B,W,SINK, "
       "shared_question:F,ANSWERS, prefix_lm:N, chunked:N (tokens; causal_blockwise W and SINK in "
       "blocks)",
       "causal"},
      [&options](const std::string& text) { options.masks.push_back(parse_mask_use(text)); });
}

void add_blocking_options(CLI::App& app, InputOptions& options) {
  add_value(app, "--block-size",
            {"N|auto", "tokens of a block; auto: the strategy's default", "auto"},
            [&options](const std::string& text) {
              options.block_size.reset();
              if (text != "auto") options.block_size = parse_size("--block-size", text, 1);
            });
  add_value(app, "--wire",
            {"TYPE", "how partial results travel: f32, bf16, f16", "the strategy's original"},
            [&options](const std::string& text) { options.wire = parse_dtype(text); });
}

namespace {

void add_mask_options(CLI::App& app, InputOptions& options) {
  add_mask_rule_option(app, options);
  add_value(app, "--mask-file",
            {"FILE",
             "any mask as JSON: {\"bands\": [[q0, q1, k0, k1, lo, hi], ...]}, token indices of the "
             "batch, "
             "null for infinite; instead of --mask",
             ""},
            [&options](const std::string& path) { options.mask_path = path; });
}

void add_shape_options(CLI::App& app, AttentionShape& shape,
                       std::optional<std::int32_t>& value_dim) {
  add_size<std::int32_t>(app, "--heads", shape.q_heads, 1, {"N", "query heads of the model", ""});
  add_size<std::int32_t>(app, "--kv-heads", shape.kv_heads, 1,
                         {"N", "key and value heads of the model; divides --heads", ""});
  add_size<std::int32_t>(app, "--head-dim", shape.head_dim, 1,
                         {"N", "elements of one query or key head", ""});
  add_size_as<std::int32_t>(app, "--value-dim", value_dim, 1,
                            {"N", "elements of one value head", "--head-dim"});
  add_value(
      app, "--dtype",
      {"TYPE", "of activations and gradients: f32, bf16, f16", std::string(to_string(shape.dtype))},
      [&shape](const std::string& text) { shape.dtype = parse_dtype(text); });
  add_value(
      app, "--attention-scale", {"X", "factor of the scores", "1/sqrt(head dim)"},
      [&shape](const std::string& text) { shape.scale = parse_number("--attention-scale", text); });
  add_value(app, "--softcap", {"X", "scores s become X*tanh(s/X); 0: none", "0"},
            [&shape](const std::string& text) { shape.softcap = parse_number("--softcap", text); });
  add_switch(app, "--sink", shape.sink, "a learnable sink logit for every query head");
}

void add_cluster_options(CLI::App& app, InputOptions& options) {
  add_text(app, "--cluster", options.cluster,
           {"NAME[:NODESxDEVICES]|FILE",
            "the machine: " + join_names(cluster_presets()) + ", or a .json file", ""});
  add_size<std::int32_t>(
      app, "--tp", options.tp, 1,
      {"N", "tensor parallelism: N devices act as one rank, heads are divided by N", ""});
  add_size<std::int32_t>(
      app, "--pp", options.pp, 1,
      {"N", "pipeline stages: a group for context parallelism is 1/N of the devices", ""});
  add_value(
      app, "--layout",
      {"LAYOUT",
       "where tokens already are: contiguous (even slices of the batch), zigzag (chunks r and "
       "2R-1-r of every sequence on rank r), or a file {\"home\": [[begin, end, rank], ...]}",
       "the plan chooses"},
      [&options](const std::string& text) { options.layout = text; });
}

void add_planning_options(CLI::App& app, InputOptions& options) {
  add_blocking_options(app, options);
  add_size_as<std::int64_t>(app, "--token-limit", options.limits.token_limit, 1,
                            {"N", "tokens a device may own; checked by verification", "none"});
  add_size_as<std::int64_t>(
      app, "--memory-limit", options.limits.memory_limit_bytes, 1,
      {"BYTES", "the plan's memory on a device, per direction; checked by verification", "none"});
  add_switch(app, "--forward-only", options.forward_only, "no backward pass (prefill)");
}

Cluster context_parallel_group(const InputOptions& options) {
  const Cluster cluster = load_cluster(options.cluster);
  return options.tp == 1 && options.pp == 1 ? cluster : cluster.group(options.tp, options.pp);
}

// Of one tensor-parallel rank.
AttentionShape shape_of_rank(const InputOptions& options) {
  AttentionShape shape = options.shape;
  shape.value_dim = options.value_dim.value_or(shape.head_dim);
  check_shape(shape);
  if (shape.q_heads % options.tp != 0 || shape.kv_heads % options.tp != 0) {
    fail_argument("--tp: expected a divisor of {} query heads and {} KV heads, found {}",
                  shape.q_heads, shape.kv_heads, options.tp);
  }
  shape.q_heads /= options.tp;
  shape.kv_heads /= options.tp;
  return shape;
}

}  // namespace

std::vector<std::vector<std::int64_t>> load_lengths(const InputOptions& options) {
  if (options.lengths_path.empty() == options.dataset.empty()) {
    fail_argument("expected either --lengths FILE or --dataset NAME, found {}",
                  options.dataset.empty() ? "neither" : "both");
  }
  BatchOptions batch = options.batch;
  batch.seed = options.seed;
  if (!options.dataset.empty()) return batches_from_dataset(options.dataset, batch);
  return batches_from_lengths(read_lengths(options.lengths_path, options.length_field), batch);
}

namespace {

Workload load_workload(const InputOptions& options, const std::vector<std::int64_t>& lengths,
                       const AttentionShape& shape, std::int32_t num_ranks) {
  std::vector<MaskUse> masks = options.masks;
  if (masks.empty()) masks.emplace_back();
  Workload workload = make_workload(lengths, shape, masks);
  if (!options.mask_path.empty()) {
    workload.masks = {{.name = "file",
                       .layers = 1,
                       .mask = read_mask_file(options.mask_path, workload.num_tokens())}};
  }
  if (!options.layout.empty()) {
    workload.home = load_layout(options.layout, workload.sequences, num_ranks);
  }
  check_workload(workload);
  return workload;
}

}  // namespace

void add_input_options(CLI::App& app, InputOptions& options) {
  add_batch_options(app, options);
  add_size<std::int64_t>(app, "--batches", options.batch.batches, 1,
                         {"N", "number of batches", ""});
  add_mask_options(app, options);
  add_shape_options(app, options.shape, options.value_dim);
  add_cluster_options(app, options);
  add_planning_options(app, options);
}

void add_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                         const std::string& unset, const std::string& text) {
  const auto names = [] {
    std::string joined;
    for (const Strategy* strategy : strategies()) {
      joined += joined.empty() ? "" : ", ";
      joined += strategy->name();
    }
    return joined;
  };
  choices = parse_strategies(unset);
  add_value(app, "--strategy",
            {"NAME[:KEY=VALUE,...]", fmt::format("{}: {}; options: contextile info", text, names()),
             unset},
            [&choices](const std::string& value) { choices = parse_strategies(value); });
}

void add_json_option(CLI::App& app, bool& json) {
  add_switch(app, "--json", json, "one JSON document instead of tables");
}

void add_csv_option(CLI::App& app, bool& csv, const std::string& rows) {
  add_switch(app, "--csv", csv, rows + " as CSV, in bytes, fractions and seconds");
}

void check_no_input(const std::string& option, const std::string& path,
                    const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code missing;  // then they are not the same
    if (path.empty() || !std::filesystem::equivalent(path, input, missing)) continue;
    fail_argument("{}: expected another file than the input, found {} for both", option,
                  quote(path));
  }
}

void check_formats(bool json, bool csv) {
  if (json && csv) fail_argument("expected either --json or --csv, found both");
}

void add_random_seed_option(CLI::App& app, std::optional<std::uint64_t>& seed,
                            const std::string& text) {
  add_size_as<std::uint64_t>(app, "--seed", seed, 0, {"N", text, "random, printed"});
}

std::uint64_t given_or_random(const std::optional<std::uint64_t>& seed) {
  return seed ? *seed : std::random_device{}();
}

PlanInput load_input(const InputOptions& options) {
  if (!options.masks.empty() && !options.mask_path.empty()) {
    fail_argument("expected either --mask or --mask-file, found both");
  }
  PlanInput input;
  input.cluster = context_parallel_group(options);
  const AttentionShape shape = shape_of_rank(options);
  for (const std::vector<std::int64_t>& lengths : load_lengths(options)) {
    input.batches.push_back(load_workload(options, lengths, shape, input.cluster.num_devices()));
  }
  input.options = {.block_size = options.block_size,
                   .wire = options.wire,
                   .backward = !options.forward_only,
                   .seed = options.seed,
                   .token_limit = options.limits.token_limit,
                   .memory_limit_bytes = options.limits.memory_limit_bytes};
  return input;
}

}  // namespace contextile
