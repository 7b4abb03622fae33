#include "strategy/groups/megatron_packing.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/check.h"
#include "contextile/data.h"
#include "strategy/groups/rank_groups.h"

namespace contextile {
namespace {

constexpr double kWorkExcess = 1.05;  // of the longest sample's work: most a rank may have

class PackedRoundMaker {
 public:
  PackedRoundMaker(std::span<const std::int64_t> lengths, const DynamicCpOptions& options)
      : lengths_(lengths), options_(options), cap_(static_cast<double>(options.cap_tokens)) {
    groups_.num_ranks = options.num_ranks;
  }

  ScheduledRound run(const std::vector<std::int32_t>& samples) {
    ScheduledRound round;
    limit_ = static_cast<double>(length(samples.front())) * cap_ * kWorkExcess;
    put(samples.front(), open_group(need(samples.front())));
    for (std::size_t i = 1; i < samples.size(); ++i) {
      if (!place(samples[i])) round.leftover.push_back(samples[i]);
    }
    if (!fill()) round.leftover = pack_all(samples);
    round.samples = groups_.samples();
    round.loads = groups_.loads();
    return round;
  }

 private:
  [[nodiscard]] std::int64_t length(std::int32_t s) const {
    return lengths_[static_cast<std::size_t>(s)];
  }
  [[nodiscard]] std::int32_t need(std::int32_t s) const {
    return std::clamp(ranks_needed(length(s), options_.cap_tokens), options_.min_ranks,
                      options_.num_ranks);
  }
  // Returns the tokens of the sample on every rank of a group.
  [[nodiscard]] double share(std::int32_t s, std::int32_t size) const {
    return static_cast<double>(length(s)) / size;
  }

  std::size_t open_group(std::int32_t size) {
    groups_.add(size);
    packed_tokens_.push_back(0);
    return packed_tokens_.size() - 1;
  }
  void put(std::int32_t s, std::size_t g) {
    RankGroup& group = groups_.groups[g];
    group.samples.push_back(s);
    group.load += sample_work(length(s), group.size);
    packed_tokens_[g] += share(s, group.size);
  }

  // Places a sample where the most loaded rank of all stays lowest; ties go to the smaller group,
  // and to existing ranks before new ones. Returns false if every place would exceed the limit.
  bool place(std::int32_t s) {
    struct Place {
      double most_load = 0;
      std::int32_t size = 0;
      std::optional<std::size_t> group;  // none: new ranks
    };
    std::optional<Place> best;
    const double loaded = groups_.most_load();
    const auto consider = [&](double group_load, std::int32_t size,
                              std::optional<std::size_t> group) {
      const double most = std::max(loaded, group_load + sample_work(length(s), size));
      if (most <= limit_ && (!best || most < best->most_load)) best = Place{most, size, group};
    };
    for (std::int32_t size = need(s); size <= options_.num_ranks; size *= 2) {
      for (std::size_t g = 0; g < groups_.groups.size(); ++g) {
        const RankGroup& group = groups_.groups[g];
        if (group.size == size && packed_tokens_[g] + share(s, size) <= cap_) {
          consider(group.load, size, g);
        }
      }
      if (groups_.free_ranks() >= size) consider(0, size, std::nullopt);
    }
    if (!best) return false;
    put(s, best->group ? *best->group : open_group(best->size));
    return true;
  }

  // Doubles the smallest groups one after another. Returns true if they then use exactly all ranks.
  bool fill() {
    while (groups_.free_ranks() > 0) {
      RankGroup& group = groups_.smallest();
      const std::int32_t more = std::min(group.size, options_.num_ranks - group.size);
      if (more > groups_.free_ranks()) return false;
      groups_.grow(group, more);
      group.load = 0;
      for (const std::int32_t s : group.samples) group.load += sample_work(length(s), group.size);
    }
    return true;
  }

  // Makes all ranks one group and returns the samples for which it has no room.
  std::vector<std::int32_t> pack_all(const std::vector<std::int32_t>& samples) {
    groups_ = {.num_ranks = options_.num_ranks};
    packed_tokens_.clear();
    const std::size_t all = open_group(options_.num_ranks);
    std::vector<std::int32_t> leftover;
    for (const std::int32_t s : samples) {
      const double tokens = packed_tokens_[all] + share(s, options_.num_ranks);
      if (tokens > cap_ && s != samples.front()) {
        leftover.push_back(s);
      } else {
        put(s, all);
      }
    }
    return leftover;
  }

