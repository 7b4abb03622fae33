#include "transport/cuda/run_copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "transport/strided_copy.h"

namespace contextile::cuda {
namespace {

constexpr std::int64_t kMostRows = (std::int64_t{1} << 31) - 1;
// Longest row of a range. Its columns have 32 bits for words of any width.
constexpr std::int64_t kLongestRow = std::int64_t{1} << 30;

// Returns the widest access that the range allows.
std::int32_t word_bytes_of(const CopyRange& range) {
  std::uintptr_t all = reinterpret_cast<std::uintptr_t>(range.to) |
                       reinterpret_cast<std::uintptr_t>(range.from) |
                       static_cast<std::uintptr_t>(range.row_bytes);
  if (range.num_rows > 1) {
    all |= static_cast<std::uintptr_t>(range.to_stride) |
           static_cast<std::uintptr_t>(range.from_stride);
  }
  for (const std::int32_t width : {16, 4, 2}) {
    if (all % static_cast<std::uintptr_t>(width) == 0) return width;
  }
  return 1;
}

std::int64_t num_pieces_of(const CopyRange& range) {
  return (range.num_bytes() + CopyList::kBytesOfPiece - 1) / CopyList::kBytesOfPiece;
}

std::byte* writable(const std::byte* from) { return const_cast<std::byte*>(from); }

// The memory that a list touches.
Access access_of(const CopyList& list) {
  Access access;
  for (std::int32_t i = 0; i < list.num_ranges; ++i) {
    const CopyRange& range = list.ranges[i];
    access.reads.push_back(
        {writable(range.from), range.row_bytes, range.num_rows, range.from_stride});
    access.writes.push_back({range.to, range.row_bytes, range.num_rows, range.to_stride});
  }
  return access;
}

}  // namespace

void RunCopies::add(std::span<const Segment> from, std::span<const Segment> to) {
  SegmentCursor source(from);
  SegmentCursor target(to);
  while (!source.done() && !target.done()) {
    const std::int64_t bytes = std::min({source.run_bytes(), target.run_bytes(), kLongestRow});
    add_run(target.data(), source.data(), bytes);
    source.advance(bytes);
    target.advance(bytes);
  }
  end_range();
}

void RunCopies::flush() {
  if (list_.num_ranges == 0) return;
  const CopyRange& first = list_.ranges[0];
  if (list_.num_ranges == 1 && first.num_rows == 1) {
    driver_.copy(stream_, first.to, first.from, first.row_bytes);
  } else {
    launch();
  }
  list_.num_ranges = 0;
}

void RunCopies::add_run(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (open_.num_rows > 0 && !extend(to, from, bytes)) end_range();
  if (open_.num_rows > 0) return;
  open_ = {.to = to, .from = from, .row_bytes = bytes, .num_rows = 1};
}

// Makes a run a row of the open range if it lies behind the others at their distances.
bool RunCopies::extend(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes != open_.row_bytes || open_.num_rows == kMostRows) return false;
  const std::int64_t behind = open_.num_rows - 1;
  const std::int64_t to_stride = to - (open_.to + behind * open_.to_stride);
  const std::int64_t from_stride = from - (open_.from + behind * open_.from_stride);
  if (to_stride < bytes || from_stride < bytes) return false;
  if (behind > 0 && (to_stride != open_.to_stride || from_stride != open_.from_stride)) {
    return false;
  }
  open_.to_stride = to_stride;
  open_.from_stride = from_stride;
  ++open_.num_rows;
  return true;
}

void RunCopies::end_range() {
  if (open_.num_rows > 0) append(open_);
  open_ = {};
}

void RunCopies::append(CopyRange range) {
  if (list_.num_ranges == CopyList::kMostRanges) flush();
  range.word_bytes = word_bytes_of(range);
  const std::int32_t number = list_.num_ranges++;
  list_.ranges[number] = range;
  list_.end_piece[number] = (number == 0 ? 0 : list_.end_piece[number - 1]) + num_pieces_of(range);
}

void RunCopies::launch() {
  list_.shape.num_pieces = list_.end_piece[list_.num_ranges - 1];
  constexpr std::int64_t kWarps = CopyList::kThreads / 32;
  const std::int64_t blocks = (list_.shape.num_pieces + kWarps - 1) / kWarps;
  CONTEXTILE_CHECK(blocks < (std::int64_t{1} << 31),
                   "cuda copies: expected fewer than 2^45 bytes in a launch, found {} pieces of {}",
                   list_.shape.num_pieces, CopyList::kBytesOfPiece);
  driver_.launch(stream_,
                 {.module = "rows",
                  .kernel = "rows_copy",
                  .blocks_x = static_cast<std::int32_t>(blocks),
                  .threads = CopyList::kThreads},
                 std::as_bytes(std::span(&list_, 1)), [this] { return access_of(list_); });
}

}  // namespace contextile::cuda
