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

// ---------------------------------------------------------------------------------- gloo transport
//
// Ranks as processes, of one machine or of many, over TCP by gloo. No launcher is needed.

struct GlooOptions {
  Rank rank;              // this process, 0 … size-1
  std::int32_t size = 0;  // processes of the group, the same on all
  // Where the processes find each other, the same on all:
  //   file:///shared/folder  a folder that all of them see
  //   tcp://host:port        rank 0 listens there, the others come
  // A group of one rank needs none.
  std::string rendezvous;
  // Tells runs apart, the same on all ranks of one group and another for every group: what an
  // earlier run left behind is never taken for a peer. A folder asks for one, for an address it
  // may be empty.
  std::string run_id;
  // The network to use: that of an interface ("eth0"), or else that on which a name or an address
  // of this machine is ("10.0.0.7"). Both empty: the one that leads to rank 0 for tcp://, that of
  // the machine's name for file://.
  std::string interface_name;
  std::string hostname;
  std::chrono::milliseconds connect_timeout{60'000};  // until all ranks have come
  std::chrono::milliseconds timeout{60'000};          // without a byte moving in the whole group
};

// Whether this build has gloo (Debian and Ubuntu: libgloo-dev).
[[nodiscard]] bool gloo_transport_available();

// Throws InvalidArgument unless GlooOptions::rendezvous may be that text. Looks for no folder and
// no host.
void check_rendezvous(const std::string& rendezvous);

// This rank's end of a new group; returns when every rank has connected to every other. Throws
// InvalidArgument for options that cannot be and where the build has no gloo, TransportError
// naming the ranks that did not come or do not fit: a number taken twice, another size.
// Takes two threads for every peer beside gloo's own, and memory for at most eight pieces of 1 MiB.
[[nodiscard]] std::unique_ptr<Transport> make_gloo_transport(const GlooOptions& options);

// ----------------------------------------------------------------------------------- mpi transport
//
// Ranks as processes of an MPI job.

struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  // without a byte to or from the rank that waits
  // Messages are cut into pieces of at most this size, so that one under way shows that it moves.
  // The same on every rank. A rank holds at most four of them for every peer.
  std::int64_t piece_bytes = 1 << 20;
};

// Whether this build has MPI (Debian and Ubuntu: libopenmpi-dev).
[[nodiscard]] bool mpi_transport_available();

// This process's end of a group of all processes of the job. Called by all of them together, once
// for every group.
//
// Unless the program has, initialises MPI with MPI_THREAD_MULTIPLE; then MPI is finalised at exit,
// and the transport has to be destroyed before. While a transport lives and the program handles
// SIGTERM by default, the signal does not end the process but every launch and wait: launchers
// send it when another process has died, and kill a moment later.
//
// Throws InvalidArgument where the build has no MPI, for options that cannot be or differ between
// ranks, or an MPI initialised
// with less than MPI_THREAD_MULTIPLE; TransportError if a rank does not come within the timeout.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const MpiOptions& options = {});

}  // namespace contextile
