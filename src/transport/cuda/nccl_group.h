// A group with one GPU per rank whose messages go over NCCL.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/extend/transport.h"
#include "gpu/driver.h"

namespace contextile::cuda {

struct NcclGroupOptions {
  // Longest time without a launch ending on the device while one is under way, and to connect.
  std::chrono::milliseconds timeout{60'000};
  // Number of this rank's GPU on its machine, for errors.
  std::int32_t ordinal = 0;
  // Files of NCCL's library; the first that can be loaded is used.
  std::vector<std::string> libraries;
};

// Returns rank control.rank() of a group over NCCL (make_device_group). Collective. Before NCCL
// connects, the ranks tell each other over `control` which GPU they have, and rank 0 sends NCCL's
// id. Throws the same InvalidArgument on all ranks if one of them finds no NCCL or if two of them
// have the same GPU, and DeviceError if NCCL fails.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_group(RankStreams& streams, Transport& control,
                                                         const NcclGroupOptions& options);

}  // namespace contextile::cuda
