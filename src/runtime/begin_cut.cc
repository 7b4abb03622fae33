#include "runtime/begin_cut.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace contextile {
namespace {

using Pair = std::pair<Rank, Rank>;  // sender, receiver

// The launches a rank issues before its first wait.
struct Prefix {
  std::vector<const LaunchOp*> launches;
  std::vector<std::size_t> instruction;  // of every launch
  std::size_t first_wait = 0;            // instruction
};

Prefix prefix_of(const Program& program) {
  Prefix prefix;
  for (const Instruction& instruction : program.instructions) {
    if (std::holds_alternative<WaitOp>(instruction)) break;
    if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      prefix.launches.push_back(launch);
      prefix.instruction.push_back(prefix.first_wait);
    }
    ++prefix.first_wait;
  }
  return prefix;
}

std::vector<Rank> peers(const std::vector<TransferEnd>& ends) {
  std::vector<Rank> peers;
  peers.reserve(ends.size());
  for (const TransferEnd& end : ends) peers.push_back(end.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

using Counts = std::map<Pair, std::int64_t>;

void count_messages(const LaunchOp& launch, Rank rank, Counts& sent, Counts& expected) {
  for (const Rank peer : peers(launch.sends)) ++sent[{rank, peer}];
  for (const Rank peer : peers(launch.recvs)) ++expected[{peer, rank}];
}

std::int64_t count_of(const Counts& counts, const Pair& pair) {
  const auto found = counts.find(pair);
  return found == counts.end() ? 0 : found->second;
}

// Drops the launches of a rank from the first one whose other end its peers have not begun.
bool cut(Prefix& prefix, Rank rank, const Counts& sent, const Counts& expected) {
  Counts mine_sent;
  Counts mine_expected;
  for (std::size_t i = 0; i < prefix.launches.size(); ++i) {
    count_messages(*prefix.launches[i], rank, mine_sent, mine_expected);
    const bool met =
        std::all_of(mine_sent.begin(), mine_sent.end(),
                    [&](const auto& x) { return x.second <= count_of(expected, x.first); }) &&
        std::all_of(mine_expected.begin(), mine_expected.end(),
                    [&](const auto& x) { return x.second <= count_of(sent, x.first); });
    if (met) continue;
    prefix.first_wait = prefix.instruction[i];
    prefix.launches.resize(i);
    prefix.instruction.resize(i);
    return true;
  }
  return false;
}

}  // namespace

std::size_t begin_cut(const PlanRound& round, std::size_t mask, Direction direction, Rank rank) {
  std::vector<Prefix> prefixes;
  for (const DeviceProgram& device : round.devices) {
    const std::optional<Program>& program = device.programs[mask].of(direction);
    prefixes.push_back(program ? prefix_of(*program) : Prefix{});
  }
  bool changed = true;
  while (changed) {
    changed = false;
    Counts sent;
    Counts expected;
    for (std::size_t r = 0; r < prefixes.size(); ++r) {
      for (const LaunchOp* launch : prefixes[r].launches) {
        count_messages(*launch, Rank{static_cast<std::int32_t>(r)}, sent, expected);
      }
    }
    for (std::size_t r = 0; r < prefixes.size(); ++r) {
      changed |= cut(prefixes[r], Rank{static_cast<std::int32_t>(r)}, sent, expected);
    }
  }
  return prefixes[rank.index()].first_wait;
}

}  // namespace contextile
