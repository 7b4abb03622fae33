#include "strategy/groups/bytescale.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "strategy/groups/group_strategy.h"
#include "strategy/groups/rank_groups.h"

namespace contextile {
namespace {

// Sequences that are placed together: a long one, or a bin of short ones.
struct Parcel {
  std::int32_t num_ranks = 1;
  std::int64_t tokens = 0;
  double work = 0;  // sum of squared lengths
  std::vector<std::int32_t> sequences{};
};

std::vector<Parcel> make_parcels(std::span<const std::int64_t> lengths, std::int64_t cap_tokens) {
  std::vector<Parcel> parcels;
  std::size_t first_bin = 0;
  for (const std::int32_t s : longest_first(lengths)) {
    const std::int64_t length = lengths[static_cast<std::size_t>(s)];
    const auto num_ranks = static_cast<std::int32_t>((length + cap_tokens - 1) / cap_tokens);
    auto parcel = parcels.end();
    if (num_ranks > 1) {
      first_bin = parcels.size() + 1;
    } else {
      parcel = std::find_if(parcels.begin() + static_cast<std::ptrdiff_t>(first_bin), parcels.end(),
                            [&](const Parcel& bin) { return bin.tokens + length <= cap_tokens; });
    }
    if (parcel == parcels.end()) {
      parcels.push_back({.num_ranks = num_ranks});
      parcel = parcels.end() - 1;
    }
    parcel->sequences.push_back(s);
    parcel->tokens += length;
    parcel->work += sample_work(length, 1);
  }
  std::stable_sort(parcels.begin(), parcels.end(),
                   [](const Parcel& a, const Parcel& b) { return a.tokens > b.tokens; });
  return parcels;
}

class WaveMaker {
 public:
  explicit WaveMaker(const BytescaleOptions& options)
      : options_(options),
        loads_(static_cast<std::size_t>(options.num_ranks)),
        is_free_(loads_.size()) {}

  std::vector<GroupRound> run(const std::vector<Parcel>& parcels) {
    for (const Parcel& parcel : parcels) {
      std::optional<std::int32_t> first = least_loaded(parcel.num_ranks);
      if (!first) {
        waves_.emplace_back();
        is_free_.assign(loads_.size(), true);
        first = least_loaded(parcel.num_ranks);
      }
      waves_.back().push_back({*first, parcel.num_ranks, parcel.sequences});
      const double load =
          options_.choice == RankChoice::kTokens ? static_cast<double>(parcel.tokens) : parcel.work;
      for (std::int32_t r = *first; r < *first + parcel.num_ranks; ++r) {
        loads_[static_cast<std::size_t>(r)] += load / parcel.num_ranks;
        is_free_[static_cast<std::size_t>(r)] = false;
      }
    }
    return std::move(waves_);
  }

 private:
  // The first of `count` consecutive free ranks with the least load in sum, or none.
  [[nodiscard]] std::optional<std::int32_t> least_loaded(std::int32_t count) const {
    std::optional<std::int32_t> best;
    double best_load = 0;
    std::int32_t run = 0;  // free ranks up to r
    for (std::int32_t r = 0; r < options_.num_ranks; ++r) {
      run = is_free_[static_cast<std::size_t>(r)] ? run + 1 : 0;
      if (run < count) continue;
      double load = 0;
      for (std::int32_t i = 0; i < count; ++i) load += loads_[static_cast<std::size_t>(r - i)];
      if (best && load >= best_load) continue;
      best = r - count + 1;
      best_load = load;
    }
    return best;
  }

  const BytescaleOptions& options_;
  std::vector<double> loads_;
  std::vector<bool> is_free_;  // in the current wave; before the first wave none is
  std::vector<GroupRound> waves_;
};

enum class Balanced : std::uint8_t { kOff, kOn };
enum class Sync : std::uint8_t { kWave, kStep };

struct StrategyOptions {
  std::int64_t cap = 0;  // tokens; 0: the mean
  Balanced balanced = Balanced::kOff;
  Sync sync = Sync::kWave;
};

// Source: ByteScale (Ge et al., 2025) as FCP describes its baseline. Steps: waves; a long sequence
// is a zigzag ring over ceil(L / C) ranks, short ones are packed and stay on one rank. Bytes sent
// per rank and sequence of L tokens on d ranks: forward (d-1)·L/d·kv, backward that plus
// (d-1)·L/d·dkv with dKV in fp32. Memory: two KV buffers of C tokens. Loses on balance: ranks get
// equal tokens, and work grows with the square of the length.
class BytescaleStrategy : public GroupStrategy<StrategyOptions> {
 public:
  BytescaleStrategy() {
    table_.integer("cap", &StrategyOptions::cap, 0, kMaxTokens,
                   "C, tokens of one rank and wave; 0: tokens of the batch over ranks, rounded up");
    table_.choice("balanced", &StrategyOptions::balanced, {"off", "on"},
                  "choose the ranks with the least work so far (on) or the fewest tokens (off)");
    table_.choice("sync", &StrategyOptions::sync, {"wave", "step"},
                  "wave: every wave is a round, a barrier between; step: one round, ranks go on "
                  "as soon as the ranks they need are done");
  }

  [[nodiscard]] std::string_view name() const override { return "bytescale"; }
  [[nodiscard]] std::string_view summary() const override {
    return "ByteScale: as many ranks as a sequence's length needs, short ones packed locally";
  }

 protected:
  [[nodiscard]] std::vector<GroupRound> rounds(const Workload& workload, std::int32_t num_ranks,
                                               StrategyOptions& options) const override {
    if (options.cap == 0) options.cap = mean_tokens(workload, num_ranks);
    BytescaleOptions schedule{.num_ranks = num_ranks, .cap_tokens = options.cap};
    if (options.balanced == Balanced::kOn) schedule.choice = RankChoice::kFlops;
    std::vector<GroupRound> waves = schedule_bytescale(lengths_of(workload), schedule);
    if (options.sync == Sync::kWave) return waves;
    GroupRound all;
    for (GroupRound& wave : waves) std::move(wave.begin(), wave.end(), std::back_inserter(all));
    return {std::move(all)};
  }
  [[nodiscard]] Dtype original_wire(const Workload&) const override { return Dtype::kF32; }
};

}  // namespace

std::vector<GroupRound> schedule_bytescale(std::span<const std::int64_t> lengths,
                                           const BytescaleOptions& options) {
  check_sample_lengths(lengths, options.num_ranks, options.cap_tokens);
  return WaveMaker(options).run(make_parcels(lengths, options.cap_tokens));
}

const Strategy& bytescale_strategy() {
  static const BytescaleStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile
