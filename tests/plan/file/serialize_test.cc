#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "plan/file/compression.h"
#include "plan/file/plan_file.h"
#include "support/changed_bytes.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;
using ::testing::HasSubstr;

// The example with everything a manifest can hold.
Plan full_example() {
  Plan plan = example_plan();
  plan.options = {{"algorithm", "ring"}, {"layout", "zigzag"}};
  plan.home = {{{0, 4}, Rank{0}}, {{4, 8}, Rank{1}}};
  plan.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1}};
  plan.rounds[0].limits.memory_bytes = 1 << 20;
  plan.digest = compute_digest(plan);
  return plan;
}

// A file whose checksum was repaired after its bytes were changed.
void sign(Bytes& file) {
  if (file.size() >= PlanFileHeader::kBytes) put_checksum(file, checksum_of(file));
}

// A file of these sections, stored uncompressed, whose hashes, digest and checksum are right.
Bytes file_of(const std::vector<Bytes>& contents) {
  std::vector<Section> sections;
  for (const Bytes& content : contents) sections.push_back({identify(content), content});
  return write_frame(sections);
}

std::string folder_of_goldens() {
  const std::string file = __FILE__;
  return file.substr(0, file.rfind('/')) + "/golden/";
}

std::string error_of(std::span<const std::uint8_t> bytes) {
  return message_of<InvalidPlan>([&] { return deserialize(bytes, "some.plan"); });
}

// True if the content is the same; NamedMask, HomeRange and Plan themselves are not comparable.
void expect_same(const Plan& a, const Plan& b) {
  EXPECT_EQ(a.strategy, b.strategy);
  EXPECT_EQ(a.options, b.options);
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.partial_wire, b.partial_wire);
  EXPECT_EQ(a.cluster_name, b.cluster_name);
  EXPECT_EQ(a.nodes, b.nodes);
  EXPECT_EQ(a.devices_per_node, b.devices_per_node);
  EXPECT_EQ(a.sequences, b.sequences);
  ASSERT_EQ(a.home.size(), b.home.size());
  for (std::size_t i = 0; i < a.home.size(); ++i) {
    EXPECT_EQ(a.home[i].tokens, b.home[i].tokens);
    EXPECT_EQ(a.home[i].owner, b.home[i].owner);
  }
  EXPECT_EQ(a.positions, b.positions);
  EXPECT_EQ(a.padded_bytes_factor, b.padded_bytes_factor);
  EXPECT_EQ(a.padded_pairs_factor, b.padded_pairs_factor);
  EXPECT_EQ(a.digest, b.digest);
  ASSERT_EQ(a.rounds.size(), b.rounds.size());
  for (std::size_t r = 0; r < a.rounds.size(); ++r) {
    const PlanRound& x = a.rounds[r];
    const PlanRound& y = b.rounds[r];
    EXPECT_EQ(x.head_groups, y.head_groups);
    EXPECT_EQ(x.blocks, y.blocks);
    EXPECT_EQ(x.owners, y.owners);
    EXPECT_EQ(x.block_head_groups, y.block_head_groups);
    EXPECT_EQ(x.limits, y.limits);
    EXPECT_EQ(x.devices, y.devices);
    ASSERT_EQ(x.masks.size(), y.masks.size());
    for (std::size_t m = 0; m < x.masks.size(); ++m) {
      EXPECT_EQ(x.masks[m].name, y.masks[m].name);
      EXPECT_EQ(x.masks[m].layers, y.masks[m].layers);
      EXPECT_EQ(x.masks[m].mask.bands, y.masks[m].mask.bands);
    }
  }
}

// Does everything that a caller may do with a plan that was loaded and not verified.
void use(const Plan& plan) {
  static_cast<void>(verify(plan));
  static_cast<void>(statistics(plan));
  std::ostringstream json;
  export_json(plan, json);
}

// ---------------------------------------------------------------------------------- round trip

TEST(PlanFile, HoldsEveryFieldOfThePlan) {
  const Plan plan = full_example();
  expect_same(plan, deserialize(serialize(plan), "memory"));
}

