#include <array>
#include <utility>
#include <variant>

#include "plan/file/byte_budget.h"
#include "plan/file/device_section.h"
#include "plan/file/file_place.h"
#include "plan_generated.h"

namespace contextile {
namespace {

// A list whose elements programs take one after another.
template <typename T>
class ListReader {
 public:
  using Element = typename flatbuffers::Vector<T>::return_type;

  ListReader(const flatbuffers::Vector<T>& list, std::string_view what)
      : list_(list), what_(what) {}

  // Returns the number of elements that are taken next, if there are that many.
  std::size_t expect(std::uint32_t count, const FilePlace& place) const {
    if (count > list_.size() - next_) {
      place.fail("expected at most {} {} (that are left), found a count of {}",
                 list_.size() - next_, what_, count);
    }
    return count;
  }
  Element take() { return list_.Get(next_++); }

  [[nodiscard]] flatbuffers::uoffset_t size() const { return list_.size(); }
  // Checks that other columns have as many rows as this one.
  template <typename... Columns>
  void expect_alike(const FilePlace& place, const Columns&... columns) const {
    for (const flatbuffers::uoffset_t size : {columns.size()...}) {
      if (size != list_.size()) {
        place.fail("expected columns of {} {}, found one of {}", list_.size(), what_, size);
      }
    }
  }
  void expect_end(const FilePlace& place) const {
    if (next_ != list_.size()) {
      place.fail("expected {} {}, found {}", next_, what_, list_.size());
    }
  }

 private:
  const flatbuffers::Vector<T>& list_;
  std::string_view what_;
  flatbuffers::uoffset_t next_ = 0;
};

// The FlatBuffer of a rank, verified.
const fbs::Device& verified_device(std::span<const std::uint8_t> bytes, const FilePlace& place) {
  flatbuffers::Verifier verifier(bytes.data(), bytes.size());
  if (!verifier.VerifyBuffer<fbs::Device>(nullptr)) {
    place.fail("expected a FlatBuffer of the device schema, found bytes that are none");
  }
  return *flatbuffers::GetRoot<fbs::Device>(bytes.data());
}

// Columns of tiles, read row by row.
class TileReader {
 public:
  TileReader(const fbs::Tiles& tiles, ByteBudget& budget, const FilePlace& place)
      : q_block_(budget.list(tiles.q_block()), "tiles"),
        kv_block_(budget.list(tiles.kv_block()), "tiles"),
        group_(budget.list(tiles.group()), "tiles"),
        q_(budget.list(tiles.q()), "tiles"),
        kv_(budget.list(tiles.kv()), "tiles"),
        result_(budget.list(tiles.result()), "tiles"),
        init_(budget.list(tiles.init()), "tiles"),
        pairs_(budget.list(tiles.pairs()), "tiles"),
        backward_do_(budget.list(tiles.backward_do()), "backward tiles"),
        backward_dkv_(budget.list(tiles.backward_dkv()), "backward tiles") {
    q_block_.expect_alike(place, kv_block_, group_, q_, kv_, result_, init_, pairs_);
    backward_do_.expect_alike(place, backward_dkv_);
  }

  std::size_t expect(std::uint32_t count, Direction direction, const FilePlace& place) const {
    if (direction == Direction::kBackward) backward_do_.expect(count, place);
    return q_block_.expect(count, place);
  }
  void expect_end(const FilePlace& place) const {
    q_block_.expect_end(place);
    backward_do_.expect_end(place);
  }

  // Accepts any numbers; only the flags are checked.
  TileOp take(Direction direction, const FilePlace& place) {
    const bool backward = direction == Direction::kBackward;
    TileOp tile;
    tile.q_block = BlockId{q_block_.take()};
    tile.kv_block = BlockId{kv_block_.take()};
    tile.group = GroupId{group_.take()};
    tile.q = SlotId{q_.take()};
    tile.kv = SlotId{kv_.take()};
    tile.result = SlotId{result_.take()};
    if (backward) {
      tile.d_o = SlotId{backward_do_.take()};
      tile.dkv = SlotId{backward_dkv_.take()};
    }
    const std::uint8_t init = place.in_range(init_.take(), 0, backward ? 4 : 2, "a tile's flags");
    tile.init_result = (init & 1U) != 0;
    tile.init_dkv = (init & 2U) != 0;
    tile.pairs = pairs_.take();
    return tile;
  }

