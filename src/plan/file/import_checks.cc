// Checks that the parts of a plan's JSON fit together.
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "batch/mask/tile_table.h"
#include "plan/file/import_json.h"
#include "plan/file/manifest.h"

namespace contextile {
namespace {

class ImportCheck {
 public:
  ImportCheck(Plan& plan, std::string_view where) : plan_(plan), where_(where) {}

  void check() {
    check_shape();
    check_tokens();
    if (plan_.rounds.empty()) fail("rounds", "expected at least one round, found none");
    for (round_ = 0; round_ < plan_.rounds.size(); ++round_) check_round(plan_.rounds[round_]);
  }

 private:
  // Throws InvalidPlan with the document, the path and the message.
  template <typename... Args>
  [[noreturn]] void fail(const std::string& path, fmt::format_string<Args...> format,
                         Args&&... args) const {
    fail_plan("{}: {}: {}", where_, path, fmt::format(format, std::forward<Args>(args)...));
  }
  // Checks that `value` is below `end`; `path` makes the path for the message.
  template <typename Path>
  void below(std::int64_t value, std::int64_t end, std::string_view what, const Path& path) const {
    if (value >= end) fail(path(), "expected {} in [0, {}), found {}", what, end, value);
  }

  void check_shape() const {
    const AttentionShape& shape = plan_.shape;
    if (shape.q_heads % shape.kv_heads != 0) {
      fail("shape.q_heads", "expected a multiple of the {} KV heads, found {}", shape.kv_heads,
           shape.q_heads);
    }
    const std::int64_t devices = std::int64_t{plan_.nodes} * plan_.devices_per_node;
    if (devices >= kEndOfInt32) {
      fail("cluster", "expected fewer than 2^31 devices, found {}", devices);
    }
  }

  // Checks that ranges partition the tokens, end to end.
  template <typename List, typename TokensOf>
  void check_end_to_end(const char* name, const List& list, std::int64_t end,
                        const TokensOf& tokens_of) const {
    std::int64_t after = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Range tokens = tokens_of(list[i]);
      if (tokens.begin != after || tokens.empty() || tokens.end > end) {
        fail(fmt::format("{}[{}]", name, i),
             "expected tokens from {} on, at least one and none beyond {}, found [{}, {}]", after,
             end, tokens.begin, tokens.end);
      }
      after = tokens.end;
    }
  }
  template <typename List>
  void check_partition(const char* name, const List& list) const {
    const auto tokens_of = [](const auto& element) { return element.tokens; };
    check_end_to_end(name, list, plan_.num_tokens(), tokens_of);
    if (!list.empty() && list.back().tokens.end != plan_.num_tokens()) {
      fail(name, "expected the last to end at {}, found {}", plan_.num_tokens(),
           list.back().tokens.end);
    }
  }

  void check_tokens() const {
    check_end_to_end("sequences", plan_.sequences, kMaxTokens, [](Range range) { return range; });
    check_partition("home", plan_.home);
    for (std::size_t i = 0; i < plan_.home.size(); ++i) {
      below(plan_.home[i].owner.value, plan_.num_devices(), "an owner",
            [&] { return fmt::format("home[{}][2]", i); });
    }
    check_partition("positions", plan_.positions);
    const auto num_sequences = static_cast<std::int64_t>(plan_.sequences.size());
    for (std::size_t i = 0; i < plan_.positions.size(); ++i) {
      below(plan_.positions[i].sequence, num_sequences, "a sequence",
            [&] { return fmt::format("positions[{}][2]", i); });
      const PositionSegment& segment = plan_.positions[i];
      if (segment.follows >= segment.tokens.begin) {
        fail(fmt::format("positions[{}][4]", i), "expected a token before {}, found {}",
             segment.tokens.begin, segment.follows);
      }
    }
  }

  [[nodiscard]] std::string round_path() const { return fmt::format("rounds[{}]", round_); }
  [[nodiscard]] std::string device_path() const {
    return fmt::format("rounds[{}].devices[{}]", round_, device_);
  }
  [[nodiscard]] std::string instruction_path() const {
    return fmt::format("{}.programs[{}].{}.instructions[{}]", device_path(), mask_,
                       to_string(direction_), instruction_);
  }

  void check_round(PlanRound& round) {
    const std::int32_t kv_heads = plan_.shape.kv_heads;
    if (kv_heads % round.head_groups != 0) {
      fail(round_path() + ".head_groups", "expected a divisor of the {} KV heads, found {}",
           kv_heads, round.head_groups);
    }
    check_block_head_groups(round);
    check_blocks(round);
    check_masks(round);
    if (std::cmp_not_equal(round.devices.size(), plan_.num_devices())) {
      fail(round_path() + ".devices",
           "expected {} devices, all of the cluster (which an export of one rank lacks), found {}",
           plan_.num_devices(), round.devices.size());
    }
    for (device_ = 0; device_ < round.devices.size(); ++device_) {
      check_device(round, round.devices[device_]);
    }
    for (mask_ = 0; mask_ < round.masks.size(); ++mask_) check_pairs(round);
  }

