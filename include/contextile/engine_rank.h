// Engines of a group in step with each other: what the first rank is told, all do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/engine.h"
#include "contextile/transport.h"

namespace contextile {

// What comes to a group between two steps.
struct EngineInput {
  std::vector<GenerationRequest> arrivals;
  std::vector<RequestId> cancelled;
  bool stop = false;  // no further step
};

// A request that was not taken.
struct EngineRejection {
  RequestId request;
  std::string reason;
  bool is_full = false;  // too many wait; it may be tried again
};

struct EngineOutput {
  std::vector<EngineEvent> events;
  std::vector<EngineRejection> rejections;
  bool stopped = false;
};

// One rank. The first rank's input is sent to all, every rank makes one step; ranks whose tables
// differ are found before the next.
class EngineRank {
 public:
  EngineRank(Transport& transport, Engine& engine) : transport_(transport), engine_(engine) {}

  // Collective. Of other ranks than the first, `input` is not looked at. A rank that waits for the
  // first must hear of it before its transport's timeout: one with nothing to do calls, too. Throws
  // TransportError, and InvalidArgument where ranks have gone apart.
  EngineOutput advance(const EngineInput& input = {});

 private:
  [[nodiscard]] EngineInput share(const EngineInput& input);

  Transport& transport_;
  Engine& engine_;
};

// An input as bytes, and back. Throws InvalidArgument on bytes that are none.
[[nodiscard]] std::vector<std::byte> encode(const EngineInput& input);
[[nodiscard]] EngineInput decode_engine_input(std::span<const std::byte> bytes);

}  // namespace contextile