 private:
  ListReader<std::int32_t> q_block_;
  ListReader<std::int32_t> kv_block_;
  ListReader<std::int32_t> group_;
  ListReader<std::int32_t> q_;
  ListReader<std::int32_t> kv_;
  ListReader<std::int32_t> result_;
  ListReader<std::uint8_t> init_;
  ListReader<std::int64_t> pairs_;
  ListReader<std::int32_t> backward_do_;
  ListReader<std::int32_t> backward_dkv_;
};

struct StagingReader {
  StagingReader(const fbs::StagingSlots& slots, ByteBudget& budget, const FilePlace& place)
      : offset(budget.list(slots.offset_tokens()), "staging slots"),
        capacity(budget.list(slots.capacity_tokens()), "staging slots") {
    offset.expect_alike(place, capacity);
  }

  ListReader<std::int64_t> offset;
  ListReader<std::int64_t> capacity;
};

struct TransferReader {
  TransferReader(const fbs::Transfers& transfers, ByteBudget& budget, const FilePlace& place)
      : block(budget.list(transfers.block()), "transfers"),
        group(budget.list(transfers.group()), "transfers"),
        slot(budget.list(transfers.slot()), "transfers"),
        peer(budget.list(transfers.peer()), "transfers"),
        kind(budget.list(transfers.kind()), "transfers"),
        wire(budget.list(transfers.wire()), "transfers") {
    block.expect_alike(place, group, slot, peer, kind, wire);
  }

  ListReader<std::int32_t> block;
  ListReader<std::int32_t> group;
  ListReader<std::int32_t> slot;
  ListReader<std::int32_t> peer;
  ListReader<std::uint8_t> kind;
  ListReader<std::uint8_t> wire;
};

class DeviceDecoder {
 public:
  DeviceDecoder(const DecodedManifest& manifest, std::span<const std::uint8_t> bytes,
                FilePlace place)
      : manifest_(manifest),
        place_(place),
        device_(verified_device(bytes, place)),
        budget_(bytes.size(), place),
        programs_(budget_.list(device_.programs()), "programs"),
        local_blocks_(budget_.list(device_.local_blocks()), "local blocks"),
        staging_(*device_.staging(), budget_, place),
        retain_(budget_.list(device_.retain()), "retained slots"),
        instructions_(budget_.list(device_.instructions()), "instructions"),
        tiles_(*device_.tiles(), budget_, place),
        sources_(budget_.list(device_.sources()), "sources"),
        transfers_(*device_.transfers(), budget_, place) {}

  // Allocates nothing until the numbers of rounds and programs are known to be right.
  std::vector<DeviceProgram> decode() {
    if (device_.rank() != place_.rank)
      place_.fail("expected its own rank, found {}", device_.rank());
    const std::int64_t num_programs = device_.programs()->size();
    if (num_programs != manifest_.programs_per_device) {
      place_.fail("expected {} programs, found {}", manifest_.programs_per_device, num_programs);
    }
    const std::size_t num_rounds = manifest_.plan.rounds.size();
    if (budget_.list(device_.num_local_blocks()).size() != num_rounds) {
      place_.fail("expected local blocks of {} rounds, found {}", num_rounds,
                  device_.num_local_blocks()->size());
    }
    std::vector<DeviceProgram> rounds(num_rounds);
    for (std::size_t r = 0; r < num_rounds; ++r) {
      round_ = &manifest_.plan.rounds[r];
      read_local_blocks(r, rounds[r].local_blocks);
      read_programs(r, rounds[r].programs);
    }
    expect_end();
    return rounds;
  }

 private:
  void read_local_blocks(std::size_t r, std::vector<BlockId>& blocks) {
    place_.round = static_cast<std::int64_t>(r);
    const std::size_t count = local_blocks_.expect(
        device_.num_local_blocks()->Get(static_cast<flatbuffers::uoffset_t>(r)), place_);
    place_.in_range(static_cast<std::int64_t>(count) * round_->head_groups, 0, kEndOfInt32,
                    "a number of owned slots");
    blocks.reserve(count);
    place_.list = "local block";
    for (std::size_t i = 0; i < count; ++i) {
      place_.element = static_cast<std::int64_t>(i);
      blocks.push_back(block(local_blocks_.take()));
    }
    leave_list();
    place_.round = -1;
  }

