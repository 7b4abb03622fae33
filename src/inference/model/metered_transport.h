// A transport that counts what is launched, by what for. Exchanges that are still on their way
// while others begin count where they belong.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/transport.h"

namespace contextile {

class MeteredTransport final : public Transport {
 public:
  explicit MeteredTransport(Transport& inner) : inner_(inner) {}

  // What is launched from here on is added to `bytes`, which stays where it is.
  void meter(std::int64_t& bytes) { bytes_ = &bytes; }

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] Rank rank() const override { return inner_.rank(); }
  [[nodiscard]] std::int32_t size() const override { return inner_.size(); }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    for (const Message& message : sends) *bytes_ += message.size_bytes();
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
  std::int64_t unnamed_ = 0;
  std::int64_t* bytes_ = &unnamed_;
};

}  // namespace contextile
