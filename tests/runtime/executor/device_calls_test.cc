// The work that a call gives to the device: how many launches, copies and uploads.
#include "support/device_calls.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "kernel/cuda/device_kernel.h"
#include "kernel/tensor.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/host_driver.h"
#include "support/message_of.h"
#include "transport/cuda/stream_transport.h"

namespace contextile {
namespace {

using cuda::DeviceRanks;
using cuda::HostDriver;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<const Plan> plan_of(const std::string& strategy, const std::string& mask,
                                    const AttentionShape& shape) {
  const Workload workload = batch_of({300, 37, 190}, mask, shape);
  return plan_and_check(workload, cluster_of(1, 4), parse_strategies(strategy).at(0), {}).plan;
}

// The work that all ranks together have given to the device.
struct Given {
  std::int64_t attention = 0;
  std::int64_t rows = 0;
  std::int64_t uploads = 0;
  std::int64_t copies = 0;
  std::int64_t allocations = 0;
  std::int64_t events = 0;
};

Given given_to(const HostDriver& driver) {
  return {driver.count("forward_") + driver.count("backward_"),
          driver.count("rows_") - driver.count("rows_copy"),
          driver.count("write"),
          driver.count("copy") + driver.count("rows_copy"),
          driver.count("allocate"),
          driver.count("record") + driver.count("wait")};
}
Given operator-(const Given& a, const Given& b) {
  return {a.attention - b.attention,     a.rows - b.rows,
          a.uploads - b.uploads,         a.copies - b.copies,
          a.allocations - b.allocations, a.events - b.events};
}

template <typename Call>
Given given_by(const HostDriver& driver, const Call& call) {
  const Given before = given_to(driver);
  call();
  return given_to(driver) - before;
}

std::string row_of(const std::string& strategy, const std::string& pass, const Given& given) {
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |", strategy, pass, given.attention,
                     given.rows, given.uploads, given.copies, given.allocations, given.events);
}

class GivenToTheDevice : public ::testing::TestWithParam<std::string> {};

// Prints a row of docs/results/gpu.md for each pass.
TEST_P(GivenToTheDevice, NothingIsUploadedInACall) {
  const std::string strategy = GetParam();
  HostDriver driver(HostDriver::Mode::kRecorded);
  DeviceRanks ranks(driver);
  DeviceCalls calls(ranks, plan_of(strategy, "causal", small_heads()));
  calls.set_inputs(1);
  const Given forward = given_by(driver, [&] { calls.forward(); });
  const Given backward = given_by(driver, [&] { calls.backward(); });
  fmt::print("{}\n{}\n", row_of(strategy, "forward", forward),
             row_of(strategy, "backward", backward));
  EXPECT_EQ(forward.uploads, 0);
  EXPECT_EQ(backward.uploads, 0);
  EXPECT_EQ(forward.allocations, 0);
  EXPECT_EQ(backward.allocations, 0);
  EXPECT_THAT(driver.races(), IsEmpty());
}

// A device whose kernel takes tiles with every call.
class TileByTile : public RankHost {
 public:
  TileByTile(HostDriver& driver, cuda::Program program) : driver_(driver), program_(program) {}

  [[nodiscard]] std::vector<std::unique_ptr<Transport>> make_group(
      std::int32_t num_ranks) override {
    std::vector<cuda::RankStreams*> streams;
    for (std::int32_t r = 0; r < num_ranks; ++r) {
      streams_.push_back(std::make_unique<cuda::RankStreams>(driver_));
      kernels_.push_back(std::make_unique<Kernel>(*streams_.back(), program_));
      streams.push_back(streams_.back().get());
    }
    return cuda::make_stream_group(streams);
  }
  [[nodiscard]] const AttentionKernel& kernel(Rank rank) const override {
    return *kernels_.at(rank.index());
  }

 private:
  class Kernel : public cuda::DeviceKernel {
   public:
    using DeviceKernel::DeviceKernel;
    [[nodiscard]] bool makes_lists() const override { return false; }
  };

