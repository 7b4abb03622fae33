// The data that the page's pictures are drawn from, decoded again and compared with the plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "report/html/plan_workload.h"
#include "report/html/tile_rows.h"
#include "report/html/tile_view.h"
#include "report/html/timeline_view.h"
#include "report/html/traffic_view.h"
#include "report/html/varint_text.h"
#include "report/report_support.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

constexpr std::size_t kPlenty = 10'000'000;

// Calls visit(name, plan, cluster) for plans of every strategy on random batches.
template <typename Visit>
void for_each_plan(std::uint64_t first_seed, int batches, const Visit& visit) {
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(batches);
       ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("seed {}: {}, {}", seed, batch.text, named.name));
      visit(named.plan, batch.cluster);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// ----------------------------------------------------------------------------- packed numbers

TEST(PackedNumbers, ComeBack) {
  VarintText packed;
  std::vector<std::int64_t> numbers;
  for (int bits = 0; bits <= 52; ++bits) {
    for (const std::int64_t near : {-1, 0, 1}) numbers.push_back((std::int64_t{1} << bits) + near);
  }
  for (const std::int64_t number : numbers) {
    packed.add(number);
    packed.add_signed(number);
    packed.add_signed(-number);
  }
  PackedReader reader(packed.base64());
  for (const std::int64_t number : numbers) {
    EXPECT_EQ(reader.next(), number);
    EXPECT_EQ(reader.next_signed(), number);
    EXPECT_EQ(reader.next_signed(), -number);
  }
  EXPECT_TRUE(reader.done());
}

TEST(PackedNumbers, AreStandardBase64) {
  VarintText packed;
  EXPECT_EQ(packed.base64(), "");
  packed.add('M');
  EXPECT_EQ(packed.base64(), "TQ==");
  packed.add('a');
  EXPECT_EQ(packed.base64(), "TWE=");
  packed.add('n');
  EXPECT_EQ(packed.base64(), "TWFu");
}

// -------------------------------------------------------------------------------------- tiles

struct Row {
  Range tokens;
  std::int64_t ranges = 0;
  std::int64_t block = -1;
  std::int64_t owner = 0;
  std::int64_t round = 0;
};

std::vector<Row> read_rows(const ReportJson& tiles) {
  PackedReader reader(tiles["ranges"].get<std::string>());
  std::vector<Row> rows;
  Row row;
  std::int64_t block = 0;
  while (!reader.done()) {
    row.tokens = {row.tokens.end, row.tokens.end + reader.next()};
    row.ranges = reader.next();
    row.block = row.ranges == 1 ? block += reader.next_signed() : -1;
    row.owner += reader.next_signed();
    row.round += reader.next_signed();
    rows.push_back(row);
  }
  return rows;
}

struct MergedCell {
  std::int64_t device = 0;
  std::int64_t share_percent = 100;
};
using MergedCells =
    std::map<std::pair<std::int64_t, std::int64_t>, MergedCell>;  // by row and column

MergedCells read_plane(const ReportJson& tiles, std::size_t index, std::size_t rows) {
  const ReportJson& planes = tiles["planes"];
  while (planes[index].contains("same_as")) index = planes[index]["same_as"].get<std::size_t>();
  PackedReader reader(planes[index]["runs"].get<std::string>());
  const bool merged = tiles["merged"].get<bool>();
  MergedCells cells;
  std::int64_t device = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    std::int64_t column = 0;
    for (std::int64_t left = reader.next(); left > 0; --left) {
      column += reader.next();
      const std::int64_t end = column + reader.next();
      device += reader.next_signed();
      const std::int64_t share = merged ? reader.next() : 100;
      for (; column < end; ++column) {
        cells[{static_cast<std::int64_t>(row), column}] = {device, share};
      }
    }
  }
  EXPECT_TRUE(reader.done());
  return cells;
}

