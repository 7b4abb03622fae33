#include <tbb/parallel_for.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/byte_budget.h"
#include "plan/file/byte_codec.h"
#include "plan/file/manifest.h"
#include "plan/file/plan_file.h"
#include "plan/file/program_codec.h"
#include "plan_generated.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;
constexpr std::size_t kMaxSectionBytes = FLATBUFFERS_MAX_BUFFER_SIZE / 2;

// Calls work(rank) for every rank, in parallel. If several throw, the lowest rank's error comes
// out, whatever the timing.
template <typename Work>
void for_each_rank(std::size_t num_devices, const Work& work) {
  std::vector<std::exception_ptr> errors(num_devices);
  tbb::parallel_for(std::size_t{0}, num_devices, [&](std::size_t rank) {
    try {
      work(rank);
    } catch (...) {
      errors[rank] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

ProgramContext context_of(const Plan& plan, const PlanRound& round, const DeviceProgram& device,
                          Direction direction) {
  return {.round = &round,
          .local_blocks = device.local_blocks,
          .direction = direction,
          .num_devices = plan.num_devices(),
          .dtype = plan.shape.dtype,
          .partial_wire = plan.partial_wire};
}

// ---------------------------------------------------------------------------------- encoding

Bytes encode_local_blocks(const Plan& plan, std::size_t rank) {
  ByteWriter out;
  for (const PlanRound& round : plan.rounds) {
    const std::vector<BlockId>& blocks = round.devices[rank].local_blocks;
    const std::int64_t slots = static_cast<std::int64_t>(blocks.size()) * round.head_groups;
    if (slots >= kEndOfInt32) {
      fail_plan("plan to write: expected fewer than 2^31 owned slots on rank {}, found {}", rank,
                slots);
    }
    out.varint(blocks.size());
    std::int32_t previous = -1;
    for (const BlockId block : blocks) {
      out.delta(block.value, std::int64_t{previous} + 1);
      previous = block.value;
    }
  }
  return out.take();
}

void check_devices(const Plan& plan, std::size_t rank) {
  for (const PlanRound& round : plan.rounds) {
    const std::vector<ProgramPair>& programs = round.devices[rank].programs;
    const std::vector<ProgramPair>& first = round.devices.front().programs;
    bool alike = programs.size() == round.masks.size();
    for (std::size_t m = 0; alike && m < programs.size(); ++m) {
      for (const Direction direction : kDirections) {
        alike =
            alike && programs[m].of(direction).has_value() == first[m].of(direction).has_value();
      }
    }
    if (!alike) {
      fail_plan(
          "plan to write: expected rank {} to have programs of the masks and directions of "
          "rank 0, found others",
          rank);
    }
  }
}

Bytes encode_device(const Plan& plan, std::size_t rank) {
  check_devices(plan, rank);
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<fbs::Program>> programs;
  std::size_t code_bytes = 0;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const PlanRound& round = plan.rounds[r];
    const DeviceProgram& device = round.devices[rank];
    for (std::size_t m = 0; m < device.programs.size(); ++m) {
      for (const Direction direction : kDirections) {
        const std::optional<Program>& program = device.programs[m].of(direction);
        if (!program) continue;
        const ProgramBytes bytes =
            encode_program(*program, context_of(plan, round, device, direction));
        code_bytes += bytes.code.size() + bytes.staging.size() + bytes.retain.size();
        if (code_bytes > kMaxSectionBytes) {
          fail_plan("plan to write: expected at most {} bytes of programs on rank {}, found more",
                    kMaxSectionBytes, rank);
        }
        const auto staging = builder.CreateVector(bytes.staging);
        const auto retain = builder.CreateVector(bytes.retain);
        const auto code = builder.CreateVector(bytes.code);
        programs.push_back(fbs::CreateProgram(
            builder, static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(m),
            direction == Direction::kBackward, staging, retain, code));
      }
    }
  }
  const auto program_vector = builder.CreateVector(programs);
  const auto local_blocks = builder.CreateVector(encode_local_blocks(plan, rank));
  builder.Finish(
      fbs::CreateDevice(builder, static_cast<std::uint32_t>(rank), local_blocks, program_vector));
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

// ---------------------------------------------------------------------------------- decoding

class DeviceDecoder {
 public:
  DeviceDecoder(const DecodedManifest& manifest, std::span<const std::uint8_t> bytes,
                std::size_t rank, std::string_view file)
      : manifest_(manifest),
        place_{.file = file, .section = "device section", .rank = static_cast<std::int64_t>(rank)},
        budget_(bytes.size(), place_) {
    if (bytes.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) {
      fail_plan("{}: expected fewer than 2 GiB, found {} bytes", place_.text(), bytes.size());
    }
    flatbuffers::Verifier verifier(bytes.data(), bytes.size());
    if (!verifier.VerifyBuffer<fbs::Device>(nullptr)) {
      fail_plan("{}: expected a FlatBuffer of the device schema, found bytes that are none",
                place_.text());
    }
    device_ = flatbuffers::GetRoot<fbs::Device>(bytes.data());
  }

  // By round. Nothing is allocated before the number of programs is known to be right.
  std::vector<DeviceProgram> decode() {
    if (device_->rank() != place_.rank) {
      fail_plan("{}: expected its own rank, found {}", place_.text(), device_->rank());
    }
    const std::int64_t programs = device_->programs()->size();
    if (programs != manifest_.programs_per_device) {
      fail_plan("{}: expected {} programs, found {}", place_.text(), manifest_.programs_per_device,
                programs);
    }
    std::vector<DeviceProgram> rounds = read_local_blocks();
    std::uint32_t next = 0;
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      const std::vector<MaskDirections>& directions = manifest_.directions[r];
      rounds[r].programs.resize(directions.size());
      for (std::size_t m = 0; m < directions.size(); ++m) {
        for (const Direction direction : kDirections) {
          if (!directions[m].has(direction)) continue;
          ProgramPair& pair = rounds[r].programs[m];
          (direction == Direction::kForward ? pair.forward : pair.backward) =
              read_program(*device_->programs()->Get(next++), r, m, direction, rounds[r]);
        }
      }
    }
    return rounds;
  }

 private:
  std::vector<DeviceProgram> read_local_blocks() {
    FilePlace place = place_;
    place.stream = "local block";
    ByteReader in(budget_.bytes(device_->local_blocks()), place);
    std::vector<DeviceProgram> rounds(manifest_.plan.rounds.size());
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      const PlanRound& round = manifest_.plan.rounds[r];
      const std::int64_t count = in.count("local blocks");
      in.in_range(count * round.head_groups, 0, kEndOfInt32, "a number of owned slots");
      std::vector<BlockId>& blocks = rounds[r].local_blocks;
      blocks.reserve(static_cast<std::size_t>(count));
      std::int64_t previous = -1;
      for (std::int64_t i = 0; i < count; ++i) {
        in.at_element(i);
        previous = in.in_range(in.delta(previous + 1), 0, round.blocks.num_blocks(), "a block");
        blocks.push_back(BlockId{static_cast<std::int32_t>(previous)});
      }
    }
    in.expect_end();
    return rounds;
  }

  Program read_program(const fbs::Program& in, std::size_t round, std::size_t mask,
                       Direction direction, const DeviceProgram& device) {
    FilePlace place = place_;
    place.round = static_cast<std::int64_t>(round);
    place.mask = static_cast<std::int64_t>(mask);
    place.direction = to_string(direction);
    if (in.round() != round || in.mask() != mask ||
        in.backward() != (direction == Direction::kBackward)) {
      fail_plan("{}: expected this program, found round {}, mask {}, {}", place.text(), in.round(),
                in.mask(), in.backward() ? "backward" : "forward");
    }
    budget_.visit_table();
    const ProgramByteViews bytes{budget_.bytes(in.staging()), budget_.bytes(in.retain()),
                                 budget_.bytes(in.code())};
    const Plan& plan = manifest_.plan;
    return decode_program(bytes, context_of(plan, plan.rounds[round], device, direction), place);
  }

  const DecodedManifest& manifest_;
  FilePlace place_;
  ByteBudget budget_;
  const fbs::Device* device_ = nullptr;
};

// ------------------------------------------------------------------------------- magnitudes

// Sums of what statistics add up, in doubles: far from exact near 2^62, far from wrong elsewhere.
struct Magnitude {
  double tokens = 0;  // of slots, arenas and transfers
  double pairs = 0;

  void add(const PlanRound& round, const Program& program) {
    for (const auto& slots : program.staging) {
      for (const StagingSlot& slot : slots) {
        tokens += static_cast<double>(slot.offset_tokens + slot.capacity_tokens);
      }
    }
    for (const Instruction& instruction : program.instructions) {
      if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
        for (const TileOp& tile : attention->tiles) pairs += static_cast<double>(tile.pairs);
      } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
        for (const auto* ends : {&launch->sends, &launch->recvs}) {
          for (const TransferEnd& end : *ends) {
            tokens += static_cast<double>(round.blocks.num_tokens(end.block));
          }
        }
      } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
        tokens += static_cast<double>(round.blocks.num_tokens(copy->block));
      }
    }
  }
};

