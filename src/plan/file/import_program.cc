// Programs and instructions of a plan's JSON.
#include <array>
#include <utility>
#include <vector>

#include "plan/file/device_section.h"
#include "plan/file/import_json.h"
#include "plan/file/manifest.h"

namespace contextile {
namespace {

// Members of instructions, by bit. needs_of returns the members of an operation.
enum Members : std::uint32_t {
  kTiles = 1,
  kId = 2,
  kSends = 4,
  kRecvs = 8,
  kUnit = 16,  // kind
  kBlock = 32,
  kGroup = 64,
  kDst = 128,
  kSrcs = 256,
  kSrc = 512,
};
constexpr std::array<std::string_view, 10> kMemberNames = {
    "tiles", "id", "sends", "recvs", "kind", "block", "group", "dst", "srcs", "src"};
constexpr std::array<std::string_view, 5> kOperations = {"attention", "reduce", "copy", "launch",
                                                         "wait"};

constexpr std::uint32_t kNamesUnit = kUnit | kBlock | kGroup | kDst;
constexpr std::array<std::uint32_t, kOperations.size()> kNeeds = {
    kTiles, kNamesUnit | kSrcs, kNamesUnit | kSrc, kId | kSends | kRecvs, kId};

// An instruction whose operation is not known yet: "op" may come after the other members.
struct AnyInstruction {
  std::size_t operation = 0;
  std::uint32_t members = 0;  // read so far
  AttentionOp attention;
  ReduceOp reduce;  // and the unit of a copy
  SlotId src;
  LaunchOp launch;
};

class ProgramReader {
 public:
  ProgramReader(JsonReader& in, Direction direction) : in_(in), direction_(direction) {}

  Program read() {
    Program program;
    const auto staging = [&] { read_staging(program); };
    const auto instructions = [&] {
      in_.array([&](std::size_t) { program.instructions.push_back(read_instruction()); });
    };
    if (direction_ == Direction::kBackward) {
      in_.object({{"staging", staging}, {"instructions", instructions}});
      return program;
    }
    in_.object({{"staging", staging},
                {"retain", [&] { read_retain(program.retain); }},
                {"instructions", instructions}});
    return program;
  }

 private:
  void read_staging(Program& program) {
    const auto slots_of = [&](Kind kind) {
      return [this, &slots = program.staging[static_cast<std::size_t>(kind)]] {
        in_.array([&](std::size_t) {
          StagingSlot& slot = slots.emplace_back();
          in_.tuple(2, [&](std::size_t i) {
            (i == 0 ? slot.offset_tokens : slot.capacity_tokens) =
                in_.whole(0, kMaxArenaTokens, i == 0 ? "an offset" : "a capacity");
          });
        });
      };
    };
    if (direction_ == Direction::kForward) {
      in_.object(
          {{"q", slots_of(Kind::kQ)}, {"kv", slots_of(Kind::kKv)}, {"o", slots_of(Kind::kO)}});
    } else {
      in_.object({{"q", slots_of(Kind::kQ)},
                  {"kv", slots_of(Kind::kKv)},
                  {"do", slots_of(Kind::kDo)},
                  {"dq", slots_of(Kind::kDq)},
                  {"dkv", slots_of(Kind::kDkv)}});
    }
  }

  void read_retain(std::vector<Retain>& retain) {
    in_.array([&](std::size_t) {
      Retain& entry = retain.emplace_back();
      in_.tuple(3, [&](std::size_t i) {
        if (i == 0) entry.kind = kind();
        if (i == 1) entry.slot = slot();
        if (i == 2) entry.backward_slot = slot();
      });
    });
  }

  Instruction read_instruction() {
    AnyInstruction any;
    bool has_op = false;
    const auto member = [&](Members bit, const auto& read) {
      return [&any, bit, &read] {
        any.members |= bit;
        read();
      };
    };
    const auto tiles = [&] {
      in_.array([&](std::size_t) { any.attention.tiles.push_back(read_tile()); });
    };
    const auto srcs = [&] { in_.array([&](std::size_t) { any.reduce.srcs.push_back(slot()); }); };
    const auto id = [&] { any.launch.id = number(kEndOfInt32, "a launch id"); };
    const auto sends = [&] { read_transfers(any.launch.sends); };
    const auto recvs = [&] { read_transfers(any.launch.recvs); };
    const auto unit_kind = [&] { any.reduce.kind = kind(); };
    const auto unit_block = [&] { any.reduce.block = block(); };
    const auto unit_group = [&] { any.reduce.group = group(); };
    const auto dst = [&] { any.reduce.dst = slot(); };
    const auto src = [&] { any.src = slot(); };
    constexpr Presence kOptional = Presence::kOptional;
    in_.object({{"op",
                 [&] {
                   any.operation = in_.one_of(kOperations);
                   has_op = true;
                 }},
                {"tiles", member(kTiles, tiles), kOptional},
                {"id", member(kId, id), kOptional},
                {"sends", member(kSends, sends), kOptional},
                {"recvs", member(kRecvs, recvs), kOptional},
                {"kind", member(kUnit, unit_kind), kOptional},
                {"block", member(kBlock, unit_block), kOptional},
                {"group", member(kGroup, unit_group), kOptional},
                {"dst", member(kDst, dst), kOptional},
                {"srcs", member(kSrcs, srcs), kOptional},
                {"src", member(kSrc, src), kOptional}});
    return assemble(std::move(any));
  }