// Device of every tile of a plane.
std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> devices_of(
    const Plan& plan, std::size_t mask, Direction direction, std::int32_t group) {
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::int64_t> devices;
  for (std::size_t round = 0; round < plan.rounds.size(); ++round) {
    for (std::size_t r = 0; r < plan.rounds[round].devices.size(); ++r) {
      const auto& program = plan.rounds[round].devices[r].programs[mask].of(direction);
      for (const Instruction& instruction : program->instructions) {
        const auto* attention = std::get_if<AttentionOp>(&instruction);
        if (attention == nullptr) continue;
        for (const TileOp& tile : attention->tiles) {
          const PlanRound& of = plan.rounds[round];
          const std::int32_t parts = of.parts_of(tile.q_block);
          if (tile.group.value != group / parts) continue;
          devices[{round, tile.q_block.value, tile.kv_block.value}] = static_cast<std::int64_t>(r);
        }
      }
    }
  }
  return devices;
}

std::int64_t pairs_in(const Plan& plan, std::size_t mask, Range q, Range k) {
  std::int64_t pairs = 0;
  for (const PlanRound& round : plan.rounds) {
    for (const Band& band : round.masks[mask].mask.bands) pairs += num_pairs(clip(band, q, k));
  }
  return pairs;
}

void expect_rows_of_plan(const Plan& plan, const std::vector<Row>& rows) {
  std::int64_t token = 0;
  for (const Row& row : rows) {
    EXPECT_EQ(row.tokens.begin, token);
    token = row.tokens.end;
    if (row.block < 0) continue;
    const PlanRound& round = plan.rounds[static_cast<std::size_t>(row.round)];
    const BlockId block{static_cast<std::int32_t>(row.block)};
    EXPECT_EQ(round.owners[block.index()].value, row.owner);
    const auto ranges = round.blocks.ranges(block);
    EXPECT_NE(std::ranges::find(ranges, row.tokens), ranges.end());
  }
  EXPECT_EQ(token, plan.num_tokens());
}

TEST(TilePicture, ShowsTheDeviceOfEveryTileAndNothingElse) {
  for_each_plan(1, 12, [](const Plan& plan, const Cluster&) {
    const TilePicture picture = tile_picture(plan, kPlenty);
    EXPECT_TRUE(picture.notes.empty());
    ASSERT_FALSE(picture.json["merged"].get<bool>());
    const std::vector<Row> rows = read_rows(picture.json);
    expect_rows_of_plan(plan, rows);
    const ReportJson& planes = picture.json["planes"];
    for (std::size_t p = 0; p < planes.size(); ++p) {
      const auto mask = planes[p]["mask"].get<std::size_t>();
      const Direction direction =
          planes[p]["direction"] == "forward" ? Direction::kForward : Direction::kBackward;
      const auto group = planes[p]["group"].get<std::int32_t>();
      bool one_grouping = true;
      for (const PlanRound& round : plan.rounds) {
        one_grouping = one_grouping && round.head_groups == plan.rounds[0].head_groups;
      }
      if (!one_grouping) continue;
      const auto devices = devices_of(plan, mask, direction, group);
      const MergedCells cells = read_plane(picture.json, p, rows.size());
      for (std::size_t q = 0; q < rows.size(); ++q) {
        for (std::size_t k = 0; k < rows.size(); ++k) {
          const auto cell = cells.find({q, k});
          if (pairs_in(plan, mask, rows[q].tokens, rows[k].tokens) == 0) {
            EXPECT_EQ(cell, cells.end()) << q << ", " << k;
            continue;
          }
          ASSERT_NE(cell, cells.end()) << q << ", " << k;
          EXPECT_EQ(cell->second.device, devices.at({rows[q].round, rows[q].block, rows[k].block}));
        }
      }
    }
  });
}

// Compares a merged cell with the cells that it is made of.
void expect_device_of_most(const Plan& plan, const std::vector<Row>& rows, const MergedCells& cells,
                           Range queries, Range keys, const MergedCell& merged) {
  std::map<std::int64_t, std::int64_t> pairs_of;
  std::int64_t all = 0;
  for (const auto& [place, cell] : cells) {
    const Range q = rows[static_cast<std::size_t>(place.first)].tokens;
    const Range k = rows[static_cast<std::size_t>(place.second)].tokens;
    if (intersect(q, queries).empty() || intersect(k, keys).empty()) continue;
    const std::int64_t pairs = pairs_in(plan, 0, q, k);
    pairs_of[cell.device] += pairs;
    all += pairs;
  }
  for (const auto& [device, pairs] : pairs_of) EXPECT_LE(pairs, pairs_of[merged.device]);
  EXPECT_NEAR(static_cast<double>(merged.share_percent),
              100 * static_cast<double>(pairs_of[merged.device]) / static_cast<double>(all), 6.8);
}

