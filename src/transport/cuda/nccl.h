// NCCL through its library, which is loaded on first use: nothing of NCCL is needed to build or
// install Contextile.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "gpu/driver.h"
#include "transport/cuda/point_to_point.h"

namespace contextile::cuda {

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// Returns the first of these files of the library that can be loaded. Throws InvalidArgument with
// the reason for each if none can.
[[nodiscard]] std::string find_nccl(const std::vector<std::string>& files);

// The identity by which the ranks of a group find each other; rank 0 makes it.
using NcclId = std::array<std::byte, 128>;
// Throws InvalidArgument if there is no library, DeviceError if it fails.
[[nodiscard]] NcclId make_nccl_id(const std::string& library = kNcclLibrary);

// Returns rank `rank` of a group of `size`, on the device of `driver`, which must outlive it.
// Collective. Throws as make_nccl_id does, and TransportError if not all ranks connect within the
// timeout, which also limits how long `exchange` waits for the connections of its first messages.
[[nodiscard]] std::unique_ptr<PointToPoint> join_nccl(Driver& driver, const NcclId& id, Rank rank,
                                                      std::int32_t size,
                                                      std::chrono::milliseconds timeout,
                                                      const std::string& library = kNcclLibrary);

}  // namespace contextile::cuda
