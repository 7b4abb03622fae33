// What original systems' own code gave.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace contextile {

class OriginalOutputs : public testing::Test {
 protected:
  // Whether the file is there.
  [[nodiscard]] bool load(const std::string& name) {
    std::ifstream file(std::string(CONTEXTILE_GOLDEN) + "/" + name);
    if (file) vectors_ = nlohmann::json::parse(file);
    return !vectors_.is_null();
  }

  nlohmann::json vectors_;
};

}  // namespace contextile
