// The source of a model's weights: named matrices of which any part can be read as fp32.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/base.h"

namespace contextile {

struct MatrixPart {
  std::string name;
  std::int64_t rows = 0;     // of the whole
  std::int64_t columns = 0;  // of the whole; 0: a vector of `rows`
  Range row_range;
  Range column_range;  // of a vector [0, 1)
  // Matrix `index` of a tensor of so many; 0: the tensor is one.
  std::int64_t num_matrices = 0;
  std::int64_t index = 0;

  [[nodiscard]] std::int64_t size() const { return row_range.size() * column_range.size(); }
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // True if the tensor is stored: false of a source that makes it up.
  [[nodiscard]] virtual bool contains(const std::string& name) const = 0;
  // The tensors that are stored; none of a source that makes them up.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;
  // True if the elements are stored as bf16.
  [[nodiscard]] virtual bool is_bf16(const std::string& name) const = 0;
  // `out` is row-major and has as many elements as the part. The second is for bf16 alone.
  virtual void read(const MatrixPart& part, std::span<float> out) const = 0;
  virtual void read_bf16(const MatrixPart& part, std::span<std::uint16_t> out) const = 0;
};

// Normally distributed with the variance 1 / columns. Vectors are 1 if their name ends in
// "norm.weight", and small otherwise. Every element depends only on the seed, the name and its
// place.
[[nodiscard]] std::unique_ptr<TensorSource> random_source(std::uint64_t seed);
// The files of a folder. Throws IoError, and InvalidArgument on a file that is no safetensors file.
[[nodiscard]] std::unique_ptr<TensorSource> safetensors_source(const std::string& folder);

}  // namespace contextile
