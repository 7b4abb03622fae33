// Ranks that share one device. Every rank has streams of its own, and messages are copies in device
// memory. Nothing waits for the device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "contextile/extend/transport.h"
#include "gpu/driver.h"
#include "transport/cuda/stream_graphs.h"

namespace contextile::cuda {

// Returns a transport for each of `ranks`, which share a driver and must outlive the group. A
// launch begins after the work that its rank's compute stream has been given so far, and `wait`
// makes that stream wait. The thread itself waits for its peers' threads to launch, not for bytes.
// `control()` is an ordinary in-process group. A group that fails waits until the device has done
// all moves. Calls are kept as graphs of the whole group.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_stream_group(
    std::span<RankStreams* const> ranks, const InprocOptions& options = {},
    KeptCalls kept = KeptCalls::kNever);

}  // namespace contextile::cuda
