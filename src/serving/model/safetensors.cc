#define XXH_INLINE_ALL
#include <xxhash.h>

// The safetensors format: 8 bytes with the length of a header, a JSON object of tensors by name
// with dtype, shape and place, then their bytes (huggingface/safetensors, "Format").
#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/half.h"
#include "base/interrupt.h"
#include "base/little_endian.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/steady_file.h"
#include "serving/model/model_file.h"
#include "serving/model/tensor_source.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // what the format's own reader takes

enum class Element : std::uint8_t { kF32, kBf16, kF16 };

struct StoredTensor {
  std::uint64_t begin = 0;  // where its bytes are in the file
  std::uint64_t num_bytes = 0;
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

// One file, open while its tensors are read. Its bytes are never in memory as a whole: those of a
// tensor pass through a small buffer into the part that needs them.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : file_(path) {
    const std::uint64_t size = file_.size();
    CONTEXTILE_CHECK(size >= kLengthBytes, "{}: expected a safetensors file, found {} bytes",
                     file_.name(), size);
    std::array<std::uint8_t, kLengthBytes> length{};
    file_.read(0, length);
    const auto header_bytes = get(length, 0);
    CONTEXTILE_CHECK(header_bytes <= kMaxHeaderBytes && header_bytes <= size - kLengthBytes,
                     "{}: expected a safetensors header of at most {} bytes, found {}",
                     file_.name(), std::min<std::uint64_t>(kMaxHeaderBytes, size - kLengthBytes),
                     header_bytes);
    data_begin_ = kLengthBytes + header_bytes;
    std::vector<std::uint8_t> text(header_bytes);
    file_.read(kLengthBytes, text);
    const json header =
        parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, file_.name());
    CONTEXTILE_CHECK(header.is_object(), "{}: expected an object of tensors, found {}",
                     file_.name(), header.type_name());
    for (const auto& [name, entry] : header.items()) {
      if (name != "__metadata__") tensors_.emplace(name, tensor_of(name, entry));
    }
    check_places();
  }

  [[nodiscard]] const SteadyFile& file() const { return file_; }
  [[nodiscard]] const std::string& path() const { return file_.name(); }
  [[nodiscard]] const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

 private:
  static constexpr std::size_t kLengthBytes = 8;

  [[nodiscard]] StoredTensor tensor_of(const std::string& name, const json& entry) const {
    try {
      StoredTensor tensor;
      tensor.element_name = entry.at("dtype").get<std::string>();
      tensor.element = element_of(tensor.element_name);
      tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
      const std::uint64_t data_bytes = file_.size() - data_begin_;
      CONTEXTILE_CHECK(offsets.size() == 2 && offsets[0] <= offsets[1] && offsets[1] <= data_bytes,
                       "{}, tensor {}: expected data_offsets inside {} bytes, found {}",
                       file_.name(), quote(name), data_bytes, entry.at("data_offsets").dump());
      tensor.begin = data_begin_ + offsets[0];
      tensor.num_bytes = offsets[1] - offsets[0];
      return tensor;
    } catch (const json::exception& error) {
      fail_argument("{}, tensor {}: expected dtype, shape and data_offsets: {}", file_.name(),
                    quote(name), json_reason(error));
    }
  }

  // Checks that no byte belongs to two tensors.
  void check_places() const {
    struct Place {
      std::uint64_t begin;
      std::uint64_t end;
      std::string_view name;
    };
    std::vector<Place> places;
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.num_bytes > 0) {
        places.push_back({tensor.begin, tensor.begin + tensor.num_bytes, name});
      }
    }
    std::ranges::sort(places, {}, &Place::begin);
    for (std::size_t i = 1; i < places.size(); ++i) {
      CONTEXTILE_CHECK(places[i - 1].end <= places[i].begin,
                       "{}: expected tensors with bytes of their own, found {} and {} overlapping",
                       file_.name(), quote(places[i - 1].name), quote(places[i].name));
    }
  }

  SteadyFile file_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, StoredTensor> tensors_;
};

// Reads parts of the tensors of one file, piece by piece.
class PartReader {
 public:
  // The part must lie in the tensor, whose elements have `element_bytes` bytes each.
  PartReader(const SteadyFile& file, const StoredTensor& tensor, const MatrixPart& part,
             std::int64_t element_bytes)
      : file_(file),
        part_(part),
        element_bytes_(element_bytes),
        row_length_(std::max<std::int64_t>(part.columns, 1)),
        width_(part.column_range.size()),
        begin_(static_cast<std::int64_t>(tensor.begin) +
               part.index * part.rows * row_length_ * element_bytes) {}

  // take(i, bytes): the bytes of elements, the i-th of the part first. All come once, in order.
  template <typename Take>
  void for_each_piece(const Take& take) {
    const Range rows = part_.row_range;
    if (width_ == row_length_) return read_run(rows.begin, part_.size(), take);
    // Rows of which little is left out are read whole, several at a time: a call of the system for
    // each would take longer than copying what is not needed.
    constexpr std::int64_t kSmallGapBytes = std::int64_t{4} << 10;
    const bool has_gaps = (row_length_ - width_) * element_bytes_ > kSmallGapBytes;
    const std::int64_t at_once =
        has_gaps ? 1 : std::max<std::int64_t>(kPieceBytes / (row_length_ * element_bytes_), 1);
    for (std::int64_t row = rows.begin; row < rows.end; row += at_once) {
      const std::int64_t count = std::min(at_once, rows.end - row);
      if (count == 1) {
        read_run(row, width_, take);
      } else {
        read_rows(row, count, take);
      }
      i_ += static_cast<std::size_t>(count * width_);
    }
  }

