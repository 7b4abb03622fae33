// A group with one device per rank. Messages go over a communicator between devices, control
// messages over another transport between processes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "contextile/extend/transport.h"
#include "gpu/driver.h"
#include "transport/cuda/point_to_point.h"

namespace contextile::cuda {

struct DeviceGroupOptions {
  // Longest time without a launch ending on the device while one is under way.
  std::chrono::milliseconds timeout{60'000};
  std::string_view name = "nccl";
};

// Returns rank control.rank() of a group of control.size() ranks. A launch is one group of the
// communicator on the stream for moves. It runs after the work that the compute stream has been
// given so far; `wait` makes the compute stream wait and returns at once. Launches of a rank move
// one after another, so plans whose grouped launches do not deadlock (verify) do not deadlock here.
// A message that is not one piece of memory goes through a copy.
//
// If no launch ends within the timeout, or the communicator fails, the communicator and `control`
// are aborted and the next call throws TransportError. `streams` and `control` must outlive the
// transport.
[[nodiscard]] std::unique_ptr<Transport> make_device_group(
    RankStreams& streams, std::unique_ptr<PointToPoint> communicator, Transport& control,
    const DeviceGroupOptions& options = {});

}  // namespace contextile::cuda
