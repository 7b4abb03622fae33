// The reasons for which devices wait, in words.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "contextile/plan.h"
#include "contextile/simulate.h"

namespace contextile {

// "node 1's uplink, out", "node 1's NIC 3, in", "device 5's port, out".
[[nodiscard]] std::string port_text(const Cluster& cluster, NetworkPort port);

struct WaitText {
  std::string message;   // "launch 2: 4 kv of blocks 8-11, 12.58 MB"
  std::string link;      // "device 5's port, in, shared with 2 messages, of devices 3 and 6"
  std::string peer;      // "device 4, the sender"
  std::string peer_was;  // "computing attention for 1.2 ms; then the message moved for 0.3 ms"
};

// Words for the waits of one program.
class WaitTexts {
 public:
  WaitTexts(const Plan& plan, const Cluster& cluster, Direction direction,
            const SimulatedProgram& simulated);

  [[nodiscard]] WaitText of(const WaitReason& reason) const;
  // "4 kv of blocks 8-11".
  [[nodiscard]] std::string units(const MessageSpan& message) const;
  // Bit k is set if it carries units of kind k.
  [[nodiscard]] std::int64_t kinds(const MessageSpan& message) const;

 private:
  [[nodiscard]] const LaunchOp& launch_of(Rank rank, std::int32_t id) const;
  [[nodiscard]] const MessageSpan& message_at(std::int32_t m) const;
  [[nodiscard]] std::string link(const WaitReason& reason) const;
  [[nodiscard]] std::string peer_was(const WaitReason& reason) const;
  [[nodiscard]] std::string root(const WaitReason& reason) const;

  const Cluster& cluster_;
  const SimulatedProgram& simulated_;
  std::unordered_map<std::int64_t, const LaunchOp*> launches_;  // by rank and id
};

}  // namespace contextile