// With fewer bytes than tiles need, rows are merged: each cell then has the device of most of its
// pairs (of a sample of at most 4 x 4 ranges).
TEST(TilePicture, MergesRowsUntilItFits) {
  PlanChoice choice{.lengths = {300, 9, 555, 1, 1024}, .masks = {"causal"}, .strategy = "magi"};
  choice.nodes = 2;
  Chance chance(3);
  const Reported reported(choice);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 30; ++i) lengths.push_back(chance.between(1, 60));
  choice.lengths = lengths;
  choice.strategy = "ring";
  const Reported ring(choice);
  for (const Plan* plan : {&reported.plan, &ring.plan}) {
    const TilePicture whole_picture = tile_picture(*plan, kPlenty);
    const std::vector<Row> whole_rows = read_rows(whole_picture.json);
    const MergedCells whole_cells = read_plane(whole_picture.json, 0, whole_rows.size());
    const std::size_t whole = whole_picture.json.dump().size();
    std::size_t last_rows = plan->rounds[0].blocks.num_ranges() + 1;
    for (std::size_t budget = whole; budget > 40; budget = budget * 2 / 3) {
      SCOPED_TRACE(budget);
      const TilePicture picture = tile_picture(*plan, budget);
      if (!picture.json.contains("planes")) {
        EXPECT_FALSE(picture.notes.empty());
        continue;
      }
      const std::vector<Row> rows = read_rows(picture.json);
      EXPECT_LE(rows.size(), last_rows);
      last_rows = rows.size();
      expect_rows_of_plan(*plan, rows);
      const bool merged = picture.json["merged"].get<bool>();
      EXPECT_EQ(merged, rows.size() < plan->rounds[0].blocks.num_ranges());
      EXPECT_EQ(merged, !picture.notes.empty() &&
                            picture.notes.back().find("drawn as one") != std::string::npos);
      const MergedCells cells = read_plane(picture.json, 0, rows.size());
      for (std::size_t q = 0; q < rows.size(); ++q) {
        for (std::size_t k = 0; k < rows.size(); ++k) {
          const bool attended = pairs_in(*plan, 0, rows[q].tokens, rows[k].tokens) > 0;
          EXPECT_EQ(cells.contains({q, k}), attended) << q << ", " << k;
        }
      }
      for (const auto& [place, cell] : cells) {
        const Row& q = rows[static_cast<std::size_t>(place.first)];
        const Row& k = rows[static_cast<std::size_t>(place.second)];
        if (q.ranges > 4 || k.ranges > 4) continue;  // a sample
        expect_device_of_most(*plan, whole_rows, whole_cells, q.tokens, k.tokens, cell);
      }
    }
    EXPECT_LT(last_rows, plan->rounds[0].blocks.num_ranges() / 2);
  }
}

TEST(TileRows, MergeWithinDocumentsFirst) {
  PlanChoice choice{.lengths = {64, 64, 16}, .masks = {"causal"}, .strategy = "ring"};
  choice.nodes = 1;
  choice.devices = 8;
  const Reported reported(choice);  // 8 slices of 8, 8, 2 tokens
  TileRows rows(reported.plan);
  EXPECT_EQ(rows.size(), 24);
  std::vector<std::int32_t> sizes;
  while (rows.coarsen()) {
    sizes.push_back(rows.size());
    EXPECT_TRUE(rows.merged());
    if (rows.merges_documents()) continue;
    for (std::int32_t i = 0; i < rows.size(); ++i) {
      const Range tokens = rows[i].tokens;
      const bool inside = std::ranges::any_of(reported.plan.sequences, [&](Range s) {
        return s.begin <= tokens.begin && tokens.end <= s.end;
      });
      EXPECT_TRUE(inside) << i;
    }
  }
  EXPECT_EQ(sizes, (std::vector<std::int32_t>{12, 6, 3, 2, 1}));
  EXPECT_EQ(rows.row_at(100), 0);
}

