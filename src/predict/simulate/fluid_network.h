// Transfers as fluids: every flow crosses a few ports and gets its max-min fair share of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "predict/simulate/port_queue.h"

namespace contextile {

inline constexpr std::int32_t kMaxPortsOfFlow = 5;

// Ports a flow crosses; each at most once.
struct FlowPath {
  std::array<std::int32_t, kMaxPortsOfFlow> port{};
  std::int32_t num_ports = 0;

  void cross(std::int32_t p) { port[static_cast<std::size_t>(num_ports++)] = p; }
};

// Flows over one path always have the same rate, so rates belong to streams: a path with the flows
// on it. A flow ends when its stream has served, to each of its flows, the bytes of that flow.
class FluidNetwork {
 public:
  // Bytes per µs of every port.
  explicit FluidNetwork(std::vector<double> capacity);

  // Adds a stream without flows; returns its number: 0, 1, ….
  std::int32_t add_stream(const FlowPath& path);

  // Makes `ended_at_port` valid. Call it before adding the first flow.
  void track_ports() { tracks_ports_ = true; }

  // Adds a flow that moves from the next `share_out` on. `tag` is returned when it is done.
  void add(std::int32_t stream, double bytes, std::int32_t tag);

  // Gives every flow its share from now on: the least rate first; all flows of a port that is full
  // get the same (Bertsekas and Gallager, Data Networks, 6.5.2). Streams that no change reaches,
  // through streams that cross a port together, keep their rates to the bit. O(streams with flows),
  // and for those reached O(streams · ports of a stream + ports · log). The first flows to end, and
  // all that end by `horizon_us`, need no other share-out; later ends do.
  void share_out(double now_us, double horizon_us);

  // The time at which the next flow ends at current rates; infinity if none does before the next
  // share-out.
  [[nodiscard]] double next_end_us() const;
  // Removes the next flow to end; returns its tag.
  std::int32_t pop_ended();
  // The port that set the rate of the flow removed last for most of its time.
  [[nodiscard]] std::int32_t ended_at_port() const { return ended_at_port_; }

