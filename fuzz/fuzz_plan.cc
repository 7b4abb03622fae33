// Plan files: any bytes are an InvalidPlan or a plan that every reader survives and that comes back
// from its own bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <ostream>
#include <span>
#include <streambuf>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "plan/file/plan_file.h"

namespace {

using contextile::Plan;
using Bytes = std::vector<std::uint8_t>;

class NullBuffer : public std::streambuf {
  int overflow(int c) override { return traits_type::not_eof(c); }
  std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
};

void use(const Plan& plan) {
  static_cast<void>(contextile::statistics(plan));
  static_cast<void>(contextile::verify(plan));
  NullBuffer nothing;
  std::ostream out(&nothing);
  contextile::export_json(plan, out, std::nullopt, contextile::ExportedHeadGroups::kOfBlocks);
  try {
    contextile::export_json(plan, out);  // in its even form, which not every plan has
  } catch (const contextile::InvalidPlan&) {
    return;
  }
}

void load(std::span<const std::uint8_t> bytes) {
  Plan plan;
  try {
    plan = contextile::deserialize(bytes, "fuzz");
  } catch (const contextile::InvalidPlan&) {  // the only way to refuse
    return;
  }
  use(plan);
  // An accepted plan need not be written the way the library writes it; the library's own bytes
  // must be stable.
  plan.digest = contextile::compute_digest(plan);
  const Bytes ours = contextile::serialize(plan);
  const Bytes again = contextile::serialize(contextile::deserialize(ours, "own bytes"));
  if (again != ours) std::abort();
}

constexpr std::size_t kFileBytesAt = 16;
constexpr std::size_t kNumSectionsAt = 40;

std::uint64_t get(std::span<const std::uint8_t> bytes, std::size_t at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

// Repairs size and checksum, so that the section table and zstd are reached.
void load_with_header_repaired(std::span<const std::uint8_t> input) {
  Bytes bytes(input.begin(), input.end());
  for (std::size_t i = 0; i < 8; ++i) {
    bytes[kFileBytesAt + i] = static_cast<std::uint8_t>(std::uint64_t{bytes.size()} >> (8 * i));
  }
  contextile::put_checksum(bytes, contextile::checksum_of(bytes));
  load(bytes);
}

// Puts the input's sections, as far as its table names some, into a valid frame, so that the
// FlatBuffers are reached. The corpus holds files whose sections are not compressed.
void load_sections(std::span<const std::uint8_t> input) {
  constexpr std::uint64_t kMostSections = 64;
  const std::uint64_t num_sections = std::min(get(input, kNumSectionsAt), kMostSections);
  std::vector<contextile::Section> sections;
  for (std::uint64_t i = 0; i < num_sections; ++i) {
    const std::size_t row =
        contextile::PlanFileHeader::kBytes + i * contextile::Section::kTableBytes;
    if (row + contextile::Section::kTableBytes > input.size()) return;
    const std::uint64_t offset = std::min<std::uint64_t>(get(input, row), input.size());
    const std::uint64_t size = std::min(get(input, row + 8), input.size() - offset);
    const auto content = input.subspan(offset, size);
    sections.push_back({contextile::identify(content), {content.begin(), content.end()}});
  }
  load(contextile::write_frame(sections));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::uint8_t> bytes(data, size);
  load(bytes);
  if (size < contextile::PlanFileHeader::kBytes) return 0;
  load_with_header_repaired(bytes);
  load_sections(bytes);
  return 0;
}
