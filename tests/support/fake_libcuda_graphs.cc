// Captures and graphs of the driver library in fake_libcuda.cc.
#include <utility>

#include "support/fake_libcuda_state.h"

using namespace contextile::fake_cuda;  // NOLINT(google-build-using-namespace): C functions

extern "C" Result cuStreamBeginCapture_v2(void* stream, int mode) {
  return guarded([&] {
    // The default stream is not captured; only the relaxed mode lets other threads allocate.
    if (stream == nullptr || !is_stream(stream) || mode != 2) return kInvalidValue;
    if (state().capture) return kCaptureUnsupported;
    ++state().num_captures;
    state().capture.emplace(stream);
    return kSuccess;
  });
}
extern "C" Result cuStreamEndCapture(void* stream, void** graph) {
  return guarded([&] {
    *graph = nullptr;
    if (!state().capture || state().capture->origin() != stream) return kCaptureUnmatched;
    const Capture ended = *std::exchange(state().capture, std::nullopt);
    if (!ended.is_joined()) return kCaptureUnjoined;
    *graph = *state().graphs.insert(new Graph{ended.nodes()}).first;
    return kSuccess;
  });
}
extern "C" Result cuStreamIsCapturing(void* stream, int* status) {
  return guarded([&] {
    *status = is_captured(stream) ? 1 : 0;
    return is_stream(stream) ? kSuccess : kInvalidHandle;
  });
}
extern "C" Result cuGraphInstantiateWithFlags(void** executable, void* graph,
                                              unsigned long long flags) {
  return guarded([&] {
    auto* const from = static_cast<Graph*>(graph);
    if (!state().graphs.contains(from) || flags != 0) return kInvalidValue;
    *executable = *state().graphs.insert(new Graph(*from)).first;
    return kSuccess;
  });
}
extern "C" Result cuGraphLaunch(void* executable, void* stream) {
  return guarded([&] {
    auto* const graph = static_cast<Graph*>(executable);
    if (!state().graphs.contains(graph) || !is_stream(stream)) return kInvalidHandle;
    if (is_captured(stream)) return kNotSupported;
    for (const Capture::Node& node : graph->nodes) {
      if (const Result result = node.work(); result != kSuccess) return result;
    }
    return kSuccess;
  });
}
extern "C" Result cuGraphDestroy(void* graph) {
  return guarded([&] {
    if (state().graphs.erase(static_cast<Graph*>(graph)) == 0) return kInvalidHandle;
    delete static_cast<Graph*>(graph);
    return kSuccess;
  });
}
extern "C" Result cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }
