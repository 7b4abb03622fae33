// Transports, which move messages between ranks. A transport never sees a plan.
//
//   run_inproc(4, [](Transport& transport) {
//     const std::vector<std::byte> mine(8);
//     const std::vector<std::vector<std::byte>> all = all_gather(transport, mine);
//   });
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Memory in rows of equal length at equal distance: a head slice of a token-major tensor.
struct Segment {
  std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t num_rows = 0;
  std::int64_t stride_bytes = 0;  // from row to row; row_bytes when contiguous

  [[nodiscard]] std::int64_t size_bytes() const { return row_bytes * num_rows; }
};

// All data that goes to (or comes from) one peer in one launch, in order. Both ends agree on the
// total size; their segments may be cut differently. A message without segments is a barrier's.
struct Message {
  Rank peer;
  std::vector<Segment> segments;

  [[nodiscard]] std::int64_t size_bytes() const;
};

// A message of a launch that has not been waited for yet and has not fully moved.
struct OpenTransfer {
  std::int64_t ticket = 0;  // ticket of its launch
  Rank peer;
  bool is_send = false;
  std::int64_t size_bytes = 0;
};

// Calls whose work is on devices, captured so that they can be replayed as a whole (docs/gpu.md).
// All ranks of a group do the same at the same time.
class CallGraphs {
 public:
  virtual ~CallGraphs() = default;
  // Returns true if calls are captured when they first come, false if only when they come again.
  [[nodiscard]] virtual bool keeps_first_calls() const = 0;
  // Collective. The work that ranks give to their devices between the two calls is captured under a
  // number > 0, which all ranks get, and then executed. Nothing in between may wait for a device,
  // or take memory for longer.
  virtual void begin_capture() = 0;
  [[nodiscard]] virtual std::int64_t end_capture() = 0;
  // Collective. Replays captured graph `number` after all work submitted so far on every rank.
  virtual void replay(std::int64_t number) = 0;
  // Declares that this rank will not replay it any more. It is freed when no rank will.
  virtual void forget(std::int64_t number) noexcept = 0;
};

// One rank's end of a group. The n-th message sent from a to b is matched with the n-th that b
// expects from a. One thread at a time drives a transport; data moves while that thread computes.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual Rank rank() const = 0;
  [[nodiscard]] virtual std::int32_t size() const = 0;

  // Starts a group of transfers and returns at once. Send memory must stay unchanged, receive
  // memory untouched, until `wait`. Throws TransportError if the group has failed.
  virtual std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) = 0;

  // Blocks until every message of the launch has moved. Each ticket must be waited for exactly
  // once. Throws TransportError naming rank, operation and peer when a peer died or nothing moved
  // for the timeout.
  virtual void wait(std::int64_t ticket) = 0;

  // Returns a transport of the same ranks for messages between these processes' own memories: this
  // transport, unless its data is in a device's memory.
  [[nodiscard]] virtual Transport& control() { return *this; }

  // Returns the graphs of the group; null: calls of its ranks are not captured.
  [[nodiscard]] virtual CallGraphs* graphs() { return nullptr; }

  // Tells the group that this rank gives up, so that no peer waits for it.
  virtual void abort(std::string_view reason) noexcept = 0;

  // Returns the messages that this rank still waits to send and to receive, by ticket; also after
  // the group has failed.
  [[nodiscard]] virtual std::vector<OpenTransfer> open_transfers() const = 0;

  // Returns peers that have not answered for a while because they are stopped or cut off. Empty if
  // a transport does not check.
  [[nodiscard]] virtual std::vector<Rank> silent_ranks() const { return {}; }

  // Bytes this rank has sent and received since construction.
  [[nodiscard]] virtual std::int64_t sent_bytes() const = 0;
  [[nodiscard]] virtual std::int64_t received_bytes() const = 0;

 private:
  friend class TransportUse;
  std::atomic<std::thread::id> user_{};  // the thread that has a TransportUse; none: no thread
};

// The calling thread's use of a transport for one call, such as a forward of an executor. A thread
// may nest them; different threads use a transport one after the other.
class TransportUse {
 public:
  // Throws InvalidArgument naming the call if another thread uses the transport, whose call goes on
  // undisturbed.
  TransportUse(Transport& transport, std::string_view call);
  ~TransportUse();
  TransportUse(const TransportUse&) = delete;
  TransportUse& operator=(const TransportUse&) = delete;

 private:
  Transport& transport_;
  bool is_outermost_ = false;
};

// Returns every rank's bytes (all of one size), by rank, on every rank. Built on launch and wait.
[[nodiscard]] std::vector<std::vector<std::byte>> all_gather(Transport& transport,
                                                             std::span<const std::byte> mine);
