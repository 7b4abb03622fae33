#include "labs/network/chunk_network.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kBytesPerUsOfGbytes = 1e3;

}  // namespace

void check_chunk_options(const ChunkOptions& options) {
  CONTEXTILE_CHECK(options.chunk_bytes >= 1,
                   "network: expected chunks of at least 1 byte, found {}", options.chunk_bytes);
  CONTEXTILE_CHECK(options.window >= 1, "network: expected a window of at least 1 chunk, found {}",
                   options.window);
}

ChunkNetwork::ChunkNetwork(const Cluster& cluster, const ChunkOptions& options)
    : cluster_(cluster), options_(options) {
  check_chunk_options(options);
  const auto devices = static_cast<std::size_t>(cluster.num_devices());
  const auto nics =
      static_cast<std::size_t>(cluster.nodes) * static_cast<std::size_t>(cluster.nics_per_node);
  const double nic_gbytes_per_s = cluster.inter_gbytes_per_s_per_node / cluster.nics_per_node;
  ports_.resize(2 * (devices + nics));
  for (std::size_t p = 0; p < ports_.size(); ++p) {
    const double rate = p < 2 * devices ? cluster.intra_gbytes_per_s : nic_gbytes_per_s;
    ports_[p].bytes_per_us = rate * kBytesPerUsOfGbytes;
  }
  if (cluster.flow_limit_gbytes_per_s()) flow_ports_.assign(devices * devices, -1);
}

std::int32_t ChunkNetwork::flow_port(Rank src, Rank dst) {
  const auto devices = static_cast<std::size_t>(cluster_.num_devices());
  std::int32_t& port = flow_ports_[src.index() * devices + dst.index()];
  if (port < 0) {
    port = static_cast<std::int32_t>(ports_.size());
    ports_.emplace_back().bytes_per_us = *cluster_.flow_limit_gbytes_per_s() * kBytesPerUsOfGbytes;
  }
  return port;
}

std::vector<std::int32_t> ChunkNetwork::path(Rank src, Rank dst) {
  const std::int32_t devices = cluster_.num_devices();
  if (cluster_.same_node(src, dst)) return {src.value, devices + dst.value};
  std::vector<std::int32_t> ports;
  const std::int32_t nics = cluster_.nics_per_node;
  std::int32_t nic_out = cluster_.nic_of(src);
  const std::int32_t nic_in = cluster_.nic_of(dst);
  // The sender paces a flow before anything else.
  if (!flow_ports_.empty()) ports.push_back(flow_port(src, dst));
  if (cluster_.rails && nic_out != nic_in) {
    // The first device of the sender's node on the receiver's rail passes the message on.
    std::int32_t proxy = cluster_.node_of(src) * cluster_.devices_per_node;
    while (cluster_.nic_of(Rank{proxy}) != nic_in) ++proxy;
    ports.push_back(src.value);
    ports.push_back(devices + proxy);
    nic_out = nic_in;
  }
  ports.push_back(2 * devices + cluster_.node_of(src) * nics + nic_out);
  ports.push_back(2 * devices + (cluster_.nodes + cluster_.node_of(dst)) * nics + nic_in);
  return ports;
}

std::int32_t ChunkNetwork::add(Rank src, Rank dst, std::int64_t bytes) {
  const auto number = static_cast<std::int32_t>(messages_.size());
  Message& message = messages_.emplace_back();
  message.bytes = bytes;
  message.num_chunks =
      std::max<std::int64_t>(1, (bytes + options_.chunk_bytes - 1) / options_.chunk_bytes);
  message.first_hop = static_cast<std::int32_t>(hops_.size());
  for (const std::int32_t port : path(src, dst)) {
    hops_.push_back({.message = number, .port = port});
    ++message.num_hops;
  }
  return number;
}

void ChunkNetwork::start(std::int32_t message, double now_us) {
  now_us_ = now_us;
  const Message& started = messages_[static_cast<std::size_t>(message)];
  hops_[static_cast<std::size_t>(started.first_hop)].waiting = started.num_chunks;
  list(started.first_hop);
}

double ChunkNetwork::next_us() const {
  return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time_us;
}

