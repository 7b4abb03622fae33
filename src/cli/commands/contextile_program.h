// The commands of the program `contextile`.
#pragma once

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

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
[[nodiscard]] Action add_partition_command(CLI::App& app);
[[nodiscard]] Action add_completion_command(CLI::App& app);
[[nodiscard]] Action add_launch_command(CLI::App& app);
[[nodiscard]] Action add_serve_command(CLI::App& app);

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
    {"partition", "a hypergraph file to a partition file", add_partition_command},
    {"info", "what this build can do, presets, strategies, datasets, masks", add_info_command},
    {"demo", "plan a real-shaped batch with every strategy, execute a small one", add_demo_command},
    {"completion", "a script that completes commands, options and values in a shell",
     add_completion_command},
};

inline constexpr CommandProgram kContextileProgram{
    "contextile", "Context parallelism by tiles: exact distributed attention by verified plans.",
    kCommands};

}  // namespace contextile