  void read_programs(std::size_t r, std::vector<ProgramPair>& pairs) {
    const std::vector<MaskDirections>& directions = manifest_.directions[r];
    pairs.resize(directions.size());
    for (std::size_t m = 0; m < directions.size(); ++m) {
      for (const Direction direction : kDirections) {
        if (!directions[m].has(direction)) continue;
        std::optional<Program>& program =
            direction == Direction::kForward ? pairs[m].forward : pairs[m].backward;
        read_program(r, m, direction, program.emplace());
      }
    }
  }

  void read_program(std::size_t r, std::size_t m, Direction direction, Program& program) {
    const FilePlace device_place = place_;
    direction_ = direction;
    place_.round = static_cast<std::int64_t>(r);
    place_.mask = static_cast<std::int64_t>(m);
    place_.direction = to_string(direction);
    const fbs::Program& in = *programs_.take();
    if (in.round() != r || in.mask() != m || in.backward() != (direction == Direction::kBackward)) {
      place_.fail("expected this program, found round {}, mask {}, {}", in.round(), in.mask(),
                  in.backward() ? "backward" : "forward");
    }
    read_staging(in, program);
    read_retain(in.retain(), program.retain);
    read_instructions(in.instructions(), program.instructions);
    place_ = device_place;
  }

  void read_staging(const fbs::Program& in, Program& program) {
    const std::array<std::uint32_t, kNumKinds> counts = {in.staging_q(),  in.staging_kv(),
                                                         in.staging_o(),  in.staging_do(),
                                                         in.staging_dq(), in.staging_dkv()};
    for (std::size_t kind = 0; kind < counts.size(); ++kind) {
      const std::size_t count = staging_.offset.expect(counts[kind], place_);
      if (count > 0 && !occurs_in(static_cast<Kind>(kind), direction_)) {
        place_.fail("expected no {} staging, found {} slots", to_string(static_cast<Kind>(kind)),
                    count);
      }
      std::vector<StagingSlot>& slots = program.staging[kind];
      slots.reserve(count);
      place_.list = "staging slot";
      for (std::size_t i = 0; i < count; ++i) {
        place_.element = static_cast<std::int64_t>(i);
        const std::int64_t offset = staging_.offset.take();
        const std::int64_t capacity = staging_.capacity.take();
        slots.push_back({place_.in_range(offset, 0, kMaxArenaTokens, "an offset"),
                         place_.in_range(capacity, 0, kMaxArenaTokens, "a capacity")});
      }
      leave_list();
    }
  }

  void read_retain(std::uint32_t size, std::vector<Retain>& retain) {
    const std::size_t count = retain_.expect(size, place_);
    if (count > 0 && direction_ == Direction::kBackward) {
      place_.fail("expected no retained slots in a backward program, found {}", count);
    }
    retain.reserve(count);
    place_.list = "retained slot";
    for (std::size_t i = 0; i < count; ++i) {
      place_.element = static_cast<std::int64_t>(i);
      const fbs::Retain& in = *retain_.take();
      retain.push_back({kind(in.kind()), slot(in.slot()), slot(in.backward_slot())});
    }
    leave_list();
  }

  void read_instructions(std::uint32_t size, std::vector<Instruction>& instructions) {
    const std::size_t count = instructions_.expect(size, place_);
    instructions.reserve(count);
    place_.list = "instruction";
    for (std::size_t i = 0; i < count; ++i) {
      place_.element = static_cast<std::int64_t>(i);
      instructions.push_back(read_instruction(*instructions_.take()));
    }
    leave_list();
  }

  Instruction read_instruction(const fbs::Instruction& in) {
    switch (place_.in_range(in.op(), 0, std::variant_size_v<Instruction>, "an operation")) {
      case 0:
        return read_attention(in);
      case 1:
        return read_reduce(in);
      case 2:
        return read_copy(in);
      case 3:
        return read_launch(in);
      default:
        return WaitOp{launch_id(in)};
    }
  }

