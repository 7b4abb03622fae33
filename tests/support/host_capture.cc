// Captures of the device that is this machine's CPU.
#include <fmt/format.h>

#include <utility>

#include "contextile/base.h"
#include "support/host_driver.h"

namespace contextile::cuda {

void HostDriver::refuse_in_capture(std::string_view what, Stream stream) const {
  if (is_captured(stream)) throw DeviceError(fmt::format("host: {} in a capture", what));
}

void HostDriver::wait_in_capture(Stream stream, const Recorded& recorded) {
  if (recorded.capture == kNone) {
    throw DeviceError("host: a captured stream waits for what is outside of the capture");
  }
  if (!capture_ || recorded.capture != num_captures_) {
    throw DeviceError("host: a wait for an event of a capture that is over");
  }
  if (forgotten_ && forgotten_(stream) && capture_->has(stream.id)) return;
  capture_->add(stream.id, {"wait", {}, {}, [] {}}, recorded.node);
}

void HostDriver::begin_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  if (capture_) throw DeviceError("host: a capture is under way");
  ++num_captures_;
  capture_.emplace(stream.id);
}

Graph HostDriver::end_capture(Stream stream) {
  const std::lock_guard lock(mutex_);
  if (!capture_ || capture_->origin() != stream.id) {
    throw DeviceError(fmt::format("host: no capture of stream {}", stream.id));
  }
  const Capture ended = *std::exchange(capture_, std::nullopt);
  std::vector<std::byte*> memory = std::exchange(captured_memory_, {});
  if (!ended.is_joined()) throw DeviceError("host: a capture ends without a stream that took part");
  graphs_.push_back({ended.nodes(), std::move(memory)});
  return {static_cast<std::int32_t>(graphs_.size() - 1)};
}

void HostDriver::drop_capture(Stream /*stream*/) noexcept {
  const std::lock_guard lock(mutex_);
  capture_.reset();
}

void HostDriver::launch_graph(Stream stream, Graph graph) {
  const std::lock_guard lock(mutex_);
  refuse_in_capture("a graph", stream);
  ++num_graph_launches_;
  const std::vector<Capture::Node>& nodes = graphs_.at(static_cast<std::size_t>(graph.id)).nodes;
  if (mode_ == Mode::kAtOnce) {
    for (const Capture::Node& node : nodes) node.work.run();
    return;
  }
  const std::size_t begin = add("graph", stream, {}, [] {});
  const std::size_t first = ops_.size();
  for (const Capture::Node& node : nodes) {
    const Kept& kept = node.work;
    Op op{kept.name, {}, {}, 0, kept.reads, kept.writes, kept.run};
    if (node.after.empty()) op.after.push_back(begin);
    for (const std::size_t before : node.after) op.after.push_back(first + before);
    waiting_.push_back(ops_.size());
    ops_.push_back(std::move(op));
  }
  const std::size_t end = add("graph end", stream, {}, [] {});
  for (std::size_t op = first; op < end; ++op) ops_[end].after.push_back(op);
  num_replayed_ += static_cast<std::int64_t>(ops_.size() - first);
}

void HostDriver::free_graph(Graph graph) noexcept {
  const std::lock_guard lock(mutex_);
  KeptGraph& kept = graphs_.at(static_cast<std::size_t>(graph.id));
  for (std::byte* memory : kept.memory) {
    graph_memory_.erase(memory);
    blocks_.at(reinterpret_cast<std::uintptr_t>(memory)).end =
        ops_.empty() ? kNone : ops_.size() - 1;
  }
  kept = {};
}

}  // namespace contextile::cuda
