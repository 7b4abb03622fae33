// A network that moves messages chunk by chunk through queues: a model that shares no code and no
// idea with the fluids of predict/simulate.
#pragma once

#include <cstdint>
#include <deque>
#include <queue>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"

namespace contextile {

// The order in which a port serves the chunks that wait there. A sender's first port always takes
// turns, because it is the sender that orders its own messages.
enum class ChunkQueue : std::uint8_t {
  kFair,  // messages in turn (round robin)
  kFifo,  // chunks as they come, so that a message with many chunks there gets more of the port
};

// How messages are cut, and how their chunks queue.
struct ChunkOptions {
  // Bytes of a chunk; the last one of a message may be smaller. NCCL cuts messages into pieces of
  // this order.
  std::int64_t chunk_bytes = 256 * 1024;
  // Chunks of a message that may be on their way at a time. It stands for the buffers of a
  // connection: NCCL's has eight steps. Without it, all of a message may wait at a busy port.
  std::int32_t window = 8;
  ChunkQueue queue = ChunkQueue::kFair;
};
void check_chunk_options(const ChunkOptions& options);  // throws InvalidArgument

// Ports in a row serve the chunks of each message, one chunk at a time. Messages that wait at a
// port are served in turn. With windows, that order tends to max-min fair rates (Hahne, Round-robin
// scheduling for max-min fairness in data networks, JSAC 1991).
//
// Chunks cut through: the next port may begin a chunk as early as it can without running dry, which
// is at once if it is no faster. A chunk stands for many packets, which do not wait for each other.
// So a message that is alone takes its bytes over the rate of its slowest port, as it should.
class ChunkNetwork {
 public:
  ChunkNetwork(const Cluster& cluster, const ChunkOptions& options);

  // Adds a message that has not started. Returns its number: 0, 1, ….
  std::int32_t add(Rank src, Rank dst, std::int64_t bytes);
  // The message's latency is over: its chunks wait from now on.
  void start(std::int32_t message, double now_us);

  // The time of the next event; infinity if nothing moves.
  [[nodiscard]] double next_us() const;
  // Handles all events of that time. Returns the messages that have arrived, valid until the next
  // call.
  const std::vector<std::int32_t>& advance();

 private:
  struct Port {
    double bytes_per_us = 0;
    std::int32_t serving = -1;         // hop
    std::deque<std::int32_t> waiting;  // hops, the next one first; kFifo: one for each chunk
  };
  // One port on the way of one message.
  struct Hop {
    std::int32_t message = 0;
    std::int32_t port = 0;
    std::int64_t waiting = 0;  // chunks that have arrived here and were not served
    std::int64_t served = 0;   // chunks, with the one that is being served
    bool listed = false;       // waits at a fair port or is served there
  };
  struct Message {
    std::int64_t bytes = 0;
    std::int64_t num_chunks = 1;
    std::int64_t arrived = 0;    // chunks
    std::int32_t first_hop = 0;  // in hops_
    std::int32_t num_hops = 0;
  };
  enum class EventKind : std::uint8_t { kServed, kArrives };
  struct Event {
    double time_us = 0;
    std::int64_t order = 0;  // of creation: ties are served first come, first served
    EventKind kind = EventKind::kServed;
    std::int32_t hop = 0;
    bool operator>(const Event& other) const {
      return time_us != other.time_us ? time_us > other.time_us : order > other.order;
    }
  };

  // Ports are numbered: devices out, devices in, NICs out, NICs in, then the limits of flows.
  [[nodiscard]] std::vector<std::int32_t> path(Rank src, Rank dst);
  [[nodiscard]] std::int32_t flow_port(Rank src, Rank dst);
  [[nodiscard]] double chunk_size(const Message& message, std::int64_t chunk) const;
  [[nodiscard]] bool may_serve(std::int32_t hop) const;
  [[nodiscard]] bool is_first(std::int32_t hop) const;
  [[nodiscard]] bool is_last(std::int32_t hop) const;
  // The port of the hop serves chunks as they come.
  [[nodiscard]] bool is_fifo(std::int32_t hop) const {
    return options_.queue == ChunkQueue::kFifo && !is_first(hop);
  }
  void push(double time_us, EventKind kind, std::int32_t hop);
  void list(std::int32_t hop);
  void serve_next(std::int32_t port);
  void arrive(std::int32_t hop);
  void end_service(std::int32_t hop);

  const Cluster& cluster_;
  ChunkOptions options_;
  std::vector<Port> ports_;
  std::vector<std::int32_t> flow_ports_;  // by sender · devices + receiver; -1: none yet
  std::vector<Hop> hops_;
  std::vector<Message> messages_;
  std::vector<std::int32_t> arrived_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t next_order_ = 0;
  double now_us_ = 0;
};

}  // namespace contextile
