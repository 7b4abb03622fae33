#include "transport/subgroup_transport.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace contextile {

SubgroupTransport::SubgroupTransport(Transport& whole, std::vector<Rank> members)
    : ForwardingTransport(whole), members_(std::move(members)) {
  std::vector<Rank> sorted = members_;
  std::sort(sorted.begin(), sorted.end());
  CONTEXTILE_CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end() &&
                       !sorted.empty() && sorted.front().value >= 0 &&
                       sorted.back().value < whole.size(),
                   "subgroup: expected different ranks of a group of {}", whole.size());
  const auto mine = std::ranges::find(members_, whole.rank());
  CONTEXTILE_CHECK(mine != members_.end(), "subgroup: expected rank {} among its members",
                   whole.rank().value);
  rank_ = Rank(static_cast<std::int32_t>(std::distance(members_.begin(), mine)));
}

std::vector<Message> SubgroupTransport::to_whole(std::span<const Message> messages) const {
  std::vector<Message> mapped(messages.begin(), messages.end());
  for (Message& message : mapped) message.peer = members_[message.peer.index()];
  return mapped;
}

std::int64_t SubgroupTransport::launch(std::span<const Message> sends,
                                       std::span<const Message> recvs) {
  return ForwardingTransport::launch(to_whole(sends), to_whole(recvs));
}

}  // namespace contextile
