#include "runtime/cuda/device_ranks.h"

#include "transport/cuda/stream_transport.h"

namespace contextile::cuda {

std::vector<std::unique_ptr<Transport>> DeviceRanks::make_group(std::int32_t num_ranks) {
  while (static_cast<std::int32_t>(ranks_.size()) < num_ranks) {
    ranks_.push_back(std::make_unique<OneRank>(driver_));
  }
  std::vector<RankStreams*> streams;
  for (std::int32_t r = 0; r < num_ranks; ++r) {
    streams.push_back(&ranks_[static_cast<std::size_t>(r)]->streams);
  }
  return make_stream_group(streams, options_);
}

}  // namespace contextile::cuda