TEST(TileRows, AMergedRowHasTheOwnerOfMostOfItsTokens) {
  PlanChoice choice{.lengths = {7}, .masks = {"causal"}, .strategy = "ring"};
  choice.nodes = 1;
  choice.devices = 2;
  const Reported reported(choice);  // 4 tokens of rank 0, 3 of rank 1
  TileRows rows(reported.plan);
  while (rows.coarsen()) {
  }
  ASSERT_EQ(rows.size(), 1);
  const std::int64_t first = reported.plan.rounds[0].owned_tokens(Rank{0});
  EXPECT_EQ(rows[0].owner.value, first * 2 > 7 ? 0 : 1);
}

// ------------------------------------------------------------------------------------ timeline

TEST(TimelinePicture, HoldsEverySpanAndMessageOfTheSimulation) {
  for_each_plan(20, 3, [](const Plan& plan, const Cluster& cluster) {
    const Reported reported(plan, cluster);
    const TimelinePicture picture = timeline_picture(plan, cluster, reported.simulation, kPlenty);
    EXPECT_TRUE(picture.notes.empty());
    std::size_t at = 0;
    for (const auto& [direction, simulated] : reported.simulation.directions()) {
      const ReportJson& json = picture.json[at++];
      std::vector<double> attention_us(simulated->devices.size());
      PackedReader spans(json["spans"].get<std::string>());
      for (double& us : attention_us) {
        std::int64_t ns = 0;
        for (std::int64_t left = spans.next(); left > 0; --left) {
          ns += spans.next_signed();
          const std::int64_t length_ns = spans.next();
          ns += length_ns;
          EXPECT_LE(static_cast<double>(ns), simulated->time_us * 1e3 + 1);
          if (spans.next() == 0) us += static_cast<double>(length_ns) * 1e-3;
          for (int i = 0; i < 3; ++i) spans.next();
        }
      }
      EXPECT_TRUE(spans.done());
      for (std::size_t r = 0; r < attention_us.size(); ++r) {
        EXPECT_NEAR(attention_us[r], simulated->devices[r].of(Activity::kAttention), 0.1);
      }
      PackedReader messages(json["messages"].get<std::string>());
      std::int64_t bytes = 0;
      while (!messages.done()) {
        messages.next();
        messages.next();
        bytes += messages.next();
        messages.next_signed();
        messages.next();
      }
      EXPECT_EQ(bytes, simulated->intra_bytes + simulated->inter_bytes);
    }
    EXPECT_EQ(at, picture.json.size());
  });
}

TEST(TimelinePicture, BinsKeepTheTimeOfEveryActivity) {
  PlanChoice choice{.lengths = {3000, 100}, .masks = {"a=causal", "b=full"}, .strategy = "ring"};
  const Reported reported(choice);
  const TimelinePicture picture =
      timeline_picture(reported.plan, reported.cluster, reported.simulation, 100);
  EXPECT_EQ(picture.notes.size(), 3U);  // spans, messages, the critical path
  EXPECT_FALSE(picture.json[0].contains("path") || picture.json[0].contains("waits"));
  const SimulatedDirection& simulated = *reported.simulation.backward;
  const ReportJson& json = picture.json[1];
  EXPECT_EQ(json["programs"].size(), 2U);
  const auto bins = json["activity_bins"]["bins"].get<std::int64_t>();
  std::vector<std::vector<std::int64_t>> shares;
  PackedReader reader(json["activity_bins"]["runs"].get<std::string>());
  while (!reader.done()) {
    const std::int64_t count = reader.next();
    std::vector<std::int64_t> bin;
    for (int i = 0; i < 4; ++i) bin.push_back(reader.next());
    shares.insert(shares.end(), static_cast<std::size_t>(count), bin);
  }
  ASSERT_EQ(shares.size(), simulated.devices.size() * static_cast<std::size_t>(bins));
  for (std::size_t r = 0; r < simulated.devices.size(); ++r) {
    for (std::size_t activity = 0; activity < 4; ++activity) {
      double us = 0;
      for (std::int64_t b = 0; b < bins; ++b) {
        us += static_cast<double>(shares[r * static_cast<std::size_t>(bins) +
                                         static_cast<std::size_t>(b)][activity]) /
              100 * simulated.time_us / static_cast<double>(bins);
      }
      EXPECT_NEAR(us, simulated.devices[r].activity_us[activity], 0.006 * simulated.time_us);
    }
  }
}