  AttentionOp read_attention(const fbs::Instruction& in) {
    AttentionOp op;
    op.tiles.resize(tiles_.expect(in.count(), direction_, place_));
    for (TileOp& tile : op.tiles) {
      tile = tiles_.take(direction_, place_);
      block(tile.q_block.value);
      block(tile.kv_block.value);
      group(tile.group.value, tile.q_block);
      place_.in_range(tile.pairs, 0, kMaxTilePairs, "pairs of a tile");
      for (const SlotId used : {tile.q, tile.kv, tile.result}) slot(used.value);
      if (direction_ == Direction::kForward) continue;
      slot(tile.d_o.value);
      slot(tile.dkv.value);
    }
    return op;
  }

  ReduceOp read_reduce(const fbs::Instruction& in) {
    const BlockId of = block(in.block());
    ReduceOp op{kind(in.kind()), of, group(in.group(), of), slot(in.slot()), {}};
    const std::size_t count = sources_.expect(in.count(), place_);
    op.srcs.reserve(count);
    for (std::size_t i = 0; i < count; ++i) op.srcs.push_back(slot(sources_.take()));
    return op;
  }

  CopyOp read_copy(const fbs::Instruction& in) {
    const BlockId of = block(in.block());
    CopyOp op{kind(in.kind()), of, group(in.group(), of), slot(in.slot()), {}};
    place_.in_range(in.count(), 1, 2, "a copy's number of sources");
    sources_.expect(in.count(), place_);
    op.src = slot(sources_.take());
    return op;
  }

  LaunchOp read_launch(const fbs::Instruction& in) {
    LaunchOp op;
    op.id = launch_id(in);
    read_transfers(in.count(), op.sends);
    read_transfers(in.recvs(), op.recvs);
    return op;
  }

  void read_transfers(std::uint32_t size, std::vector<TransferEnd>& ends) {
    ends.resize(transfers_.block.expect(size, place_));
    for (TransferEnd& end : ends) {
      end.kind = kind(transfers_.kind.take());
      end.block = block(transfers_.block.take());
      end.group = group(transfers_.group.take(), end.block);
      end.slot = slot(transfers_.slot.take());
      end.peer =
          Rank{place_.in_range(transfers_.peer.take(), 0, manifest_.plan.num_devices(), "a peer")};
      end.wire = static_cast<Dtype>(
          place_.in_range(transfers_.wire.take(), 0, kNumDtypes, "a wire dtype"));
    }
  }

  BlockId block(std::int32_t id) const {
    return BlockId{place_.in_range(id, 0, round_->blocks.num_blocks(), "a block")};
  }
  GroupId group(std::int32_t id, BlockId of) const {
    return GroupId{place_.in_range(id, 0, round_->groups_of(of), "a head group")};
  }
  SlotId slot(std::int32_t id) const {
    return SlotId{place_.in_range(id, 0, kEndOfInt32, "a slot")};
  }
  Kind kind(std::uint8_t id) const {
    return static_cast<Kind>(place_.in_range(id, 0, kNumKinds, "a kind"));
  }
  std::int32_t launch_id(const fbs::Instruction& in) const {
    return place_.in_range(in.id(), 0, kEndOfInt32, "a launch id");
  }

  void leave_list() {
    place_.list = {};
    place_.element = -1;
  }

  void expect_end() const {
    local_blocks_.expect_end(place_);
    staging_.offset.expect_end(place_);
    retain_.expect_end(place_);
    instructions_.expect_end(place_);
    tiles_.expect_end(place_);
    sources_.expect_end(place_);
    transfers_.block.expect_end(place_);
  }

  const DecodedManifest& manifest_;
  FilePlace place_;
  const fbs::Device& device_;
  ByteBudget budget_;
  const PlanRound* round_ = nullptr;  // of the program that is being read
  Direction direction_ = Direction::kForward;

  ListReader<const fbs::Program*> programs_;
  ListReader<std::int32_t> local_blocks_;
  StagingReader staging_;
  ListReader<const fbs::Retain*> retain_;
  ListReader<const fbs::Instruction*> instructions_;
  TileReader tiles_;
  ListReader<std::int32_t> sources_;
  TransferReader transfers_;
};

}  // namespace

std::vector<DeviceProgram> decode_device(const DecodedManifest& manifest,
                                         std::span<const std::uint8_t> bytes, std::size_t rank,
                                         std::string_view file) {
  const FilePlace place{
      .file = file, .section = "device section", .rank = static_cast<std::int64_t>(rank)};
  return DeviceDecoder(manifest, bytes, place).decode();
}

}  // namespace contextile
