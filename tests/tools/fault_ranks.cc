// One rank of a group that runs a plan over and over, while a fault comes to one of the ranks: for
// tests of the others' reports. A launcher starts this program once for each rank; with inproc all
// ranks are threads of it.
//
// Ends with 0 after all iterations, 2 on wrong arguments, 3 with one line when the group failed.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <variant>

#include "base/check.h"
#include "base/parse_number.h"
#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/executor_testing.h"

namespace contextile {
namespace {

constexpr const char* kUsage =
    "usage: fault_ranks TRANSPORT --plan FILE [--turns N] [--timeout MS] [--flight FOLDER]\n"
    "                   [--fault WHAT --on RANK --at STEP [--direction forward|backward]]\n"
    "  TRANSPORT  inproc, mpi, or gloo with --rank R --size N --rendezvous URL\n"
    "  --fault    kill, stop: a signal; slow: sleeps three timeouts; throw: an error of its own;\n"
    "             plan: loads --other FILE; batch: tensors of another size\n"
    "  --at       an instruction's name, prepare, exchange, rows, or between: outside of calls\n";

struct FaultSettings {
  std::string transport;
  std::string plan;
  std::string other;
  std::string fault;
  std::string at;
  std::optional<Direction> direction;
  std::string flight_folder;
  Rank on;
  std::int64_t turns = 3;
  std::chrono::milliseconds timeout{2000};
  GlooOptions gloo;
};

void set(FaultSettings& settings, std::string_view name, const std::string& value) {
  const auto rank_of = [&] { return Rank{static_cast<std::int32_t>(parse_size(name, value, 0))}; };
  if (name == "--plan") {
    settings.plan = value;
  } else if (name == "--other") {
    settings.other = value;
  } else if (name == "--fault") {
    settings.fault = value;
  } else if (name == "--at") {
    settings.at = value;
  } else if (name == "--direction") {
    settings.direction = value == "forward" ? Direction::kForward : Direction::kBackward;
  } else if (name == "--flight") {
    settings.flight_folder = value;
  } else if (name == "--on") {
    settings.on = rank_of();
  } else if (name == "--turns") {
    settings.turns = parse_size(name, value, 1);
  } else if (name == "--timeout") {
    settings.timeout = std::chrono::milliseconds(parse_size(name, value, 1));
  } else if (name == "--rank") {
    settings.gloo.rank = rank_of();
  } else if (name == "--size") {
    settings.gloo.size = rank_of().value;
  } else if (name == "--rendezvous") {
    settings.gloo.rendezvous = value;
  } else {
    fail_argument("expected an option, found '{}'", name);
  }
}

FaultSettings settings_of(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) fail_argument("expected TRANSPORT and pairs of option and value");
  FaultSettings settings;
  settings.transport = argv[1];
  for (int i = 2; i < argc; i += 2) set(settings, argv[i], argv[i + 1]);
  return settings;
}

// Prints the time first: the next call may end this process.
void strike(const FaultSettings& settings) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::fputs(fmt::format("struck at {}\n", std::chrono::duration<double>(now).count()).c_str(),
             stdout);
  std::fflush(stdout);
  if (settings.fault == "kill") std::raise(SIGKILL);
  if (settings.fault == "stop") std::raise(SIGSTOP);
  if (settings.fault == "slow") std::this_thread::sleep_for(3 * settings.timeout);
  if (settings.fault == "throw") throw std::runtime_error("a fault of its own");
}

// No strategy needs a copy, so a plan gets one that changes nothing.
void add_copies(Plan& plan, Rank rank) {
  PlanRound& round = plan.rounds.at(0);
  DeviceProgram& device = round.devices.at(rank.index());
  const CopyOp copy{Kind::kO, device.local_blocks.at(0), GroupId{0}, SlotId{0}, SlotId{0}};
  CopyOp backward = copy;
  backward.kind = Kind::kDq;
  auto& programs = device.programs.at(0);
  programs.forward->instructions.emplace_back(copy);
  programs.backward->instructions.emplace_back(backward);
}

std::shared_ptr<const Plan> plan_of(const FaultSettings& settings, bool faulty) {
  Plan plan = load_plan(faulty && settings.fault == "plan" ? settings.other : settings.plan);
  if (faulty && settings.at == "copy") add_copies(plan, settings.on);
  return std::make_shared<const Plan>(std::move(plan));
}

void run_rank(const FaultSettings& settings, Transport& transport) {
  const bool faulty = transport.rank() == settings.on;
  const auto plan = plan_of(settings, faulty);
  Executor executor(transport, find_kernel("", plan->shape.dtype),
                    {.flight_folder = settings.flight_folder});
  std::int64_t turn = 0;
  const bool is_step = settings.at != "between" && !settings.fault.empty();
  if (faulty && is_step) {
    ExecutorTesting::before_step(executor, [&](const RecordedStep& step) {
      const bool is_first = step.op == "prepare" || step.op == "exchange";
      if (step.op == settings.at && step.direction == settings.direction &&
          (is_first || turn == 1)) {
        strike(settings);
      }
    });
  }
  // Made before the others wait: this takes longer than a launcher gives ranks to report.
  Workload workload;
  workload.sequences = plan->sequences;
  workload.shape = plan->shape;
  const BatchTensors batch = random_batch(workload, 1);
  executor.prepare(plan);
  std::vector<std::int64_t> tokens = local_tokens(*plan, transport.rank());
  if (faulty && settings.fault == "batch") tokens.pop_back();
  LayerTensors layer(batch, plan->shape, tokens);
  try {
    for (; turn < settings.turns; ++turn) {
      const Saved saved = executor.forward(0, layer.forward());
      if (faulty && settings.at == "between" && turn == 1) strike(settings);
      executor.backward(0, layer.backward(), saved);
      barrier(transport);  // as the gradients of a training step are
    }
  } catch (const std::exception& error) {
    executor.write_flight_record(error);
    throw;
  }
}

void run(const FaultSettings& settings) {
  if (settings.transport == "inproc") {
    run_inproc(load_plan(settings.plan).num_devices(),
               [&](Transport& transport) { run_rank(settings, transport); },
               {.timeout = settings.timeout});
    return;
  }
  std::unique_ptr<Transport> transport;
  if (settings.transport == "mpi") {
    transport = make_mpi_transport({.timeout = settings.timeout});
  } else if (settings.transport == "gloo") {
    GlooOptions options = settings.gloo;
    options.run_id = "faults";
    options.timeout = settings.timeout;
    transport = make_gloo_transport(options);
  } else {
    fail_argument("expected a transport of this build, found '{}'", settings.transport);
  }
  try {
    run_rank(settings, *transport);
  } catch (const std::exception& error) {
    // Prints in one write, so that lines of ranks that share a terminal stay whole, and before the
    // group is left.
    std::fputs(fmt::format("fault_ranks: {}\n", error.what()).c_str(), stderr);
    transport->abort(error.what());
    throw;
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  using namespace contextile;  // NOLINT(google-build-using-namespace)
  bool started = false;
  try {
    const FaultSettings settings = settings_of(argc, argv);
    started = settings.transport != "inproc";
    run(settings);
    return 0;
  } catch (const InvalidArgument& error) {
    if (started) return 3;
    std::fprintf(stderr, "fault_ranks: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    if (!started) std::fputs(fmt::format("fault_ranks: {}\n", error.what()).c_str(), stderr);
    return 3;
  }
}