// ------------------------------------------------------------------------------------- traffic

std::vector<std::int64_t> read_entries(const ReportJson& json, std::size_t size) {
  PackedReader reader(json["entries"].get<std::string>());
  std::vector<std::int64_t> bytes;
  while (!reader.done()) {
    const std::int64_t units = reader.next();
    if (units == 0) {
      bytes.insert(bytes.end(), static_cast<std::size_t>(reader.next()), 0);
    } else {
      bytes.push_back(units * json["unit_bytes"].get<std::int64_t>());
    }
  }
  EXPECT_EQ(bytes.size(), size);
  return bytes;
}

TEST(TrafficPicture, RowsAndColumnsAreWhatDevicesSendAndReceive) {
  for_each_plan(40, 4, [](const Plan& plan, const Cluster&) {
    const PlanStats stats = statistics(plan);
    const TrafficPicture picture = traffic_picture(plan, kPlenty);
    ASSERT_EQ(picture.json["merged"], 1);
    const auto side = static_cast<std::size_t>(plan.num_devices());
    for (const Direction direction : kDirections) {
      const auto& of = direction == Direction::kForward ? stats.forward : stats.backward;
      const std::string name(to_string(direction));
      ASSERT_EQ(of.has_value(), picture.json.contains(name));
      if (!of) continue;
      const std::vector<std::int64_t> bytes = read_entries(picture.json[name], side * side);
      for (std::size_t r = 0; r < side; ++r) {
        std::int64_t sent = 0;
        std::int64_t received = 0;
        for (std::size_t other = 0; other < side; ++other) {
          sent += bytes[r * side + other];
          received += bytes[other * side + r];
        }
        EXPECT_EQ(sent, of->devices[r].sent_bytes);
        EXPECT_EQ(received, of->devices[r].received_bytes);
      }
    }
  });
}

TEST(TrafficPicture, MergesDevicesOfANodeWhenItMustBeSmall) {
  PlanChoice choice{.lengths = {5000, 333, 77}, .masks = {"causal"}, .strategy = "magi"};
  choice.nodes = 4;
  const Reported reported(choice);
  const std::int64_t all = statistics(reported.plan).forward->total_bytes();
  std::int32_t last = 0;
  for (const std::size_t budget : {kPlenty, std::size_t{200}, std::size_t{40}, std::size_t{8}}) {
    const TrafficPicture picture = traffic_picture(reported.plan, budget);
    const auto merged = picture.json["merged"].get<std::int32_t>();
    EXPECT_GE(merged, last);
    last = merged;
    const auto side = picture.json["side"].get<std::size_t>();
    EXPECT_EQ(side, 16U / static_cast<std::size_t>(merged));
    const std::vector<std::int64_t> bytes = read_entries(picture.json["forward"], side * side);
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), all);
    EXPECT_EQ(picture.notes.size(), merged == 1 ? 0U : 1U);
  }
  EXPECT_GT(last, 1);
}

// ------------------------------------------------------------------------------------ workload

TEST(PlanWorkload, IsTheWorkloadThatWasPlanned) {
  for (std::uint64_t seed = 60; seed < 65; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    SCOPED_TRACE(batch.text);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(named.name);
      const Workload workload = workload_of(named.plan);
      EXPECT_NO_THROW(check_workload(workload));
      EXPECT_EQ(workload.sequences, batch.workload.sequences);
      EXPECT_EQ(workload.shape, named.plan.shape);
      ASSERT_EQ(workload.masks.size(), batch.workload.masks.size());
      for (std::size_t m = 0; m < workload.masks.size(); ++m) {
        EXPECT_EQ(workload.masks[m].name, batch.workload.masks[m].name);
        EXPECT_EQ(workload.masks[m].layers, batch.workload.masks[m].layers);
        EXPECT_EQ(workload.masks[m].mask.num_pairs(), batch.workload.masks[m].mask.num_pairs());
      }
    }
  }
}

}  // namespace
}  // namespace contextile
