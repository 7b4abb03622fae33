#include <bit>
#include <cstring>

#include "base/quote.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"

// Megatron-LM's index (megatron/core/datasets/indexed_dataset.py), little endian, no padding:
//   0  magic        9 bytes
//   9  version      u64, 1
//  17  dtype code   u8, of the tokens in the .bin file: 1 … 8
//  18  sequences    u64, N
//  26  indices      u64, M: one more than there are documents
//  34  lengths      N x i32, tokens
//      pointers     N x i64, bytes into the .bin
//      documents    M x i64, first sequence of every document, and N
//      modes        N x i8, only of multimodal data sets
namespace contextile {
namespace {

static_assert(std::endian::native == std::endian::little, "elements are loaded as they lie");

constexpr std::size_t kVersionAt = 9;
constexpr std::size_t kDtypeAt = 17;
constexpr std::size_t kSequencesAt = 18;
constexpr std::size_t kIndicesAt = 26;
constexpr std::size_t kLengthsAt = 34;
constexpr int kNumDtypes = 8;

std::uint64_t load_u64(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// The number of sequences, once the file is known to be exactly as long as its header says.
std::uint64_t checked_num_sequences(std::span<const std::uint8_t> bytes, std::string_view where) {
  CONTEXTILE_CHECK(bytes.size() >= kLengthsAt,
                   "{}: expected a Megatron-LM .idx header of {} bytes, found {} bytes", where,
                   kLengthsAt, bytes.size());
  const std::uint64_t version = load_u64(bytes, kVersionAt);
  CONTEXTILE_CHECK(version == 1, "{}: expected .idx version 1 at byte {}, found {}", where,
                   kVersionAt, version);
  const int dtype = bytes[kDtypeAt];
  CONTEXTILE_CHECK(dtype >= 1 && dtype <= kNumDtypes,
                   "{}: expected a dtype code of 1 to {} at byte {}, found {}", where, kNumDtypes,
                   kDtypeAt, dtype);

  constexpr std::uint64_t kBytesPerSequence = sizeof(std::int32_t) + sizeof(std::int64_t);
  const std::uint64_t num_sequences = load_u64(bytes, kSequencesAt);
  const std::uint64_t num_indices = load_u64(bytes, kIndicesAt);
  std::uint64_t rest_bytes = bytes.size() - kLengthsAt;
  CONTEXTILE_CHECK(num_sequences > 0, "{}: expected at least one sequence at byte {}, found none",
                   where, kSequencesAt);
  CONTEXTILE_CHECK(num_sequences <= rest_bytes / kBytesPerSequence,
                   "{}: expected {} bytes for each of {} sequences (byte {}), found {} bytes after "
                   "the header (truncated?)",
                   where, kBytesPerSequence, num_sequences, kSequencesAt, rest_bytes);
  rest_bytes -= num_sequences * kBytesPerSequence;
  CONTEXTILE_CHECK(num_indices <= rest_bytes / sizeof(std::int64_t),
                   "{}: expected 8 bytes for each of {} document indices (byte {}), found {} bytes "
                   "after the sequences (truncated?)",
                   where, num_indices, kIndicesAt, rest_bytes);
  rest_bytes -= num_indices * sizeof(std::int64_t);
  CONTEXTILE_CHECK(
      rest_bytes == 0 || rest_bytes == num_sequences,
      "{}: expected the end of the file at byte {} or {} bytes of modes, found {} bytes", where,
      bytes.size() - rest_bytes, num_sequences, rest_bytes);
  return num_sequences;
}

}  // namespace

std::vector<std::int64_t> parse_lengths_idx(std::span<const std::uint8_t> bytes,
                                            std::string_view where) {
  const std::string_view text = as_text(bytes);
  CONTEXTILE_CHECK(text.starts_with(kIdxMagic),
                   "{}: expected a Megatron-LM .idx file ({}), found {}", where, quote(kIdxMagic),
                   quote(text.substr(0, kIdxMagic.size())));
  const std::uint64_t count = checked_num_sequences(bytes, where);
  std::vector<std::int64_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t value = 0;
    std::memcpy(&value, bytes.data() + kLengthsAt + i * sizeof(value), sizeof(value));
    lengths[i] = checked_length(value, where, "index", i);
  }
  return lengths;
}

}  // namespace contextile
