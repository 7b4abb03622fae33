#include "runtime/profile/transfer_bench.h"

#include "base/check.h"

namespace contextile {

TransferBench::TransferBench(Transport& transport, TransferPattern pattern, std::int32_t ranks,
                             std::int32_t devices_per_node, std::int64_t bytes)
    : transport_(transport),
      is_one_way_(pattern == TransferPattern::kPairs || pattern == TransferPattern::kIncast),
      bytes_(bytes) {
  const std::int32_t own = transport.rank().value;
  if (own >= ranks) return;
  switch (pattern) {
    case TransferPattern::kRing: {
      const std::int32_t first = own - own % devices_per_node;
      send_to(first + (own + 1 - first) % devices_per_node);
      receive_from(first + (own + devices_per_node - 1 - first) % devices_per_node);
      break;
    }
    case TransferPattern::kNodeRing:
      send_to((own + devices_per_node) % ranks);
      receive_from((own + ranks - devices_per_node) % ranks);
      break;
    case TransferPattern::kPairs:
      if (own % 2 == 1) receive_from(own - 1);
      if (own % 2 == 0 && own + 1 < ranks) send_to(own + 1);
      break;
    case TransferPattern::kIncast:
      if (own > 0) send_to(0);
      for (std::int32_t peer = 1; own == 0 && peer < ranks; ++peer) receive_from(peer);
      break;
    case TransferPattern::kAllToAll:
      for (std::int32_t peer = 0; peer < ranks; ++peer) {
        if (peer == own) continue;
        send_to(peer);
        receive_from(peer);
      }
      break;
  }
}

void TransferBench::send_to(std::int32_t peer) { sends_.push_back(message(peer)); }
void TransferBench::receive_from(std::int32_t peer) { recvs_.push_back(message(peer)); }

Message TransferBench::message(std::int32_t peer) {
  std::byte* const data = memory_.emplace_back(static_cast<std::size_t>(bytes_)).data();
  return {Rank{peer}, {{data, bytes_, 1, bytes_}}};
}

std::int64_t TransferBench::launch() { return transport_.launch(sends_, recvs_); }

void TransferBench::exchange(std::int64_t launches) {
  std::vector<std::int64_t> tickets;
  for (std::int64_t i = 0; i < launches; ++i) tickets.push_back(launch());
  for (const std::int64_t ticket : tickets) wait(ticket);
  if (is_one_way_ && ++num_exchanges_ % kBetweenAnswers == 0) answer();
}

void TransferBench::answer() {
  const auto empty = [](const std::vector<Message>& messages) {
    std::vector<Message> to_peers;
    for (const Message& message : messages) to_peers.push_back({message.peer, {}});
    return to_peers;
  };
  transport_.wait(transport_.launch(empty(recvs_), empty(sends_)));
}

std::string_view to_string(TransferPattern pattern) {
  switch (pattern) {
    case TransferPattern::kRing:
      return "ring";
    case TransferPattern::kNodeRing:
      return "node_ring";
    case TransferPattern::kPairs:
      return "pairs";
    case TransferPattern::kIncast:
      return "incast";
    case TransferPattern::kAllToAll:
      return "all_to_all";
  }
  fail_argument("pattern: expected one of 5, found {}", static_cast<int>(pattern));
}

}  // namespace contextile
