// A transport that counts what is launched, by what for. Exchanges that are still on their way
// while others begin count where they belong.
#pragma once

#include <cstdint>
#include <span>

#include "transport/forwarding_transport.h"

namespace contextile {

class MeteredTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  // Bytes launched from here on are added to `bytes`, which stays where it is.
  void meter(std::int64_t& bytes) { bytes_ = &bytes; }

  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    for (const Message& message : sends) *bytes_ += message.size_bytes();
    return ForwardingTransport::launch(sends, recvs);
  }

 private:
  std::int64_t unnamed_ = 0;
  std::int64_t* bytes_ = &unnamed_;
};

}  // namespace contextile