TEST(PlanFile, HoldsThePlansOfEveryStrategyAndRepeatsTheirBytes) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    SCOPED_TRACE(batch.text);
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name);
      const Bytes bytes = serialize(plan);
      const Plan loaded = deserialize(bytes, "memory");
      expect_same(plan, loaded);
      EXPECT_EQ(serialize(loaded), bytes);
      EXPECT_EQ(compute_digest(loaded), loaded.digest);
    }
  }
}

TEST(PlanFile, HasTheSameBytesOnAnyNumberOfThreads) {
  Chance chance(7);
  const RandomBatch batch = random_batch_of(chance, {.max_tokens = 200, .ranks = {16}});
  for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
    SCOPED_TRACE(name);
    const Bytes bytes = serialize(plan);
    const tbb::global_control one_thread(tbb::global_control::max_allowed_parallelism, 1);
    EXPECT_EQ(serialize(plan), bytes);
  }
}

TEST(PlanFile, LoadsFromUnalignedMemory) {
  const Plan plan = full_example();
  Bytes shifted = serialize(plan);
  shifted.insert(shifted.begin(), 0);
  expect_same(plan, deserialize(std::span(shifted).subspan(1), "memory"));
}

TEST(PlanFile, HoldsTheTokenThatABranchFollows) {
  Plan plan = full_example();
  plan.positions[2].follows = 5;
  plan.digest = compute_digest(plan);
  expect_same(plan, deserialize(serialize(plan), "memory"));
  plan.positions[2].follows = 7;
  plan.digest = compute_digest(plan);
  EXPECT_THAT(
      error_of(serialize(plan)),
      HasSubstr("expected position segment 2 to follow a token before 7, or -3 to -1, found 7"));
}

TEST(PlanFile, HoldsThatPositionsAreUnknown) {
  for (const std::int64_t follows : {kOrderUnknown, kPositionsUnknown}) {
    Plan plan = full_example();
    plan.positions[2].follows = follows;
    plan.digest = compute_digest(plan);
    expect_same(plan, deserialize(serialize(plan), "memory"));
  }
  Plan plan = full_example();
  plan.positions[2].follows = kPositionsUnknown - 1;
  plan.digest = compute_digest(plan);
  EXPECT_THAT(error_of(serialize(plan)), HasSubstr("or -3 to -1, found -4"));
}

TEST(PlanFile, MayHoldSectionsThatAreNotCompressed) {
  const Plan plan = full_example();
  expect_same(plan, deserialize(file_of(encode_contents(plan)), "memory"));
}

TEST(PlanFile, NamesUnboundedBandsInOneWay) {
  Plan plan = full_example();
  plan.rounds[0].masks[0].mask.bands[0].lo = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(compute_digest(plan), plan.digest);
}

// The sections are compared, because zstd's output depends on its version.
TEST(PlanFile, StaysTheSameUntilItsVersionChanges) {
  const std::string golden = folder_of_goldens() + "example.plan";
  const std::string found = ::testing::TempDir() + "contextile_example.plan";
  const Plan plan = full_example();
  save_plan(plan, found);
  const Plan loaded = load_plan(golden);  // its digest is that of the sections it holds
  EXPECT_EQ(loaded.digest, plan.digest)
      << "the bytes of plan files changed: raise kPlanFileVersion and replace " << golden << " by "
      << found;
  EXPECT_EQ(encode_contents(loaded), encode_contents(plan));
  expect_same(loaded, plan);
}

TEST(PlanFile, TakesFewBytesATile) {
  constexpr double kMostBytes = 16;  // with both directions, transfers and the manifest
  Chance chance(3);
  RandomBatch batch = random_batch_of(chance);
  const std::vector<std::int64_t> lengths = {400000, 3000, 17, 9000, 200000, 511, 1, 512, 250000};
  const MaskUse causal{.name = "causal", .spec = parse_mask_spec("causal")};
  batch.workload = make_workload(lengths, {}, {&causal, 1});
  batch.cluster.nodes = 2;
  batch.cluster.devices_per_node = 8;
  StrategyRequest request;
  request.block_size = 2048;
  for (const std::string name : {"all_gather", "magi"}) {
    SCOPED_TRACE(name);
    const Arrangement arrangement =
        find_strategy(name).arrange(batch.workload, batch.cluster, request);
    const Plan plan = build_plan(batch.workload, batch.cluster, arrangement);
    const PlanStats stats = statistics(plan);
    const auto tiles = static_cast<double>(stats.forward->tiles + stats.backward->tiles);
    EXPECT_LE(static_cast<double>(serialize(plan).size()) / tiles, kMostBytes);
  }
}