const std::vector<std::int32_t>& ChunkNetwork::advance() {
  arrived_.clear();
  now_us_ = next_us();
  while (!events_.empty() && events_.top().time_us <= now_us_) {
    const Event event = events_.top();
    events_.pop();
    if (event.kind == EventKind::kServed) {
      end_service(event.hop);
    } else {
      arrive(event.hop);
    }
  }
  return arrived_;
}

double ChunkNetwork::chunk_size(const Message& message, std::int64_t chunk) const {
  const bool last = chunk == message.num_chunks - 1;
  return static_cast<double>(last ? message.bytes - chunk * options_.chunk_bytes
                                  : options_.chunk_bytes);
}

bool ChunkNetwork::is_first(std::int32_t hop) const {
  return hop == messages_[static_cast<std::size_t>(hops_[static_cast<std::size_t>(hop)].message)]
                    .first_hop;
}

bool ChunkNetwork::is_last(std::int32_t hop) const {
  const Message& message =
      messages_[static_cast<std::size_t>(hops_[static_cast<std::size_t>(hop)].message)];
  return hop == message.first_hop + message.num_hops - 1;
}

// A chunk waits here, and the window of its message is not full if it would begin its way.
bool ChunkNetwork::may_serve(std::int32_t hop) const {
  const Hop& at = hops_[static_cast<std::size_t>(hop)];
  const Message& message = messages_[static_cast<std::size_t>(at.message)];
  if (at.waiting == 0) return false;
  return !is_first(hop) || at.served - message.arrived < options_.window;
}

void ChunkNetwork::push(double time_us, EventKind kind, std::int32_t hop) {
  events_.push({time_us, next_order_++, kind, hop});
}

// Lets the hop wait for its turn at the port.
void ChunkNetwork::list(std::int32_t hop) {
  Hop& at = hops_[static_cast<std::size_t>(hop)];
  if ((at.listed && !is_fifo(hop)) || !may_serve(hop)) return;
  at.listed = true;
  Port& port = ports_[static_cast<std::size_t>(at.port)];
  port.waiting.push_back(hop);
  if (port.serving < 0) serve_next(at.port);
}

void ChunkNetwork::serve_next(std::int32_t p) {
  Port& port = ports_[static_cast<std::size_t>(p)];
  if (port.waiting.empty()) return;
  const std::int32_t hop = port.waiting.front();
  port.waiting.pop_front();
  port.serving = hop;
  Hop& at = hops_[static_cast<std::size_t>(hop)];
  const double size = chunk_size(messages_[static_cast<std::size_t>(at.message)], at.served);
  ++at.served;
  --at.waiting;
  const double end_us = now_us_ + size / port.bytes_per_us;
  push(end_us, EventKind::kServed, hop);
  if (is_last(hop)) return;
  // The next port's last byte must not leave it before it has left this one.
  const Hop& next = hops_[static_cast<std::size_t>(hop) + 1];
  const double next_bytes_per_us = ports_[static_cast<std::size_t>(next.port)].bytes_per_us;
  if (next_bytes_per_us <= port.bytes_per_us) {
    arrive(hop + 1);
  } else {
    push(end_us - size / next_bytes_per_us, EventKind::kArrives, hop + 1);
  }
}

void ChunkNetwork::arrive(std::int32_t hop) {
  ++hops_[static_cast<std::size_t>(hop)].waiting;
  list(hop);
}

void ChunkNetwork::end_service(std::int32_t hop) {
  Hop& at = hops_[static_cast<std::size_t>(hop)];
  Port& port = ports_[static_cast<std::size_t>(at.port)];
  Message& message = messages_[static_cast<std::size_t>(at.message)];
  port.serving = -1;
  at.listed = false;
  if (is_last(hop)) {
    if (++message.arrived == message.num_chunks) arrived_.push_back(at.message);
  }
  // The message goes to the end of the queue before the next one is served.
  if (may_serve(hop) && !is_fifo(hop)) {
    at.listed = true;
    port.waiting.push_back(hop);
  }
  serve_next(at.port);
  if (is_last(hop)) list(message.first_hop);  // the window has room again
}

}  // namespace contextile
