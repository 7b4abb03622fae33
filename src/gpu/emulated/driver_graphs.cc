// Captures and graphs of the emulated driver.
#include <utility>

#include "gpu/emulated/device.h"
#include "gpu/emulated/functions.h"

namespace contextile::emulated {

// The default stream is not captured; only the relaxed mode lets other threads allocate.
Result begin_capture(void* stream, int mode) {
  return guarded([&] {
    if (stream == nullptr || !is_stream(stream) || mode != cuda::kRelaxed) return kInvalidValue;
    if (device().capture) return kCaptureUnsupported;
    ++device().num_captures;
    device().capture.emplace(stream);
    return kSuccess;
  });
}

Result end_capture(void* stream, void** graph) {
  return guarded([&] {
    *graph = nullptr;
    if (!device().capture || device().capture->origin() != stream) return kCaptureUnmatched;
    const Capture ended = *std::exchange(device().capture, std::nullopt);
    if (!ended.is_joined()) return kCaptureUnjoined;
    *graph = *device().graphs.insert(new Graph{ended.nodes()}).first;
    return kSuccess;
  });
}

Result is_capturing(void* stream, int* status) {
  return guarded([&] {
    *status = is_captured(stream) ? 1 : 0;
    return is_stream(stream) ? kSuccess : kInvalidHandle;
  });
}

Result instantiate(void** executable, void* graph, unsigned long long flags) {  // NOLINT
  return guarded([&] {
    auto* const from = static_cast<Graph*>(graph);
    if (!device().graphs.contains(from) || flags != 0) return kInvalidValue;
    *executable = *device().graphs.insert(new Graph(*from)).first;
    return kSuccess;
  });
}

Result launch_graph(void* executable, void* stream) {
  return guarded([&] {
    auto* const graph = static_cast<Graph*>(executable);
    if (!device().graphs.contains(graph) || !is_stream(stream)) return kInvalidHandle;
    if (is_captured(stream)) return kNotSupported;
    for (const Capture::Node& node : graph->nodes) {
      if (const Result result = node.work(); result != kSuccess) return result;
    }
    return kSuccess;
  });
}

Result destroy_graph(void* graph) {
  return guarded([&] {
    if (device().graphs.erase(static_cast<Graph*>(graph)) == 0) return kInvalidHandle;
    delete static_cast<Graph*>(graph);
    return kSuccess;
  });
}

Result destroy_executable(void* executable) { return destroy_graph(executable); }

}  // namespace contextile::emulated