// Bytes and pairs that add up beyond 64 bits would wrap in statistics.
void check_magnitudes(const Plan& plan, std::string_view file) {
  Magnitude sum;
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const BlockId block : device.local_blocks) {
        sum.tokens += 2 * static_cast<double>(round.blocks.num_tokens(block));  // dq and dkv
      }
      for (const ProgramPair& pair : device.programs) {
        for (const Direction direction : kDirections) {
          if (pair.of(direction)) sum.add(round, *pair.of(direction));
        }
      }
    }
  }
  constexpr double kMost = 0x1p61;
  constexpr double kMaxBytesPerElement = 4;
  const AttentionShape& shape = plan.shape;
  const double bytes_per_token =
      kMaxBytesPerElement * shape.q_heads * (double{1} * shape.head_dim + shape.value_dim + 2);
  constexpr double kPackAlignmentBytes = 64;
  const double bytes = sum.tokens * (bytes_per_token + kPackAlignmentBytes) *
                       std::max(1.0, plan.padded_bytes_factor);
  const double pairs = sum.pairs * std::max(1.0, plan.padded_pairs_factor);
  if (bytes > kMost || pairs > kMost) {
    fail_plan(
        "{}: expected transfers, buffers and pairs below 2^61 in all, found about {:.3g} bytes "
        "and {:.3g} pairs",
        file, bytes, pairs);
  }
}

