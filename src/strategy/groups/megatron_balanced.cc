#include "strategy/groups/megatron_balanced.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <set>
#include <utility>

#include "base/check.h"
#include "strategy/groups/rank_groups.h"

namespace contextile {
namespace {

constexpr double kSlack = 0.05;  // gap that counts as balanced, as a share of the most loaded rank
constexpr double kBucketExcess = 1.1;  // work that a bucket may have, over the mean

using Bucket = std::deque<std::int32_t>;

class RoundMaker {
 public:
  RoundMaker(std::span<const std::int64_t> lengths, const BalancedCpOptions& options)
      : lengths_(lengths), options_(options) {
    groups_.num_ranks = options.num_ranks;
  }

  ScheduledRound run(const std::vector<std::int32_t>& samples) {
    std::vector<Bucket> buckets = make_buckets(samples);
    place(buckets);
    ScheduledRound round;
    for (const Bucket& bucket : buckets) {
      round.leftover.insert(round.leftover.end(), bucket.begin(), bucket.end());
    }
    trim(round.leftover);
    fill();
    round.samples = groups_.samples();
    round.loads = groups_.loads();
    return round;
  }

 private:
  [[nodiscard]] std::int64_t length(std::int32_t s) const {
    return lengths_[static_cast<std::size_t>(s)];
  }
  [[nodiscard]] std::int32_t need(std::int32_t s) const {
    return std::min(ranks_needed(length(s), options_.cap_tokens), options_.num_ranks);
  }
  [[nodiscard]] double work(std::int32_t s) const { return sample_work(length(s), need(s)); }
  [[nodiscard]] bool is_balanced() const {
    return groups_.most_load() - groups_.least_load() <= kSlack * groups_.most_load();
  }

  // Returns as many buckets as there are group sizes, of about equal work; the last may have more.
  [[nodiscard]] std::vector<Bucket> make_buckets(const std::vector<std::int32_t>& samples) const {
    std::set<std::int32_t> sizes;
    double total = 0;
    for (const std::int32_t s : samples) {
      sizes.insert(need(s));
      total += work(s);
    }
    const double limit = kBucketExcess * (total / static_cast<double>(sizes.size()));
    std::vector<Bucket> buckets;
    Bucket bucket;
    double bucket_work = 0;
    auto still_open = static_cast<std::int64_t>(sizes.size());
    for (std::size_t i = 0; i < samples.size(); ++i) {
      // NOTE: both the number of open buckets and that of closed ones change, as in the original.
      const bool save_rest =
          static_cast<std::int64_t>(samples.size() - i + buckets.size()) <= still_open;
      if (!bucket.empty() && (bucket_work + work(samples[i]) > limit || save_rest)) {
        buckets.push_back(std::exchange(bucket, {}));
        bucket_work = 0;
        --still_open;
      }
      bucket.push_back(samples[i]);
      bucket_work += work(samples[i]);
    }
    if (!bucket.empty()) buckets.push_back(std::move(bucket));
    return buckets;
  }

  [[nodiscard]] bool can_place(std::int32_t s) const {
    return groups_.free_ranks() >= need(s) ||
           std::any_of(groups_.groups.begin(), groups_.groups.end(),
                       [&](const RankGroup& group) { return group.size == need(s); });
  }

  // Returns the least loaded group of the size, or a group of new ranks if every such group has
  // some load.
  RankGroup& group_for(std::int32_t size) {
    RankGroup* best = nullptr;
    for (RankGroup& group : groups_.groups) {
      if (group.size == size && (best == nullptr || group.load < best->load)) best = &group;
    }
    const bool fits = groups_.free_ranks() >= size;
    return fits && (best == nullptr || best->load > 0) ? groups_.add(size) : *best;
  }

