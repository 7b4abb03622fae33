// Ranks of a plan on one device, each with streams of its own, in one memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/gpu.h"
#include "gpu/driver.h"
#include "kernel/cuda/device_kernel.h"
#include "kernel/cuda/paged_kernel.h"

namespace contextile::cuda {

// Whole plans on a single GPU: N logical ranks, transfers as copies. Making a group ends the group
// made before it.
class DeviceRanks : public RankHost {
 public:
  // `driver`, which has the program's module, must outlive it.
  explicit DeviceRanks(Driver& driver, const InprocOptions& options = {},
                       Program program = Program::kMma, Graphs graphs = Graphs::kAuto)
      : driver_(driver), options_(options), program_(program), graphs_(graphs) {}

  [[nodiscard]] std::vector<std::unique_ptr<Transport>> make_group(std::int32_t num_ranks) override;
  // Throws InvalidArgument for a rank that is in no group.
  [[nodiscard]] const AttentionKernel& kernel(Rank rank) const override {
    return one_of(rank).kernel;
  }
  [[nodiscard]] const PagedKernel& paged_kernel(Rank rank) const { return one_of(rank).paged; }
  // The streams of a rank, made on first use.
  [[nodiscard]] RankStreams& streams_of(Rank rank);
  // The same as in Gpu (contextile/advanced/gpu.h).
  void begin_behind(Rank rank, void* stream);
  void end_before(Rank rank, void* stream);

 private:
  struct OneRank {
    OneRank(Driver& driver, Program program)
        : streams(driver),
          kernel(streams, program),
          paged(streams),
          given(driver.create_event()),
          computed(driver.create_event()),
          moved(driver.create_event()) {}
    RankStreams streams;
    DeviceKernel kernel;
    DevicePagedKernel paged;
    Event given;     // the work on the caller's stream
    Event computed;  // the work of the rank
    Event moved;
  };

  [[nodiscard]] const OneRank& one_of(Rank rank) const;

  Driver& driver_;
  const InprocOptions options_;
  const Program program_;
  const Graphs graphs_;
  std::map<Rank, std::unique_ptr<OneRank>> ranks_;
};

}  // namespace contextile::cuda
