// Transfers as fluids: every flow crosses a few ports and gets its max-min fair share of them.
#pragma once

#include <array>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

namespace contextile {

inline constexpr std::int32_t kMaxPortsOfFlow = 4;

// Ports a flow crosses; each at most once.
struct FlowPath {
  std::array<std::int32_t, kMaxPortsOfFlow> port{};
  std::int32_t num_ports = 0;

  void cross(std::int32_t p) { port[static_cast<std::size_t>(num_ports++)] = p; }
};

class FluidNetwork {
 public:
  // Bytes per µs of every port.
  explicit FluidNetwork(std::vector<double> capacity);

  // The flow moves from the next `share_out` on. `tag` is returned when it is done.
  void add(const FlowPath& path, double bytes, std::int32_t tag);

  // Gives every flow its share of now on: the least rate first, all flows of a port that is full
  // get the same. Bertsekas and Gallager, Data Networks, 6.5.2. O(flows · ports of a flow · log).
  void share_out(double now_us);

  // When the next flow ends at today's rates; infinity if none moves.
  [[nodiscard]] double next_end_us() const;
  // Removes the next flow to end; returns its tag.
  std::int32_t pop_ended();

  [[nodiscard]] bool empty() const { return flows_.size() == free_.size(); }

 private:
  struct Flow {
    FlowPath path;
    std::array<std::int32_t, kMaxPortsOfFlow> place{};  // in the port's list
    double bytes_left = 0;                              // at `since_us_`
    double rate = 0;                                    // bytes per µs
    std::int32_t tag = 0;
    bool shared = false;  // has its rate in the share-out at hand
    bool active = false;
  };

  void remove(std::int32_t flow);

  std::vector<double> capacity_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_;
  std::vector<std::vector<std::int32_t>> flows_of_port_;
  std::vector<double> left_;           // capacity not given away, during a share-out
  std::vector<std::int32_t> waiting_;  // flows of a port without a rate, during a share-out
  double since_us_ = 0;
  using End = std::pair<double, std::int32_t>;  // (time, flow)
  std::vector<End> ends_;                       // a heap, earliest on top
};

}  // namespace contextile
