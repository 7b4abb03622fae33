// A job that outlives its ranks. If one is lost, the others agree on the remaining ones, plan the
// batch for as many devices, and run it again.
//
//   go_on FOLDER RANK RANKS STEPS    one process per rank; all see FOLDER, which is empty at first
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/advanced/store.h"
#include "contextile/extend/transport.h"
#include "contextile/planner.h"

namespace {

using namespace contextile;

struct Group {
  std::int32_t generation = 0;  // how often ranks were lost
  Rank rank;
  std::int32_t size = 0;
};

std::unique_ptr<Transport> connect(const std::string& folder, const Group& group) {
  GlooOptions options;
  options.rank = group.rank;
  options.size = group.size;
  options.rendezvous = "file://" + folder;
  options.run_id = "go_on " + std::to_string(group.generation);
  options.hostname = "127.0.0.1";  // on several machines: leave it out
  options.timeout = options.connect_timeout = std::chrono::seconds(20);
  return make_gloo_transport(options);
}

// The group without the ranks that do not come; its ranks are renumbered.
Group without_lost(const std::string& folder, const Group& group) {
  const std::unique_ptr<Store> store = open_store("file://" + folder);
  const Membership left =
      agree_on_members(*store, "go_on", group.generation + 1, group.rank, group.size);
  return {group.generation + 1, left.rank, left.size()};
}

// Every rank plans by itself: the same input gives the same plan everywhere.
void run_step(std::int64_t step, Transport& transport) {
  const std::vector<std::int64_t> lengths = {400 + 10 * step, 300, 56};
  const AttentionShape shape = {
      .q_heads = 4, .kv_heads = 2, .head_dim = 32, .value_dim = 32, .dtype = Dtype::kF32};
  const Cluster cluster = load_cluster("local:1x" + std::to_string(transport.size()));
  const PlannedBatch planned = plan_and_check(make_workload(lengths, shape), cluster, {"dcp"});
  RunOptions options;
  options.seed = static_cast<std::uint64_t>(step);
  options.rank = &transport;
  const RunReport run = run_plan(planned.plan, options);  // against fp64 attention, on rank 0
  if (!run.ok()) throw Error("step " + std::to_string(step) + ": a wrong result");
  if (transport.rank() != Rank{0}) return;
  std::printf("step %lld on %d ranks: exact\n", static_cast<long long>(step), transport.size());
  std::fflush(stdout);
}

// Some ranks may have finished the step in which others heard of the loss.
std::int64_t first_unfinished(std::int64_t step, Transport& transport) {
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&step, 1)))) {
    std::int64_t other = 0;
    std::memcpy(&other, bytes.data(), sizeof other);
    step = std::min(step, other);
  }
  return step;
}

void run_all(const std::string& folder, Group group, std::int64_t steps) {
  std::unique_ptr<Transport> transport = connect(folder, group);
  for (std::int64_t step = 0; step < steps;) {
    try {
      run_step(step, *transport);
      ++step;
    } catch (const TransportError& error) {
      std::fprintf(stderr, "step %lld: %s\n", static_cast<long long>(step), error.what());
      transport.reset();
      group = without_lost(folder, group);
      transport = connect(folder, group);
      step = first_unfinished(step, *transport);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: go_on FOLDER RANK RANKS STEPS\n");
    return 2;
  }
  try {
    run_all(argv[1], {0, Rank{std::atoi(argv[2])}, std::atoi(argv[3])}, std::atoll(argv[4]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "go_on: %s\n", error.what());
    return 3;
  }
}
