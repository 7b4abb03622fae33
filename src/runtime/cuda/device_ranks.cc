#include "runtime/cuda/device_ranks.h"

#include "base/check.h"
#include "transport/cuda/stream_transport.h"

namespace contextile::cuda {

RankStreams& DeviceRanks::streams_of(Rank rank) {
  std::unique_ptr<OneRank>& one = ranks_[rank];
  if (one == nullptr) one = std::make_unique<OneRank>(driver_, program_);
  return one->streams;
}

const DeviceRanks::OneRank& DeviceRanks::one_of(Rank rank) const {
  const auto found = ranks_.find(rank);
  CONTEXTILE_CHECK(found != ranks_.end(),
                   "gpu: expected a rank that has joined a group of it, found rank {}", rank.value);
  return *found->second;
}

void DeviceRanks::begin_behind(Rank rank, void* stream) {
  const OneRank& one = one_of(rank);
  driver_.record(one.given, driver_.adopt_stream(stream));
  driver_.wait(one.streams.compute, one.given);
}

void DeviceRanks::end_before(Rank rank, void* stream) {
  const OneRank& one = one_of(rank);
  const Stream callers = driver_.adopt_stream(stream);
  driver_.record(one.computed, one.streams.compute);
  driver_.record(one.moved, one.streams.moves);
  driver_.wait(callers, one.computed);
  driver_.wait(callers, one.moved);
}

std::vector<std::unique_ptr<Transport>> DeviceRanks::make_group(std::int32_t num_ranks) {
  std::vector<RankStreams*> streams;
  for (std::int32_t r = 0; r < num_ranks; ++r) streams.push_back(&streams_of(Rank{r}));
  const KeptCalls kept = graphs_ == Graphs::kOff  ? KeptCalls::kNever
                         : graphs_ == Graphs::kOn ? KeptCalls::kFirst
                                                  : KeptCalls::kSecond;
  return make_stream_group(streams, options_, kept);
}

}  // namespace contextile::cuda
