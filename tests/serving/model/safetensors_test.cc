// Files of weights, read in parts.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/half.h"
#include "base/rng.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/tensor_source.h"
#include "support/message_of.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Matrix {
  std::int64_t count = 0;  // of matrices in the tensor; 0: it is one
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // 0: a vector
  std::string dtype;         // F32, BF16 or F16

  [[nodiscard]] std::int64_t size() const {
    return std::max<std::int64_t>(count, 1) * rows * std::max<std::int64_t>(columns, 1);
  }
  [[nodiscard]] std::int64_t element_bytes() const { return dtype == "F32" ? 4 : 2; }
  [[nodiscard]] std::string shape() const {
    std::string text = count > 0 ? fmt::format("{},", count) : "";
    text += std::to_string(rows);
    return text + (columns > 0 ? fmt::format(",{}", columns) : "");
  }
};

// An element as the file has it: every place has a value of its own, modulo a prime.
std::uint32_t bits_of(std::int64_t i, const std::string& dtype) {
  const auto value = static_cast<std::uint16_t>(i % 32'003);
  return dtype == "F32" ? std::bit_cast<std::uint32_t>(static_cast<float>(i)) : value;
}
float value_of(std::int64_t i, const std::string& dtype) {
  const std::uint32_t bits = bits_of(i, dtype);
  if (dtype == "F32") return std::bit_cast<float>(bits);
  const auto half = static_cast<std::uint16_t>(bits);
  return dtype == "BF16" ? bf16_to_float(half) : f16_to_float(half);
}

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("contextile_weights_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    path_ = folder_ / "model.safetensors";
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Writes the tensors t0, t1, ….
  void write(const std::vector<Matrix>& tensors) const {
    std::string header = "{";
    std::string data;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Matrix& tensor = tensors[t];
      const std::size_t begin = data.size();
      for (std::int64_t i = 0; i < tensor.size(); ++i) {
        const std::uint32_t bits = bits_of(i, tensor.dtype);
        for (int b = 0; b < tensor.element_bytes(); ++b) {
          data += static_cast<char>(bits >> (8 * b) & 0xffU);
        }
      }
      header += fmt::format(R"({}"t{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                            t == 0 ? "" : ",", t, tensor.dtype, tensor.shape(), begin, data.size());
    }
    header += "}";
    std::ofstream file(path_, std::ios::binary);
    for (int b = 0; b < 8; ++b) file << static_cast<char>(header.size() >> (8 * b) & 0xffU);
    file << header << data;
    file.close();
    fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }

  fs::path folder_;
  std::string path_;
};

// Reads a part and compares it with the elements at its places.
void expect_part(const TensorSource& source, const Matrix& tensor, const MatrixPart& part) {
  const std::int64_t row_length = std::max<std::int64_t>(tensor.columns, 1);
  std::vector<float> found(static_cast<std::size_t>(part.size()), -1);
  source.read(part, found);
  std::vector<std::uint16_t> bits(found.size());
  if (tensor.dtype == "BF16") source.read_bf16(part, bits);
  std::size_t i = 0;
  for (std::int64_t row = part.row_range.begin; row < part.row_range.end; ++row) {
    for (std::int64_t c = part.column_range.begin; c < part.column_range.end; ++c, ++i) {
      const std::int64_t at = (part.index * tensor.rows + row) * row_length + c;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]),
                std::bit_cast<std::uint32_t>(value_of(at, tensor.dtype)))
          << part.name << " row " << row << " column " << c;
      if (tensor.dtype == "BF16") {
        ASSERT_EQ(bits[i], bits_of(at, tensor.dtype));
      }
    }
  }
}

// Rows shorter than a piece and longer, gaps that are read and gaps that are left out, pieces that
// end within a row.
TEST_F(Safetensors, GiveEveryPartOfEveryShape) {
  const std::vector<Matrix> tensors = {
      {0, 7, 5, "F32"},       {0, 300'000, 0, "BF16"}, {3, 40, 33, "F16"}, {0, 90, 3000, "BF16"},
      {2, 12, 20'000, "F32"}, {0, 2, 150'000, "F32"},  {0, 1, 1, "BF16"},  {0, 0, 4, "F32"},
  };
  write(tensors);
  const auto source = safetensors_source(folder_);
  Rng rng(3);
  const auto up_to = [&](std::int64_t most) {
    return static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(most + 1));
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const Matrix& tensor = tensors[t];
    const std::int64_t width = std::max<std::int64_t>(tensor.columns, 1);
    for (int i = 0; i < 12; ++i) {
      MatrixPart part{fmt::format("t{}", t), tensor.rows, tensor.columns,
                      {0, tensor.rows},      {0, width},  tensor.count};
      if (tensor.count > 0) part.index = up_to(tensor.count - 1);
      if (i % 3 != 0) part.row_range = {up_to(tensor.rows), tensor.rows};
      if (i % 4 != 0) {
        part.column_range.begin = up_to(width);
        part.column_range.end = part.column_range.begin + up_to(width - part.column_range.begin);
      }
      expect_part(*source, tensor, part);
    }
  }
}

TEST_F(Safetensors, ThatShrinkAreAnErrorAndNoSignal) {
  write({{0, 100, 1000, "F32"}});
  const auto source = safetensors_source(folder_);
  const auto size = fs::file_size(path_);
  ASSERT_EQ(::truncate(path_.c_str(), 4096), 0);
  std::vector<float> values(100'000);
  EXPECT_EQ(message_of<IoError>([&] {
              source->read({"t0", 100, 1000, {0, 100}, {0, 1000}}, values);
              return 0;
            }),
            fmt::format("{}: expected {} bytes, found 4096: the file shrank while it was read",
                        path_, size));
}

TEST_F(Safetensors, ThatAreWrittenOverAreNoMixtureOfTwoModels) {
  write({{0, 100, 1000, "F32"}});
  const auto source = safetensors_source(folder_);
  std::vector<float> values(100'000);
  const MatrixPart whole{"t0", 100, 1000, {0, 100}, {0, 1000}};
  source->read(whole, values);
  fs::copy_file(path_, folder_ / "copy");
  std::ofstream(path_, std::ios::binary)
      << std::ifstream(folder_ / "copy", std::ios::binary).rdbuf();
  EXPECT_THAT(message_of<IoError>([&] {
                source->read(whole, values);
                return 0;
              }),
              HasSubstr("bytes that stay the same, found them written to"));
}

TEST_F(Safetensors, ThatAnotherFileReplacesAreReadToTheirEnd) {
  const Matrix tensor{0, 100, 1000, "F32"};
  write({tensor});
  const auto source = safetensors_source(folder_);
  std::ofstream(folder_ / "new") << "another file";
  fs::rename(folder_ / "new", path_);
  expect_part(*source, tensor, {"t0", 100, 1000, {0, 100}, {0, 1000}});
}

TEST_F(Safetensors, AreRegularFiles) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(message_of<IoError>([&] { return safetensors_source(folder_) != nullptr; }),
              HasSubstr(path_ + ": expected a regular file, found a pipe"));
  EXPECT_THAT(message_of<IoError>([&] { return weights_digest(folder_); }),
              HasSubstr("expected a regular file"));
}

TEST_F(Safetensors, HaveADigestOfTheirSamples) {
  write({{0, 3000, 2000, "F32"}});  // larger than what is sampled
  const std::uint64_t digest = weights_digest(folder_);
  EXPECT_EQ(digest, weights_digest(folder_));
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100'000);
  file.put('X');
  file.close();
  EXPECT_NE(digest, weights_digest(folder_)) << "the first bytes are in it whole";
}

}  // namespace
}  // namespace contextile