  std::span<const std::int64_t> lengths_;
  const DynamicCpOptions& options_;
  double cap_;
  double limit_ = 0;
  RankGroups groups_;
  std::vector<double> packed_tokens_;  // on each rank of every group, while samples are placed
};

// Grows groups, the smallest first, to all ranks.
RankSamples spread(std::span<const GroupBatch> items, std::int32_t num_ranks) {
  RankGroups groups{.num_ranks = num_ranks};
  for (const GroupBatch& item : items) groups.add(item.size).samples = item.sequences;
  while (groups.free_ranks() > 0) {
    RankGroup& group = groups.smallest();
    groups.grow(group, std::min(group.size, groups.free_ranks()));
  }
  return groups.samples();
}

}  // namespace

std::vector<ScheduledRound> schedule_dynamic_cp(std::span<const std::int64_t> lengths,
                                                const DynamicCpOptions& options) {
  check_sample_lengths(lengths, options.num_ranks, options.cap_tokens);
  CONTEXTILE_CHECK(options.min_ranks > 0 && (options.min_ranks & (options.min_ranks - 1)) == 0 &&
                       options.min_ranks <= options.num_ranks,
                   "expected groups of at least a power of two up to {} ranks (option min_cp), "
                   "found {}",
                   options.num_ranks, options.min_ranks);
  std::vector<ScheduledRound> rounds;
  std::vector<std::int32_t> samples = longest_first(lengths);
  while (!samples.empty()) {
    rounds.push_back(PackedRoundMaker(lengths, options).run(samples));
    samples = rounds.back().leftover;
  }
  return rounds;
}

std::vector<RankSamples> align_rounds(std::vector<RankSamples> rounds, std::int32_t multiple) {
  // A round of several groups is cut in two; rounds of one group are passed over.
  CONTEXTILE_CHECK(multiple > 0, "rounds: expected a positive multiple, found {}", multiple);
  std::size_t i = rounds.size();
  std::size_t whole = 0;  // rounds in a row that are one group
  while (rounds.size() % static_cast<std::size_t>(multiple) != 0) {
    i = i == 0 ? rounds.size() - 1 : i - 1;
    const ScheduleRound groups = group_items(rounds[i], SampleOrder::kPacked);
    if (groups.size() < 2) {
      ++whole;
      CONTEXTILE_CHECK(whole <= rounds.size(),
                       "expected rounds that can be cut to a multiple of {} (option vpp_multiple), "
                       "found {} rounds of one group each",
                       multiple, rounds.size());
      continue;
    }
    whole = 0;
    const auto num_ranks = static_cast<std::int32_t>(rounds[i].size());
    std::size_t first = 1;  // groups of the first part
    while (first + 1 < groups.size() && 2 * groups[first].first < num_ranks) ++first;
    const std::span<const GroupBatch> all(groups);
    rounds[i] = spread(all.subspan(first), num_ranks);
    rounds.push_back(spread(all.first(first), num_ranks));
  }
  return rounds;
}

std::vector<RankSamples> schedule_dp_balanced(std::span<const std::int64_t> lengths,
                                              const DpBalancedOptions& options) {
  CONTEXTILE_CHECK(options.data_parallel > 0 && options.multiple > 0 && options.max_samples >= 0,
                   "groups: expected positive counts, found {} groups and a multiple of {}",
                   options.data_parallel, options.multiple);
  check_sample_lengths(lengths, options.context_parallel, options.cap_tokens);
  std::vector<Document> samples;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    samples.push_back({static_cast<std::int64_t>(s), lengths[s]});
  }
  const std::vector<MicroBatch> bins =
      pack_dp_balanced(samples, {.max_tokens = options.cap_tokens * options.context_parallel,
                                 .multiple = std::int64_t{options.data_parallel} * options.multiple,
                                 .max_documents = options.max_samples});
  const auto groups = static_cast<std::size_t>(options.data_parallel);
  std::vector<RankSamples> rounds;
  for (std::size_t first = 0; first < bins.size(); first += groups) {
    RankSamples& round = rounds.emplace_back();
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<std::int32_t> bin;
      for (const Document& sample : bins[first + g]) {
        bin.push_back(static_cast<std::int32_t>(sample.id));
      }
      round.insert(round.end(), static_cast<std::size_t>(options.context_parallel), bin);
    }
  }
  return rounds;
}

}  // namespace contextile
