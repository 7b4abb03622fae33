// The devices of a training job.
#pragma once

#include <cstdint>
#include <string>

#include "contextile/cluster.h"

namespace contextile {

// The cluster with `gpus` devices of its kind: whole nodes, or a part of one node with its share of
// the NICs. `where` names the option in errors. Throws InvalidArgument.
[[nodiscard]] Cluster with_gpus(Cluster cluster, std::int32_t gpus, const std::string& where);

// "64xh100": 64 GPUs of a kind that a preset has (h100, h200, a100, h20, b200, gb200, gb300), or of
// a preset by its name. Anything without such a beginning is a cluster as load_cluster takes it.
[[nodiscard]] Cluster load_gpus(const std::string& text);

}  // namespace contextile
