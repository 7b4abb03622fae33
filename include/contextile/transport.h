// Moving messages between ranks. A transport never sees a plan.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Rows of equal length at equal distance: a head slice of a token-major tensor.
struct Segment {
  std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t num_rows = 0;
  std::int64_t stride_bytes = 0;  // from row to row; row_bytes when contiguous

  [[nodiscard]] std::int64_t size_bytes() const { return row_bytes * num_rows; }
};

// Everything that goes to (or comes from) one peer in one launch, in order. Both ends agree on the
// total size; their segments may be cut differently. A message without segments is a barrier's.
struct Message {
  Rank peer;
  std::vector<Segment> segments;

  [[nodiscard]] std::int64_t size_bytes() const;
};

// A message of a launch that nobody has waited for yet, not whole on its way or there.
struct OpenTransfer {
  std::int64_t ticket = 0;  // of its launch
  Rank peer;
  bool is_send = false;
  std::int64_t size_bytes = 0;
};

// Calls whose work is on devices, kept and given to them again as a whole (docs/gpu.md). All ranks
// of a group do the same at the same time.
class CallGraphs {
 public:
  virtual ~CallGraphs() = default;
  // Whether calls are kept as soon as they come, or only when they come again.
  [[nodiscard]] virtual bool keeps_first_calls() const = 0;
  // Collective. What ranks give to their devices between the two is kept under a number > 0, which
  // all of them get, and then done. Nothing in between may wait for a device, or take memory for
  // longer.
  virtual void begin_capture() = 0;
  [[nodiscard]] virtual std::int64_t end_capture() = 0;
  // Collective. Does again what is kept under that number, behind what all ranks' devices were
  // given so far.
  virtual void replay(std::int64_t number) = 0;
  // A rank will not replay it any more; it goes when no rank will.
  virtual void forget(std::int64_t number) noexcept = 0;
};

// One rank's end of a group. The n-th message sent from a to b meets the n-th that b expects of a.
// One thread drives a transport; data moves while it computes.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual std::int32_t size() const = 0;

  // Starts a group of transfers and returns at once. Send memory must stay unchanged, receive
  // memory untouched, until `wait`. Throws TransportError if the group has failed.
  virtual std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) = 0;

  // Blocks until every message of the launch has moved. Each ticket is waited exactly once. Throws
  // TransportError naming rank, operation and peer when a peer died or nothing moved for the
  // timeout.
  virtual void wait(std::int64_t ticket) = 0;

  // The same ranks for messages between these processes' own memories: this transport, unless its
  // data is elsewhere, in a device's.
  [[nodiscard]] virtual Transport& control() { return *this; }

  // Those of the group; null: calls of its ranks are not kept.
  [[nodiscard]] virtual CallGraphs* graphs() { return nullptr; }

  // Tells the group that this rank gives up, so that no peer waits for it.
  virtual void abort(std::string_view reason) noexcept = 0;

  // What this rank still waits to send and to receive, by ticket; also once the group has failed.
  [[nodiscard]] virtual std::vector<OpenTransfer> open_transfers() const = 0;

  // Peers that have not answered for a while: stopped, or cut off. Empty where a transport does not
  // ask.
  [[nodiscard]] virtual std::vector<Rank> silent_ranks() const { return {}; }

  // Bytes this rank has sent and received since construction.
  [[nodiscard]] virtual std::int64_t sent_bytes() const = 0;
  [[nodiscard]] virtual std::int64_t received_bytes() const = 0;
};

// Every rank's bytes on every rank (all of one size), by rank. Built on launch and wait.
[[nodiscard]] std::vector<std::vector<std::byte>> all_gather(Transport& transport,
                                                             std::span<const std::byte> mine);
// Returns when every rank has called it.
void barrier(Transport& transport);

struct InprocOptions {
  std::chrono::milliseconds timeout{60'000};  // without a byte moving in the whole group
  // Testing: every message moves after a random delay of up to this many microseconds, in any order
  // between different pairs. 0: at once, copied by whichever end comes second.
  std::int64_t max_delay_us = 0;
  std::uint64_t delay_seed = 0;
};

// Ranks as threads of one process: the embedded default. All transports of a group share its state;
// each is driven by its own thread.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_inproc_group(
    std::int32_t num_ranks, const InprocOptions& options = {});

// Runs `body(transport)` on one thread per rank of an in-process group and joins them. An exception
// on one rank aborts the group; the first one thrown that is no echo of the abort is rethrown.
void run_inproc(std::int32_t num_ranks, const std::function<void(Transport&)>& body,
                const InprocOptions& options = {});
// The same on a whole group by rank, which stays for further calls; none follow one that threw.
void run_inproc(std::span<const std::unique_ptr<Transport>> group,
                const std::function<void(Transport&)>& body);

}  // namespace contextile
