#include "base/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "contextile/base.h"
#include "support/message_of.h"

namespace contextile {
namespace {

TEST(ParallelFor, ThrowsTheExceptionOfTheFirstIterationThatFails) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<std::atomic<int>> calls(100);
    const std::string message = message_of([&] {
      parallel_for(0, 100, [&](int i) {
        ++calls[static_cast<std::size_t>(i)];
        // The first to fail is the slowest.
        if (i == 17) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (i == 17 || i == 40 || i >= 60) throw InvalidArgument("iteration " + std::to_string(i));
      });
      return 0;
    });
    EXPECT_EQ(message, "iteration 17");
    for (std::size_t i = 0; i < 17; ++i) EXPECT_EQ(calls[i], 1) << i;
    for (const std::atomic<int>& one : calls) EXPECT_LE(one, 1);
  }
}

TEST(ParallelFor, CallsEveryIterationOnce) {
  std::vector<std::atomic<int>> calls(1000);
  parallel_for(0, 1000, [&](int i) { ++calls[static_cast<std::size_t>(i)]; });
  for (const std::atomic<int>& one : calls) EXPECT_EQ(one, 1);
}

}  // namespace
}  // namespace contextile
