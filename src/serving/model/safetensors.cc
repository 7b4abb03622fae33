#define XXH_INLINE_ALL
#include <xxhash.h>

// The safetensors format: 8 bytes with the length of a header, a JSON object of tensors by name
// with dtype, shape and place, then their bytes (huggingface/safetensors, "Format").
#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/half.h"
#include "base/little_endian.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "serving/model/tensor_source.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // what the format's own reader takes

enum class Element : std::uint8_t { kF32, kBf16, kF16 };

struct StoredTensor {
  std::span<const std::uint8_t> bytes;
  std::vector<std::int64_t> shape;
  std::optional<Element> element;  // none: a kind that is not read here
  std::string element_name;
};

std::optional<Element> element_of(std::string_view name) {
  if (name == "F32") return Element::kF32;
  if (name == "BF16") return Element::kBf16;
  if (name == "F16") return Element::kF16;
  return std::nullopt;
}

std::int64_t bytes_of(Element element) { return element == Element::kF32 ? 4 : 2; }

float float_at(std::span<const std::uint8_t> bytes, std::size_t at, Element element) {
  if (element == Element::kF32) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(get(bytes, at, 4)));
  }
  const auto bits = static_cast<std::uint16_t>(get(bytes, at, 2));
  return element == Element::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// One file, mapped while its tensors are read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path)
      : file_(path, [](std::span<const std::uint8_t>, std::string_view) {
          return std::numeric_limits<std::uint64_t>::max();
        }) {
    const std::span<const std::uint8_t> bytes = file_.bytes();
    CONTEXTILE_CHECK(bytes.size() >= 8, "{}: expected a safetensors file, found {} bytes",
                     file_.name(), bytes.size());
    const auto header_bytes = get(bytes, 0);
    CONTEXTILE_CHECK(header_bytes <= kMaxHeaderBytes && header_bytes <= bytes.size() - 8,
                     "{}: expected a safetensors header of at most {} bytes, found {}",
                     file_.name(), std::min<std::uint64_t>(kMaxHeaderBytes, bytes.size() - 8),
                     header_bytes);
    data_ = bytes.subspan(8 + header_bytes);
    const json header = parse_json(file_.text().substr(8, header_bytes), file_.name());
    CONTEXTILE_CHECK(header.is_object(), "{}: expected an object of tensors, found {}",
                     file_.name(), header.type_name());
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") tensors_.emplace(name, tensor_of(name, entry));
    }
    check_places();
  }

  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return file_.bytes(); }
  [[nodiscard]] const std::string& path() const { return file_.name(); }
  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  [[nodiscard]] StoredTensor tensor_of(const std::string& name, const json& entry) const {
    try {
      StoredTensor tensor;
      tensor.element_name = entry.at("dtype").get<std::string>();
      tensor.element = element_of(tensor.element_name);
      tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
      CONTEXTILE_CHECK(
          offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= data_.size(),
          "{}, tensor {}: expected data_offsets inside {} bytes, found {}", file_.name(),
          quote(name), data_.size(), entry.at("data_offsets").dump());
      tensor.bytes = data_.subspan(offsets[0], offsets[1] - offsets[0]);
      return tensor;
    } catch (const json::exception& error) {
      fail_argument("{}, tensor {}: expected dtype, shape and data_offsets: {}", file_.name(),
                    quote(name), json_reason(error));
    }
  }

  // Checks that no byte belongs to two tensors.
  void check_places() const {
    std::vector<std::pair<std::span<const std::uint8_t>, std::string_view>> places;
    for (const auto& [name, tensor] : tensors_) {
      if (!tensor.bytes.empty()) places.emplace_back(tensor.bytes, name);
    }
    std::ranges::sort(places, {}, [](const auto& place) { return place.first.data(); });
    for (std::size_t i = 1; i < places.size(); ++i) {
      CONTEXTILE_CHECK(
          places[i - 1].first.data() + places[i - 1].first.size() <= places[i].first.data(),
          "{}: expected tensors with bytes of their own, found {} and {} overlapping", file_.name(),
          quote(places[i - 1].second), quote(places[i].second));
    }
  }

  FileBytes file_;
  std::span<const std::uint8_t> data_;
  std::map<std::string, StoredTensor> tensors_;
};