// Returns when every rank has called it.
void barrier(Transport& transport);

struct InprocOptions {
  std::chrono::milliseconds timeout{60'000};  // without a byte moving in the whole group
  // For tests: every message moves after a random delay of up to this many microseconds, in any
  // order between different pairs. 0: at once, copied by the end that comes second.
  std::int64_t max_delay_us = 0;
  std::uint64_t delay_seed = 0;
};

// Makes a group whose ranks are threads of one process: the embedded default. All transports of a
// group share its state; each is driven by its own thread.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_inproc_group(
    std::int32_t num_ranks, const InprocOptions& options = {});

// Runs `body(transport)` on one thread per rank of an in-process group and joins them. An exception
// on one rank aborts the group. The first exception that is not a consequence of the abort is
// rethrown.
void run_inproc(std::int32_t num_ranks, const std::function<void(Transport&)>& body,
                const InprocOptions& options = {});
// The same on a whole group by rank, which can be used for further calls unless one threw.
void run_inproc(std::span<const std::unique_ptr<Transport>> group,
                const std::function<void(Transport&)>& body);

// ---------------------------------------------------------------------------------- gloo transport
//
// Ranks as processes, on one machine or many, over TCP by gloo. No launcher is needed.

struct GlooOptions {
  Rank rank;              // this process, 0 … size-1
  std::int32_t size = 0;  // processes of the group, the same on all
  // Address where the processes find each other, the same on all:
  //   file:///shared/folder  a folder that all of them see
  //   tcp://host:port        rank 0 listens there, the others connect
  // A group of one rank needs none.
  std::string rendezvous;
  // Identifies the run: the same on all ranks of one group, and different for every group, so that
  // remains of an earlier run are never taken for a peer. Required with a folder; with an address
  // it may be empty.
  std::string run_id;
  // The secret of the group, the same on all ranks: at most one of the two. With it, each proves to
  // the others that it belongs to the group. Neither secret nor run id is sent.
  std::string secret;       // 16 to 4096 bytes
  std::string secret_file;  // holds the secret; one line break at its end does not count
  // Both empty: the file that CONTEXTILE_SECRET_FILE names, else no secret.
  // The network to use: that of an interface ("eth0"), or else the one of a name or an address of
  // this machine ("10.0.0.7"). Both empty: the network that leads to rank 0 for tcp://, that of the
  // machine's name for file://.
  std::string interface_name;
  std::string hostname;
  std::chrono::milliseconds connect_timeout{60'000};  // until all ranks have connected
  std::chrono::milliseconds timeout{60'000};          // without a byte moving in the whole group
};

// Returns true if this build has gloo (Debian and Ubuntu: libgloo-dev).
[[nodiscard]] bool gloo_transport_available();

// Throws InvalidArgument unless the text is valid as GlooOptions::rendezvous. Looks for no folder
// and no host.
void check_rendezvous(const std::string& rendezvous);

// Returns this rank's end of a new group when every rank has connected to every other. Throws
// InvalidArgument on impossible options and if the build has no gloo. Throws TransportError naming
// the ranks that did not come or do not fit: a rank number taken twice, another size, another
// secret. Connections that do not greet like a rank of the group are dropped. Uses two threads per
// peer in addition to gloo's own, and memory for at most eight pieces of 1 MiB.
//
// A group belongs to the process that made it. In a child made by fork its calls throw
// InvalidArgument, and destroying it says nothing to the peers.
[[nodiscard]] std::unique_ptr<Transport> make_gloo_transport(const GlooOptions& options);

// ----------------------------------------------------------------------------------- mpi transport
//
// Ranks as processes of an MPI job.

struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  // without a byte to or from the rank that waits
  // Messages are cut into pieces of at most this size, so that a message in progress shows that it
  // moves. The same on every rank. A rank holds at most four pieces per peer.
  std::int64_t piece_bytes = 1 << 20;
};

// Returns true if this build has MPI (Debian and Ubuntu: libopenmpi-dev).
[[nodiscard]] bool mpi_transport_available();

// Returns this process's end of a group of all processes of the job. All of them call it together,
// once for every group.
//
// Unless the program has initialised MPI, it is initialised with MPI_THREAD_MULTIPLE; then MPI is
// finalised at exit, and the transport has to be destroyed before that. While a transport lives and
// the program handles SIGTERM by default, the signal ends every launch and wait instead of the
// process: launchers send it when another process has died, and kill a moment later.
//
// Throws InvalidArgument if the build has no MPI, on options that are impossible or differ between
// ranks, and on an MPI initialised with less than MPI_THREAD_MULTIPLE. Throws TransportError if a
// rank does not come within the timeout, be it before MPI is initialised or after.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const MpiOptions& options = {});

}  // namespace contextile
