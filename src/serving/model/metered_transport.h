// A transport that counts what is launched, by purpose. An exchange that is still on its way while
// another begins counts for its own purpose.
#pragma once

#include <cstdint>
#include <span>

#include "transport/forwarding_transport.h"

namespace contextile {

class MeteredTransport final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;

  // From here on, launched bytes are added to `bytes`, which must stay in place.
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
