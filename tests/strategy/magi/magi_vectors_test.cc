// Dispatch, chunk sizes and casts against the outputs of MagiAttention's own solvers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ranges.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategies.h"
#include "contextile/mask.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/magi/casts.h"
#include "strategy/magi/dispatch.h"
#include "strategy/magi/magi_arranger.h"
#include "strategy/original_outputs.h"

namespace contextile {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::vector<std::int64_t>>;
using Partition = std::vector<std::vector<std::size_t>>;

class MagiOutputs : public OriginalOutputs {};

// Returns a workload of one sequence, because the originals' masks cover the whole batch, whatever
// its documents.
Workload workload_of(const Json& c) {
  std::vector<Slice> slices;
  for (const Json& range : c["ranges"]) {
    slices.push_back({{range[0], range[1]}, {range[2], range[3]}, range[4].get<SliceType>()});
  }
  Workload workload;
  workload.sequences = {{0, c["tokens"].get<std::int64_t>()}};
  workload.masks = {{"mask", 1, mask_from_slices(slices)}};
  workload.positions = {{workload.sequences.front(), 0, 0}};
  return workload;
}

// Returns the chunks of every rank.
Partition partition_of(const std::vector<Rank>& workers, std::int32_t num_ranks) {
  Partition partition(static_cast<std::size_t>(num_ranks));
  for (std::size_t c = 0; c < workers.size(); ++c) partition[workers[c].index()].push_back(c);
  return partition;
}

struct Algorithm {
  MagiDispatch dispatch = MagiDispatch::kMinHeap;
  double top_p = 0;
};

// Returns the algorithm with that name in the files, or nothing if Contextile does not have it.
std::optional<Algorithm> algorithm_of(const std::string& name) {
  constexpr std::string_view kTopp = "topp_heap_";
  if (name == "min_heap") return Algorithm{};
  if (name == "sequential") return Algorithm{.dispatch = MagiDispatch::kSequential};
  if (!name.starts_with(kTopp)) return std::nullopt;
  return Algorithm{MagiDispatch::kToppHeap, std::stod(name.substr(kTopp.size()))};
}

std::int64_t largest_load(const std::vector<std::int64_t>& areas, const Partition& partition) {
  std::int64_t largest = 0;
  for (const std::vector<std::size_t>& of_rank : partition) {
    std::int64_t load = 0;
    for (const std::size_t chunk : of_rank) load += areas[chunk];
    largest = std::max(largest, load);
  }
  return largest;
}

// The original's own searches stop at other partitions of the same largest load, and its binary
// search keeps the partition of its last probe. The loads are what both must have.
TEST_F(MagiOutputs, ExactAlgorithmsReachTheLeastLargestLoad) {
  if (!load("magi_dispatch.json")) GTEST_SKIP() << "magi_dispatch.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto areas = c["areas"].get<std::vector<std::int64_t>>();
    std::vector<ChunkWork> work(areas.size());
    for (std::size_t i = 0; i < areas.size(); ++i) work[i].area = areas[i];
    const std::int32_t ranks = c["cp"];
    const auto load_of = [&](MagiDispatch algorithm) {
      return largest_load(areas, partition_of(dispatch_chunks(work, ranks, algorithm, 0), ranks));
    };
    const Json& partitions = c["partitions"];
    if (partitions.contains("backtracking") && !partitions["backtracking"].is_null()) {
      EXPECT_EQ(load_of(MagiDispatch::kBacktracking),
                largest_load(areas, partitions["backtracking"].get<Partition>()));
      ++compared;
    }
    if (!c.contains("minimax") || !c["minimax"].contains("dynamic_programming")) continue;
    EXPECT_EQ(load_of(MagiDispatch::kBinarySearch),
              c["minimax"]["dynamic_programming"].get<std::int64_t>());
    ++compared;
  }
  report_compared(compared);
}

TEST_F(MagiOutputs, ChunksHaveMagiAttentionsSize) {
  if (!load("magi_chunk_size.json")) GTEST_SKIP() << "magi_chunk_size.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cases"]) {
    if (c.value("refused", false))
      continue;  // refused by the original: Contextile leaves ranks
                 // without tokens
    SCOPED_TRACE(c.dump());
    const Json& requested = c["requested_chunk"];
    EXPECT_EQ(magi_chunk_tokens(c["tokens"], c["cp"],
                                requested.is_null() ? 0 : requested.get<std::int64_t>()),
              c["chunk"].get<std::int64_t>());
    ++compared;
  }
  report_compared(compared);
}

