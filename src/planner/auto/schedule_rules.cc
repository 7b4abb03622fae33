#include "planner/auto/schedule_rules.h"

#include <vector>

namespace contextile {
namespace {

using InOrder = InOrderOptions;
using Slots = TimelineOptions;
using Stages = OverlapOptions;

// Schedules for placements that take longer than `longer_than_us`, the best first.
//
// Rows and spread rows: fitted on 2026-11-24 to the simulated times of 428 placements under 36
// schedules each: nine kinds of batches, four masks, p4de and dgx-h200, 32 devices, 8 and 32 KV
// heads, blocks of 512 and 1024 tokens. The first pair of a class takes 3 to 10% longer than the
// best of the 36, the best of the first five at most 2%.
// Tiles: no measurement is recorded, and the script that ran the 36 schedules was not kept. To
// judge a new table, run `build/auto_bench --devices 32 --seed 11 --clusters dgx-h200 --kv-heads
// 8`, then p4de and 32 KV heads, with the old and the new table. The last columns show the search
// that has 50 ms.
struct Rule {
  double longer_than_us = 0;
  std::vector<SchedulePair> pairs;
};

const std::vector<Rule>& rules_of_rows() {
  static const std::vector<Rule> kRows = {{4000,
                                           {{Slots{4, 1}, InOrder{4, 2}},
                                            {Slots{2, 1}, Stages{6, 1}},
                                            {Slots{3, 1}, InOrder{8, 1}},
                                            {Slots{8, 1}, InOrder{2, 1}},
                                            {Slots{6, 1}, Slots{4, 1}}}},
                                          {2000,
                                           {{Slots{3, 1}, InOrder{3, 1}},
                                            {Slots{1, 1}, Stages{2, 1}},
                                            {Slots{4, 2}, Slots{3, 1}},
                                            {Stages{3, 1}, InOrder{4, 2}},
                                            {Slots{2, 1}, Stages{4, 2}}}},
                                          {1000,
                                           {{Slots{2, 2}, InOrder{2, 1}},
                                            {Stages{2, 1}, Stages{4, 2}},
                                            {Slots{3, 2}, InOrder{1, 1}},
                                            {Stages{3, 1}, InOrder{6, 1}},
                                            {InOrder{1, 1}, Slots{3, 1}}}},
                                          {0,
                                           {{Slots{2, 2}, InOrder{1, 1}},
                                            {Stages{2, 1}, InOrder{2, 1}},
                                            {InOrder{2, 2}, Slots{2, 1}},
                                            {Slots{3, 2}, Stages{3, 2}}}}};
  return kRows;
}

const std::vector<Rule>& rules_of_spread_rows() {
  static const std::vector<Rule> kSpreadRows = {{4000,
                                                 {{Slots{4, 2}, InOrder{4, 2}},
                                                  {Slots{3, 2}, Slots{8, 1}},
                                                  {Slots{8, 1}, Stages{4, 1}},
                                                  {Stages{6, 1}, Stages{6, 1}},
                                                  {Slots{2, 2}, InOrder{6, 2}}}},
                                                {2000,
                                                 {{Slots{3, 2}, InOrder{3, 2}},
                                                  {Slots{2, 2}, Slots{4, 1}},
                                                  {Stages{6, 2}, Stages{3, 2}},
                                                  {Slots{4, 2}, Stages{6, 2}},
                                                  {Slots{6, 1}, Slots{3, 1}}}},
                                                {1000,
                                                 {{Slots{3, 2}, Slots{4, 1}},
                                                  {Stages{4, 2}, Stages{4, 2}},
                                                  {Slots{2, 2}, Slots{2, 1}},
                                                  {Slots{4, 2}, Stages{6, 2}},
                                                  {Stages{6, 2}, InOrder{3, 2}}}},
                                                {0,
                                                 {{Slots{3, 2}, Slots{1, 1}},
                                                  {Stages{4, 2}, Slots{2, 1}},
                                                  {Slots{4, 2}, Slots{4, 2}},
                                                  {Slots{2, 1}, InOrder{2, 1}}}}};
  return kSpreadRows;
}

const std::vector<Rule>& rules_of_tiles() {
  static const std::vector<Rule> kTiles = {{0,
                                            {{Stages{8, 2}, Stages{8, 2}},
                                             {Slots{4, 1}, Slots{4, 1}},
                                             {Slots{8, 1}, Slots{8, 1}},
                                             {Slots{16, 2}, Slots{16, 2}},
                                             {Stages{2, 1}, Stages{2, 1}}}}};
  return kTiles;
}

const std::vector<Rule>& rules_of(PlacedUnit unit) {
  switch (unit) {
    case PlacedUnit::kRows:
      return rules_of_rows();
    case PlacedUnit::kSpreadRows:
      return rules_of_spread_rows();
    case PlacedUnit::kTiles:
      break;
  }
  return rules_of_tiles();
}

}  // namespace

std::span<const SchedulePair> likely_schedules(PlacedUnit unit, double estimate_us) {
  const std::vector<Rule>& rules = rules_of(unit);
  for (const Rule& rule : rules) {
    if (estimate_us > rule.longer_than_us) return rule.pairs;
  }
  return rules.back().pairs;
}

}  // namespace contextile