  [[nodiscard]] std::int64_t num_flows() const { return num_flows_; }
  // Bytes per µs of all flows of the stream together, since the last share-out.
  [[nodiscard]] double rate_of(std::int32_t stream) const {
    const std::int32_t slot = slot_of_[static_cast<std::size_t>(stream)];
    if (slot < 0) return 0;
    const Stream& asked = streams_[static_cast<std::size_t>(slot)];
    return asked.rate * asked.num_flows;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  using FlowEnd = std::pair<double, std::int32_t>;  // (bytes served when it ends, tag)
  // A stream with flows, in a slot that is free again when its last flow ends: few streams have
  // flows at a time, so their slots are near each other. One cache line, because a share-out visits
  // most of them in no order of memory.
  struct alignas(64) Stream {
    FlowPath path;
    std::int32_t num_flows = 0;
    double rate = 0;         // of each flow, bytes per µs
    double served = 0;       // bytes of each flow since the stream was last empty, at `since_us_`
    FlowEnd first_end = {};  // of the first flow to end
  };
  using PortTimes = std::array<double, kMaxPortsOfFlow>;  // by place in the path
  struct Members {
    // With track_ports: the time for which each port has set the rate, at `since_us_`, and the port
    // that sets it now (-1: without flows).
    PortTimes bound_us{};
    std::int32_t bound_by = -1;
    std::array<std::int32_t, kMaxPortsOfFlow> place{};  // of the stream in its ports' lists
    std::int32_t active_place = 0;                      // in active_
    std::int32_t stream = -1;                           // the one that has the slot
    std::vector<FlowEnd> flows;                         // a heap, the first to end on top
  };
  struct Joining {
    std::int32_t stream = 0;
    double bytes = 0;
    std::int32_t tag = 0;
  };
  struct End {
    double time_us = 0;
    std::int32_t tag = 0;
    std::int32_t slot = 0;
    bool operator>(const End& other) const {
      return time_us != other.time_us ? time_us > other.time_us : tag > other.tag;
    }
  };

  void join(const Joining& flow, double now_us);
  std::int32_t take_slot(std::int32_t stream);
  void give_back_slot(std::int32_t slot);
  void list(std::int32_t slot);
  void unlist(std::int32_t slot);
  void count(std::int32_t slot, std::int32_t flows);
  // Records the bytes that have moved since the last share-out.
  void advance(std::int32_t slot, Stream& stream, double now_us) {
    stream.served += stream.rate * (now_us - since_us_);
    if (tracks_ports_) members_[static_cast<std::size_t>(slot)].bound_us = bound_us(slot, now_us);
  }
  void find_reached();
  void reach(std::int32_t port);
  void order_reached();
  void find_alike();
  [[nodiscard]] std::int32_t& alike_of(std::size_t port);
  void fill(double now_us);
  void fix(std::size_t port, double share, double now_us);
  // Collects the next end of the stream's flows unless it comes too late: there are many, and only
  // those up to the next share-out matter.
  void collect_end(std::int32_t slot, const Stream& stream, double now_us) {
    const double end = end_us(stream, now_us);
    if (end > limit_us_) return;
    ends_.push_back({end, stream.first_end.second, slot});
    limit_us_ = std::max(horizon_us_, end);
  }
  void advance_others(double now_us);
  [[nodiscard]] PortTimes bound_us(std::int32_t slot, double now_us) const;
  void note_port(std::int32_t slot, std::int32_t port);
  void note_end(std::int32_t slot, std::int32_t tag, double now_us);
  // The time at which the first flow of the stream ends at current rates, if `served` is up to
  // `since_us`.
  [[nodiscard]] static double end_us(const Stream& stream, double since_us) {
    const double bytes_left = stream.first_end.first - stream.served;
    if (bytes_left <= 0) return since_us;
    return stream.rate > 0 ? since_us + bytes_left / stream.rate : kNever;
  }
  [[nodiscard]] bool is_fixed(std::int32_t slot) const {
    return fixed_in_[static_cast<std::size_t>(slot)] == num_share_outs_;
  }
  // Fetches a stream's memory before it is needed.
  void prefetch(std::int32_t slot) const {
    __builtin_prefetch(&streams_[static_cast<std::size_t>(slot)], 1);
  }

  std::vector<double> capacity_;
  std::vector<FlowPath> paths_;                    // by stream
  std::vector<std::int32_t> slot_of_;              // by stream; -1: it has no flows
  std::vector<Stream> streams_;                    // by slot
  std::vector<Members> members_;                   // by slot
  std::vector<std::int64_t> reached_in_;           // by slot: the last share-out that reached it
  std::vector<std::int64_t> fixed_in_;             // by slot: the last share-out that set its rate
  std::vector<std::int32_t> free_slots_;           // the next one to take is last
  std::vector<std::vector<std::int32_t>> listed_;  // slots of streams with flows, by port
  std::vector<std::int32_t> active_;               // all slots of streams with flows
  std::vector<std::int32_t> changed_;              // ports whose flows changed since share_out
  std::vector<std::int32_t> reached_;              // ports whose rates a share-out sets
  std::vector<std::int64_t> port_reached_in_;      // by port, like reached_in_
  std::int64_t next_search_ = 0;                   // earlier share-outs reach all ports
  std::vector<std::int32_t> flows_of_port_;
  std::vector<Joining> joining_;       // flows that move from the next share-out on
  std::vector<double> left_;           // capacity not given away yet, by port
  std::vector<std::int32_t> waiting_;  // flows without a rate yet, by port
  std::vector<PortShare> in_order_;    // of the reached ports at first, ascending
  PortQueue tightest_;                 // those whose share has grown since
  // Scratch of order_reached: ports with equal capacities and equally many flows are alike.
  struct Alike {
    double share = 0;
    std::size_t first = 0;  // of the ports
    std::size_t num_ports = 0;
    std::size_t slot = 0;  // into next_place_: one for all of the same share
  };
  std::vector<std::int32_t> capacity_class_;               // by port, from 0
  std::vector<std::vector<std::int32_t>> alike_of_flows_;  // by class and flows; -1 between calls
  std::vector<Alike> alike_;
  std::vector<std::int32_t> alike_of_port_;
  std::vector<std::size_t> by_share_;    // of alike_, ascending
  std::vector<std::size_t> next_place_;  // in in_order_
  std::vector<End> ends_;  // a heap of streams' first ends up to `limit_us_`, earliest on top
  double horizon_us_ = 0;
  double limit_us_ = 0;  // the horizon, or the first end of all if that is later
  double since_us_ = 0;
  bool tracks_ports_ = false;
  std::unordered_map<std::int32_t, PortTimes> bound_at_join_;  // by tag
  std::int32_t ended_at_port_ = -1;
  std::int64_t num_share_outs_ = 0;
  std::size_t num_fixed_ = 0;               // streams whose rate the share-out has set
  std::vector<std::int32_t> without_rate_;  // scratch of fix
  std::int64_t num_flows_ = 0;
};

}  // namespace contextile
