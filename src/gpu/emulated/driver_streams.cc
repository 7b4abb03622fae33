// Streams and events of the emulated driver. Work is done when it is submitted, so that waits only
// matter to captures.
#include <cstdlib>

#include "gpu/emulated/device.h"
#include "gpu/emulated/functions.h"
#include "gpu/emulated/handles.h"

namespace contextile::emulated {
namespace {

Result nothing() { return kSuccess; }

}  // namespace

Result create_stream(void** stream, unsigned flags, int priority) {
  return guarded([&] {
    if (flags > 1 || priority > 0 || priority < -5) return kInvalidValue;
    *stream = std::malloc(1);
    device().streams[*stream] = priority;
    return kSuccess;
  });
}

Result destroy_stream(void* stream) {
  return guarded([&] { return drop_handle(stream, device().streams); });
}

Result synchronize(void* stream) {
  return guarded([&] {
    if (is_captured(stream)) return kCaptureUnsupported;
    return is_stream(stream) ? kSuccess : kInvalidHandle;
  });
}

Result wait_event(void* stream, void* event, unsigned flags) {
  return guarded([&] {
    const bool known = is_stream(stream) && device().events.contains(event);
    if (!known || flags != 0) return kInvalidHandle;
    const auto captured = device().captured_events.find(event);
    if (captured == device().captured_events.end()) {
      return is_captured(stream) ? kCaptureIsolation : kSuccess;
    }
    const auto& of = captured->second;
    if (!device().capture || of.first != device().num_captures) return kCapturedEvent;
    device().capture->add(stream, nothing, of.second);
    return kSuccess;
  });
}

Result create_event(void** event, unsigned flags) {
  return guarded([&] {
    return flags == cuda::kNoTiming ? make_handle(event, device().events) : kInvalidValue;
  });
}

Result destroy_event(void* event) {
  return guarded([&] {
    device().captured_events.erase(event);
    return drop_handle(event, device().events);
  });
}

Result record_event(void* event, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !device().events.contains(event)) return kInvalidHandle;
    device().captured_events.erase(event);
    if (!is_captured(stream)) return kSuccess;
    const std::size_t node = device().capture->add(stream, nothing);
    device().captured_events[event] = {device().num_captures, node};
    return kSuccess;
  });
}

Result query_event(void* event) {
  return guarded([&] {
    if (device().captured_events.contains(event)) return kCapturedEvent;
    return device().events.contains(event) ? kSuccess : kInvalidHandle;
  });
}

}  // namespace contextile::emulated
