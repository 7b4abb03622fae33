// What a command of the program is, and what its exit codes mean.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace contextile {

inline constexpr int kExitOk = 0;
inline constexpr int kExitCheckFailed = 1;  // a plan is invalid, a result wrong
inline constexpr int kExitBadInput = 2;     // bad usage or bad input
inline constexpr int kExitEnvironment = 3;  // a rank died, a disk is full, memory ran out

// What to do once the command line is parsed; returns the exit code.
using Action = std::function<int()>;

// Each adds its options to `app` and returns the command's action.
[[nodiscard]] Action add_plan_command(CLI::App& app);
[[nodiscard]] Action add_verify_command(CLI::App& app);
[[nodiscard]] Action add_run_command(CLI::App& app);
[[nodiscard]] Action add_simulate_command(CLI::App& app);
[[nodiscard]] Action add_report_command(CLI::App& app);
[[nodiscard]] Action add_compare_command(CLI::App& app);
[[nodiscard]] Action add_iterate_command(CLI::App& app);
[[nodiscard]] Action add_profile_command(CLI::App& app);
[[nodiscard]] Action add_export_command(CLI::App& app);
[[nodiscard]] Action add_info_command(CLI::App& app);
[[nodiscard]] Action add_demo_command(CLI::App& app);
[[nodiscard]] Action add_bench_command(CLI::App& app);
[[nodiscard]] Action add_partition_command(CLI::App& app);

}  // namespace contextile
