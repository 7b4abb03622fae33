#include "strategy/distca/distca_relays.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace contextile {

double RelayRouter::transfer_us(Rank a, Rank b, std::int64_t bytes) const {
  constexpr double kBytesPerUsAtOneGbyte = 1e3;
  const double gbytes_per_s =
      node_of(a) == node_of(b)
          ? cluster_.intra_gbytes_per_s
          : std::min(cluster_.intra_gbytes_per_s,
                     cluster_.inter_gbytes_per_s_per_node / cluster_.devices_per_node);
  return static_cast<double>(bytes) / (gbytes_per_s * kBytesPerUsAtOneGbyte);
}

std::vector<Rank> RelayRouter::parents_of(Rank owner, std::span<const Rank> users,
                                          std::int64_t bytes) {
  std::map<std::int32_t, std::int32_t> users_left;  // of every node
  for (const Rank user : users) ++users_left[node_of(user)];
  std::vector<Rank> parents;
  std::vector<Rank> relays;  // users that have the owner as parent
  // The user that has moved least so far comes first: it is the likeliest to relay.
  std::vector<std::size_t> order(users.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return entered_us_[users[a].index()] < entered_us_[users[b].index()];
  });
  parents.resize(users.size());
  bool is_counted = false;  // the owner's one copy that the caller counts
  for (const std::size_t i : order) {
    const Rank user = users[i];
    std::int32_t& left = users_left[node_of(user)];
    const bool shared_node = left > 1 && node_of(user) != node_of(owner);
    left = left > 1 ? 0 : left;  // only the first user of a node enters it
    Rank parent = owner;
    if (!relays.empty() && !shared_node) {
      const auto done_us = [&](Rank from) {
        return busy_us_[from.index()] + transfer_us(from, user, bytes);
      };
      for (const Rank relay : relays) {
        if (done_us(relay) < done_us(parent)) parent = relay;
      }
    }
    parents[i] = parent;
    if (parent == owner) {
      relays.push_back(user);
      entered_us_[user.index()] += transfer_us(owner, user, bytes);
    }
    if (parent != owner || is_counted) add(parent, user, bytes);
    is_counted = is_counted || parent == owner;
  }
  return parents;
}

}  // namespace contextile
