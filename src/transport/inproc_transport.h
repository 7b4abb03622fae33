// One rank's end of an in-process group.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/process_owner.h"
#include "contextile/extend/transport.h"
#include "transport/inproc_group.h"

namespace contextile {

class InprocTransport : public Transport {
 public:
  InprocTransport(std::shared_ptr<InprocGroup> group, Rank rank)
      : group_(std::move(group)), rank_(rank) {}
  ~InprocTransport() override {
    if (!owner_.is_forked()) {
      group_->leave(rank_);
    } else {  // a thread of the parent may hold its locks
      // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): without memory the child may end
      static_cast<void>(new std::shared_ptr<InprocGroup>(std::move(group_)));
    }
  }
  InprocTransport(const InprocTransport&) = delete;
  InprocTransport& operator=(const InprocTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "inproc"; }
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t size() const override { return group().size(); }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    return group().launch(rank_, sends, recvs);
  }
  void wait(std::int64_t ticket) override { group().wait(rank_, ticket); }
  void abort(std::string_view reason) noexcept override {
    if (!owner_.is_forked()) group_->fail(rank_, reason);
  }
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    return group().open_transfers(rank_);
  }
  [[nodiscard]] std::int64_t sent_bytes() const override { return group().sent_bytes(rank_); }
  [[nodiscard]] std::int64_t received_bytes() const override {
    return group().received_bytes(rank_);
  }

 private:
  [[nodiscard]] InprocGroup& group() const {
    owner_.check("inproc: this group of ranks");
    return *group_;
  }

  const ProcessOwner owner_;
  std::shared_ptr<InprocGroup> group_;
  Rank rank_;
};

}  // namespace contextile
