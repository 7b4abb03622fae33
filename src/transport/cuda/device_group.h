// One rank a device: messages by a communicator between devices, words between processes by another
// transport.
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
  // Without a launch ending on the device while one is under way.
  std::chrono::milliseconds timeout{60'000};
  std::string_view name = "nccl";
};

// Rank control.rank() of control.size(). A launch is one group of the communicator on the stream
// for moves, behind what the compute stream has been given so far; `wait` makes the compute stream
// wait and returns at once. Launches of a rank move one after another: plans whose grouped launches
// do not deadlock (verify) do not here. What is not one piece of memory goes through a copy.
//
// Where a launch does not end for the timeout, or the communicator fails, it is aborted, `control`
// hears of it, and the next call throws TransportError. `streams` and `control` must outlive it.
[[nodiscard]] std::unique_ptr<Transport> make_device_group(
    RankStreams& streams, std::unique_ptr<PointToPoint> communicator, Transport& control,
    const DeviceGroupOptions& options = {});

// The same by NCCL, whose identity goes from rank 0 over `control`. Collective.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_group(RankStreams& streams, Transport& control,
                                                         const DeviceGroupOptions& options = {},
                                                         const std::string& library = {});

}  // namespace contextile::cuda
