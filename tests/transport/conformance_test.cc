// The conformance cases on groups of threads. Transports between processes run the same cases
// through tests/tools/transport_ranks.cc, which is started once per rank.

#include "transport/conformance.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "contextile/extend/transport.h"
#include "support/host_driver.h"
#include "transport/cuda/stream_transport.h"

namespace contextile {
namespace {

struct Threads {
  const ConformanceCase* tested = nullptr;
  std::int64_t max_delay_us = 0;
  friend void PrintTo(const Threads& threads, std::ostream* out) { *out << threads.tested->name; }
};

class TransportConformance : public ::testing::TestWithParam<Threads> {};

TEST_P(TransportConformance, Inproc) {
  const ConformanceCase& tested = *GetParam().tested;
  InprocOptions options;
  options.timeout = tested.timeout;
  options.max_delay_us = GetParam().max_delay_us;
  options.delay_seed = 11;
  for (const std::int32_t size : tested.sizes) {
    for (std::int32_t turn = 0; turn < tested.num_turns; ++turn) {
      SCOPED_TRACE("size " + std::to_string(size) + ", turn " + std::to_string(turn));
      try {
        run_inproc(
            size,
            [&](Transport& transport) {
              EXPECT_EQ(transport.size(), size);
              tested.run(transport, turn);
            },
            options);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

// Ranks that share a device, on one that does its work at once, so that cases can read their data.
TEST_P(TransportConformance, Streams) {
  const ConformanceCase& tested = *GetParam().tested;
  InprocOptions options;
  options.timeout = tested.timeout;
  options.max_delay_us = GetParam().max_delay_us;
  options.delay_seed = 12;
  for (const std::int32_t size : tested.sizes) {
    for (std::int32_t turn = 0; turn < tested.num_turns; ++turn) {
      SCOPED_TRACE("size " + std::to_string(size) + ", turn " + std::to_string(turn));
      cuda::HostDriver driver(cuda::HostDriver::Mode::kAtOnce);
      std::vector<std::unique_ptr<cuda::RankStreams>> streams;
      std::vector<cuda::RankStreams*> ranks;
      for (std::int32_t r = 0; r < size; ++r) {
        streams.push_back(std::make_unique<cuda::RankStreams>(driver));
        ranks.push_back(streams.back().get());
      }
      std::vector<std::unique_ptr<Transport>> group = cuda::make_stream_group(ranks, options);
      try {
        run_inproc(group, [&](Transport& transport) {
          EXPECT_EQ(transport.size(), size);
          tested.run(transport, turn);
          group[transport.rank().index()].reset();  // peers still under way hear that it has left
        });
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
}

std::vector<Threads> all_cases(std::int64_t max_delay_us) {
  std::vector<Threads> all;
  for (const ConformanceCase& tested : conformance_cases()) all.push_back({&tested, max_delay_us});
  return all;
}

std::string case_name(const ::testing::TestParamInfo<Threads>& tested) {
  return std::string(tested.param.tested->name);
}

INSTANTIATE_TEST_SUITE_P(AtOnce, TransportConformance, ::testing::ValuesIn(all_cases(0)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Delayed, TransportConformance, ::testing::ValuesIn(all_cases(300)),
                         case_name);

}  // namespace
}  // namespace contextile
