#include <tbb/enumerable_thread_specific.h>

#include <exception>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/compression.h"
#include "plan/file/device_section.h"
#include "plan/file/magnitudes.h"
#include "plan/file/manifest.h"
#include "plan/file/plan_file.h"
#include "plan/file/slice_frame.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Calls work(i) for every i below `count`, in parallel. If several throw, the error of the lowest i
// is thrown, independent of timing.
template <typename Work>
void for_each_index(std::size_t count, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  parallel_for(std::size_t{0}, count, [&](std::size_t i) {
    try {
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Number of sections of a plan: the manifest, then every rank. Checks what all of them rely on.
std::size_t num_sections(const Plan& plan) {
  check_whole(plan, "plan to write");
  const auto num_devices = static_cast<std::size_t>(plan.num_devices());
  for (const PlanRound& round : plan.rounds) {
    if (round.devices.size() != num_devices) {
      fail_plan("plan to write: expected {} devices in every round, found {}", num_devices,
                round.devices.size());
    }
  }
  return 1 + num_devices;
}

Bytes encode_section(const Plan& plan, std::size_t section) {
  return section == 0 ? encode_manifest(plan) : encode_device(plan, section - 1);
}

// The content of a section, checked against its row in the table.
Bytes content_of(Decompressor& decompressor, const SectionView& section, const FilePlace& place) {
  Bytes content = decompressor.decompress(section.stored, section.content.bytes, place);
  const ContentId found = identify(content);
  if (found.hash != section.content.hash) {
    place.fail("expected hash {} (of the content), found {}: the section is corrupt",
               digest_text(found.hash), digest_text(section.content.hash));
  }
  return content;
}

// Makes every section; `contents` receives the sizes and hashes of their contents. Checks the
// plan's digest.
std::vector<Section> make_sections(const Plan& plan, std::vector<ContentId>& contents) {
  std::vector<Section> sections(num_sections(plan));
  contents.resize(sections.size());
  tbb::enumerable_thread_specific<Compressor> compressors;
  for_each_index(sections.size(), [&](std::size_t i) {
    const Bytes content = encode_section(plan, i);
    contents[i] = identify(content);
    sections[i] = {contents[i], compressors.local().compress(content)};
  });
  const std::uint64_t digest = digest_of(contents);
  if (plan.digest != digest) {
    fail_plan("plan to write: expected digest {} (compute_digest), found {}", digest_text(digest),
              digest_text(plan.digest));
  }
  return sections;
}

// Decodes the manifest, which must have as many devices as the frame.
DecodedManifest manifest_of(Decompressor& decompressor, const SectionView& section,
                            std::size_t num_devices, std::string_view where) {
  DecodedManifest manifest = decode_manifest(
      content_of(decompressor, section, {.file = where, .section = "manifest"}), where);
  if (std::cmp_not_equal(manifest.plan.num_devices(), num_devices)) {
    fail_plan("{}: header: expected {} devices (of the manifest), found {}", where,
              manifest.plan.num_devices(), num_devices);
  }
  return manifest;
}

std::vector<DeviceProgram> device_of(Decompressor& decompressor, const DecodedManifest& manifest,
                                     const SectionView& section, std::size_t rank,
                                     std::string_view where) {
  const FilePlace place{
      .file = where, .section = "device section", .rank = static_cast<std::int64_t>(rank)};
  return decode_device(manifest, content_of(decompressor, section, place), rank, where);
}

}  // namespace

std::vector<Bytes> encode_contents(const Plan& plan) {
  std::vector<Bytes> contents(num_sections(plan));
  for_each_index(contents.size(), [&](std::size_t i) { contents[i] = encode_section(plan, i); });
  return contents;
}

std::uint64_t compute_digest(const Plan& plan) {
  std::vector<ContentId> sections(num_sections(plan));
  for_each_index(sections.size(),
                 [&](std::size_t i) { sections[i] = identify(encode_section(plan, i)); });
  return digest_of(sections);
}

std::vector<std::uint8_t> serialize(const Plan& plan) {
  std::vector<ContentId> contents;
  return write_frame(make_sections(plan, contents));
}

Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where) {
  const PlanFileViews views = read_frame(bytes, where);
  const std::size_t num_devices = views.devices.size();
  tbb::enumerable_thread_specific<Decompressor> decompressors;
  DecodedManifest manifest = manifest_of(decompressors.local(), views.manifest, num_devices, where);
  std::vector<std::vector<DeviceProgram>> devices(num_devices);
  for_each_index(num_devices, [&](std::size_t rank) {
    devices[rank] = device_of(decompressors.local(), manifest, views.devices[rank], rank, where);
  });
  for (std::size_t r = 0; r < manifest.plan.rounds.size(); ++r) {
    std::vector<DeviceProgram>& round_devices = manifest.plan.rounds[r].devices;
    round_devices.reserve(num_devices);
    for (auto& device : devices) round_devices.push_back(std::move(device[r]));
  }
  manifest.plan.digest = views.header.digest;
  check_magnitudes(manifest.plan, where);
  return std::move(manifest.plan);
}

std::vector<Bytes> serialize_slices(const Plan& plan) {
  std::vector<ContentId> contents;
  const std::vector<Section> sections = make_sections(plan, contents);
  std::vector<Bytes> slices;
  for (std::size_t r = 1; r < sections.size(); ++r) {
    const Rank rank{static_cast<std::int32_t>(r - 1)};
    slices.push_back(write_slice_frame(contents, sections[0], sections[r], rank));
  }
  return slices;
}

Bytes serialize_slice(const Plan& plan, Rank rank) {
  CONTEXTILE_CHECK(rank.valid() && rank.value < plan.num_devices(),
                   "plan slice: expected a rank in [0, {}), found {}", plan.num_devices(),
                   rank.value);
  return std::move(serialize_slices(plan)[rank.index()]);
}

Plan deserialize_slice(std::span<const std::uint8_t> bytes, std::string_view where) {
  const SliceViews views = read_slice_frame(bytes, where);
  Decompressor decompressor;
  DecodedManifest manifest = manifest_of(decompressor, views.manifest, views.num_devices, where);
  std::vector<DeviceProgram> device =
      device_of(decompressor, manifest, views.device, views.rank.index(), where);
  for (std::size_t r = 0; r < manifest.plan.rounds.size(); ++r) {
    PlanRound& round = manifest.plan.rounds[r];
    // Other devices have empty programs, so that loops over all devices find a complete table.
    round.devices.assign(views.num_devices,
                         DeviceProgram{{}, std::vector<ProgramPair>(round.masks.size())});
    round.devices[views.rank.index()] = std::move(device[r]);
  }
  manifest.plan.digest = views.digest;
  manifest.plan.slice_of = views.rank;
  check_magnitudes(manifest.plan, where);
  return std::move(manifest.plan);
}

}  // namespace contextile
