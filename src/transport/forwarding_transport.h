// A transport that passes every call on. A transport that times, counts or delays another one
// derives from it and overrides the calls that it changes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/transport.h"

namespace contextile {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(Transport& inner) : inner_(inner) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] Rank rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int32_t size() const override { return inner_.size(); }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    return inner_.launch(sends, recvs);
  }
  void wait(std::int64_t ticket) override { inner_.wait(ticket); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    return inner_.open_transfers();
  }
  [[nodiscard]] std::vector<Rank> silent_ranks() const override { return inner_.silent_ranks(); }
  [[nodiscard]] std::int64_t sent_bytes() const override { return inner_.sent_bytes(); }
  [[nodiscard]] std::int64_t received_bytes() const override { return inner_.received_bytes(); }

 private:
  Transport& inner_;
};

}  // namespace contextile
