// One rank per device, with communicators that wait for each other as NCCL's do, on a recorded
// device.
#include "transport/cuda/device_group.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "gpu/libcuda.h"
#include "kernel/cuda/device_kernel.h"
#include "kernel/row_memory.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/host_communicator.h"
#include "support/host_driver.h"
#include "support/message_of.h"
#include "transport/conformance_support.h"
#include "transport/cuda/nccl.h"
#include "transport/forwarding_transport.h"

namespace contextile::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A rank's end that owns the transports it uses.
class WholeRank : public ForwardingTransport {
 public:
  WholeRank(std::unique_ptr<Transport> control, std::unique_ptr<Transport> data)
      : ForwardingTransport(*data), control_(std::move(control)), data_(std::move(data)) {}
  [[nodiscard]] Transport& control() override { return *control_; }

 private:
  std::unique_ptr<Transport> control_;
  std::unique_ptr<Transport> data_;
};

// Ranks with a device each; all of these are the recorded one.
class CommunicatorRanks : public RankHost {
 public:
  explicit CommunicatorRanks(HostDriver& driver, std::chrono::milliseconds timeout = {})
      : driver_(driver), communicators_(driver) {
    if (timeout.count() > 0) options_.timeout = timeout;
  }

  [[nodiscard]] std::vector<std::unique_ptr<Transport>> make_group(
      std::int32_t num_ranks) override {
    std::vector<std::unique_ptr<Transport>> group;
    for (std::unique_ptr<Transport>& control : make_inproc_group(num_ranks)) {
      const Rank rank = control->rank();
      streams_.push_back(std::make_unique<RankStreams>(driver_));
      kernels_.push_back(std::make_unique<DeviceKernel>(*streams_.back()));
      std::unique_ptr<Transport> data =
          make_device_group(*streams_.back(), communicators_.end_of(rank), *control, options_);
      group.push_back(std::make_unique<WholeRank>(std::move(control), std::move(data)));
    }
    return group;
  }
  [[nodiscard]] const AttentionKernel& kernel(Rank rank) const override {
    return *kernels_.at(rank.index());
  }
  HostCommunicators& communicators() { return communicators_; }

 private:
  HostDriver& driver_;
  HostCommunicators communicators_;
  DeviceGroupOptions options_;
  std::vector<std::unique_ptr<RankStreams>> streams_;
  std::vector<std::unique_ptr<DeviceKernel>> kernels_;
};

class PlansOfDevices : public ::testing::TestWithParam<const char*> {};

TEST_P(PlansOfDevices, GiveTheBitsOfOneDeviceWithoutRacesOrDeadlocks) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  const Workload workload = batch_of({300, 37, 190}, "causal", shape);
  const auto plan =
      plan_and_check(workload, cluster_of(2, 2), parse_strategies(GetParam()).at(0), {}).plan;
  RunOptions options;
  options.compare = false;
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  DeviceRanks one(at_once);
  options.host = &one;
  const MaskRun expected = run_plan(plan, options).masks.at(0);
  HostDriver driver(HostDriver::Mode::kRecorded, 3);
  CommunicatorRanks ranks(driver);
  options.host = &ranks;
  const MaskRun found = run_plan(plan, options).masks.at(0);
  EXPECT_EQ(found.result_bits, expected.result_bits);
  EXPECT_EQ(found.sent_bytes_forward, expected.predicted_bytes_forward);
  EXPECT_EQ(found.sent_bytes_backward, expected.predicted_bytes_backward);
  EXPECT_THAT(driver.races(), IsEmpty());
  EXPECT_GT(driver.count("transfer"), 0);
}

INSTANTIATE_TEST_SUITE_P(Strategies, PlansOfDevices,
                         ::testing::Values("ring", "zigzag", "hybrid", "double_ring", "dcp",
                                           "dcp:relays=on", "fcp:block=64", "magi:chunk=64",
                                           "distca:granularity=16",
                                           "auto:steps=20000,candidates=own"));

// Waits for the device as well, so that a case can read what it has received.
class Patient : public ForwardingTransport {
 public:
  Patient(Transport& inner, const AttentionKernel& kernel)
      : ForwardingTransport(inner), kernel_(kernel) {}
  void wait(std::int64_t ticket) override {
    ForwardingTransport::wait(ticket);
    kernel_.memory().wait();
  }

 private:
  const AttentionKernel& kernel_;
};