// -------------------------------------------------------------------------------------- digest

TileOp& first_tile(Plan& plan, std::size_t direction) {
  ProgramPair& pair = plan.rounds[0].devices[0].programs[0];
  Program& program = direction == 0 ? *pair.forward : *pair.backward;
  return std::get<AttentionOp>(program.instructions[1]).tiles[0];
}

Program& forward_of(Plan& plan, std::size_t rank) {
  return *plan.rounds[0].devices[rank].programs[0].forward;
}

// full_example() with another value in one field, for every kind of field.
std::vector<std::function<void(Plan&)>> changes_of_fields() {
  return {
      [](Plan& p) { p.strategy = "other"; },
      [](Plan& p) { p.options["layout"] = "contiguous"; },
      [](Plan& p) { p.shape.q_heads = 4; },
      [](Plan& p) { p.shape.value_dim = 8; },
      [](Plan& p) { p.shape.dtype = Dtype::kF16; },
      [](Plan& p) { p.shape.scale = 0.25; },
      [](Plan& p) { p.shape.softcap = 30; },
      [](Plan& p) { p.shape.sink = true; },
      [](Plan& p) { p.partial_wire = Dtype::kBf16; },
      [](Plan& p) { p.cluster_name = "else"; },
      [](Plan& p) { std::swap(p.nodes, p.devices_per_node); },
      [](Plan& p) {
        p.sequences = {{0, 4}, {4, 8}};
      },
      [](Plan& p) { p.home[0].owner = Rank{1}; },
      [](Plan& p) { p.positions[2].first_position = 2; },
      [](Plan& p) { p.positions[2].follows = 5; },
      [](Plan& p) { p.padded_bytes_factor = 2; },
      [](Plan& p) { p.padded_pairs_factor = 2; },
      [](Plan& p) { p.rounds[0].owners[0] = Rank{1}; },
      [](Plan& p) { p.rounds[0].masks[0].layers = 2; },
      [](Plan& p) { p.rounds[0].masks[0].mask.bands[0].hi = -1; },
      [](Plan& p) { p.rounds[0].limits.tokens = std::nullopt; },
      [](Plan& p) { p.rounds[0].limits.memory_bytes = 1; },
      [](Plan& p) {
        p.rounds[0].devices[1].local_blocks = {BlockId{2}, BlockId{1}};
      },
      [](Plan& p) { first_tile(p, 0).q_block = BlockId{1}; },
      [](Plan& p) { first_tile(p, 0).init_result = false; },
      [](Plan& p) { first_tile(p, 0).pairs = 9; },
      [](Plan& p) { first_tile(p, 0).kv = SlotId{5}; },
      [](Plan& p) { first_tile(p, 1).d_o = SlotId{5}; },
      [](Plan& p) { first_tile(p, 1).dkv = SlotId{5}; },
      [](Plan& p) { first_tile(p, 1).init_dkv = false; },
      [](Plan& p) { forward_of(p, 0).staging[0][0].capacity_tokens = 2; },
      [](Plan& p) { forward_of(p, 0).retain.clear(); },
      [](Plan& p) { std::get<LaunchOp>(forward_of(p, 1).instructions[0]).id = 3; },
      [](Plan& p) {
        std::get<LaunchOp>(forward_of(p, 1).instructions[0]).sends[0].wire = Dtype::kF32;
      },
      [](Plan& p) { std::get<WaitOp>(forward_of(p, 1).instructions[2]).id = 3; },
      [](Plan& p) { std::get<ReduceOp>(forward_of(p, 1).instructions[5]).srcs.pop_back(); },
      [](Plan& p) {
        forward_of(p, 1).instructions.emplace_back(
            CopyOp{Kind::kO, BlockId{1}, GroupId{0}, SlotId{0}, SlotId{2}});
      },
  };
}

