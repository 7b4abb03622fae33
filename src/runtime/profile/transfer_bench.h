// Messages between the ranks of a group, to be timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/advanced/profile.h"
#include "contextile/extend/transport.h"

namespace contextile {

// One rank's part of an exchange: it sends a message to every peer of one list and receives one
// from every peer of another, in one launch.
class TransferBench {
 public:
  // The first `ranks` of the group take part; each node has `devices_per_node` consecutive ranks.
  // Ranks after them, and ranks without a peer, launch nothing.
  TransferBench(Transport& transport, TransferPattern pattern, std::int32_t ranks,
                std::int32_t devices_per_node, std::int64_t bytes);

  [[nodiscard]] std::int64_t launch();
  void wait(std::int64_t ticket) { transport_.wait(ticket); }
  // Launches `launches` times, then waits for all. If a pattern sends nothing in the other
  // direction, receivers answer now and then. Otherwise a small send may end before it arrives
  // (MPI), and senders can get thousands of messages ahead of a receiver, which then receives
  // nothing for a minute.
  void exchange(std::int64_t launches = 1);

 private:
  void send_to(std::int32_t peer);
  void receive_from(std::int32_t peer);
  [[nodiscard]] Message message(std::int32_t peer);

  void answer();

  static constexpr std::int64_t kBetweenAnswers = 64;  // exchanges
  Transport& transport_;
  const bool is_one_way_;
  std::int64_t bytes_;
  std::vector<std::vector<std::byte>> memory_;
  std::vector<Message> sends_;
  std::vector<Message> recvs_;
  std::int64_t num_exchanges_ = 0;
};

}  // namespace contextile
