// contextile demo: every strategy on one real-shaped batch, planned for a cluster of 32 devices,
// then a small batch of the same shape executed for real on four in-process ranks.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/command.h"
#include "cli/comparing.h"
#include "cli/options/input.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/registry.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::int64_t kExecutedTokens = 2048;
constexpr std::int64_t kExecutedBlockTokens = 128;

struct DemoOptions {
  std::string dataset = "longdatacollections";
  std::int64_t tokens = 131072;
  std::uint64_t seed = 1;
};

InputOptions planned_input(const DemoOptions& options, const std::string& mask) {
  InputOptions input;
  input.dataset = options.dataset;
  input.batch.tokens = options.tokens;
  input.seed = options.seed;
  input.masks = {parse_mask_use(mask)};
  return input;
}

// The same documents, scaled down; heads enough for four ranks of head parallelism.
InputOptions executed_input(const DemoOptions& options, const std::string& mask) {
  InputOptions input = planned_input(options, mask);
  input.batch.tokens = kExecutedTokens;
  input.batch.scale = static_cast<double>(kExecutedTokens) / static_cast<double>(options.tokens);
  input.shape = {.q_heads = 8, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  input.cluster = "local:1x4";
  input.block_size = kExecutedBlockTokens;
  return input;
}

bool show(const std::string& title, const InputOptions& options, bool execute) {
  const PlanInput input = load_input(options);
  std::optional<Execution> execution;
  if (execute) execution = {.seed = options.seed};
  const ComparisonResult result = compare_at_terminal(input, parse_strategies("all"), execution);
  print(fmt::format(
      "== {}\n{}\n", title,
      comparison_text(input, result.compared, result.runs, options.seed, stdout_is_terminal())));
  return report_failures(result);
}

int run(const DemoOptions& options) {
  print(fmt::format("dataset {}, {} tokens, seed {}\n\n", options.dataset, options.tokens,
                    options.seed));
  bool ok = true;
  for (const char* mask : {"causal", "lambda:64,4096"}) {
    ok = show(fmt::format("planned: {}", mask), planned_input(options, mask), false) && ok;
  }
  for (const char* mask : {"causal", "lambda:16,128"}) {
    ok = show(fmt::format("executed: {}, the batch scaled to {} tokens", mask, kExecutedTokens),
              executed_input(options, mask), true) &&
         ok;
  }
  print(ok ? "every plan verified, every result within its bound, every byte as predicted\n"
           : "a check failed\n");
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_demo_command(CLI::App& app) {
  auto options = std::make_shared<DemoOptions>();
  add_text(app, "--dataset", options->dataset, {"NAME", "length distribution to sample", ""});
  add_size<std::int64_t>(app, "--tokens", options->tokens, 1,
                         {"N", "tokens of the planned batch", ""});
  add_size<std::uint64_t>(app, "--seed", options->seed, 0, {"N", "seed of lengths and inputs", ""});
  return [options] { return run(*options); };
}

}  // namespace contextile
