// NCCL, by its library, which is loaded when asked for: nothing of it is needed to build or
// install.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "contextile/base.h"
#include "gpu/driver.h"
#include "transport/cuda/point_to_point.h"

namespace contextile::cuda {

inline constexpr const char* kNcclLibrary = "libnccl.so.2";

// What the ranks of a group find each other by; rank 0 makes it.
using NcclId = std::array<std::byte, 128>;
// Throws InvalidArgument where there is no library, DeviceError where it fails.
[[nodiscard]] NcclId make_nccl_id(const std::string& library = kNcclLibrary);

// Rank `rank` of a group of `size`, on the device of `driver`, which must outlive it. Collective.
// Throws as make_nccl_id does.
[[nodiscard]] std::unique_ptr<PointToPoint> join_nccl(Driver& driver, const NcclId& id, Rank rank,
                                                      std::int32_t size,
                                                      const std::string& library = kNcclLibrary);

}  // namespace contextile::cuda
