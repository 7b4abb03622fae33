// Slices of plans: any bytes are an InvalidPlan or a plan of one rank that its readers survive and
// that all others refuse.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/little_endian.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "plan/file/slice_frame.h"

namespace {

using contextile::Plan;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kSliceBytesAt = 16;
constexpr std::size_t kNumSectionsAt = 40;
constexpr std::size_t kRankAt = 48;
constexpr std::size_t kManifestBytesAt = 56;

void load(std::span<const std::uint8_t> bytes) {
  Plan plan;
  try {
    plan = contextile::deserialize_slice(bytes, "fuzz");
  } catch (const contextile::InvalidPlan&) {  // the only way to refuse
    return;
  }
  if (!plan.slice_of.valid() || contextile::verify(plan).ok()) std::abort();
  static_cast<void>(contextile::local_ranges(plan, plan.slice_of));
  try {
    static_cast<void>(contextile::serialize(plan));
    std::abort();
  } catch (const contextile::InvalidPlan&) {
  }
}

// Repairs size and checksum, so that the sections' sizes and zstd are reached.
void load_with_header_repaired(std::span<const std::uint8_t> input) {
  Bytes bytes(input.begin(), input.end());
  contextile::put(bytes, kSliceBytesAt, bytes.size());
  contextile::put_checksum(bytes, contextile::checksum_of(bytes));
  load(bytes);
}

// Puts the input's two sections into a valid frame, so that the FlatBuffers are reached. The corpus
// holds slices whose sections are not compressed.
void load_sections(std::span<const std::uint8_t> input) {
  constexpr std::uint64_t kMostSections = 64;
  const std::uint64_t num_sections =
      std::clamp<std::uint64_t>(contextile::get(input, kNumSectionsAt), 2, kMostSections);
  const std::uint64_t rank = contextile::get(input, kRankAt) % (num_sections - 1);
  const std::uint64_t begin = std::min<std::uint64_t>(
      contextile::SliceHeader::kBytes + num_sections * contextile::SliceHeader::kTableBytes,
      input.size());
  const auto sections = input.subspan(begin);
  const std::uint64_t manifest_bytes =
      std::min<std::uint64_t>(contextile::get(input, kManifestBytesAt), sections.size());
  const auto manifest = sections.first(manifest_bytes);
  const auto device = sections.subspan(
      std::min<std::uint64_t>(contextile::aligned_to_8(manifest_bytes), sections.size()));
  std::vector<contextile::ContentId> contents(num_sections);
  contents[0] = contextile::identify(manifest);
  contents[rank + 1] = contextile::identify(device);
  load(contextile::write_slice_frame(contents, {contents[0], {manifest.begin(), manifest.end()}},
                                     {contents[rank + 1], {device.begin(), device.end()}},
                                     contextile::Rank{static_cast<std::int32_t>(rank)}));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  load(bytes);
  if (size < contextile::SliceHeader::kBytes) return 0;
  load_with_header_repaired(bytes);
  load_sections(bytes);
  return 0;
}