  HostDriver& driver_;
  const cuda::Program program_;
  std::vector<std::unique_ptr<cuda::RankStreams>> streams_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

// Lists that were made before there were tensors find them, wherever they are and whatever the
// distance between tokens.
TEST_P(GivenToTheDevice, ListsOfAPlanGiveTheBitsOfTilesWithEveryCall) {
  AttentionShape shape = small_heads();
  shape.sink = true;
  const auto plan = plan_of(GetParam(), "causal", shape);
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  for (const cuda::Program program : {cuda::Program::kMma, cuda::Program::kWgmma}) {
    TileByTile host(at_once, program);
    DeviceCalls tile_by_tile(host, plan);
    DeviceRanks ranks(at_once, {}, program);
    DeviceCalls calls(ranks, plan);
    // Tensors that move need new maps, which take long here.
    const std::vector<std::int32_t> moves =
        program == cuda::Program::kMma ? std::vector{0, 2, 1} : std::vector{2};
    for (const std::int32_t more_heads : moves) {
      calls.move_tensors(more_heads);
      const auto seed = static_cast<std::uint64_t>(more_heads);
      EXPECT_TRUE(results_of(calls, seed) == results_of(tile_by_tile, seed)) << more_heads;
    }
  }
}

// A device that counts the bytes that calls upload.
class CountingDriver : public HostDriver {
 public:
  CountingDriver() : HostDriver(Mode::kAtOnce) {}
  void write(cuda::Stream stream, std::byte* to, std::span<const std::byte> from) override {
    written_ += std::ssize(from);
    HostDriver::write(stream, to, from);
  }
  [[nodiscard]] std::int64_t take_written() { return written_.exchange(0); }

 private:
  std::atomic<std::int64_t> written_ = 0;
};

// Lists grow with the square of a batch, and stay on the device; calls upload maps of tiles at
// most.
TEST(PreparedLists, StayOnTheDevice) {
  AttentionShape shape = small_heads();
  for (const cuda::Program program : {cuda::Program::kMma, cuda::Program::kWgmma}) {
    std::vector<std::int64_t> uploaded;
    for (const std::int64_t tokens : {256, 1024}) {
      const auto plan = plan_and_check(batch_of({tokens}, "causal", shape), cluster_of(1, 2),
                                       parse_strategies("ring").at(0), {})
                            .plan;
      CountingDriver driver;
      DeviceRanks ranks(driver, {}, program, Graphs::kOff);
      DeviceCalls calls(ranks, plan);
      calls.set_inputs(1);
      static_cast<void>(driver.take_written());
      calls.forward();
      calls.backward();
      uploaded.push_back(driver.take_written());
    }
    EXPECT_EQ(uploaded[0], uploaded[1]) << cuda::name_of(program);
  }
}

TEST(PreparedLists, RefuseRowsThatTheDeviceCannotLoad) {
  HostDriver driver(HostDriver::Mode::kAtOnce);
  cuda::RankStreams streams(driver);
  const cuda::DeviceKernel kernel(streams);
  std::vector<std::uint16_t> there(64 * 64);
  ForwardTile tile;
  const TensorView rows = contiguous(there.data(), Dtype::kBf16, 16, 1, 64);
  tile.q_NHD = tile.k_MHD = tile.v_MHD = rows;
  std::vector<float> results(16 * 65);
  tile.o_NHD = contiguous(results.data(), Dtype::kF32, 16, 1, 64);
  const TensorView lse = contiguous(results.data() + 16 * 64, Dtype::kF32, 16, 1, 1);
  tile.lse_NH = as_stats(lse);
  const std::vector<LocalBand> bands = {{{0, 16}, {0, 16}}};
  tile.bands = bands;
  tile.init = true;
  const std::vector<std::vector<ForwardTile>> lists = {{tile}};
  const std::vector<TensorView> arrays = {rows, tile.o_NHD, lse};
  const auto program = kernel.prepare_forward({1, 1, 64, 64, 1, 0}, arrays, lists);
  std::vector<std::byte> call(static_cast<std::size_t>(program->call_bytes()));
  std::vector<TensorView> moved = arrays;
  moved[0].data = there.data() + 1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { program->begin(moved, call.data()); }),
              HasSubstr("expected rows at multiples of 16 bytes"));
  const std::vector<TensorView> others(arrays.begin() + 1, arrays.end());
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                static_cast<void>(kernel.prepare_forward({1, 1, 64, 64, 1, 0}, others, lists));
              }),
              HasSubstr("expected tensors that are rows of the arrays"));
}

INSTANTIATE_TEST_SUITE_P(Strategies, GivenToTheDevice,
                         ::testing::Values("ring", "zigzag", "hybrid", "dcp", "fcp:block=64",
                                           "magi:chunk=64", "distca:granularity=16"));

}  // namespace
}  // namespace contextile
