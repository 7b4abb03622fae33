// The height of the lower bound, the resource that binds it and its cost, over the workloads of
// auto_bench.
//
//   bounds_bench [--devices 8,32,64] [--slack 1024] [--rows] [--against FILE]
//
// Batches of 4096 tokens per device from every dataset and of one document, four masks, p4de and
// dgx-h200, 8 and 32 KV heads, both directions; devices own `slack` tokens more than 4096 at most.
// By cluster, devices and KV heads, it prints the gain of the joint part (time over the time
// without it), communication compared with compute, the resource that binds, and processor time per
// call on one thread. --rows prints every workload as CSV. With --against and such rows of another
// build, it prints by how much the bound and its communication part have risen since. Every part is
// checked to be no higher than the whole.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "contextile/bounds.h"
#include "contextile/cluster.h"
#include "contextile/data.h"
#include "contextile/workload.h"
#include "geometric_mean.h"

namespace contextile {
namespace {

using bench::GeometricMean;

constexpr std::int64_t kTokensPerDevice = 4096;
constexpr const char* kMasks[] = {"causal", "lambda:64,4096", "causal_blockwise:256,2,1",
                                  "shared_question:0.2,4"};

struct Options {
  std::vector<std::int32_t> devices = {8, 32, 64};
  std::int64_t slack_tokens = 1024;  // as BoundOptions has it
  bool rows = false;
  std::string against;
};

// A row of another build.
struct Earlier {
  double time_us = 0;
  double communication_us = 0;
};

struct Summary {
  GeometricMean joint_gain;
  GeometricMean communication_share{1e-3};  // of compute
  GeometricMean risen;
  GeometricMean communication_risen;
  int communication_was_nothing = 0;
  std::map<std::string, int> bindings;
  double total_ms = 0;
  double longest_ms = 0;
  int calls = 0;
};

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
  return parts;
}

// Reads rows: "cluster;devices;kv heads;batch;mask;direction" and the columns that --rows prints
// behind it.
std::map<std::string, Earlier> read_rows(const std::string& file) {
  std::ifstream in(file);
  if (!in) {
    fmt::print(stderr, "bounds_bench: '{}': cannot be read\n", file);
    std::exit(2);
  }
  std::map<std::string, Earlier> rows;
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> cells = split(line, ';');
    if (cells.size() < 8 || cells[0] == "cluster") continue;
    std::string name = cells[0];
    for (std::size_t i = 1; i < 6; ++i) name += ";" + cells[i];
    rows[name] = {std::stod(cells[6]), std::stod(cells[7])};
  }
  return rows;
}

void check(const TimeBound& bound, const std::string& name) {
  const double most = std::max({bound.compute_us, bound.communication_us, bound.latency_us,
                                bound.separate_us, bound.joint_us});
  if (most <= bound.time_us * (1 + 1e-9)) return;
  fmt::print(stderr, "{}: a part of {} us is above the whole of {} us\n", name, most,
             bound.time_us);
  std::exit(1);
}

void measure(const std::string& name, const Workload& workload, const Cluster& cluster,
             Direction direction, const Options& options,
             const std::map<std::string, Earlier>& earlier, Summary& summary) {
  const double start = cpu_ms();
  const TimeBound bound = lower_bound(
      workload, cluster, direction, {.max_owned_tokens = kTokensPerDevice + options.slack_tokens});
  const double ms = cpu_ms() - start;
  check(bound, name);
  ++summary.calls;
  summary.total_ms += ms;
  summary.longest_ms = std::max(summary.longest_ms, ms);
  ++summary.bindings[bound.binding];
  summary.joint_gain.add(bound.time_us / bound.separate_us);
  summary.communication_share.add(bound.communication_us / bound.compute_us);
  if (const auto it = earlier.find(name); it != earlier.end()) {
    summary.risen.add(bound.time_us / it->second.time_us);
    if (it->second.communication_us > 0) {
      summary.communication_risen.add(bound.communication_us / it->second.communication_us);
    } else if (bound.communication_us > 0) {
      ++summary.communication_was_nothing;
    }
  }
  if (options.rows) {
    fmt::print("{};{:.2f};{:.2f};{:.2f};{:.2f};{:.2f};{:.2f};{:.2f};{};{:.2f}\n", name,
               bound.time_us, bound.communication_us, bound.compute_us, bound.device_ports_us,
               bound.node_uplinks_us, bound.latency_us, bound.joint_us, bound.binding, ms);
  }
}

