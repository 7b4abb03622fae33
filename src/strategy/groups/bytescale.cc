#include "strategy/groups/bytescale.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>

#include "contextile/extend/strategies.h"
#include "strategy/groups/group_strategy.h"
#include "strategy/groups/rank_groups.h"

namespace contextile {
namespace {

// Sequences that are placed together: one long sequence, or a bin of short ones.
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
  explicit WaveMaker(const WaveOptions& options)
      : options_(options),
        loads_(static_cast<std::size_t>(options.num_ranks)),
        is_free_(loads_.size()) {}

  std::vector<ScheduleRound> run(const std::vector<Parcel>& parcels) {
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
  // Returns the first of `count` consecutive free ranks with the least total load, or nothing.
  [[nodiscard]] std::optional<std::int32_t> least_loaded(std::int32_t count) const {
    std::optional<std::int32_t> best;
    double best_load = 0;
    std::int32_t run = 0;  // length of the run of free ranks that ends at r
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

  const WaveOptions& options_;
  std::vector<double> loads_;
  std::vector<bool> is_free_;  // in the current wave; no rank is free before the first wave
  std::vector<ScheduleRound> waves_;
};

// Source: ByteScale (Ge et al., 2025) as FCP describes its baseline. Steps: waves; a long sequence
// is a zigzag ring over ceil(L / C) ranks, short ones are packed and stay on one rank. Bytes sent
// per rank and sequence of L tokens on d ranks: forward (d-1)·L/d·kv, backward that plus
// (d-1)·L/d·dkv with dKV in fp32. Memory: two KV buffers of C tokens. Loses on balance: ranks get
// equal tokens, and work grows with the square of the length.
class BytescaleStrategy : public GroupStrategy<BytescaleOptions> {
 public:
  BytescaleStrategy()
      : GroupStrategy({"bytescale",
                       "ByteScale: as many ranks as a sequence's length needs, short ones packed "
                       "locally",
                       PartialWire::kF32},
                      option_table()) {}

 protected:
  [[nodiscard]] std::vector<ScheduleRound> rounds(const Workload& workload, std::int32_t num_ranks,
                                                  BytescaleOptions& options) const override {
    WaveOptions schedule{.num_ranks = num_ranks, .cap_tokens = options.cap};
    if (options.balanced) schedule.choice = RankChoice::kFlops;
    std::vector<ScheduleRound> waves = schedule_bytescale(lengths_of(workload), schedule);
    if (options.sync == WaveSync::kWave) return waves;
    ScheduleRound all;
    for (ScheduleRound& wave : waves) std::move(wave.begin(), wave.end(), std::back_inserter(all));
    return {std::move(all)};
  }

  [[nodiscard]] std::vector<BytescaleOptions> variants_with(const Workload&, const Cluster&,
                                                            const StrategyRequest&) const override {
    return {BytescaleOptions{}, BytescaleOptions{.balanced = true, .sync = WaveSync::kStep}};
  }

 private:
  static OptionTable<BytescaleOptions> option_table() {
    OptionTable<BytescaleOptions> table;
    return table
        .integer("cap", &BytescaleOptions::cap, 0, kMaxTokens,
                 "C, tokens of one rank and wave; 0: tokens of the batch over ranks, rounded up")
        .on_off("balanced", &BytescaleOptions::balanced,
                "choose the ranks with the least work so far (on) or the fewest tokens (off)")
        .choice("sync", &BytescaleOptions::sync, {"wave", "step"},
                "wave: every wave is a round, a barrier between; step: one round, ranks go on as "
                "soon as the ranks they need are done");
  }
};

const BytescaleStrategy& bytescale() {
  static const BytescaleStrategy kStrategy;
  return kStrategy;
}

}  // namespace

std::vector<ScheduleRound> schedule_bytescale(std::span<const std::int64_t> lengths,
                                              const WaveOptions& options) {
  check_sample_lengths(lengths, options.num_ranks, options.cap_tokens);
  return WaveMaker(options).run(make_parcels(lengths, options.cap_tokens));
}

const Strategy& bytescale_strategy() { return bytescale(); }

StrategyChoice choice_of(const BytescaleOptions& options) { return bytescale().choice(options); }

}  // namespace contextile
