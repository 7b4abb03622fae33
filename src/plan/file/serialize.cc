#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <exception>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/compression.h"
#include "plan/file/device_section.h"
#include "plan/file/magnitudes.h"
#include "plan/file/manifest.h"
#include "plan/file/plan_file.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;

// Calls work(i) for every i below `count`, in parallel. If several throw, the lowest one's error
// comes out, whatever the timing.
template <typename Work>
void for_each_index(std::size_t count, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  tbb::parallel_for(std::size_t{0}, count, [&](std::size_t i) {
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

// Sections of a plan: the manifest, then every rank. Checks what all of them rely on.
std::size_t num_sections(const Plan& plan) {
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

// The content of a section, which is what its row in the table says.
Bytes content_of(Decompressor& decompressor, const SectionView& section, const FilePlace& place) {
  Bytes content = decompressor.decompress(section.stored, section.content.bytes, place);
  const ContentId found = identify(content);
  if (found.hash != section.content.hash) {
    place.fail("expected hash {} (of the content), found {}: the section is corrupt",
               digest_text(found.hash), digest_text(section.content.hash));
  }
  return content;
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
  std::vector<Section> sections(num_sections(plan));
  std::vector<ContentId> contents(sections.size());
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
  return write_frame(sections);
}

Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where) {
  const PlanFileViews views = read_frame(bytes, where);
  tbb::enumerable_thread_specific<Decompressor> decompressors;
  DecodedManifest manifest = decode_manifest(
      content_of(decompressors.local(), views.manifest, {.file = where, .section = "manifest"}),
      where);
  const auto num_devices = static_cast<std::size_t>(manifest.plan.num_devices());
  if (num_devices != views.devices.size()) {
    fail_plan("{}: header: expected {} devices (of the manifest), found {}", where, num_devices,
              views.devices.size());
  }
  std::vector<std::vector<DeviceProgram>> devices(num_devices);
  for_each_index(num_devices, [&](std::size_t rank) {
    const FilePlace place{
        .file = where, .section = "device section", .rank = static_cast<std::int64_t>(rank)};
    devices[rank] = decode_device(
        manifest, content_of(decompressors.local(), views.devices[rank], place), rank, where);
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

}  // namespace contextile