  void check_block_head_groups(PlanRound& round) const {
    for (std::size_t b = 0; b < round.block_head_groups.size(); ++b) {
      std::int32_t& groups = round.block_head_groups[b];
      if (groups == 0) groups = round.head_groups;
      if (round.head_groups % groups == 0) continue;
      fail(fmt::format("{}.blocks[{}].head_groups", round_path(), b),
           "expected a divisor of the {} of the round, found {}", round.head_groups, groups);
    }
  }

  void check_blocks(const PlanRound& round) const {
    const auto path = [&](BlockId block, const std::string& member) {
      return fmt::format("{}.blocks[{}].{}", round_path(), block.value, member);
    };
    for (BlockId block{0}; block.value < round.blocks.num_blocks(); ++block.value) {
      below(round.owners[block.index()].value, plan_.num_devices(), "an owner",
            [&] { return path(block, "owner"); });
      const std::span<const Range> ranges = round.blocks.ranges(block);
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        check_inside(ranges[i], [&] { return path(block, fmt::format("ranges[{}]", i)); });
      }
    }
  }
  template <typename Path>
  void check_inside(Range range, const Path& path) const {
    if (range.begin > range.end || range.end > plan_.num_tokens()) {
      fail(path(), "expected tokens inside [0, {}), found [{}, {}]", plan_.num_tokens(),
           range.begin, range.end);
    }
  }

  void check_masks(const PlanRound& round) const {
    const std::vector<NamedMask>& first = plan_.rounds.front().masks;
    if (round.masks.empty() || round.masks.size() != first.size()) {
      fail(round_path() + ".masks", "expected {} masks, as in every round, found {}",
           std::max<std::size_t>(1, first.size()), round.masks.size());
    }
    for (std::size_t m = 0; m < round.masks.size(); ++m) {
      const NamedMask& mask = round.masks[m];
      if (mask.name != first[m].name || mask.layers != first[m].layers) {
        fail(fmt::format("{}.masks[{}]", round_path(), m),
             "expected mask '{}' of {} layers, as in round 0, found '{}' of {}", first[m].name,
             first[m].layers, mask.name, mask.layers);
      }
      for (std::size_t b = 0; b < mask.mask.bands.size(); ++b) {
        for (const Range range : {mask.mask.bands[b].q, mask.mask.bands[b].k}) {
          check_inside(range,
                       [&] { return fmt::format("{}.masks[{}].bands[{}]", round_path(), m, b); });
        }
      }
    }
  }

  void check_device(const PlanRound& round, const DeviceProgram& device) {
    const std::size_t num_local = device.local_blocks.size();
    for (std::size_t i = 0; i < num_local; ++i) {
      below(device.local_blocks[i].value, round.blocks.num_blocks(), "a block",
            [&] { return fmt::format("{}.local_blocks[{}]", device_path(), i); });
    }
    below(static_cast<std::int64_t>(num_local) * round.head_groups, kEndOfInt32,
          "a number of owned slots", [&] { return device_path() + ".local_blocks"; });
    if (device.programs.size() != round.masks.size()) {
      fail(device_path() + ".programs", "expected one for each of {} masks, found {}",
           round.masks.size(), device.programs.size());
    }
    for (mask_ = 0; mask_ < device.programs.size(); ++mask_) {
      const ProgramPair& pair = device.programs[mask_];
      if (!pair.forward && !pair.backward) {
        fail(fmt::format("{}.programs[{}]", device_path(), mask_),
             "expected forward or backward, found neither");
      }
      for (const Direction direction : kDirections) {
        direction_ = direction;
        check_direction(round, pair);
      }
    }
  }

  void check_direction(const PlanRound& round, const ProgramPair& pair) {
    const std::optional<Program>& program = pair.of(direction_);
    const ProgramPair& first = round.devices.front().programs[mask_];
    if (program.has_value() != first.of(direction_).has_value()) {
      fail(fmt::format("{}.programs[{}]", device_path(), mask_),
           "expected {}key '{}', as on rank 0, found {}", program ? "no " : "a ",
           to_string(direction_), program ? "one" : "none");
    }
    if (!program) return;
    const std::vector<Instruction>& instructions = program->instructions;
    for (instruction_ = 0; instruction_ < instructions.size(); ++instruction_) {
      std::visit([&](const auto& op) { check_op(round, op); }, instructions[instruction_]);
    }
  }

