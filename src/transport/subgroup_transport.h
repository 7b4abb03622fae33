// Some ranks of a group as a group of their own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/forwarding_transport.h"

namespace contextile {

// Messages go over the whole group's transport, so the order of messages between two ranks counts
// for both groups together: both ranks must launch them in the same order. Errors name ranks of the
// whole group.
class SubgroupTransport final : public ForwardingTransport {
 public:
  // Throws InvalidArgument unless this rank is one of the members, which must differ.
  SubgroupTransport(Transport& whole, std::vector<Rank> members);

  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t size() const override {
    return static_cast<std::int32_t>(members_.size());
  }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override;

 private:
  [[nodiscard]] std::vector<Message> to_whole(std::span<const Message> messages) const;

  std::vector<Rank> members_;
  Rank rank_;
};

}  // namespace contextile
