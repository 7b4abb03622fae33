#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/clock.h"
#include "base/quote.h"
#include "contextile/advanced/store.h"

namespace contextile {
namespace {

constexpr std::chrono::minutes kKeep{10};  // what ranks leave in the store, for the slowest of them

std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

std::string text_of(const std::vector<Rank>& members) {
  std::string text;
  for (const Rank member : members) text += fmt::format("{} ", member.value);
  return text;
}

// Ascending ranks below num_ranks, each behind with a space; nothing else is a decision.
std::optional<std::vector<Rank>> members_in(const StoreValue& value, std::int32_t num_ranks) {
  const char* at = reinterpret_cast<const char*>(value.data());
  const char* const end = at + value.size();
  std::vector<Rank> members;
  while (at != end) {
    std::int32_t number = -1;
    const auto [stop, error] = std::from_chars(at, end, number);
    const std::int32_t least = members.empty() ? 0 : members.back().value + 1;
    if (error != std::errc{} || stop == end || *stop != ' ' || number < least ||
        number >= num_ranks) {
      return std::nullopt;
    }
    members.emplace_back(number);
    at = stop + 1;
  }
  if (members.empty()) return std::nullopt;
  return members;
}

class Gathering {
 public:
  Gathering(Store& store, std::string_view run, std::int32_t generation, Rank rank,
            std::int32_t num_ranks)
      : store_(store),
        prefix_(fmt::format("{}/group/{}/", run, generation)),
        rank_(rank),
        num_ranks_(num_ranks) {}

  void announce() {
    store_.replace(key_of(rank_), bytes_of("here"), kKeep);
    note_present();
  }

  // The ranks that have come by now. Ranks never take back that they have come.
  [[nodiscard]] const std::vector<Rank>& look() {
    for (std::int32_t r = 0; r < num_ranks_; ++r) {
      if (!std::ranges::binary_search(present_, Rank{r}) && store_.get(key_of(Rank{r}))) {
        present_.insert(std::ranges::lower_bound(present_, Rank{r}), Rank{r});
        note_present();
      }
    }
    return present_;
  }
  [[nodiscard]] Clock::time_point last_came() const { return last_came_; }

  void decide() {
    static_cast<void>(store_.put(decision_key(), bytes_of(text_of(present_)), kKeep));
  }
  [[nodiscard]] std::optional<std::vector<Rank>> decision(std::chrono::milliseconds wait) {
    const std::optional<StoreValue> value = store_.pull(decision_key(), wait);
    if (!value) return std::nullopt;
    std::optional<std::vector<Rank>> members = members_in(*value, num_ranks_);
    if (!members) {
      throw TransportError(
          fmt::format("rank {}, going on: expected ranks of 0 … {} in {} of {}, found {}",
                      rank_.value, num_ranks_ - 1, quote(decision_key()), printable(store_.name()),
                      quote({reinterpret_cast<const char*>(value->data()), value->size()})));
    }
    return members;
  }

 private:
  [[nodiscard]] std::string key_of(Rank rank) const {
    return fmt::format("{}{}", prefix_, rank.value);
  }
  [[nodiscard]] std::string decision_key() const { return prefix_ + "members"; }
  void note_present() { last_came_ = Clock::now(); }

  Store& store_;
  const std::string prefix_;
  const Rank rank_;
  const std::int32_t num_ranks_;
  std::vector<Rank> present_;
  Clock::time_point last_came_;
};

Membership membership_of(std::vector<Rank> members, Rank rank) {
  const auto found = std::ranges::lower_bound(members, rank);
  if (found == members.end() || *found != rank) {
    throw TransportError(
        fmt::format("rank {}, going on: the others went on without this rank: {} are left",
                    rank.value, members.size()));
  }
  const Rank place{static_cast<std::int32_t>(found - members.begin())};
  return {std::move(members), place};
}

}  // namespace

Membership agree_on_members(Store& store, std::string_view run, std::int32_t generation, Rank rank,
                            std::int32_t num_ranks, const MembershipOptions& options) {
  CONTEXTILE_CHECK(num_ranks >= 1 && rank.valid() && rank.value < num_ranks && generation >= 0,
                   "going on: expected a rank of 0 … {} and a generation of at least 0, found rank "
                   "{} of generation {}",
                   num_ranks - 1, rank.value, generation);
  CONTEXTILE_CHECK(options.settle.count() > 0 && options.timeout.count() > 0,
                   "going on: expected positive times, found {} ms to settle and {} ms in all",
                   options.settle.count(), options.timeout.count());
  const auto poll =
      std::clamp(options.settle / 10, std::chrono::milliseconds(1), std::chrono::milliseconds(100));
  const Clock::time_point deadline = Clock::now() + options.timeout;
  Gathering gathering(store, run, generation, rank, num_ranks);
  gathering.announce();
  while (true) {
    if (const auto members = gathering.decision(poll)) return membership_of(*members, rank);
    const std::vector<Rank>& present = gathering.look();
    // The first rank decides for all. If it is lost, too, the next ones do, each a while later.
    const auto place = std::ranges::lower_bound(present, rank) - present.begin();
    const Clock::time_point settled = gathering.last_came() + options.settle * (place + 1);
    if (std::ssize(present) == num_ranks || Clock::now() >= settled) gathering.decide();
    if (Clock::now() >= deadline) {
      throw TransportError(
          fmt::format("rank {}, going on: no agreement in {} ms, {} of {} ranks came", rank.value,
                      options.timeout.count(), present.size(), num_ranks));
    }
  }
}

}  // namespace contextile