  Instruction assemble(AnyInstruction any) const {
    const std::uint32_t needs = kNeeds[any.operation];
    for (std::size_t i = 0; i < kMemberNames.size(); ++i) {
      const std::uint32_t bit = std::uint32_t{1} << i;
      if ((needs & bit) == (any.members & bit)) continue;
      in_.fail("expected {}key '{}' in this operation ({}), found {}",
               (needs & bit) != 0 ? "a " : "no ", kMemberNames[i], kOperations[any.operation],
               (needs & bit) != 0 ? "none" : "one");
    }
    switch (any.operation) {
      case 0:
        return std::move(any.attention);
      case 1:
        return std::move(any.reduce);
      case 2:
        return CopyOp{any.reduce.kind, any.reduce.block, any.reduce.group, any.reduce.dst, any.src};
      case 3:
        return std::move(any.launch);
      default:
        return WaitOp{any.launch.id};
    }
  }

  TileOp read_tile() {
    TileOp tile;
    tile.pairs = kPairsNotGiven;
    const auto q_block = [&] { tile.q_block = block(); };
    const auto kv_block = [&] { tile.kv_block = block(); };
    const auto tile_group = [&] { tile.group = group(); };
    const auto q = [&] { tile.q = slot(); };
    const auto kv = [&] { tile.kv = slot(); };
    const auto result = [&] { read_result(tile.result, tile.init_result); };
    const auto pairs = [&] { tile.pairs = in_.whole(0, kMaxTilePairs, "pairs of a tile"); };
    if (direction_ == Direction::kForward) {
      in_.object({{"q_block", q_block},
                  {"kv_block", kv_block},
                  {"group", tile_group},
                  {"q", q},
                  {"kv", kv},
                  {"o", result},
                  {"pairs", pairs, Presence::kOptional}});
    } else {
      in_.object({{"q_block", q_block},
                  {"kv_block", kv_block},
                  {"group", tile_group},
                  {"q", q},
                  {"do", [&] { tile.d_o = slot(); }},
                  {"kv", kv},
                  {"dq", result},
                  {"dkv", [&] { read_result(tile.dkv, tile.init_dkv); }},
                  {"pairs", pairs, Presence::kOptional}});
    }
    return tile;
  }

  void read_result(SlotId& into, bool& init) {
    in_.tuple(2, [&](std::size_t i) {
      if (i == 0) {
        into = slot();
      } else {
        init = in_.whole(0, 2, "an init flag") != 0;
      }
    });
  }

  void read_transfers(std::vector<TransferEnd>& ends) {
    in_.array([&](std::size_t) {
      TransferEnd& end = ends.emplace_back();
      in_.object({{"kind", [&] { end.kind = kind(); }},
                  {"block", [&] { end.block = block(); }},
                  {"group", [&] { end.group = group(); }},
                  {"slot", [&] { end.slot = slot(); }},
                  {"peer", [&] { end.peer = Rank{number(kEndOfInt32, "a peer")}; }},
                  {"wire", [&] { end.wire = static_cast<Dtype>(in_.one_of(kDtypeNames)); }}});
    });
  }

  std::int32_t number(std::int64_t end, std::string_view what) {
    return static_cast<std::int32_t>(in_.whole(0, end, what));
  }
  BlockId block() { return BlockId{number(kEndOfInt32, "a block")}; }
  GroupId group() { return GroupId{number(kEndOfInt32, "a head group")}; }
  SlotId slot() { return SlotId{number(kEndOfInt32, "a slot")}; }
  Kind kind() { return static_cast<Kind>(in_.one_of(kKindNames)); }

  JsonReader& in_;
  Direction direction_;
};

}  // namespace

Program read_program(JsonReader& in, Direction direction) {
  return ProgramReader(in, direction).read();
}

}  // namespace contextile
