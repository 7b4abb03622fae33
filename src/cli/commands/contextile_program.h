// The commands of the program `contextile`.
#pragma once

#include "cli/command_program.h"
#include "cli/commands/command.h"

namespace contextile {

// Each adds its options and examples to `app` and returns the command's action.
[[nodiscard]] Action add_advise_command(CLI::App& app);
[[nodiscard]] Action add_plan_command(CLI::App& app);
[[nodiscard]] Action add_verify_command(CLI::App& app);
[[nodiscard]] Action add_run_command(CLI::App& app);
[[nodiscard]] Action add_simulate_command(CLI::App& app);
[[nodiscard]] Action add_report_command(CLI::App& app);
[[nodiscard]] Action add_compare_command(CLI::App& app);
[[nodiscard]] Action add_iterate_command(CLI::App& app);
[[nodiscard]] Action add_helix_command(CLI::App& app);
[[nodiscard]] Action add_validate_command(CLI::App& app);
[[nodiscard]] Action add_profile_command(CLI::App& app);
[[nodiscard]] Action add_export_command(CLI::App& app);
[[nodiscard]] Action add_import_command(CLI::App& app);
[[nodiscard]] Action add_info_command(CLI::App& app);
[[nodiscard]] Action add_demo_command(CLI::App& app);
[[nodiscard]] Action add_partition_command(CLI::App& app);
[[nodiscard]] Action add_completion_command(CLI::App& app);
[[nodiscard]] Action add_launch_command(CLI::App& app);
[[nodiscard]] Action add_serve_command(CLI::App& app);

inline constexpr const char* kDecide = "Decide";
inline constexpr const char* kPlanAndLook = "Plan and look";
inline constexpr const char* kRun = "Run";
inline constexpr const char* kServe = "Serve";
inline constexpr const char* kPredict = "Predict";
inline constexpr const char* kTools = "Tools";

inline constexpr Command kCommands[] = {
    {"advise", kDecide, "Find the fastest set-up of a training job, and its flags.",
     add_advise_command},
    {"plan", kPlanAndLook, "Plan a batch, verify the plan and write it to a file.",
     add_plan_command},
    {"verify", kPlanAndLook, "List every violation in a plan file.", add_verify_command},
    {"compare", kPlanAndLook, "Plan the same batches with several strategies and compare them.",
     add_compare_command},
    {"report", kPlanAndLook, "Write an HTML page about one plan, or about two side by side.",
     add_report_command},
    {"export", kPlanAndLook, "Write a plan file as JSON.", add_export_command},
    {"import", kPlanAndLook, "Make a plan file from a plan in JSON.", add_import_command},
    {"run", kRun, "Execute a plan on ranks and check the results against fp64 attention.",
     add_run_command},
    {"launch", kRun, "Start ranks as processes on this machine and wait for them.",
     add_launch_command},
    {"demo", kRun, "Plan a realistic batch with every strategy and execute a small one.",
     add_demo_command},
    {"serve", kServe, "Serve a language model over HTTP from ranks that share its KV cache.",
     add_serve_command},
    {"simulate", kPredict, "Predict how long a plan takes on a cluster, and why.",
     add_simulate_command},
    {"iterate", kPredict, "Predict one training step of a model: time, memory, best parallelism.",
     add_iterate_command},
    {"helix", kPredict, "Predict decoding on devices that share the KV cache (Helix).",
     add_helix_command},
    {"validate", kPredict, "Hold predictions against measured times of plans and steps.",
     add_validate_command},
    {"profile", kTools, "Measure this machine and write a cluster file.", add_profile_command},
    {"partition", kTools, "Partition a hypergraph file.", add_partition_command},
    {"info", kTools, "List what this build has: strategies, masks, datasets, clusters, kernels.",
     add_info_command},
    {"completion", kTools, "Print a script that completes command lines in a shell.",
     add_completion_command},
};

inline constexpr CommandProgram kContextileProgram{
    "contextile", "Plan, verify, predict and run context-parallel attention.", kCommands};

}  // namespace contextile