TEST_F(MagiOutputs, ChunksHaveMagiAttentionsAreasAndRanks) {
  if (!load("magi_dispatch.json")) GTEST_SKIP() << "magi_dispatch.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Workload workload = workload_of(c);
    std::vector<ChunkWork> work =
        chunk_work(workload.masks, magi_chunks(workload.num_tokens(), c["chunk"]));
    const auto areas = c["areas"].get<std::vector<std::int64_t>>();
    ASSERT_LE(work.size(), areas.size());
    work.resize(areas.size());  // chunks of padding
    for (std::size_t i = 0; i < work.size(); ++i)
      EXPECT_EQ(work[i].area, areas[i]) << "chunk " << i;
    for (const auto& [name, partition] : c["partitions"].items()) {
      const auto algorithm = algorithm_of(name);
      if (!algorithm || partition.is_null()) continue;
      EXPECT_EQ(partition_of(dispatch_chunks(work, c["cp"], algorithm->dispatch, algorithm->top_p),
                             c["cp"]),
                partition.get<Partition>())
          << name;
      ++compared;
    }
  }
  report_compared(compared);
}

// A case of magi_cast.json with the original's own partition, arranged by Contextile.
struct CastCase {
  explicit CastCase(const Json& c) : workload(workload_of(c)), num_ranks(c["cp"]) {
    chunks = magi_chunks(workload.num_tokens(), c["chunk"]);
    workers.resize(chunks.size());
    for (std::size_t r = 0; r < c["partitions"].size(); ++r) {
      for (const std::size_t chunk : c["partitions"][r].get<std::vector<std::size_t>>()) {
        if (chunk < chunks.size()) workers[chunk] = Rank{static_cast<std::int32_t>(r)};
      }
    }
    const Json& overlap = c["overlap"];
    options.stages = overlap["degree"];
    options.keys_per_element = overlap["min_chunk_size"];
    options.max_elements = overlap["max_num_chunks"];
    cluster.devices_per_node = num_ranks;
  }

  [[nodiscard]] Rows zeros(std::int64_t columns) const {
    return Rows(static_cast<std::size_t>(num_ranks),
                std::vector<std::int64_t>(static_cast<std::size_t>(columns)));
  }

  // Arranges the case and verifies the plan.
  [[nodiscard]] ArrangedRound arranged() const {
    const Arrangement arrangement =
        arrange_chunks(workload, cluster, chunks, workers, options, true);
    const VerifyReport report = verify(build_plan(workload, cluster, arrangement));
    EXPECT_TRUE(report.ok()) << report.violations.front();
    EXPECT_EQ(report.movement[0].redundant_transfers, 0);
    return arrangement.rounds[0];
  }

  Workload workload;
  std::int32_t num_ranks;
  std::vector<Range> chunks;
  std::vector<Rank> workers;
  MagiOptions options;
  Cluster cluster;
};

Json to_json(const std::vector<Range>& ranges) {
  Json result = Json::array();
  for (const Range& range : ranges) result.push_back({range.begin, range.end});
  return result;
}

TEST_F(MagiOutputs, RowsMoveAsInMagiAttention) {
  if (!load("magi_cast.json")) GTEST_SKIP() << "magi_cast.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    for (const CastLaunch launch : {CastLaunch::kNext, CastLaunch::kAll}) {
      CastCase one(c);
      one.options.launch = launch;
      const ArrangedRound round = one.arranged();
      const ArrangedDirection& forward = *round.programs[0].forward;
      Rows received = one.zeros(one.num_ranks);
      Rows received_in_stage = one.zeros(one.options.stages);
      std::vector<std::vector<std::vector<Range>>> keys(
          received.size(),
          std::vector<std::vector<Range>>(static_cast<std::size_t>(one.options.stages)));
      for (const Transfer& t : forward.transfers) {
        const auto stage = static_cast<std::size_t>(t.need_stage - 1);
        EXPECT_EQ(t.launch_stage, launch == CastLaunch::kAll ? 0 : t.need_stage - 1);
        const std::int64_t rows = round.blocks.num_tokens(t.block);
        received[t.dst.index()][t.src.index()] += rows;
        received_in_stage[t.dst.index()][stage] += rows;
        for (const Range& range : round.blocks.ranges(t.block)) {
          keys[t.dst.index()][stage].push_back(range);
        }
      }
      EXPECT_EQ(received, c["received_rows"].get<Rows>());
      EXPECT_EQ(received_in_stage, c["stage_received_rows"].get<Rows>());
      for (std::size_t r = 0; r < keys.size(); ++r) {
        for (std::size_t s = 0; s < keys[r].size(); ++s) {
          EXPECT_EQ(to_json(merged(keys[r][s])), c["stage_ranges"][r][s])
              << "rank " << r << " stage " << s;
        }
      }
      ++compared;
    }
  }
  report_compared(compared);
}

