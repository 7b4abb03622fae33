// Communicators between ranks whose devices are one recorded device (host_driver.h): groups that
// wait for each other as NCCL's do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "support/host_driver.h"
#include "transport/cuda/point_to_point.h"

namespace contextile::cuda {

// The ends of one group. `fail` makes every end report that failure.
class HostCommunicators {
 public:
  explicit HostCommunicators(HostDriver& driver);
  ~HostCommunicators();
  HostCommunicators(const HostCommunicators&) = delete;
  HostCommunicators& operator=(const HostCommunicators&) = delete;

  [[nodiscard]] std::unique_ptr<PointToPoint> end_of(Rank rank);
  void fail(const std::string& what);
  [[nodiscard]] std::int64_t num_aborts() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace contextile::cuda