TEST(Digest, ChangesWithEveryField) {
  const std::vector<std::function<void(Plan&)>> changes = changes_of_fields();
  const Plan plan = full_example();
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    Plan changed = plan;
    changes[i](changed);
    EXPECT_NE(compute_digest(changed), plan.digest);
    EXPECT_THROW(static_cast<void>(serialize(changed)), InvalidPlan);  // its digest is stale
  }
}

TEST(Digest, IsSixteenHexDigits) {
  EXPECT_EQ(digest_text(0xabc), "0000000000000abc");
  EXPECT_EQ(digest_text(~std::uint64_t{0}), "ffffffffffffffff");
}

// ------------------------------------------------------------------------------- foreign bytes

TEST(PlanBytes, OfAnotherFormatAreCalledThat) {
  const std::string text = "{\"format\": \"contextile-plan\"}";
  EXPECT_THAT(error_of({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}),
              HasSubstr("some.plan: not a plan file: expected it to begin with"));
  EXPECT_THAT(error_of({}), HasSubstr("not a plan file"));
}

TEST(PlanBytes, OfAnotherVersionSayWhich) {
  Bytes bytes = serialize(full_example());
  bytes[8] = 9;
  sign(bytes);
  EXPECT_EQ(error_of(bytes),
            "some.plan: header: expected version 2, found 9: the file was written by a newer "
            "contextile");
}

TEST(PlanBytes, OfAnEarlierVersionSayThatTheyAreOld) {
  Bytes bytes = serialize(full_example());
  bytes[8] = 1;
  sign(bytes);
  EXPECT_EQ(error_of(bytes),
            "some.plan: header: expected version 2, found 1: the file was written by an older "
            "contextile, plan again");
}

TEST(PlanBytes, CutAtAnyLengthAreRefused) {
  const Bytes bytes = serialize(full_example());
  for_every_cut(bytes, [](Bytes cut) {
    EXPECT_NE(error_of(cut), "no error") << cut.size();
    sign(cut);
    EXPECT_NE(error_of(cut), "no error") << cut.size();
  });
  EXPECT_THAT(error_of(std::span(bytes).first(100)), HasSubstr("the file is truncated"));
}

TEST(PlanBytes, WithAnyBitFlippedAreRefused) {
  for_every_flipped_bit(serialize(full_example()), [](const Bytes& changed, std::size_t at) {
    EXPECT_NE(error_of(changed), "no error") << "byte " << at;
  });
}

// A plan that looks like a right one may be used; all others are refused.
void load_and_use(const Bytes& bytes) {
  try {
    use(deserialize(bytes, "changed"));
  } catch (const InvalidPlan&) {
  }
}

TEST(PlanBytes, WithAnyByteChangedAndSignedAgainAreRefusedOrHarmless) {
  for_every_changed_byte(serialize(full_example()), [](Bytes changed) {
    sign(changed);
    load_and_use(changed);
  });
}

TEST(PlanBytes, WithAnyByteOfASectionChangedAndSignedAgainAreRefusedOrHarmless) {
  const std::vector<Bytes> contents = encode_contents(full_example());
  for (std::size_t section = 0; section < contents.size(); ++section) {
    for (std::size_t i = 0; i < contents[section].size(); ++i) {
      const std::uint8_t old = contents[section][i];
      for (const std::uint8_t value : {0x00, 0x7f, 0xff, old ^ 1}) {
        std::vector<Bytes> changed = contents;
        changed[section][i] = value;
        load_and_use(file_of(changed));
      }
    }
  }
}

TEST(PlanBytes, OfEveryStrategyWithRandomChangesAreRefusedOrHarmless) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name);
      const std::vector<Bytes> contents = encode_contents(plan);
      for (int round = 0; round < 30; ++round) {
        std::vector<Bytes> changed = contents;
        for (std::int64_t n = chance.between(1, 4); n > 0; --n) {
          Bytes& section = changed[chance.below(changed.size())];
          section[chance.below(section.size())] = static_cast<std::uint8_t>(chance.between(0, 255));
        }
        load_and_use(file_of(changed));
      }
    }
  }
}

