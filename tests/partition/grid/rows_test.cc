#include "partition/grid/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr std::int64_t kTokens = 1000;

// Returns causal sequences of `lengths` rows; the time of a row is proportional to its keys.
std::vector<WholeRow> causal_rows(const std::vector<std::int32_t>& lengths) {
  std::vector<WholeRow> rows;
  SequenceId sequence{0};
  for (const std::int32_t length : lengths) {
    const auto first = static_cast<std::int32_t>(rows.size());
    for (std::int32_t i = 0; i < length; ++i) {
      WholeRow row;
      row.us = 10.0 * (i + 1);
      row.tokens = kTokens;
      row.sequence = sequence;
      for (std::int32_t j = 0; j < i; ++j) row.keys.push_back(first + j);
      rows.push_back(row);
    }
    ++sequence.value;
  }
  return rows;
}

std::vector<WholeRow> random_rows(Rng& rng) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(random_between(rng, 1, 12)));
  for (std::int32_t& length : lengths) {
    length = static_cast<std::int32_t>(random_between(rng, 1, random_chance(rng, 0.2) ? 60 : 6));
  }
  return causal_rows(lengths);
}

RowSpec spec_of(const std::vector<WholeRow>& rows, std::int32_t nodes, std::int32_t devices) {
  RowSpec spec;
  spec.nodes = nodes;
  spec.devices_per_node = devices;
  spec.nics_per_node = devices;
  const auto count = static_cast<std::int64_t>(rows.size());
  spec.token_cap = kTokens * (count / (nodes * devices) + 2);
  spec.port_us = 1e-3;
  spec.nic_us = nodes > 1 ? 2e-3 : 0;
  spec.device_us = 4 * spec.port_us / (nodes * devices);
  spec.node_us = 4 * spec.nic_us / nodes;
  spec.spread_us = spec.device_us;
  spec.overfull_us = 4 * spec.port_us;
  spec.steps = 30'000;
  return spec;
}

std::vector<double> loads(const std::vector<WholeRow>& rows, const RowSpec& spec,
                          const std::vector<RowPlace>& places) {
  const std::int32_t devices = spec.nodes * spec.devices_per_node;
  std::vector<double> us(static_cast<std::size_t>(devices), 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (places[i] < devices) {
      us[static_cast<std::size_t>(places[i])] += rows[i].us;
      continue;
    }
    const std::int32_t first = (places[i] - devices) * spec.devices_per_node;
    for (std::int32_t d = first; d < first + spec.devices_per_node; ++d) {
      us[static_cast<std::size_t>(d)] += rows[i].us / spec.devices_per_node;
    }
  }
  return us;
}
double overload(const std::vector<double>& us) {
  const double sum = std::accumulate(us.begin(), us.end(), 0.0);
  return *std::ranges::max_element(us) * static_cast<double>(us.size()) / sum - 1;
}

TEST(PlaceRows, EveryRowHasAPlaceAndOnlySpreadOnesANode) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::vector<WholeRow> rows = random_rows(rng);
    RowSpec spec = spec_of(rows, static_cast<std::int32_t>(random_between(rng, 1, 4)),
                           static_cast<std::int32_t>(random_between(rng, 1, 8)));
    spec.spread_heads = random_chance(rng, 0.5);
    spec.steps = 5'000;
    const std::vector<RowPlace> places = place_rows(rows, spec);
    ASSERT_EQ(places.size(), rows.size());
    const std::int32_t devices = spec.nodes * spec.devices_per_node;
    for (const RowPlace place : places) {
      EXPECT_GE(place, 0);
      EXPECT_LT(place, devices + (spec.spread_heads ? spec.nodes : 0));
    }
    const std::vector<Rank> owners = own_rows(rows, spec, places);
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(devices), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_TRUE(owners[i].valid() && owners[i].value < devices);
      tokens[owners[i].index()] += rows[i].tokens;
    }
    EXPECT_LE(*std::ranges::max_element(tokens), spec.token_cap);
    EXPECT_EQ(places, place_rows(rows, spec)) << "the same every time";
  }
}

TEST(PlaceRows, MostShortSequencesStayWholeAndWorkIsEven) {
  const std::vector<WholeRow> rows = causal_rows(std::vector<std::int32_t>(64, 3));
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RowSpec spec = spec_of(rows, 2, 4);
    spec.seed = seed;
    const std::vector<RowPlace> places = place_rows(rows, spec);
    int whole = 0;
    for (std::size_t i = 0; i < rows.size(); i += 3) {
      whole += static_cast<int>(places[i] == places[i + 1] && places[i] == places[i + 2]);
    }
    EXPECT_GE(whole, 48);
    EXPECT_LT(overload(loads(rows, spec, places)), 0.01);
  }
}

TEST(PlaceRows, ALongSequenceIsSharedOut) {
  const std::vector<WholeRow> rows = causal_rows({96});
  RowSpec spec = spec_of(rows, 2, 4);
  spec.steps = 100'000;
  EXPECT_LT(overload(loads(rows, spec, place_rows(rows, spec))), 0.05);
  spec.spread_heads = true;
  const std::vector<RowPlace> spread = place_rows(rows, spec);
  EXPECT_LT(overload(loads(rows, spec, spread)), 0.05);
  EXPECT_GT(std::ranges::count_if(spread, [](RowPlace place) { return place >= 8; }), 48);
}

