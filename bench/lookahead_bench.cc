// Planning ahead: its cost per batch on one core, the number of cores that keep ahead of an
// iteration, and the traffic through a store.
//
//   lookahead_bench [--devices 8,32,64] [--batches 6] [--datasets prolong,longalign,…]
//                   [--tokens 131072] [--strategy auto:steps=600000] [--iteration-s 1]
//   lookahead_bench --stores memory:,file:///FOLDER,redis://HOST,redis+unix:///SOCKET
//                   [--value-bytes 1000,20000,1000000] [--seconds 1]
//
// The first form plans batches of every dataset on one core each, proves every plan, checks that
// the slices come back with its digest, and prints medians and the slowest. The second puts, pulls
// and erases values, checking each, in every store.
#include <fmt/format.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "contextile/advanced/lookahead.h"
#include "contextile/advanced/store.h"
#include "contextile/data.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Options {
  std::vector<std::int32_t> devices = {8, 32, 64};
  std::vector<std::string> datasets;
  std::int64_t batches = 6;
  std::int64_t tokens = 131072;
  std::string strategy = "auto:steps=600000";
  double iteration_s = 1;
  std::vector<std::string> stores;
  std::vector<std::int64_t> value_bytes = {1000, 20'000, 1'000'000};
  double seconds = 1;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Fails the benchmark: none of its numbers count.
[[noreturn]] void fail(const std::string& text) {
  fmt::print(stderr, "lookahead_bench: {}\n", text);
  std::exit(1);
}

// ------------------------------------------------------------------------------------ planning

struct Planned {
  std::vector<double> planning_s;  // plan, proof and slices
  std::vector<double> verify_s;
  std::vector<double> step_bytes;  // slices of all ranks
  std::vector<double> rank_bytes;  // the largest slice
  std::vector<double> read_ms;     // of the largest slice
};

void check_slices(const Plan& plan, const std::vector<std::vector<std::uint8_t>>& slices) {
  for (const auto& slice : slices) {
    if (deserialize_slice(slice, "slice").digest != plan.digest) fail("a slice has another digest");
  }
}

void plan_one(const PlanJob& job, std::int64_t step, Planned& planned) {
  std::vector<std::vector<std::uint8_t>> slices;
  PlannedBatch batch;
  tbb::task_arena one_core(1);
  const Clock::time_point started = Clock::now();
  one_core.execute([&] {
    batch = plan_and_check(workload_of(job, step), job.cluster, job.choice, job.plan);
    slices = serialize_slices(*batch.plan);
  });
  planned.planning_s.push_back(seconds_since(started));
  planned.verify_s.push_back(batch.verify_s);
  check_slices(*batch.plan, slices);
  std::size_t all = 0;
  std::size_t largest = 0;
  for (std::size_t r = 0; r < slices.size(); ++r) {
    all += slices[r].size();
    if (slices[r].size() > slices[largest].size()) largest = r;
  }
  const Clock::time_point reading = Clock::now();
  static_cast<void>(deserialize_slice(slices[largest], "slice"));
  planned.read_ms.push_back(1e3 * seconds_since(reading));
  planned.step_bytes.push_back(static_cast<double>(all));
  planned.rank_bytes.push_back(static_cast<double>(slices[largest].size()));
}

void bench_planning(const Options& options) {
  constexpr std::int64_t kDocuments = 20'000;
  constexpr std::int32_t kDevicesPerNode = 8;
  fmt::print("{} batches of {} tokens of each dataset, causal, {}; one core a batch\n",
             options.batches, options.tokens, options.strategy);
  fmt::print("{:<20} {:>7} {:>9} {:>9} {:>9} {:>6} {:>9} {:>12} {:>8}\n", "dataset", "devices",
             "median s", "slowest s", "verify s", "cores", "KB a step", "KB a rank, most",
             "read ms");
  for (const std::int32_t devices : options.devices) {
    for (const std::string& dataset : options.datasets) {
      const PlanJob job = {
          .sampler = BatchSampler::of_dataset(dataset, kDocuments, {.tokens = options.tokens}),
          .input = {},
          .cluster = load_cluster(
              fmt::format("dgx-h200:{}x{}", devices / kDevicesPerNode, kDevicesPerNode)),
          .choice = parse_strategies(options.strategy).front(),
          .plan = {}};
      Planned planned;
      for (std::int64_t step = 0; step < options.batches; ++step) plan_one(job, step, planned);
      double total_s = 0;
      for (const double s : planned.planning_s) total_s += s;
      const double mean_s = total_s / static_cast<double>(options.batches);
      fmt::print("{:<20} {:>7} {:>9.2f} {:>9.2f} {:>9.3f} {:>6.0f} {:>9.1f} {:>15.1f} {:>8.2f}\n",
                 dataset, devices, median(planned.planning_s),
                 *std::ranges::max_element(planned.planning_s), median(planned.verify_s),
                 std::ceil(mean_s / options.iteration_s), 1e-3 * median(planned.step_bytes),
                 1e-3 * *std::ranges::max_element(planned.rank_bytes), median(planned.read_ms));
      std::fflush(stdout);
    }
  }
}

// -------------------------------------------------------------------------------------- stores

// Calls per second.
template <typename Call>
double rate_of(double seconds, const Call& call) {
  const Clock::time_point started = Clock::now();
  std::int64_t calls = 0;
  do {
    call(calls++);
  } while (seconds_since(started) < seconds);
  return static_cast<double>(calls) / seconds_since(started);
}

void bench_store(const std::string& address, const Options& options) {
  constexpr auto kExpiry = std::chrono::hours(1);
  constexpr std::int64_t kKeys = 64;
  const std::unique_ptr<Store> store = open_store(address);
  for (const std::int64_t size : options.value_bytes) {
    StoreValue value(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<std::uint8_t>(i * 131);
    const auto key = [](std::int64_t i) { return fmt::format("bench/{}", i % kKeys); };
    for (std::int64_t i = 0; i < kKeys; ++i) store->erase(key(i));
    // One step of a plan's way: put, pull, erase. The put is also timed alone.
    const double all = rate_of(options.seconds, [&](std::int64_t i) {
      if (!store->put(key(i), value, kExpiry)) fail("a key was taken");
      if (store->pull(key(i), std::chrono::seconds(1)) != value) fail("another value came back");
      store->erase(key(i));
    });
    const double replaces =
        rate_of(options.seconds, [&](std::int64_t i) { store->replace(key(i), value, kExpiry); });
    const double pulls = rate_of(options.seconds, [&](std::int64_t) {
      if (store->pull(key(0), std::chrono::seconds(1))->size() != value.size())
        fail("another size");
    });
    for (std::int64_t i = 0; i < kKeys; ++i) store->erase(key(i));
    fmt::print("{:<28} {:>9} {:>10.0f} {:>10.0f} {:>15.0f}\n", address.substr(0, address.find(':')),
               size, replaces, pulls, all);
    std::fflush(stdout);
  }
}

// -------------------------------------------------------------------------------------- options

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Options parse(int argc, char** argv) {
  Options options;
  for (const Dataset& dataset : datasets()) options.datasets.emplace_back(dataset.name);
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) fail("expected a value behind " + name);
    const std::string value = argv[i + 1];
    if (name == "--devices") {
      options.devices.clear();
      for (const std::string& part : split(value)) options.devices.push_back(std::stoi(part));
    } else if (name == "--datasets") {
      options.datasets = split(value);
    } else if (name == "--batches") {
      options.batches = std::stoll(value);
    } else if (name == "--tokens") {
      options.tokens = std::stoll(value);
    } else if (name == "--strategy") {
      options.strategy = value;
    } else if (name == "--iteration-s") {
      options.iteration_s = std::stod(value);
    } else if (name == "--stores") {
      options.stores = split(value);
    } else if (name == "--value-bytes") {
      options.value_bytes.clear();
      for (const std::string& part : split(value)) options.value_bytes.push_back(std::stoll(part));
    } else if (name == "--seconds") {
      options.seconds = std::stod(value);
    } else {
      fail("unknown option " + name);
    }
  }
  return options;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  try {
    const contextile::Options options = contextile::parse(argc, argv);
    if (options.stores.empty()) {
      contextile::bench_planning(options);
      return 0;
    }
    fmt::print("{:<28} {:>9} {:>10} {:>10} {:>15}\n", "store", "bytes", "replaces/s", "pulls/s",
               "put+pull+erase/s");
    for (const std::string& store : options.stores) contextile::bench_store(store, options);
    return 0;
  } catch (const std::exception& error) {
    contextile::fail(error.what());
  }
}
