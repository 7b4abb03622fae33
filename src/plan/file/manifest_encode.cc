#include <algorithm>
#include <vector>

#include "plan/file/byte_codec.h"
#include "plan/file/manifest.h"
#include "plan_generated.h"

namespace contextile {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
using Bytes = Offset<flatbuffers::Vector<std::uint8_t>>;

// A range after another one: usually adjacent.
void write_range(ByteWriter& out, Range range, std::int64_t after) {
  out.delta(range.begin, after);
  out.delta(range.end, range.begin);
}

std::vector<std::uint8_t> encode_sequences(const Plan& plan) {
  ByteWriter out;
  out.varint(plan.sequences.size());
  std::int64_t end = 0;
  for (const Range& sequence : plan.sequences) {
    write_range(out, sequence, end);
    end = sequence.end;
  }
  return out.take();
}

std::vector<std::uint8_t> encode_home(const Plan& plan) {
  ByteWriter out;
  out.varint(plan.home.size());
  std::int64_t end = 0;
  std::int32_t owner = 0;
  for (const HomeRange& home : plan.home) {
    write_range(out, home.tokens, end);
    out.delta(home.owner.value, owner);
    end = home.tokens.end;
    owner = home.owner.value;
  }
  return out.take();
}

std::vector<std::uint8_t> encode_positions(const Plan& plan) {
  ByteWriter out;
  out.varint(plan.positions.size());
  PositionSegment previous;
  for (const PositionSegment& segment : plan.positions) {
    write_range(out, segment.tokens, previous.tokens.end);
    out.delta(segment.sequence, previous.sequence);
    out.zigzag(segment.first_position);
    previous = segment;
  }
  return out.take();
}

// Per block: number of ranges and role, owner, ranges.
std::vector<std::uint8_t> encode_blocks(const PlanRound& round) {
  const std::int32_t num_blocks = round.blocks.num_blocks();
  if (round.owners.size() != static_cast<std::size_t>(num_blocks)) {
    fail_plan("plan to write: expected an owner for each of {} blocks, found {}", num_blocks,
              round.owners.size());
  }
  ByteWriter out;
  out.varint(static_cast<std::uint64_t>(num_blocks));
  Range previous;
  std::int32_t owner = 0;
  for (BlockId block{0}; block.value < num_blocks; ++block.value) {
    const std::span<const Range> ranges = round.blocks.ranges(block);
    out.varint(ranges.size() << 2 | static_cast<std::uint64_t>(round.blocks.role(block)));
    out.delta(round.owners[block.index()].value, owner);
    owner = round.owners[block.index()].value;
    for (const Range& range : ranges) {
      out.delta(range.begin, previous.end);
      out.delta(range.size(), previous.size());
      previous = range;
    }
  }
  return out.take();
}

// Bounds at or beyond kUnbounded are one value: none.
std::vector<std::uint8_t> encode_bands(const Mask& mask) {
  ByteWriter out;
  out.varint(mask.bands.size());
  std::int64_t q_end = 0;
  for (const Band& band : mask.bands) {
    const bool has_lo = band.lo > -kUnbounded;
    const bool has_hi = band.hi < kUnbounded;
    out.byte(static_cast<std::uint8_t>((has_lo ? 1 : 0) | (has_hi ? 2 : 0)));
    write_range(out, band.q, q_end);
    write_range(out, band.k, band.q.begin);
    if (has_lo) out.zigzag(std::min(band.lo, kUnbounded));
    if (has_hi) out.zigzag(std::max(band.hi, -kUnbounded));
    q_end = band.q.end;
  }
  return out.take();
}

bool has_direction(const PlanRound& round, std::size_t mask, Direction direction) {
  return !round.devices.empty() && mask < round.devices.front().programs.size() &&
         round.devices.front().programs[mask].of(direction).has_value();
}

Offset<fbs::Round> encode_round(FlatBufferBuilder& builder, const PlanRound& round) {
  std::vector<Offset<fbs::Mask>> masks;
  for (std::size_t m = 0; m < round.masks.size(); ++m) {
    const NamedMask& mask = round.masks[m];
    const auto name = builder.CreateString(mask.name);
    const Bytes bands = builder.CreateVector(encode_bands(mask.mask));
    masks.push_back(fbs::CreateMask(builder, name, mask.layers, bands,
                                    has_direction(round, m, Direction::kForward),
                                    has_direction(round, m, Direction::kBackward)));
  }
  const auto mask_vector = builder.CreateVector(masks);
  const Bytes blocks = builder.CreateVector(encode_blocks(round));
  fbs::RoundBuilder out(builder);
  out.add_head_groups(round.head_groups);
  out.add_blocks(blocks);
  out.add_masks(mask_vector);
  if (round.token_limit) out.add_token_limit(*round.token_limit);
  if (round.memory_limit_bytes) out.add_memory_limit_bytes(*round.memory_limit_bytes);
  return out.Finish();
}

Offset<fbs::Shape> encode_shape(FlatBufferBuilder& builder, const AttentionShape& shape) {
  return fbs::CreateShape(builder, shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim,
                          static_cast<std::uint8_t>(shape.dtype), shape.scale, shape.softcap,
                          shape.sink);
}

}  // namespace

std::vector<std::uint8_t> encode_manifest(const Plan& plan) {
  FlatBufferBuilder builder;
  std::vector<Offset<fbs::Option>> options;
  for (const auto& [key, value] : plan.options) {
    const auto key_text = builder.CreateString(key);
    options.push_back(fbs::CreateOption(builder, key_text, builder.CreateString(value)));
  }
  std::vector<Offset<fbs::Round>> rounds;
  for (const PlanRound& round : plan.rounds) rounds.push_back(encode_round(builder, round));

  const auto strategy = builder.CreateString(plan.strategy);
  const auto option_vector = builder.CreateVector(options);
  const auto shape = encode_shape(builder, plan.shape);
  const auto cluster_name = builder.CreateString(plan.cluster_name);
  const Bytes sequences = builder.CreateVector(encode_sequences(plan));
  const Bytes home = builder.CreateVector(encode_home(plan));
  const Bytes positions = builder.CreateVector(encode_positions(plan));
  const auto round_vector = builder.CreateVector(rounds);
  builder.Finish(fbs::CreateManifest(builder, kPlanFileVersion, strategy, option_vector, shape,
                                     static_cast<std::uint8_t>(plan.partial_wire), cluster_name,
                                     plan.nodes, plan.devices_per_node, sequences, home, positions,
                                     round_vector, plan.padded_bytes_factor,
                                     plan.padded_pairs_factor));
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

}  // namespace contextile