void print(const std::string& name, const Summary& summary) {
  std::string bindings;
  for (const auto& [binding, count] : summary.bindings) {
    bindings += fmt::format("{}{} {}", bindings.empty() ? "" : ", ", binding, count);
  }
  fmt::print(
      "{:22} joint / separate {:.4f}, most {:.3f}; communication / compute {:.3f}, most {:.2f}; "
      "{}; {:.1f} ms a call, longest {:.1f} ms\n",
      name, summary.joint_gain.value(), summary.joint_gain.worst(),
      summary.communication_share.value(), summary.communication_share.worst(), bindings,
      summary.total_ms / summary.calls, summary.longest_ms);
  if (summary.risen.count() == 0) return;
  fmt::print(
      "{:22} since the other build: bound {:.4f}, most {:.3f}, least {:.3f}; communication {:.2f}, "
      "most {:.1f}, least {:.2f} of {}, from nothing {}\n",
      "", summary.risen.value(), summary.risen.worst(), summary.risen.least(),
      summary.communication_risen.value(), summary.communication_risen.worst(),
      summary.communication_risen.least(), summary.communication_risen.count(),
      summary.communication_was_nothing);
}

std::vector<std::pair<std::string, std::vector<std::int64_t>>> batches_of(std::int64_t tokens) {
  std::vector<std::pair<std::string, std::vector<std::int64_t>>> batches;
  for (const Dataset& dataset : datasets()) {
    batches.emplace_back(dataset.name,
                         batches_from_dataset(dataset.name, {.tokens = tokens, .seed = 1}).front());
  }
  batches.emplace_back("single", std::vector<std::int64_t>{tokens});
  return batches;
}

void run(const std::string& preset, std::int32_t devices, std::int32_t kv_heads,
         const Options& options, const std::map<std::string, Earlier>& earlier) {
  const Cluster cluster = load_cluster(fmt::format("{}:{}x8", preset, std::max(1, devices / 8)));
  AttentionShape shape;
  shape.kv_heads = kv_heads;
  Summary summary;
  for (const auto& [batch, lengths] : batches_of(kTokensPerDevice * devices)) {
    for (const char* mask : kMasks) {
      const MaskUse use = parse_mask_use(mask);
      const Workload workload = make_workload(lengths, shape, {&use, 1});
      for (const Direction direction : kDirections) {
        const std::string name = fmt::format("{};{};{};{};{};{}", preset, devices, kv_heads, batch,
                                             mask, to_string(direction));
        measure(name, workload, cluster, direction, options, earlier, summary);
      }
    }
  }
  if (!options.rows) print(fmt::format("{} x {}, {} KV", preset, devices, kv_heads), summary);
}

Options parse(const std::vector<std::string>& args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool has_value = i + 1 < args.size();
    if (args[i] == "--rows") {
      options.rows = true;
    } else if (args[i] == "--against" && has_value) {
      options.against = args[++i];
    } else if (args[i] == "--slack" && has_value) {
      options.slack_tokens = std::stoll(args[++i]);
    } else if (args[i] == "--devices" && has_value) {
      options.devices.clear();
      for (const std::string& part : split(args[++i], ',')) {
        options.devices.push_back(std::stoi(part));
      }
    } else {
      fmt::print(stderr, "bounds_bench: unknown option or no value: '{}'\n", args[i]);
      std::exit(2);
    }
  }
  return options;
}

int run(const Options& options) {
  std::map<std::string, Earlier> earlier;
  if (!options.against.empty()) earlier = read_rows(options.against);
  if (options.rows) {
    fmt::print(
        "cluster;devices;kv_heads;batch;mask;direction;time_us;communication_us;compute_us;"
        "device_ports_us;node_uplinks_us;latency_us;joint_us;binding;cpu_ms\n");
  }
  for (const char* preset : {"p4de", "dgx-h200"}) {
    for (const std::int32_t devices : options.devices) {
      for (const std::int32_t kv_heads : {8, 32}) {
        run(preset, devices, kv_heads, options, earlier);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  return contextile::run(contextile::parse(std::vector<std::string>(argv + 1, argv + argc)));
}