TEST(PlaceRows, DearBytesKeepRowsTogether) {
  const std::vector<WholeRow> rows = causal_rows({40, 40});
  const auto nodes_with_keys = [&](double node_us) {
    RowSpec spec = spec_of(rows, 2, 4);
    spec.steps = 100'000;
    spec.node_us = node_us;
    const std::vector<RowPlace> places = place_rows(rows, spec);
    std::set<std::pair<std::int32_t, std::int32_t>> held;  // node, row
    for (std::size_t i = 0; i < rows.size(); ++i) {
      held.insert({places[i] / 4, static_cast<std::int32_t>(i)});
      for (const std::int32_t j : rows[i].keys) held.insert({places[i] / 4, j});
    }
    return held.size();
  };
  EXPECT_EQ(nodes_with_keys(1), rows.size());  // each sequence is on a node of its own
}

// The number of sequences whose rows are all in one place.
int whole_sequences(const std::vector<WholeRow>& rows, const std::vector<RowPlace>& places) {
  std::map<std::int32_t, std::set<RowPlace>> places_of;
  for (std::size_t i = 0; i < rows.size(); ++i) places_of[rows[i].sequence.value].insert(places[i]);
  return static_cast<int>(
      std::ranges::count_if(places_of, [](const auto& entry) { return entry.second.size() == 1; }));
}

// The first sequence has 1.56 times the mean work.
TEST(PlaceRows, AFillAboveTheMeanKeepsSequencesWhole) {
  const std::vector<WholeRow> rows = causal_rows({6, 3});
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RowSpec spec = spec_of(rows, 2, 1);
    spec.heat = 20;
    spec.seed = seed;
    EXPECT_LT(overload(loads(rows, spec, place_rows(rows, spec))), 0.3);
    spec.fill = 1.6;
    EXPECT_EQ(whole_sequences(rows, place_rows(rows, spec)), 2);
  }
}

// Bytes and uneven work cost nothing here.
TEST(PlaceRows, SequencesStayWholeWhereADeviceThatReceivesKeysCosts) {
  const std::vector<WholeRow> rows = causal_rows({5, 4, 4, 3});
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    RowSpec spec = spec_of(rows, 2, 2);
    spec.port_us = spec.nic_us = spec.device_us = spec.node_us = spec.overfull_us = 0;
    spec.fill = 4;
    spec.heat = 20;
    spec.seed = seed;
    EXPECT_LT(whole_sequences(rows, place_rows(rows, spec)), 4);
    spec.receiver_us = 100;
    EXPECT_EQ(whole_sequences(rows, place_rows(rows, spec)), 4);
  }
}

TEST(PlaceRows, AHandicapTakesWorkAway) {
  const std::vector<WholeRow> rows = causal_rows(std::vector<std::int32_t>(40, 4));
  RowSpec spec = spec_of(rows, 1, 4);
  const std::vector<RowPlace> start = place_rows(rows, spec);
  spec.handicap_us.assign(4, 0);
  spec.handicap_us[2] = 300;
  spec.token_cap *= 2;
  const std::vector<double> before = loads(rows, spec, start);
  const std::vector<double> after = loads(rows, spec, place_rows(rows, spec, start));
  EXPECT_NEAR(after[2], before[2] - 300 * 0.75, 100);
}

TEST(PlaceRows, GoesOnFromAStart) {
  Rng rng(7);
  const std::vector<WholeRow> rows = random_rows(rng);
  RowSpec spec = spec_of(rows, 2, 2);
  const std::vector<RowPlace> places = place_rows(rows, spec);
  spec.steps = 0;
  EXPECT_EQ(place_rows(rows, spec, places), places);
}

TEST(PlaceRows, RefusesTooMany) {
  EXPECT_THROW((void)place_rows({}, {}), InvalidArgument);
  EXPECT_THROW((void)place_rows(std::vector<WholeRow>(65536), {}), InvalidArgument);
}

TEST(OwnRows, TheDeviceThatRunsARowOwnsItUnlessItOwnsTooMany) {
  const std::vector<WholeRow> rows = causal_rows({1, 1, 1, 1, 1});
  RowSpec spec = spec_of(rows, 2, 2);
  spec.token_cap = 2 * kTokens;
  spec.spread_heads = true;
  const std::vector<RowPlace> places{0, 0, 0, 5, 3};  // place 5 is the second node
  const std::vector<Rank> owners = own_rows(rows, spec, places);
  std::vector<std::int32_t> of(5);
  for (std::size_t i = 0; i < 5; ++i) of[i] = owners[i].value;
  EXPECT_EQ(std::ranges::count(of, 0), 2);
  EXPECT_EQ(std::ranges::count(of, 1), 1) << "the third goes to the device beside it";
  EXPECT_EQ(of[3], 2) << "of its node's the one with fewer tokens";
  EXPECT_EQ(of[4], 3);
}

}  // namespace
}  // namespace contextile