  void place(std::vector<Bucket>& buckets) {
    std::int32_t first_need = 0;
    bool check_balance = false;
    while (!buckets.empty()) {
      const auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& b) {
        return !b.empty() && can_place(b.front());
      });
      if (bucket == buckets.end()) return;
      const std::int32_t s = bucket->front();
      bucket->pop_front();
      RankGroup& group = group_for(need(s));
      group.samples.push_back(s);
      group.load += work(s);
      while (!buckets.empty() && buckets.front().empty()) buckets.erase(buckets.begin());
      // The round may end early only after it has begun to place smaller groups than its first.
      if (first_need == 0) first_need = need(s);
      check_balance = check_balance || need(s) < first_need;
      if (check_balance && !buckets.empty() && is_balanced()) return;
    }
  }

  // Takes the last sample from the most loaded group while that narrows the gap.
  void trim(std::vector<std::int32_t>& leftover) {
    while (!is_balanced() && groups_.least_load() > 0) {
      RankGroup& group =
          *std::max_element(groups_.groups.begin(), groups_.groups.end(),
                            [](const RankGroup& a, const RankGroup& b) { return a.load < b.load; });
      if (group.samples.size() <= 1) return;
      const double gap = groups_.most_load() - groups_.least_load();
      const double before = group.load;
      group.load -= work(group.samples.back());
      if (groups_.most_load() - groups_.least_load() >= gap) {
        group.load = before;
        return;
      }
      leftover.push_back(group.samples.back());
      group.samples.pop_back();
    }
  }

  // Lets empty ranks join the smallest groups.
  void fill() {
    const bool reproduce = options_.faults == UpstreamFaults::kReproduced;
    while (groups_.free_ranks() > 0) {
      RankGroup& group = groups_.smallest();
      std::int32_t more = std::min(group.size, options_.num_ranks - group.size);
      if (more > groups_.free_ranks()) {
        CONTEXTILE_CHECK(
            !reproduce,
            "fails as the original (match_original=on): expected {} empty ranks to double a "
            "group, found {}",
            more, groups_.free_ranks());
        more = groups_.free_ranks();
      }
      groups_.grow(group, more);
      group.load = 0;
      for (const std::int32_t s : group.samples) {
        group.load += sample_work(length(s), group.size);
        if (reproduce) break;
      }
    }
  }

  std::span<const std::int64_t> lengths_;
  const BalancedCpOptions& options_;
  RankGroups groups_;
};

// Checks that every group is one of the process groups that the original makes when it starts.
void check_process_groups(const RankSamples& samples) {
  const auto num_ranks = static_cast<std::int32_t>(samples.size());
  std::int32_t largest = 1;  // the largest power of two that is at most R / 2
  while (largest * 4 <= num_ranks) largest *= 2;
  for (const GroupBatch& group : group_items(samples, SampleOrder::kPacked)) {
    const bool is_power = (group.size & (group.size - 1)) == 0;
    const bool exists = group.size == 1 || group.size == num_ranks ||
                        (is_power && group.size <= largest && group.first % group.size == 0);
    CONTEXTILE_CHECK(
        exists,
        "fails as the original (match_original=on): expected groups of 1, {} or an aligned "
        "power of two up to {} ranks, found ranks {} to {}",
        num_ranks, largest, group.first, group.first + group.size - 1);
  }
}

}  // namespace

std::vector<ScheduledRound> schedule_balanced_cp(std::span<const std::int64_t> lengths,
                                                 const BalancedCpOptions& options) {
  check_sample_lengths(lengths, options.num_ranks, options.cap_tokens);
  const bool reproduce = options.faults == UpstreamFaults::kReproduced;
  for (std::size_t s = 0; reproduce && s < lengths.size(); ++s) {
    const std::int32_t need = ranks_needed(lengths[s], options.cap_tokens);
    CONTEXTILE_CHECK(
        need <= options.num_ranks,
        "fails as the original (match_original=on): expected sequences that need at most {} "
        "ranks, found sequence {} that needs {}",
        options.num_ranks, s, need);
  }
  std::vector<ScheduledRound> rounds;
  std::vector<std::int32_t> samples = longest_first(lengths);
  while (!samples.empty()) {
    rounds.push_back(RoundMaker(lengths, options).run(samples));
    samples = rounds.back().leftover;
    if (reproduce) check_process_groups(rounds.back().samples);
  }
  return rounds;
}

}  // namespace contextile
