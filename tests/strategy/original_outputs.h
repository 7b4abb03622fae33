// Outputs of the original systems' own code (tests/golden).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace contextile {

class OriginalOutputs : public testing::Test {
 protected:
  // Loads a file. Returns true if it is there.
  [[nodiscard]] bool load(const std::string& name) {
    std::ifstream file(std::string(CONTEXTILE_GOLDEN) + "/" + name);
    if (file) vectors_ = nlohmann::json::parse(file);
    return !vectors_.is_null();
  }

  nlohmann::json vectors_;
};

// Prints how many outputs of the original were compared. There must be at least one, whichever
// recording the tests were given.
inline void report_compared(std::int64_t num_compared) {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::printf("%s: %lld outputs of the original compared\n", test->name(),
              static_cast<long long>(num_compared));
  EXPECT_GT(num_compared, 0);
}

}  // namespace contextile
