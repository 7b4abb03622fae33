#include "runtime/executor/begin_cut.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"

namespace contextile {
namespace {

using Pair = std::pair<Rank, Rank>;  // sender, receiver

// The ranks a rank sends to and receives from in one launch; each once, ascending.
struct LaunchPeers {
  std::vector<Rank> sends;
  std::vector<Rank> recvs;
};

// The launches a rank issues before its first wait.
struct Prefix {
  std::vector<LaunchPeers> launches;
  std::vector<std::size_t> instruction;  // of every launch
  std::size_t first_wait = 0;            // instruction
};

std::vector<Rank> peers(const std::vector<TransferEnd>& ends) {
  std::vector<Rank> peers;
  peers.reserve(ends.size());
  for (const TransferEnd& end : ends) peers.push_back(end.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

Prefix prefix_of(const std::optional<Program>& program) {
  Prefix prefix;
  if (!program) return prefix;
  for (const Instruction& instruction : program->instructions) {
    if (std::holds_alternative<WaitOp>(instruction)) break;
    if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      prefix.launches.push_back({peers(launch->sends), peers(launch->recvs)});
      prefix.instruction.push_back(prefix.first_wait);
    }
    ++prefix.first_wait;
  }
  return prefix;
}

using Counts = std::map<Pair, std::int64_t>;

void count_messages(const LaunchPeers& launch, Rank rank, Counts& sent, Counts& expected) {
  for (const Rank peer : launch.sends) ++sent[{rank, peer}];
  for (const Rank peer : launch.recvs) ++expected[{peer, rank}];
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
    count_messages(prefix.launches[i], rank, mine_sent, mine_expected);
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

// Cuts every rank's prefix until all ends meet; returns the end of `rank`'s prefix.
std::size_t cut_all(std::vector<Prefix> prefixes, Rank rank) {
  bool changed = true;
  while (changed) {
    changed = false;
    Counts sent;
    Counts expected;
    for (std::size_t r = 0; r < prefixes.size(); ++r) {
      for (const LaunchPeers& launch : prefixes[r].launches) {
        count_messages(launch, Rank{static_cast<std::int32_t>(r)}, sent, expected);
      }
    }
    for (std::size_t r = 0; r < prefixes.size(); ++r) {
      changed |= cut(prefixes[r], Rank{static_cast<std::int32_t>(r)}, sent, expected);
    }
  }
  return prefixes[rank.index()].first_wait;
}

// ------------------------------------------------------------------- exchanged between ranks

using Numbers = std::vector<std::int64_t>;

void write(const std::vector<Rank>& ranks, Numbers& out) {
  out.push_back(std::ssize(ranks));
  for (const Rank rank : ranks) out.push_back(rank.value);
}

void write(const Prefix& prefix, Numbers& out) {
  out.push_back(static_cast<std::int64_t>(prefix.first_wait));
  out.push_back(std::ssize(prefix.launches));
  for (std::size_t i = 0; i < prefix.launches.size(); ++i) {
    out.push_back(static_cast<std::int64_t>(prefix.instruction[i]));
    write(prefix.launches[i].sends, out);
    write(prefix.launches[i].recvs, out);
  }
}

// Reads the numbers that write has written on a rank that may run another version.
class PrefixReader {
 public:
  PrefixReader(const Numbers& numbers, std::size_t rank) : numbers_(numbers), rank_(rank) {}

  Prefix prefix() {
    Prefix prefix;
    prefix.first_wait = static_cast<std::size_t>(next());
    for (std::int64_t left = next(); left > 0; --left) {
      prefix.instruction.push_back(static_cast<std::size_t>(next()));
      std::vector<Rank> sends = ranks();
      prefix.launches.push_back({std::move(sends), ranks()});
    }
    return prefix;
  }

 private:
  std::int64_t next() {
    if (at_ == numbers_.size() || numbers_[at_] < 0) {
      throw TransportError(
          fmt::format("prepare: expected the launches of rank {}, found something else", rank_));
    }
    return numbers_[at_++];
  }
  std::vector<Rank> ranks() {
    std::vector<Rank> ranks;
    for (std::int64_t left = next(); left > 0; --left) {
      ranks.emplace_back(checked_cast<std::int32_t>(next(), "prepare: a rank"));
    }
    return ranks;
  }

  const Numbers& numbers_;
  const std::size_t rank_;
  std::size_t at_ = 0;
};

// Gathers every rank's numbers on every rank; ranks may have different counts.
std::vector<Numbers> gather_numbers(Transport& transport, const Numbers& mine) {
  const std::int64_t size = std::ssize(mine);
  std::int64_t longest = 0;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&size, 1)))) {
    std::int64_t other = 0;
    std::memcpy(&other, bytes.data(), sizeof(other));
    longest = std::max(longest, other);
  }
  Numbers padded = mine;
  padded.resize(static_cast<std::size_t>(longest), -1);
  std::vector<Numbers> all;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(padded)))) {
    Numbers& numbers = all.emplace_back(bytes.size() / sizeof(std::int64_t));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
  }
  return all;
}

}  // namespace

std::size_t begin_cut(const PlanRound& round, std::size_t mask, Direction direction, Rank rank) {
  std::vector<Prefix> prefixes;
  for (const DeviceProgram& device : round.devices) {
    prefixes.push_back(prefix_of(device.programs[mask].of(direction)));
  }
  return cut_all(std::move(prefixes), rank);
}

BeginCuts exchange_begin_cuts(const PlanRound& round, Transport& transport) {
  Numbers mine;
  for (const ProgramPair& pair : round.devices[transport.rank().index()].programs) {
    for (const Direction direction : kDirections) write(prefix_of(pair.of(direction)), mine);
  }
  const std::vector<Numbers> all = gather_numbers(transport, mine);
  std::vector<PrefixReader> readers;
  for (std::size_t r = 0; r < all.size(); ++r) readers.emplace_back(all[r], r);
  BeginCuts cuts(round.masks.size());
  for (std::array<std::size_t, 2>& of_mask : cuts) {
    for (const Direction direction : kDirections) {
      std::vector<Prefix> prefixes;
      for (PrefixReader& reader : readers) prefixes.push_back(reader.prefix());
      of_mask[static_cast<std::size_t>(direction)] = cut_all(std::move(prefixes), transport.rank());
    }
  }
  return cuts;
}

}  // namespace contextile