class SafetensorsSource final : public TensorSource {
 public:
  explicit SafetensorsSource(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      files_.push_back(std::make_unique<SafetensorsFile>(path));
      for (const auto& [name, tensor] : files_.back()->tensors()) {
        CONTEXTILE_CHECK(places_.emplace(name, Place{files_.back().get(), &tensor}).second,
                         "{}: expected every tensor in one file, found {} in another, too", path,
                         quote(name));
      }
    }
  }

  [[nodiscard]] bool contains(const std::string& name) const override {
    return places_.contains(name);
  }

  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, place] : places_) names.push_back(name);
    return names;
  }

  [[nodiscard]] bool is_bf16(const std::string& name) const override {
    const auto found = places_.find(name);
    return found != places_.end() && found->second.tensor->element == Element::kBf16;
  }

  void read(const MatrixPart& part, std::span<float> out) const override {
    const StoredTensor& tensor = tensor_of(part);
    for_each_element(part, bytes_of(*tensor.element), [&](std::size_t i, std::size_t at) {
      out[i] = float_at(tensor.bytes, at, *tensor.element);
    });
  }

  void read_bf16(const MatrixPart& part, std::span<std::uint16_t> out) const override {
    const StoredTensor& tensor = tensor_of(part);
    for_each_element(part, 2, [&](std::size_t i, std::size_t at) {
      out[i] = static_cast<std::uint16_t>(get(tensor.bytes, at, 2));
    });
  }

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  [[nodiscard]] const StoredTensor& tensor_of(const MatrixPart& part) const {
    const auto found = places_.find(part.name);
    CONTEXTILE_CHECK(found != places_.end(), "{}: expected a tensor {}, found none",
                     files_.front()->path(), part.name);
    check_tensor(*found->second.file, *found->second.tensor, part);
    return *found->second.tensor;
  }

  // take(i, at): the i-th element of the part has its bytes at `at`.
  template <typename Take>
  static void for_each_element(const MatrixPart& part, std::int64_t element_bytes,
                               const Take& take) {
    const std::int64_t row_length = std::max<std::int64_t>(part.columns, 1);
    const std::int64_t first = part.index * part.rows * row_length;
    std::size_t i = 0;
    for (std::int64_t row = part.row_range.begin; row < part.row_range.end; ++row) {
      for (std::int64_t c = part.column_range.begin; c < part.column_range.end; ++c) {
        take(i++, static_cast<std::size_t>((first + row * row_length + c) * element_bytes));
      }
    }
  }

  static void check_tensor(const SafetensorsFile& file, const StoredTensor& tensor,
                           const MatrixPart& part) {
    std::vector<std::int64_t> shape = {part.rows};
    if (part.columns > 0) shape.push_back(part.columns);
    if (part.num_matrices > 0) shape.insert(shape.begin(), part.num_matrices);
    CONTEXTILE_CHECK(tensor.shape == shape, "{}, tensor {}: expected the shape [{}], found [{}]",
                     file.path(), part.name, fmt::join(shape, ", "), fmt::join(tensor.shape, ", "));
    CONTEXTILE_CHECK(tensor.element, "{}, tensor {}: expected F32, BF16 or F16, found {}",
                     file.path(), part.name, quote(tensor.element_name));
    auto size = static_cast<std::uint64_t>(bytes_of(*tensor.element));
    for (const std::int64_t count : shape) size *= static_cast<std::uint64_t>(count);
    CONTEXTILE_CHECK(tensor.bytes.size() == size, "{}, tensor {}: expected {} bytes, found {}",
                     file.path(), part.name, size, tensor.bytes.size());
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
};

// The files that an index names, each once. They are in the index's folder.
std::vector<std::string> files_of_index(const std::filesystem::path& index) {
  const FileBytes file(index.string(), expect_text("an index of safetensors files"));
  const json document = parse_json(file.text(), file.name());
  std::set<std::string> names;
  try {
    for (const auto& [tensor, name] : document.at("weight_map").items()) {
      const auto path = name.get<std::string>();
      CONTEXTILE_CHECK(std::filesystem::path(path).filename() == path,
                       "{}: expected names of files in its folder, found {}", file.name(),
                       quote(path));
      names.insert(path);
    }
  } catch (const json::exception& error) {
    fail_argument("{}: expected a weight_map of names of files: {}", file.name(),
                  json_reason(error));
  }
  CONTEXTILE_CHECK(!names.empty(), "{}: expected names of files, found none", file.name());
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back((index.parent_path() / name).string());
  return paths;
}

std::vector<std::string> files_of(const std::string& folder) {
  const std::filesystem::path index =
      std::filesystem::path(folder) / "model.safetensors.index.json";
  if (std::filesystem::exists(index)) return files_of_index(index);
  return {(std::filesystem::path(folder) / "model.safetensors").string()};
}

// Adds the beginning of a file, where its header is, and pieces at even distances.
void add_samples(std::span<const std::uint8_t> bytes, XXH3_state_t& state) {
  constexpr std::size_t kHeader = std::size_t{1} << 20;
  constexpr std::size_t kPiece = std::size_t{4} << 10;
  constexpr std::size_t kPieces = std::size_t{4} << 10;
  const std::uint64_t size = bytes.size();
  XXH3_64bits_update(&state, &size, sizeof size);
  const auto add = [&](std::size_t begin, std::size_t count) {
    const auto part = bytes.subspan(begin, std::min(count, bytes.size() - begin));
    XXH3_64bits_update(&state, part.data(), part.size());
  };
  if (bytes.size() <= kHeader + kPiece * kPieces) return add(0, bytes.size());
  add(0, kHeader);
  const std::size_t step = (bytes.size() - kHeader - kPiece) / (kPieces - 1);
  for (std::size_t i = 0; i < kPieces; ++i) add(kHeader + i * step, kPiece);
}

}  // namespace

std::unique_ptr<TensorSource> safetensors_source(const std::string& folder) {
  return std::make_unique<SafetensorsSource>(files_of(folder));
}

std::uint64_t weights_digest(const std::string& folder) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const std::string& path : files_of(folder)) {
    const std::string name = std::filesystem::path(path).filename().string();
    XXH3_64bits_update(state.get(), name.data(), name.size());
    const SafetensorsFile file(path);
    add_samples(file.bytes(), *state);
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace contextile
