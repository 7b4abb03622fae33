// Files of a model's folder that are no regular files are refused, not waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "contextile/base.h"
#include "contextile/serving/completion_server.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/tensor_source.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& read) {
  try {
    read();
  } catch (const IoError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelFiles, ThatAreNoRegularFilesAreRefused) {
  std::string pattern = (fs::temp_directory_path() / "contextile-XXXXXX").string();
  const fs::path folder = mkdtemp(pattern.data());
  const struct {
    const char* name;
    std::function<void()> read;
  } files[] = {
      {"config.json", [&] { static_cast<void>(read_decoder_config(folder.string())); }},
      {"tokenizer.json", [&] { static_cast<void>(load_tokenizer(folder.string())); }},
      {"generation_config.json",
       [&] { static_cast<void>(read_generation_defaults(folder.string())); }},
      {"model.safetensors", [&] { static_cast<void>(safetensors_source(folder.string())); }},
      {"model.safetensors", [&] { static_cast<void>(weights_digest(folder.string())); }},
      {"model.safetensors.index.json",
       [&] { static_cast<void>(safetensors_source(folder.string())); }},
  };
  for (const auto& file : files) {
    const fs::path path = folder / file.name;
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    EXPECT_EQ(error_of(file.read), path.string() + ": expected a regular file, found a pipe");
    fs::remove(path);
    fs::create_directory(path);
    EXPECT_THAT(error_of(file.read), HasSubstr("expected a regular file, found a folder"));
    fs::remove(path);
    fs::create_symlink("/dev/zero", path);
    EXPECT_THAT(error_of(file.read), HasSubstr("expected a regular file, found a device"));
    fs::remove(path);
  }
  fs::remove_all(folder);
}

// Models of many experts in one file. A reader that looks through the header at the end of every
// tensor takes minutes.
TEST(ModelFiles, MayHoldManyThousandTensors) {
  std::string pattern = (fs::temp_directory_path() / "contextile-XXXXXX").string();
  const fs::path folder = mkdtemp(pattern.data());
  constexpr int kCount = 100'000;
  std::string header = R"({"__metadata__":{"format":"pt"})";
  for (int i = 0; i < kCount; ++i) {
    header += ",\"model.layers.7.mlp.experts." + std::to_string(i) +
              R"(.up_proj.weight":{"dtype":"F32","shape":[1],"data_offsets":[)" +
              std::to_string(4 * i) + ',' + std::to_string(4 * i + 4) + "]}";
  }
  header += '}';
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  std::ofstream(folder / "model.safetensors", std::ios::binary)
      << length << header << std::string(std::size_t{4} * kCount, '\0');
  const auto source = safetensors_source(folder.string());
  EXPECT_TRUE(source->contains("model.layers.7.mlp.experts.99999.up_proj.weight"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace contextile