TEST_F(MagiOutputs, PairsAreComputedInMagiAttentionsStages) {
  if (!load("magi_cast.json")) GTEST_SKIP() << "magi_cast.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const CastCase one(c);
    const ArrangedRound round = one.arranged();
    std::vector<std::int64_t> host(static_cast<std::size_t>(one.num_ranks));
    Rows remote = one.zeros(one.options.stages);
    for (const PlacedTile& tile : round.programs[0].forward->tiles) {
      const std::size_t r = tile.device.index();
      (tile.stage == 0 ? host[r] : remote[r][static_cast<std::size_t>(tile.stage - 1)]) +=
          tile.pairs;
    }
    EXPECT_EQ(host, c["host_areas"].get<std::vector<std::int64_t>>());
    EXPECT_EQ(remote, c["stage_areas"].get<Rows>());
  }
}

// Rows of the three steps of the hierarchical group-cast: [rank][sender]. Senders of the second
// step are nodes, those of the others places in the node. Rows that a relay passes on to itself
// count.
struct HierarchicalRows {
  Rows pre_intra;
  Rows inter;
  Rows post_intra;
};

HierarchicalRows rows_of_steps(const CastCase& one, const ArrangedRound& round) {
  const std::int32_t places = one.cluster.devices_per_node;
  HierarchicalRows rows{one.zeros(places), one.zeros(one.cluster.nodes), one.zeros(places)};
  const auto place = [&](Rank r) { return static_cast<std::size_t>(r.value % places); };
  const auto node = [&](Rank r) { return static_cast<std::size_t>(r.value / places); };
  const ArrangedDirection& forward = *round.programs[0].forward;
  for (const Transfer& t : forward.transfers) {
    const bool is_first = t.src == round.owners[t.block.index()];
    const bool crosses = node(t.src) != node(t.dst);
    Rows& step = crosses ? rows.inter : is_first ? rows.pre_intra : rows.post_intra;
    EXPECT_TRUE(is_first || !crosses);
    step[t.dst.index()][crosses ? node(t.src) : place(t.src)] += round.blocks.num_tokens(t.block);
  }
  std::set<std::pair<Rank, BlockId>> own;
  for (const PlacedTile& tile : forward.tiles) {
    const Rank from = round.owners[tile.kv_block.index()];
    if (node(from) == node(tile.device) || place(from) != place(tile.device)) continue;
    if (!own.insert({tile.device, tile.kv_block}).second) continue;
    rows.post_intra[tile.device.index()][place(from)] += round.blocks.num_tokens(tile.kv_block);
  }
  return rows;
}

// Returns the rows that cross to a node, by relay. The original sends a row again for every stage
// in which a rank of the node needs it, while Contextile keeps it on the relay.
Rows distinct_rows_across(const CastCase& one, const Json& stage_ranges) {
  const std::int32_t places = one.cluster.devices_per_node;
  std::vector<std::vector<Range>> needed(static_cast<std::size_t>(one.cluster.nodes));
  for (std::size_t r = 0; r < stage_ranges.size(); ++r) {
    for (const Json& ranges : stage_ranges[r]) {
      for (const Json& range : ranges) {
        needed[r / static_cast<std::size_t>(places)].push_back({range[0], range[1]});
      }
    }
  }
  Rows rows = one.zeros(one.cluster.nodes);
  for (std::int32_t node = 0; node < one.cluster.nodes; ++node) {
    const std::vector<Range> keys = merged(std::move(needed[static_cast<std::size_t>(node)]));
    for (std::size_t c = 0; c < one.chunks.size(); ++c) {
      const std::int32_t from = one.workers[c].value;
      if (from / places == node) continue;
      for (const Range& range : keys) {
        rows[static_cast<std::size_t>(node * places + from % places)]
            [static_cast<std::size_t>(from / places)] += intersect(range, one.chunks[c]).size();
      }
    }
  }
  return rows;
}

TEST_F(MagiOutputs, NodeRelaysMoveTheRowsOfMagiAttentionsSteps) {
  if (!load("magi_cast.json")) GTEST_SKIP() << "magi_cast.json is missing";
  int compared = 0;
  int as_often = 0;
  for (const Json& c : vectors_["cases"]) {
    if (!c.contains("hierarchical")) continue;
    for (const Json& shape : c["hierarchical"]) {
      SCOPED_TRACE(c["name"].get<std::string>() + " on nodes " + shape["nodes"].dump());
      CastCase one(c);
      one.cluster.nodes = shape["nodes"];
      one.cluster.devices_per_node = shape["devices_per_node"];
      one.options.hierarchical = true;
      one.options.launch = compared % 2 == 0 ? CastLaunch::kNext : CastLaunch::kAll;
      const HierarchicalRows rows = rows_of_steps(one, one.arranged());
      EXPECT_EQ(rows.pre_intra, shape["pre_intra"].get<Rows>());
      EXPECT_EQ(rows.inter, distinct_rows_across(one, c["stage_ranges"]));
      EXPECT_EQ(rows.post_intra, shape["post_intra"].get<Rows>());
      if (rows.inter == shape["inter"].get<Rows>()) ++as_often;
      ++compared;
    }
  }
  report_compared(compared);
  EXPECT_GE(as_often, 17);
}

}  // namespace
}  // namespace contextile