TEST(PlanBytes, WhoseSectionsAreNotWhatTheTableSaysAreRefused) {
  const std::vector<Bytes> contents = encode_contents(full_example());
  std::vector<Section> sections;
  for (const Bytes& content : contents) sections.push_back({identify(content), content});
  sections[2].content.hash ^= 1;
  EXPECT_THAT(error_of(write_frame(sections)),
              HasSubstr("some.plan: device section of rank 1: expected hash"));
  sections[2] = {identify(contents[2]), Bytes(contents[2].begin() + 8, contents[2].end())};
  EXPECT_THAT(error_of(write_frame(sections)), HasSubstr("rank 1: expected zstd frames of"));
}

TEST(PlanBytes, WithADeviceTooFewAreRefused) {
  std::vector<Bytes> contents = encode_contents(full_example());
  contents.pop_back();
  EXPECT_THAT(error_of(file_of(contents)), HasSubstr("expected 2 devices (of the manifest)"));
  EXPECT_THAT(error_of(write_frame({})), HasSubstr("expected 1 to"));
}

TEST(PlanBytes, ErrorsNameFileSectionAndPlace) {
  Plan plan = full_example();
  std::get<LaunchOp>(plan.rounds[0].devices[1].programs[0].forward->instructions[0]).sends[0].peer =
      Rank{17};
  plan.digest = compute_digest(plan);
  EXPECT_EQ(error_of(serialize(plan)),
            "some.plan: device section of rank 1, round 0, mask 0, forward, instruction 0: "
            "expected a peer in [0, 2), found 17");
}

TEST(PlanBytes, ThatWouldOverflowTheStatisticsAreRefused) {
  Plan plan = full_example();
  ProgramPair& pair = plan.rounds[0].devices[0].programs[0];
  std::get<AttentionOp>(pair.forward->instructions[1]).tiles[0].pairs =
      (std::int64_t{1} << 61) + (std::int64_t{1} << 60);
  plan.digest = compute_digest(plan);
  EXPECT_THAT(error_of(serialize(plan)), HasSubstr("below 2^61"));
}

TEST(PlanBytes, NeedEveryDirectionOnEveryDevice) {
  Plan plan = full_example();
  plan.rounds[0].devices[1].programs[0].backward.reset();
  EXPECT_THROW(static_cast<void>(compute_digest(plan)), InvalidPlan);
}

// --------------------------------------------------------------------------------- compression

TEST(Compression, GivesTheContentBack) {
  Compressor compressor;
  Decompressor decompressor;
  Chance chance(5);
  for (const std::size_t size : {0, 1, 7, 100, 5000, 300000}) {
    for (const std::int64_t values : {1, 2, 256}) {
      Bytes content(size);
      for (std::uint8_t& byte : content) {
        byte = static_cast<std::uint8_t>(chance.between(0, values - 1));
      }
      const Bytes stored = compressor.compress(content);
      EXPECT_LE(stored.size(), content.size());
      EXPECT_LE(content.size(), kMaxInflation * stored.size());
      EXPECT_EQ(decompressor.decompress(stored, content.size(), {.file = "memory"}), content);
    }
  }
}

TEST(Compression, RefusesBytesThatWouldInflateWithoutAllocating) {
  Decompressor decompressor;
  const Bytes stored(100);
  const auto error_at = [&](std::uint64_t content_bytes) -> std::string {
    try {
      static_cast<void>(decompressor.decompress(stored, content_bytes, {.file = "memory"}));
    } catch (const InvalidPlan& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_at(3300),
            "memory: expected a content of at most 32 times its 100 bytes, found 3300");
  EXPECT_EQ(error_at(std::uint64_t{1} << 60),
            "memory: expected a content of fewer than 2 GiB, found 1152921504606846976 bytes");
}

TEST(Compression, RefusesOtherBytesAndOtherSizes) {
  Compressor compressor;
  Decompressor decompressor;
  const Bytes content(1000, 7);
  Bytes stored = compressor.compress(content);
  EXPECT_THROW(static_cast<void>(decompressor.decompress(stored, 999, {.file = "memory"})),
               InvalidPlan);
  EXPECT_THROW(static_cast<void>(decompressor.decompress(stored, 1001, {.file = "memory"})),
               InvalidPlan);
  stored[0] ^= 1;
  EXPECT_THROW(static_cast<void>(decompressor.decompress(stored, 1000, {.file = "memory"})),
               InvalidPlan);
}

}  // namespace
}  // namespace contextile
