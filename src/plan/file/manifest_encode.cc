#include <algorithm>
#include <vector>

#include "base/check.h"
#include "plan/file/manifest.h"
#include "plan/file/plan_file.h"
#include "plan_generated.h"

namespace contextile {
namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
fbs::Range range_of(const Range& range) { return {range.begin, range.end}; }

// Builds a list of structs from the elements of another list.
template <typename Struct, typename List, typename Make>
Offset<flatbuffers::Vector<const Struct*>> structs(FlatBufferBuilder& builder, const List& list,
                                                   const Make& make) {
  std::vector<Struct> out;
  out.reserve(list.size());
  for (const auto& element : list) out.push_back(make(element));
  return builder.CreateVectorOfStructs(out);
}

Offset<fbs::Blocks> encode_blocks(FlatBufferBuilder& builder, const PlanRound& round) {
  const std::int32_t num_blocks = round.blocks.num_blocks();
  if (round.owners.size() != static_cast<std::size_t>(num_blocks)) {
    fail_plan("plan to write: expected an owner for each of {} blocks, found {}", num_blocks,
              round.owners.size());
  }
  std::vector<std::int32_t> owners;
  std::vector<std::uint8_t> roles;
  std::vector<std::uint32_t> counts;
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> sizes;
  for (BlockId block{0}; block.value < num_blocks; ++block.value) {
    owners.push_back(round.owners[block.index()].value);
    roles.push_back(static_cast<std::uint8_t>(round.blocks.role(block)));
    counts.push_back(static_cast<std::uint32_t>(round.blocks.ranges(block).size()));
    for (const Range& range : round.blocks.ranges(block)) {
      begins.push_back(range.begin);
      sizes.push_back(range.size());
    }
  }
  return fbs::CreateBlocksDirect(builder, &owners, &roles, &counts, &begins, &sizes);
}

// Bounds at or beyond kUnbounded become one value, which means none.
fbs::Band band_of(const Band& band) {
  return {range_of(band.q), range_of(band.k), std::clamp(band.lo, -kUnbounded, kUnbounded),
          std::clamp(band.hi, -kUnbounded, kUnbounded)};
}

Offset<fbs::Round> encode_round(FlatBufferBuilder& builder, const PlanRound& round) {
  std::vector<Offset<fbs::Mask>> masks;
  for (std::size_t m = 0; m < round.masks.size(); ++m) {
    const NamedMask& mask = round.masks[m];
    const auto name = builder.CreateString(mask.name);
    const auto bands = structs<fbs::Band>(builder, mask.mask.bands, band_of);
    masks.push_back(fbs::CreateMask(builder, name, mask.layers, bands,
                                    round.has_direction(m, Direction::kForward),
                                    round.has_direction(m, Direction::kBackward)));
  }
  const auto mask_vector = builder.CreateVector(masks);
  const auto blocks = encode_blocks(builder, round);
  const std::vector<std::int32_t>& groups = round.block_head_groups;
  Offset<flatbuffers::Vector<std::int32_t>> group_vector;
  if (!groups.empty()) group_vector = builder.CreateVector(groups);
  fbs::RoundBuilder out(builder);
  out.add_head_groups(round.head_groups);
  out.add_blocks(blocks);
  out.add_masks(mask_vector);
  if (round.limits.tokens) out.add_token_limit(*round.limits.tokens);
  if (round.limits.memory_bytes) out.add_memory_limit_bytes(*round.limits.memory_bytes);
  if (!groups.empty()) out.add_block_head_groups(group_vector);
  return out.Finish();
}

Offset<fbs::Shape> encode_shape(FlatBufferBuilder& builder, const AttentionShape& shape) {
  return fbs::CreateShape(builder, shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim,
                          static_cast<std::uint8_t>(shape.dtype), shape.scale, shape.softcap,
                          shape.sink);
}

// Returns nothing if no segment is a branch, and the order of tokens is known.
Offset<flatbuffers::Vector<std::int64_t>> encode_follows(
    FlatBufferBuilder& builder, const std::vector<PositionSegment>& positions) {
  std::vector<std::int64_t> follows;
  bool says_more = false;
  for (const PositionSegment& segment : positions) {
    follows.push_back(segment.follows);
    says_more = says_more || segment.follows != kFollowsNone;
  }
  return says_more ? builder.CreateVector(follows) : 0;
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
  const auto sequences = structs<fbs::Range>(builder, plan.sequences, range_of);
  const auto home = structs<fbs::HomeRange>(builder, plan.home, [](const HomeRange& range) {
    return fbs::HomeRange(range_of(range.tokens), range.owner.value);
  });
  const auto positions =
      structs<fbs::PositionSegment>(builder, plan.positions, [](const PositionSegment& segment) {
        return fbs::PositionSegment(range_of(segment.tokens), segment.sequence,
                                    segment.first_position);
      });
  const auto round_vector = builder.CreateVector(rounds);
  const auto follows = encode_follows(builder, plan.positions);
  builder.Finish(fbs::CreateManifest(builder, kPlanFileVersion, strategy, option_vector, shape,
                                     static_cast<std::uint8_t>(plan.partial_wire), cluster_name,
                                     plan.nodes, plan.devices_per_node, sequences, home, positions,
                                     round_vector, plan.padded_bytes_factor,
                                     plan.padded_pairs_factor, follows));
  return {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()};
}

}  // namespace contextile
