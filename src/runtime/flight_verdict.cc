#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/advanced/flight_record.h"

namespace contextile {
namespace {

using Culprits = std::vector<FlightVerdict::Culprit>;
using Records = std::span<const FlightRecord>;

// The time at which a rank first noticed a failure.
std::int64_t first_failure_us(Records records) {
  return std::ranges::min_element(records, {}, &FlightRecord::failed_us)->failed_us;
}

// The step that the rank was in at that time; null: none that is recorded.
const FlightStep* step_at(const FlightRecord& record, std::int64_t time_us) {
  for (const FlightStep& step : record.steps) {
    if (step.began_us <= time_us && (step.ended_us == -1 || step.ended_us > time_us)) return &step;
  }
  return nullptr;
}

// Ranks whose value is not the most common one; if two values are equally common, the first rank's
// counts. A rank may have failed before it had a value.
Culprits odd_ones(Records records, std::string_view what, std::string FlightRecord::*value) {
  std::map<std::string, std::int64_t> counts;
  for (const FlightRecord& record : records) {
    if (!(record.*value).empty()) ++counts[record.*value];
  }
  if (counts.empty()) return {};
  const auto first = std::ranges::find_if_not(
      records, [&](const FlightRecord& record) { return (record.*value).empty(); });
  const std::string* usual = &((*first).*value);
  for (const auto& [text, count] : counts) {
    if (count > counts[*usual]) usual = &text;
  }
  Culprits culprits;
  for (const FlightRecord& record : records) {
    if ((record.*value).empty() || record.*value == *usual) continue;
    culprits.push_back({record.rank, fmt::format("has {} {}, most have {}", what,
                                                 printable(record.*value), printable(*usual))});
  }
  return culprits;
}

Culprits with_own_errors(Records records) {
  Culprits culprits;
  for (const FlightRecord& record : records) {
    if (record.is_cause) {
      culprits.push_back({record.rank, "failed by itself: " + without_orders(record.error)});
    }
  }
  return culprits;
}

Culprits without_record(Records records) {
  Culprits culprits;
  std::size_t next = 0;
  for (std::int32_t r = 0; r < records.front().num_ranks; ++r) {
    if (next < records.size() && records[next].rank.value == r) {
      ++next;
      continue;
    }
    culprits.push_back(
        {Rank{r}, "wrote no record: never started, killed, stopped, out of reach, or done before"});
  }
  return culprits;
}

// The rank that most others had no sign of life from.
Culprits silent_to_most(Records records) {
  std::map<Rank, std::size_t> counts;
  for (const FlightRecord& record : records) {
    for (const Rank peer : record.silent) ++counts[peer];
  }
  Culprits culprits;
  for (const auto& [rank, count] : counts) {
    if (2 * count <= records.size() - 1) continue;
    culprits.push_back(
        {rank, fmt::format("gave no sign of life to {} of {} others: stopped, or its "
                           "connection is cut",
                           count, records.size() - 1)});
  }
  return culprits;
}

// Ranks that did not wait while others did.
Culprits at_work(Records records) {
  const std::int64_t time_us = first_failure_us(records);
  Culprits culprits;
  for (const FlightRecord& record : records) {
    const FlightStep* step = step_at(record, time_us);
    if (step != nullptr && step->is_wait()) continue;
    if (step == nullptr) {
      if (!record.transfers.empty()) continue;  // it waited for messages of its own
      culprits.push_back({record.rank, "was outside of any call"});
      continue;
    }
    const double seconds = 1e-6 * static_cast<double>(time_us - step->began_us);
    culprits.push_back({record.rank, fmt::format("was in {} for {:.3g} s while others waited",
                                                 printable(step->op), seconds)});
  }
  // If all were at work, no rank waited for another, so that says nothing.
  if (culprits.size() == records.size()) culprits.clear();
  return culprits;
}

// Messages by (from, to), as recorded by the ranks at both ends.
struct OpenPair {
  bool sent = false;
  bool expected = false;
};
using OpenPairs = std::map<std::pair<Rank, Rank>, OpenPair>;

OpenPairs open_pairs(Records records) {
  OpenPairs pairs;
  for (const FlightRecord& record : records) {
    for (const FlightTransfer& transfer : record.transfers) {
      if (transfer.is_send) {
        pairs[{record.rank, transfer.peer}].sent = true;
      } else {
        pairs[{transfer.peer, record.rank}].expected = true;
      }
    }
  }
  return pairs;
}

// Connections on which both ranks waited: returns the rank that is an end of all of them, or all.
Culprits cut_off(const OpenPairs& pairs) {
  std::map<Rank, std::set<Rank>> peers;
  for (const auto& [ends, open] : pairs) {
    if (!open.sent || !open.expected) continue;
    peers[ends.first].insert(ends.second);
    peers[ends.second].insert(ends.first);
  }
  std::set<std::pair<Rank, Rank>> links;
  for (const auto& [rank, others] : peers) {
    for (const Rank other : others) links.emplace(std::min(rank, other), std::max(rank, other));
  }
  Culprits all;
  for (const auto& [rank, others] : peers) {
    const FlightVerdict::Culprit culprit{
        rank,
        fmt::format("waited with {} other{} at the other end, and nothing moved: the connection",
                    others.size(), others.size() == 1 ? "" : "s")};
    if (others.size() > 1 && others.size() == links.size()) return {culprit};
    all.push_back(culprit);
  }
  return all;
}

// Ranks that never sent a message another waited for, and waited for no such message themselves; or
// that never took a message another sent.
Culprits silent_ends(const OpenPairs& pairs) {
  std::map<Rank, Rank> unsent;  // the rank that never sent, to the one that waited
  std::map<Rank, Rank> untaken;
  std::set<Rank> waiting;
  for (const auto& [ends, open] : pairs) {
    if (open.sent == open.expected) continue;
    const auto& [from, to] = ends;
    if (open.expected) {
      unsent.emplace(from, to);
      waiting.insert(to);
    } else {
      untaken.emplace(to, from);
    }
  }
  Culprits culprits;
  for (const auto& [rank, peer] : unsent) {
    if (waiting.contains(rank)) continue;
    culprits.push_back({rank, fmt::format("never sent what rank {} waited for", peer.value)});
  }
  if (!unsent.empty()) return culprits;
  for (const auto& [rank, peer] : untaken) {
    culprits.push_back({rank, fmt::format("never took what rank {} sent", peer.value)});
  }
  return culprits;
}

std::string summary_of(const Culprits& culprits, Records records) {
  if (culprits.empty()) {
    return "The records do not tell which rank stopped the group: all of them waited.";
  }
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < culprits.size() && i < kShown; ++i) {
    text += fmt::format("{}Rank {} {}.", text.empty() ? "" : " ", culprits[i].rank.value,
                        culprits[i].why);
  }
  if (culprits.size() > kShown) text += fmt::format(" {} more.", culprits.size() - kShown);
  return text +
         fmt::format(" {} of {} ranks wrote a record.", records.size(), records.front().num_ranks);
}

}  // namespace

FlightVerdict judge_flight(std::span<const FlightRecord> records) {
  CONTEXTILE_CHECK(!records.empty(), "flight: expected at least one record, found none");
  for (std::size_t i = 0; i < records.size(); ++i) {
    CONTEXTILE_CHECK(records[i].num_ranks == records[0].num_ranks &&
                         (i == 0 || records[i - 1].rank < records[i].rank),
                     "flight: expected records of one group by rank, found rank {} of {}",
                     records[i].rank.value, records[i].num_ranks);
  }
  FlightVerdict verdict;
  Culprits& culprits = verdict.culprits;
  culprits = odd_ones(records, "version", &FlightRecord::version);
  if (culprits.empty()) culprits = odd_ones(records, "plan", &FlightRecord::plan);
  if (culprits.empty()) culprits = with_own_errors(records);
  if (culprits.empty()) culprits = without_record(records);
  if (culprits.empty()) culprits = silent_to_most(records);
  if (culprits.empty()) culprits = at_work(records);
  const OpenPairs pairs = open_pairs(records);
  if (culprits.empty()) culprits = cut_off(pairs);
  if (culprits.empty()) culprits = silent_ends(pairs);
  verdict.summary = summary_of(culprits, records);
  return verdict;
}

}  // namespace contextile
