// Messages between the ranks of a group, to be timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/advanced/profile.h"
#include "contextile/extend/transport.h"

namespace contextile {

// One rank's part of an exchange: it sends a message to every peer of one list and receives one of
// every peer of another, in one launch.
class TransferBench {
 public:
  // The first `ranks` of the group take part; a node has so many consecutive ranks. A rank behind
  // them, or with nobody to send to or to hear from, launches nothing.
  TransferBench(Transport& transport, TransferPattern pattern, std::int32_t ranks,
                std::int32_t devices_per_node, std::int64_t bytes);

  [[nodiscard]] std::int64_t launch();
  void wait(std::int64_t ticket) { transport_.wait(ticket); }
  // Launches so many times, then waits for all. Now and then receivers answer, in patterns in which
  // nothing else goes back: a small send may end before it arrives (MPI), and senders were seen to
  // get thousands of messages ahead of a receiver that then had nothing to hear for a minute.
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