  template <typename Path>
  void check_unit(const PlanRound& round, BlockId block, GroupId group, const Path& path) const {
    below(block.value, round.blocks.num_blocks(), "a block", [&] { return path() + ".block"; });
    below(group.value, round.groups_of(block), "a head group", [&] { return path() + ".group"; });
  }

  void check_op(const PlanRound& round, const AttentionOp& op) const {
    for (std::size_t t = 0; t < op.tiles.size(); ++t) {
      const TileOp& tile = op.tiles[t];
      const auto path = [&](const char* member) {
        return [this, t, member] {
          return fmt::format("{}.tiles[{}].{}", instruction_path(), t, member);
        };
      };
      below(tile.q_block.value, round.blocks.num_blocks(), "a block", path("q_block"));
      below(tile.kv_block.value, round.blocks.num_blocks(), "a block", path("kv_block"));
      below(tile.group.value, round.groups_of(tile.q_block), "a head group", path("group"));
    }
  }
  void check_op(const PlanRound& round, const ReduceOp& op) const {
    check_unit(round, op.block, op.group, [&] { return instruction_path(); });
  }
  void check_op(const PlanRound& round, const CopyOp& op) const {
    check_unit(round, op.block, op.group, [&] { return instruction_path(); });
  }
  void check_op(const PlanRound& round, const LaunchOp& op) const {
    check_ends(round, op.sends, "sends");
    check_ends(round, op.recvs, "recvs");
  }
  void check_op(const PlanRound&, const WaitOp&) const {}

  void check_ends(const PlanRound& round, const std::vector<TransferEnd>& ends,
                  const char* list) const {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const auto path = [&] { return fmt::format("{}.{}[{}]", instruction_path(), list, i); };
      check_unit(round, ends[i].block, ends[i].group, path);
      below(ends[i].peer.value, plan_.num_devices(), "a peer", [&] { return path() + ".peer"; });
    }
  }

  // The table that counts pairs. Empty if blocks share tokens, bands share pairs, or the mask has
  // too many tiles compared with the `num_listed` of the plan.
  static std::optional<TileTable> tiles_of(const NamedMask& mask, const Blocking& blocks,
                                           std::int64_t num_listed) {
    if (find_overlap(mask.mask.bands)) return std::nullopt;
    try {
      return tiles_beside(mask.mask, blocks, num_listed);
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  }

  // Fills in or checks the pairs of all devices' tiles under one mask.
  void check_pairs(PlanRound& round) {
    const std::optional<TileTable> table =
        tiles_of(round.masks[mask_], round.blocks, round.most_tiles(mask_));
    for (device_ = 0; device_ < round.devices.size(); ++device_) {
      ProgramPair& pair = round.devices[device_].programs[mask_];
      for (const Direction direction : kDirections) {
        direction_ = direction;
        auto& program = direction == Direction::kForward ? pair.forward : pair.backward;
        if (!program) continue;
        std::vector<Instruction>& instructions = program->instructions;
        for (instruction_ = 0; instruction_ < instructions.size(); ++instruction_) {
          auto* op = std::get_if<AttentionOp>(&instructions[instruction_]);
          if (op != nullptr) check_pairs(table, *op);
        }
      }
    }
  }
  void check_pairs(const std::optional<TileTable>& table, AttentionOp& op) const {
    for (std::size_t t = 0; t < op.tiles.size(); ++t) {
      TileOp& tile = op.tiles[t];
      const auto path = [&] { return fmt::format("{}.tiles[{}]", instruction_path(), t); };
      if (!table) {
        if (tile.pairs != kPairsNotGiven) continue;
        fail(path(),
             "expected pairs, which cannot be counted where blocks or bands overlap or the mask "
             "has too many tiles, found none");
      }
      const std::int64_t found = table->find(tile.q_block, tile.kv_block);
      const std::int64_t pairs =
          found < 0 ? 0 : table->tiles()[static_cast<std::size_t>(found)].pairs;
      if (tile.pairs != kPairsNotGiven && tile.pairs != pairs) {
        fail(path() + ".pairs", "expected {} (of the mask's bands in the two blocks), found {}",
             pairs, tile.pairs);
      }
      tile.pairs = pairs;
    }
  }

  Plan& plan_;
  std::string_view where_;
  // The place in the plan that is being checked.
  std::size_t round_ = 0;
  std::size_t device_ = 0;
  std::size_t mask_ = 0;
  Direction direction_ = Direction::kForward;
  std::size_t instruction_ = 0;
};

}  // namespace

void check_imported(Plan& plan, std::string_view where) { ImportCheck(plan, where).check(); }

}  // namespace contextile