Plan decode_plan(std::span<const std::uint8_t> bytes, std::string_view file) {
  const PlanFileViews views = read_frame(bytes, file);
  if (views.manifest.size() >= FLATBUFFERS_MAX_BUFFER_SIZE) {
    fail_plan("{}: manifest: expected fewer than 2 GiB, found {} bytes", file,
              views.manifest.size());
  }
  DecodedManifest manifest = decode_manifest(views.manifest, file);
  const auto num_devices = static_cast<std::size_t>(manifest.plan.num_devices());
  if (num_devices != views.devices.size()) {
    fail_plan("{}: header: expected {} devices (of the manifest), found {}", file, num_devices,
              views.devices.size());
  }
  std::vector<std::vector<DeviceProgram>> devices(num_devices);
  for_each_rank(num_devices, [&](std::size_t rank) {
    devices[rank] = DeviceDecoder(manifest, views.devices[rank], rank, file).decode();
  });
  for (std::size_t r = 0; r < manifest.plan.rounds.size(); ++r) {
    std::vector<DeviceProgram>& round_devices = manifest.plan.rounds[r].devices;
    round_devices.reserve(num_devices);
    for (auto& device : devices) round_devices.push_back(std::move(device[r]));
  }
  manifest.plan.digest = views.header.digest;
  check_magnitudes(manifest.plan, file);
  return std::move(manifest.plan);
}

}  // namespace

Bytes encode_plan(const Plan& plan) {
  const auto num_devices = static_cast<std::size_t>(plan.num_devices());
  for (const PlanRound& round : plan.rounds) {
    if (round.devices.size() != num_devices) {
      fail_plan("plan to write: expected {} devices in every round, found {}", num_devices,
                round.devices.size());
    }
  }
  std::vector<Bytes> sections(num_devices);
  for_each_rank(num_devices, [&](std::size_t rank) { sections[rank] = encode_device(plan, rank); });
  return write_frame(encode_manifest(plan), sections);
}

Bytes serialize(const Plan& plan) {
  Bytes file = encode_plan(plan);
  const std::uint64_t digest = digest_of_file(file);
  if (plan.digest != digest) {
    fail_plan("plan to write: expected digest {} (compute_digest), found {}", digest_text(digest),
              digest_text(plan.digest));
  }
  put_digest(file, digest);
  return file;
}

Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where) {
  constexpr std::uintptr_t kAlignment = 8;
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment == 0) {
    return decode_plan(bytes, where);
  }
  const Bytes aligned(bytes.begin(), bytes.end());  // FlatBuffers read numbers in place
  return decode_plan(aligned, where);
}

}  // namespace contextile
