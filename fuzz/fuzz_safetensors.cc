// Files of weights: they are read or refused, and nothing outside of them is read.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "serving/model/tensor_source.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;
  static const std::filesystem::path folder = [] {
    const auto path = std::filesystem::temp_directory_path() /
                      ("contextile_fuzz_safetensors_" + std::to_string(::getpid()));
    std::filesystem::create_directories(path);
    return path;
  }();
  std::ofstream(folder / "model.safetensors", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const auto source = safetensors_source(folder.string());
    std::vector<float> values(6);
    if (source->contains("a")) source->read({"a", 3, 4, {1, 3}, {1, 4}}, values);
    if (source->contains("b")) source->read({"b", 7, 0, {1, 7}, {0, 1}}, values);
  } catch (const Error&) {
  }
  return 0;
}
