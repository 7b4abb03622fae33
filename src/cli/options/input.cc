#include "cli/options/input.h"

#include <string_view>

#include "base/check.h"
#include "base/quote.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "contextile/advanced/model.h"
#include "contextile/cluster.h"
#include "contextile/mask.h"
#include "contextile/planner.h"

namespace contextile {
namespace {

// "lambda:SINK,WINDOW" and the other forms with which the list of rules begins its lines.
std::vector<std::string> mask_forms() {
  const std::string help = mask_spec_help();
  std::vector<std::string> forms;
  for (std::string_view rest = help; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    forms.emplace_back(line.substr(0, line.find(' ')));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return forms;
}

void add_mask_options(CLI::App& app, InputOptions& options) {
  add_mask_rule_option(app, options);
  add_value(app, "--mask-file",
            {"FILE",
             "any mask as JSON: {\"bands\": [[q0, q1, k0, k1, lo, hi], ...]}, token indices of the "
             "batch, null for infinite; instead of --mask",
             ""},
            [&options](const std::string& path) { options.workload.mask_path = path; });
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
  add_dtype_option(app, shape.dtype, "of activations and gradients");
  add_value(
      app, "--attention-scale", {"X", "factor of the scores", "1/sqrt(head dim)"},
      [&shape](const std::string& text) { shape.scale = parse_number("--attention-scale", text); });
  add_value(app, "--softcap", {"X", "scores s become X*tanh(s/X); 0: none", "0"},
            [&shape](const std::string& text) { shape.softcap = parse_number("--softcap", text); });
  add_switch(app, "--sink", shape.sink, "a learnable sink logit for every query head");
}

void add_machine_options(CLI::App& app, InputOptions& options) {
  add_cluster_option(app, options.cluster, "");
  add_size<std::int32_t>(
      app, "--tp", options.workload.tp, 1,
      {"N", "tensor parallelism: N devices act as one rank, heads are divided by N", ""});
  add_size<std::int32_t>(
      app, "--pp", options.pp, 1,
      {"N", "pipeline stages: a group for context parallelism is 1/N of the devices", ""});
  add_value(
      app, "--layout",
      {"contiguous|zigzag|FILE",
       "where tokens already are: contiguous (even slices of the batch), zigzag (chunks r and "
       "2R-1-r of every sequence on rank r), or a file {\"home\": [[begin, end, rank], ...]}",
       "the plan chooses"},
      [&options](const std::string& text) { options.workload.layout = text; });
}

void add_planning_options(CLI::App& app, InputOptions& options) {
  add_blocking_options(app, options);
  add_size_as<std::int64_t>(
      app, "--token-limit", options.plan.limits.tokens, 1,
      {"N", "tokens a device may own; auto keeps to it, verification checks it", "none"});
  add_size<std::int64_t>(
      app, "--tokens-multiple", options.plan.tokens_multiple, 1,
      {"N", "every device owns a multiple of so many tokens, whatever the strategy", ""});
  add_switch(app, "--equal-tokens", options.plan.equal_tokens,
             "every device owns equally many tokens, whatever the strategy");
  add_size_as<std::int64_t>(
      app, "--memory-limit", options.plan.limits.memory_bytes, 1,
      {"BYTES",
       "the plan's memory on a device, per direction; auto keeps to it, verification checks it",
       "none"});
  std::vector<std::string> models;
  for (const ModelPreset& preset : model_presets()) models.push_back(preset.model.name);
  add_text(app, "--linear-layers", options.linear_layers,
           {"MODEL|US",
            "what a token costs outside attention in a layer, forward, on its device: as in a "
            "model ({}, or a .json file), or so many microseconds; choices of block sizes and of "
            "auto weigh it, compare shows the layer's time",
            "a guess decides block sizes", std::move(models)});
  add_switch(app, "--force", options.plan.force,
             "plan also what has more than 2e8 tiles or pairs of devices");
  add_switch(
      app, "--forward-only", [&options] { options.plan.backward = false; },
      "no backward pass (prefill)");
}

// The options that turn documents into batches, wherever the lengths come from.
void add_packing_options(CLI::App& app, InputOptions& options) {
  add_size_as<std::int64_t>(app, "--tokens", options.batch.tokens, 1,
                            {"N",
                             "tokens of one batch: documents fill batches in order, the last one "
                             "is cut; a dataset needs it",
                             "all lengths are one batch"});
  add_value(
      app, "--packing",
      {"NAME[:KEY=VALUE,...]",
       "how documents are put together: sequential, or wlb: in steps, the documents of "
       "micro_batches=4 sequential batches are packed again into micro-batches of about equal "
       "work and at most max_tokens (twice --tokens); documents of levels=T1:T2:... (max_tokens "
       "/ 4; none) tokens wait for others as long; balance=128K: tokens at which attention "
       "costs as much as the rest; defer=off: nothing waits; every micro-batch is a batch",
       "sequential",
       {"sequential", "wlb"}},
      [&options](const std::string& text) {
        try {
          parse_packing(text, options.batch);
        } catch (const InvalidArgument& error) {
          fail_argument("--{}", error.what());
        }
      });
  add_size_as<std::int64_t>(app, "--max-length", options.batch.max_length, 1,
                            {"N", "longer documents are cut to N tokens, or left out", "no limit"});
  add_value(app, "--long-documents",
            {"HOW",
             "split: documents are cut to --max-length and at a batch's end; drop: longer ones are "
             "left out, and one that does not fit begins the next batch",
             "split",
             {"split", "drop"}},
            [&options](const std::string& text) {
              if (text != "split" && text != "drop") {
                fail_argument("--long-documents: expected split or drop, found {}", quote(text));
              }
              options.batch.long_documents =
                  text == "drop" ? LongDocuments::kDrop : LongDocuments::kSplit;
            });
  add_value(app, "--scale", {"X", "every length is multiplied by X", "1"},
            [&options](const std::string& text) {
              options.batch.scale = parse_number("--scale", text);
              if (options.batch.scale <= 0) {
                fail_argument("--scale: expected a number above 0, found {}", quote(text));
              }
            });
}

// The cost of a token, forward, on a device of the group.
double linear_us(const InputOptions& options, const Cluster& group) {
  const std::string& text = options.linear_layers;
  if (text.empty()) {
    return guessed_linear_us_per_token(options.workload.shape, group) / options.workload.tp;
  }
  if (text.find_first_not_of("0123456789.eE+-") == std::string::npos) {
    const double us = parse_number("--linear-layers", text);
    constexpr double kMostUs = 1e6;
    if (us < 0 || us > kMostUs) {
      fail_argument("--linear-layers: expected 0 to {} us, found {}", kMostUs, quote(text));
    }
    return us;
  }
  ModelSpec model;
  try {
    model = load_model(text);
  } catch (const InvalidArgument& error) {
    if (text.ends_with(".json")) throw;  // it says where in the file
    fail_argument("--linear-layers: expected microseconds or a model; {}", error.what());
  }
  const AttentionShape& shape = options.workload.shape;  // of the whole model
  if (shape.q_heads != model.q_heads || shape.kv_heads != model.kv_heads ||
      shape.head_dim != model.head_dim) {
    fail_argument(
        "--linear-layers: expected the heads of {}, {}/{} of {}, found {}/{} of {} (--heads, "
        "--kv-heads and --head-dim name those of the whole model, which --tp divides)",
        quote(model.name), model.q_heads, model.kv_heads, model.head_dim, shape.q_heads,
        shape.kv_heads, shape.head_dim);
  }
  return linear_us_per_token(model, group) / options.workload.tp;
}

void check_size(const Workload& workload, const Cluster& cluster, const InputOptions& options) {
  try {
    check_plan_size(workload, cluster, options.plan.block_size.value_or(0));
  } catch (const InvalidArgument& error) {
    fail_argument("{}; --force plans it all the same", error.what());
  }
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
  add_dataset_option(app, options.dataset, "built-in length distribution to sample");
  add_packing_options(app, options);
  add_size_as<std::uint64_t>(app, "--seed", options.plan.seed, 0,
                             {"N", "seed of dataset samples and of strategies that draw", "0"});
}

void add_mask_rule_option(CLI::App& app, InputOptions& options) {
  add_repeatable(app, "--mask",
                 {"[NAME=]SPEC[@LAYERS]",
                  "rule of every sequence, for LAYERS of the model (1); may be repeated: {} "
                  "(tokens; W and SINK "
                  "of causal_blockwise in blocks)",
                  "causal", mask_forms()},
                 [&options](const std::string& text) {
                   options.workload.masks.push_back(parse_mask_use(text));
                 });
}

void add_blocking_options(CLI::App& app, InputOptions& options) {
  add_value(app, "--block-size",
            {"N|auto", "tokens of a block; auto: the strategy's default", "auto"},
            [&options](const std::string& text) {
              options.plan.block_size.reset();
              if (text != "auto") options.plan.block_size = parse_size("--block-size", text, 1);
            });
  add_wire_option(app, options.plan);
}

void add_input_options(CLI::App& app, InputOptions& options) {
  add_batch_options(app, options);
  add_size<std::int64_t>(app, "--batches", options.batch.batches, 1,
                         {"N", "number of batches", ""});
  add_mask_options(app, options);
  add_shape_options(app, options.workload.shape, options.value_dim);
  add_machine_options(app, options);
  add_planning_options(app, options);
}

std::vector<std::vector<std::int64_t>> load_lengths(const InputOptions& options) {
  if (options.lengths_path.empty() == options.dataset.empty()) {
    fail_argument("expected either --lengths FILE or --dataset NAME, found {}",
                  options.dataset.empty() ? "neither" : "both");
  }
  BatchOptions batch = options.batch;
  batch.seed = options.plan.seed;
  if (!options.dataset.empty()) return batches_from_dataset(options.dataset, batch);
  return batches_from_lengths(read_lengths(options.lengths_path, options.length_field), batch);
}

PlanInput load_input(const InputOptions& options) {
  WorkloadInput workload = options.workload;
  workload.shape.value_dim = options.value_dim.value_or(workload.shape.head_dim);
  check_workload_input(workload);
  PlanInput input;
  const Cluster machine = load_cluster(options.cluster);
  input.cluster =
      workload.tp == 1 && options.pp == 1 ? machine : machine.group(workload.tp, options.pp);
  for (const std::vector<std::int64_t>& lengths : load_lengths(options)) {
    input.batches.push_back(load_workload(lengths, workload, input.cluster.num_devices()));
    if (!options.plan.force) check_size(input.batches.back(), input.cluster, options);
  }
  input.options = options.plan;
  input.options.linear_us_per_token = linear_us(options, input.cluster);
  return input;
}

}  // namespace contextile