TEST(DeviceGroup, MovesWhatEveryTransportMoves) {
  for (const ConformanceCase& tested : traffic_cases()) {
    for (const std::int32_t size : tested.sizes) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", tested.name, size));
      HostDriver driver(HostDriver::Mode::kRecorded, 5);
      CommunicatorRanks ranks(driver);
      const auto group = ranks.make_group(size);
      try {
        run_inproc(group, [&](Transport& transport) {
          Patient patient(transport, ranks.kernel(transport.rank()));
          tested.run(patient, 0);
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Every rank sends a message of strided rows to each of two peers: one kernel packs both, and one
// unpacks what it receives.
TEST(DeviceGroup, OneKernelPacksAllMessagesOfALaunch) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  CommunicatorRanks ranks(driver);
  const auto group = ranks.make_group(3);
  std::byte* const memory = driver.allocate(3 * 512);
  run_inproc(group, [&](Transport& transport) {
    Patient patient(transport, ranks.kernel(transport.rank()));
    std::byte* next = memory + transport.rank().index() * 512;
    std::vector<Message> messages[2];
    for (std::vector<Message>& way : messages) {
      for (std::int32_t peer = 0; peer < 3; ++peer) {
        if (Rank{peer} == transport.rank()) continue;
        way.push_back({Rank{peer}, {{next, 16, 4, 32}}});
        next += 128;
      }
    }
    patient.wait(patient.launch(messages[0], messages[1]));
  });
  EXPECT_EQ(driver.count("rows_copy"), 3 * 2);
  EXPECT_EQ(driver.count("copy"), 0);
  EXPECT_THAT(driver.races(), IsEmpty());
  driver.free(memory);
}

// Runs rank 0 alone with a launch to rank 1 that nothing meets. Returns the error of a later
// launch.
std::string lonely_launch(CommunicatorRanks& ranks) {
  const auto group = ranks.make_group(2);
  std::array<std::byte, 8> bytes{};
  const Message message{Rank{1}, {{bytes.data(), 8, 1, 8}}};
  group[0]->launch({&message, 1}, {});
  for (int i = 0; i < 200; ++i) {
    const std::string error = message_of<TransportError>([&] { return group[0]->launch({}, {}); });
    if (error != "no error") return error;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "no error";
}

TEST(DeviceGroup, AStallEndsInATimeoutThatNamesThePeer) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  CommunicatorRanks ranks(driver, std::chrono::milliseconds(200));
  const std::string error = lonely_launch(ranks);
  EXPECT_THAT(error, HasSubstr("rank 0, launch"));
  EXPECT_THAT(error, HasSubstr("nothing moved for 200 ms; open: send to rank 1 (8 bytes)"));
  EXPECT_EQ(ranks.communicators().num_aborts(), 1);
}

TEST(DeviceGroup, AFailureOfTheCommunicatorIsTold) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  CommunicatorRanks ranks(driver);
  ranks.communicators().fail("remote process exited");
  EXPECT_THAT(lonely_launch(ranks), HasSubstr("remote process exited; open: send to rank 1"));
  EXPECT_EQ(ranks.communicators().num_aborts(), 1);
}

TEST(DeviceGroup, GivingUpEndsWhatIsUnderWay) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  CommunicatorRanks ranks(driver);
  const auto group = ranks.make_group(2);
  group[0]->abort("enough");
  EXPECT_EQ(ranks.communicators().num_aborts(), 1);
  EXPECT_THAT(message_of<TransportError>([&] { return group[0]->launch({}, {}); }),
              HasSubstr("rank 0 gave up: enough"));
  EXPECT_THAT(message_of<TransportError>([&] { barrier(group[1]->control()); }),
              HasSubstr("enough"));
}

// A device whose compute stream is busy for a while: no event is done.
class BusyDriver : public HostDriver {
 public:
  BusyDriver() : HostDriver(Mode::kRecorded) {}
  [[nodiscard]] bool is_done(Event event) override {
    return --looks_left_ < 0 && HostDriver::is_done(event);
  }
  [[nodiscard]] bool is_free() const { return looks_left_ < 0; }

 private:
  std::atomic<int> looks_left_ = 20;  // more than fit into the timeout
};

TEST(DeviceGroup, TheTimeoutBeginsBehindTheRanksOwnWork) {
  BusyDriver driver;
  CommunicatorRanks ranks(driver, std::chrono::milliseconds(200));
  EXPECT_THAT(lonely_launch(ranks), HasSubstr("nothing moved for 200 ms"));
  EXPECT_TRUE(driver.is_free());
}

class NcclPair : public ::testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<PointToPoint> join(std::int32_t rank,
                                                   std::chrono::milliseconds timeout) {
    return join_nccl(*driver_, id_, Rank(rank), 2, timeout, CONTEXTILE_FAKE_LIBNCCL);
  }

  std::unique_ptr<Driver> driver_ =
      open_device({.ordinal = 0, .folders = {""}, .library = CONTEXTILE_FAKE_LIBCUDA});
  NcclId id_ = make_nccl_id(CONTEXTILE_FAKE_LIBNCCL);
};
constexpr std::chrono::milliseconds kLong{60'000};

TEST_F(NcclPair, APeerThatNeverConnectsEndsInATimeout) {
  EXPECT_THAT(message_of<TransportError>(
                  [&] { static_cast<void>(join(0, std::chrono::milliseconds(50))); }),
              HasSubstr("rank 0, nccl: connecting: expected all peers within 50 ms"));
}

TEST_F(NcclPair, AMessageThatNeverComesEndsInATimeoutOrWithTheGroup) {
  for (const bool is_aborted : {false, true}) {
    id_ = make_nccl_id(CONTEXTILE_FAKE_LIBNCCL);
    std::unique_ptr<PointToPoint> mine;
    std::thread other([&] { mine = join(1, kLong); });
    const std::unique_ptr<PointToPoint> zero =
        join(0, is_aborted ? kLong : std::chrono::milliseconds(500));
    other.join();
    const Stream stream = driver_->create_stream();
    std::array<std::byte, 8> bytes{};
    const PeerBytes from_one{Rank{1}, bytes.data(), 8};
    std::thread aborting([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (is_aborted) zero->abort();
    });
    EXPECT_THAT(message_of<TransportError>([&] {
                  zero->exchange(stream, {}, {&from_one, 1});
                }),
                HasSubstr(is_aborted ? "the group has ended" : "expected all peers within 500 ms"));
    aborting.join();
    zero->abort();
    EXPECT_EQ(zero->failure(), "");
    EXPECT_THAT(message_of<TransportError>([&] {
                  zero->exchange(stream, {}, {&from_one, 1});
                }),
                HasSubstr("the group has ended"));
    mine->abort();
  }
}

}  // namespace
}  // namespace contextile::cuda