 private:
  static constexpr std::int64_t kPieceBytes = std::int64_t{1} << 18;

  // The place in the file of the part's first element of a row.
  [[nodiscard]] std::int64_t place_of(std::int64_t row) const {
    return begin_ + (row * row_length_ + part_.column_range.begin) * element_bytes_;
  }

  std::span<const std::uint8_t> read(std::int64_t offset, std::int64_t num_bytes) {
    check_interrupt();
    buffer_.resize(std::max(buffer_.size(), static_cast<std::size_t>(num_bytes)));
    const auto piece = std::span(buffer_).first(static_cast<std::size_t>(num_bytes));
    file_.read(static_cast<std::uint64_t>(offset), piece);
    return piece;
  }

  // Elements that follow each other in the file, from the first of a row on.
  template <typename Take>
  void read_run(std::int64_t row, std::int64_t count, const Take& take) {
    const std::int64_t at_once = kPieceBytes / element_bytes_;
    for (std::int64_t done = 0; done < count; done += at_once) {
      const std::int64_t size = std::min(at_once, count - done);
      take(i_ + static_cast<std::size_t>(done),
           read(place_of(row) + done * element_bytes_, size * element_bytes_));
    }
  }

  template <typename Take>
  void read_rows(std::int64_t row, std::int64_t count, const Take& take) {
    const std::int64_t row_bytes = row_length_ * element_bytes_;
    const std::int64_t width_bytes = width_ * element_bytes_;
    const auto piece = read(place_of(row), (count - 1) * row_bytes + width_bytes);
    for (std::int64_t r = 0; r < count; ++r) {
      take(i_ + static_cast<std::size_t>(r * width_),
           piece.subspan(static_cast<std::size_t>(r * row_bytes),
                         static_cast<std::size_t>(width_bytes)));
    }
  }

  const SteadyFile& file_;
  const MatrixPart& part_;
  const std::int64_t element_bytes_;
  const std::int64_t row_length_;
  const std::int64_t width_;
  const std::int64_t begin_;  // of the matrix in the file
  std::size_t i_ = 0;         // elements that were taken, of whole rows
  std::vector<std::uint8_t> buffer_;
};

class SafetensorsSource final : public TensorSource {
 public:
  explicit SafetensorsSource(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      files_.push_back(std::make_unique<SafetensorsFile>(model_file(path)));
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
    const auto& [file, tensor] = place_of(part);
    const Element element = *tensor->element;
    const auto size = static_cast<std::size_t>(bytes_of(element));
    PartReader(file->file(), *tensor, part, bytes_of(element))
        .for_each_piece([&](std::size_t first, std::span<const std::uint8_t> bytes) {
          for (std::size_t i = 0; i < bytes.size() / size; ++i) {
            out[first + i] = float_at(bytes, i * size, element);
          }
        });
  }

  void read_bf16(const MatrixPart& part, std::span<std::uint16_t> out) const override {
    const auto& [file, tensor] = place_of(part);
    PartReader(file->file(), *tensor, part, 2)
        .for_each_piece([&](std::size_t first, std::span<const std::uint8_t> bytes) {
          for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
            out[first + i] = static_cast<std::uint16_t>(get(bytes, 2 * i, 2));
          }
        });
  }

 private:
  struct Place {
    const SafetensorsFile* file;
    const StoredTensor* tensor;
  };

  [[nodiscard]] const Place& place_of(const MatrixPart& part) const {
    const auto found = places_.find(part.name);
    CONTEXTILE_CHECK(found != places_.end(), "{}: expected a tensor {}, found none",
                     files_.front()->path(), part.name);
    check_tensor(*found->second.file, *found->second.tensor, part);
    return found->second;
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
    CONTEXTILE_CHECK(tensor.num_bytes == size, "{}, tensor {}: expected {} bytes, found {}",
                     file.path(), part.name, size, tensor.num_bytes);
  }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
};

// The files that an index names, each once. They are in the index's folder.
std::vector<std::string> files_of_index(const std::filesystem::path& index) {
  const FileBytes file(model_file(index.string()), expect_text("an index of safetensors files"));
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
  paths.reserve(names.size());
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
void add_samples(const SteadyFile& file, XXH3_state_t& state) {
  constexpr std::uint64_t kHeader = std::uint64_t{1} << 20;
  constexpr std::uint64_t kPiece = std::uint64_t{4} << 10;
  constexpr std::uint64_t kPieces = std::uint64_t{4} << 10;
  const std::uint64_t size = file.size();
  XXH3_64bits_update(&state, &size, sizeof size);
  std::vector<std::uint8_t> buffer(std::min(size, kHeader));
  const auto add = [&](std::uint64_t begin, std::uint64_t count) {
    const auto part = std::span(buffer).first(std::min(count, size - begin));
    file.read(begin, part);
    XXH3_64bits_update(&state, part.data(), part.size());
  };
  if (size <= kHeader + kPiece * kPieces) {
    for (std::uint64_t begin = 0; begin < size; begin += kHeader) add(begin, kHeader);
    return;
  }
  add(0, kHeader);
  const std::uint64_t step = (size - kHeader - kPiece) / (kPieces - 1);
  for (std::uint64_t i = 0; i < kPieces; ++i) add(kHeader + i * step, kPiece);
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
    const SafetensorsFile file(model_file(path));
    add_samples(file.file(), *state);
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace contextile
