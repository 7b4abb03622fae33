// Outputs of vLLM's and SGLang's own code (tests/golden).
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace contextile {

// The cases of a file of outputs of the originals; empty if it is missing.
inline nlohmann::json vectors(const std::string& name) {
  std::ifstream file(std::string(CONTEXTILE_GOLDEN) + "/" + name + ".json");
  return file ? nlohmann::json::parse(file)["cases"] : nlohmann::json();
}

}  // namespace contextile
