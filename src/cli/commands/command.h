// What a command of the program is, and what its exit codes mean.
#pragma once

#include <functional>
#include <string_view>

#include "cli/app.h"

namespace contextile {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitEnvironment = 3;

struct ExitCode {
  int code;
  std::string_view name;
  std::string_view causes;
};
inline constexpr ExitCode kExitCodes[] = {
    {kExitOk, "ok", "everything asked for was done"},
    {kExitCheckFailed, "a check failed", "a plan is invalid, a result is wrong, nothing fits"},
    {kExitBadInput, "bad usage or input", "an option, a file or a value is not what it should be"},
    {kExitEnvironment, "the environment failed",
     "a rank stalled, an output could not be written, memory ran out"},
};

// What to do once the command line is parsed; returns the exit code.
using Action = std::function<int()>;

// Each adds its options and examples to `app` and returns the command's action.
[[nodiscard]] Action add_plan_command(CLI::App& app);
[[nodiscard]] Action add_verify_command(CLI::App& app);
[[nodiscard]] Action add_run_command(CLI::App& app);
[[nodiscard]] Action add_simulate_command(CLI::App& app);
[[nodiscard]] Action add_report_command(CLI::App& app);
[[nodiscard]] Action add_compare_command(CLI::App& app);
[[nodiscard]] Action add_iterate_command(CLI::App& app);
[[nodiscard]] Action add_helix_command(CLI::App& app);
[[nodiscard]] Action add_profile_command(CLI::App& app);
[[nodiscard]] Action add_export_command(CLI::App& app);
[[nodiscard]] Action add_import_command(CLI::App& app);
[[nodiscard]] Action add_info_command(CLI::App& app);
[[nodiscard]] Action add_demo_command(CLI::App& app);
[[nodiscard]] Action add_bench_command(CLI::App& app);
[[nodiscard]] Action add_partition_command(CLI::App& app);
[[nodiscard]] Action add_completion_command(CLI::App& app);
[[nodiscard]] Action add_launch_command(CLI::App& app);
[[nodiscard]] Action add_serve_command(CLI::App& app);

struct Command {
  const char* name;
  const char* summary;
  Action (*add)(CLI::App& app);
};
inline constexpr Command kCommands[] = {
    {"plan", "lengths, mask, cluster and strategy to a verified plan file", add_plan_command},
    {"verify", "all violations of a plan file", add_verify_command},
    {"run", "execute a plan on real ranks and check the result", add_run_command},
    {"launch", "ranks as processes: a run over gloo, or any program that takes its rank",
     add_launch_command},
    {"serve", "a language model over HTTP, from ranks that share its KV cache", add_serve_command},
    {"simulate", "what a plan would take on a cluster: time, exposed transfers, a trace",
     add_simulate_command},
    {"report", "one HTML page about a plan, or two plans side by side", add_report_command},
    {"compare", "strategies on the same batches, side by side", add_compare_command},
    {"iterate", "one training step of a model: time, memory, the best TP x CP x DP x PP",
     add_iterate_command},
    {"helix", "decoding when devices share tokens: times, capacity, and where that loses",
     add_helix_command},
    {"profile", "measure this machine into a cluster file", add_profile_command},
    {"export", "a plan file as JSON", add_export_command},
    {"import", "a plan's JSON, whoever wrote it, to a plan file", add_import_command},
    {"bench", "tables of papers, printed again from verified plans", add_bench_command},
    {"partition", "a hypergraph file to a partition file", add_partition_command},
    {"info", "what this build can do, presets, strategies, datasets, masks", add_info_command},
    {"demo", "plan a real-shaped batch with every strategy, execute a small one", add_demo_command},
    {"completion", "a script that completes commands, options and values in a shell",
     add_completion_command},
};

}  // namespace contextile
