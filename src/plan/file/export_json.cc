#include <cmath>
#include <iterator>
#include <ostream>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "plan/file/json_defaults.h"

namespace contextile {
namespace {

constexpr int kJsonVersion = 1;
// The order in which kinds are listed.
constexpr std::array<Kind, kNumKinds> kKinds = {Kind::kQ,  Kind::kKv, Kind::kO,
                                                Kind::kDo, Kind::kDq, Kind::kDkv};

// Collects text and writes it in large pieces, so that documents of any size need little memory.
class JsonStream {
 public:
  explicit JsonStream(std::ostream& out) : out_(out) {}

  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlushBytes) flush();
  }

  // JSON is UTF-8: a byte that belongs to no character becomes U+FFFD.
  void text(std::string_view text) {
    buffer_.push_back('"');
    while (!text.empty()) {
      const std::size_t size = utf8_bytes(text);
      if (size == 0) {
        buffer_.append(std::string_view("\\ufffd"));
      } else if (size == 1) {
        escape(text.front());
      } else if (size == 2 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0) {
        code(static_cast<unsigned char>(text[1]));  // a C1 control code
      } else {
        buffer_.append(text.substr(0, size));
      }
      text.remove_prefix(size == 0 ? 1 : size);
    }
    buffer_.push_back('"');
  }

  // Writes items separated by ", " and `line`, each by write(item).
  template <typename Items, typename Write>
  void list(const Items& items, std::string_view line, const Write& write) {
    bool first = true;
    print("[");
    for (const auto& item : items) {
      print("{}{}", first ? "" : ",", first ? line : line.empty() ? " " : line);
      write(item);
      first = false;
    }
    print("]");
  }

  void flush() {
    out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
    if (!out_)
      fail_io("plan export: expected to write {} bytes of JSON, found a stream that fails",
              buffer_.size());
    buffer_.clear();
  }

 private:
  void code(unsigned char value) {
    fmt::format_to(std::back_inserter(buffer_), "\\u{:04x}", value);
  }
  void escape(char c) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      buffer_.push_back('\\');
      buffer_.push_back(c);
    } else if (byte < 0x20 || byte == 0x7f) {
      code(byte);
    } else {
      buffer_.push_back(c);
    }
  }

  static constexpr std::size_t kFlushBytes = std::size_t{1} << 16;
  std::ostream& out_;
  fmt::memory_buffer buffer_;
};

class PlanExport {
 public:
  PlanExport(const Plan& plan, std::ostream& out, std::optional<Rank> only)
      : plan_(plan), json_(out), only_(only) {}

  void write() {
    write_head();
    json_.print(",\n \"rounds\": ");
    json_.list(plan_.rounds, "", [this](const PlanRound& round) { write_round(round); });
    json_.print("}}\n");
    json_.flush();
  }

 private:
  void write_head() {
    json_.print("{{\"format\": \"contextile-plan\", \"version\": {}, \"strategy\": ", kJsonVersion);
    json_.text(plan_.strategy);
    json_.print(", \"options\": {{");
    bool first = true;
    for (const auto& [key, value] : plan_.options) {
      if (!first) json_.print(", ");
      json_.text(key);
      json_.print(": ");
      json_.text(value);
      first = false;
    }
    json_.print("}}, \"digest\": \"{}\",\n", digest_text(plan_.digest));
    write_shape();
    json_.print(" \"cluster\": {{\"name\": ");
    json_.text(plan_.cluster_name);
    json_.print(", \"nodes\": {}, \"devices_per_node\": {}}},\n \"sequences\": ", plan_.nodes,
                plan_.devices_per_node);
    json_.list(plan_.sequences, "", [this](Range range) { write_range(range); });
    write_additions();
  }

  // Writes the members that most plans lack.
  void write_additions() {
    if (!plan_.home.empty()) {
      json_.print(",\n \"home\": ");
      json_.list(plan_.home, "", [this](const HomeRange& home) {
        json_.print("[{}, {}, {}]", home.tokens.begin, home.tokens.end, home.owner.value);
      });
    }
    if (plan_.positions != positions_from_zero(plan_.sequences)) {
      json_.print(",\n \"positions\": ");
      json_.list(plan_.positions, "", [this](const PositionSegment& segment) {
        json_.print("[{}, {}, {}, {}", segment.tokens.begin, segment.tokens.end, segment.sequence,
                    segment.first_position);
        if (segment.follows != kFollowsNone) json_.print(", {}", segment.follows);
        json_.print("]");
      });
    }
    if (plan_.padded_bytes_factor != 1 || plan_.padded_pairs_factor != 1) {
      json_.print(",\n \"padding\": {{\"bytes_factor\": {}, \"pairs_factor\": {}}}",
                  plan_.padded_bytes_factor, plan_.padded_pairs_factor);
    }
  }

  void write_shape() {
    const AttentionShape& shape = plan_.shape;
    json_.print(
        " \"shape\": {{\"q_heads\": {}, \"kv_heads\": {}, \"head_dim\": {}, "
        "\"value_dim\": {}, \"dtype\": \"{}\", \"partial_wire\": \"{}\", \"scale\": {}, "
        "\"softcap\": ",
        shape.q_heads, shape.kv_heads, shape.head_dim, shape.value_dim, to_string(shape.dtype),
        to_string(plan_.partial_wire), shape.effective_scale());
    if (shape.softcap > 0) {
      json_.print("{}", shape.softcap);
    } else {
      json_.print("null");
    }
    json_.print(", \"sink\": {}", shape.sink);
    // An explicit scale that equals the default of the head dimension changes the digest.
    if (shape.scale == scale_of_head_dim(shape)) json_.print(", \"scale_given\": true");
    json_.print("}},\n");
  }

  void write_range(Range range) { json_.print("[{}, {}]", range.begin, range.end); }

  void write_optional(const std::optional<std::int64_t>& value) {
    if (value) {
      json_.print("{}", *value);
    } else {
      json_.print("null");
    }
  }

  void write_round(const PlanRound& round) {
    json_.print("{{\n   \"head_groups\": {},\n   \"blocks\": [", round.head_groups);
    for (BlockId block{0}; block.value < round.blocks.num_blocks(); ++block.value) {
      json_.print("{}{{\"ranges\": ", block.value == 0 ? "" : ",\n              ");
      json_.list(round.blocks.ranges(block), "", [this](Range range) { write_range(range); });
      json_.print(", \"owner\": {}, \"role\": \"{}\"", round.owners[block.index()].value,
                  to_string(round.blocks.role(block)));
      if (!round.block_head_groups.empty()) {
        json_.print(", \"head_groups\": {}", round.groups_of(block));
      }
      json_.print("}}");
    }
    json_.print("],\n   \"masks\": ");
    json_.list(round.masks, "", [this](const NamedMask& mask) { write_mask(mask); });
    json_.print(",\n   \"token_limit\": ");
    write_optional(round.limits.tokens);
    json_.print(", \"memory_limit_bytes\": ");
    write_optional(round.limits.memory_bytes);
    json_.print(",\n   \"devices\": [");
    bool first = true;
    for (std::size_t r = 0; r < round.devices.size(); ++r) {
      const Rank rank{static_cast<std::int32_t>(r)};
      if (only_ && *only_ != rank) continue;
      json_.print("{}\n     ", first ? "" : ",");
      write_device(rank, round.devices[r]);
      first = false;
    }
    json_.print("]}}");
  }

  static std::string_view to_string(Role role) {
    switch (role) {
      case Role::kBoth:
        return "both";
      case Role::kKvOnly:
        return "kv_only";
      case Role::kQOnly:
        return "q_only";
    }
    return "?";
  }
  static std::string_view to_string(Kind kind) { return contextile::to_string(kind); }
  static std::string_view to_string(Dtype dtype) { return contextile::to_string(dtype); }

  void write_mask(const NamedMask& mask) {
    json_.print("{{\"name\": ");
    json_.text(mask.name);
    json_.print(", \"layers\": {}, \"bands\": ", mask.layers);
    json_.list(mask.mask.bands, "", [this](const Band& band) {
      json_.print("[{}, {}, {}, {}, ", band.q.begin, band.q.end, band.k.begin, band.k.end);
      write_optional(band.lo > -kUnbounded ? std::optional(band.lo) : std::nullopt);
      json_.print(", ");
      write_optional(band.hi < kUnbounded ? std::optional(band.hi) : std::nullopt);
      json_.print("]");
    });
    json_.print("}}");
  }

  void write_device(Rank rank, const DeviceProgram& device) {
    json_.print("{{\"rank\": {}, \"local_blocks\": ", rank.value);
    json_.list(device.local_blocks, "", [this](BlockId block) { json_.print("{}", block.value); });
    json_.print(",\n      \"programs\": [");
    for (std::size_t mask = 0; mask < device.programs.size(); ++mask) {
      json_.print("{}{{\"mask\": {}", mask == 0 ? "" : ",\n       ", mask);
      for (const Direction direction : kDirections) {
        const std::optional<Program>& program = device.programs[mask].of(direction);
        if (program) write_program(*program, direction);
      }
      json_.print("}}");
    }
    json_.print("]}}");
  }

  void write_program(const Program& program, Direction direction) {
    json_.print(",\n        \"{}\": {{\n          \"staging\": {{",
                contextile::to_string(direction));
    bool first = true;
    for (const Kind kind : kKinds) {
      if (!occurs_in(kind, direction)) continue;
      json_.print("{}\"{}\": ", first ? "" : ", ", to_string(kind));
      json_.list(program.staging[static_cast<std::size_t>(kind)], "",
                 [this](const StagingSlot& slot) {
                   json_.print("[{}, {}]", slot.offset_tokens, slot.capacity_tokens);
                 });
      first = false;
    }
    json_.print("}},\n");
    if (direction == Direction::kForward) {
      json_.print("          \"retain\": ");
      json_.list(program.retain, "", [this](const Retain& retain) {
        json_.print("[\"{}\", {}, {}]", to_string(retain.kind), retain.slot.value,
                    retain.backward_slot.value);
      });
      json_.print(",\n");
    }
    json_.print("          \"instructions\": ");
    json_.list(
        program.instructions, "\n            ", [this, direction](const Instruction& instruction) {
          json_.print("{{\"op\": \"{}\", ", op_name(instruction));
          std::visit([this, direction](const auto& op) { write_op(op, direction); }, instruction);
          json_.print("}}");
        });
    json_.print("}}");
  }

  void write_op(const AttentionOp& op, Direction direction) {
    json_.print("\"tiles\": ");
    json_.list(op.tiles, "\n              ", [this, direction](const TileOp& tile) {
      json_.print("{{\"q_block\": {}, \"kv_block\": {}, \"group\": {}, ", tile.q_block.value,
                  tile.kv_block.value, tile.group.value);
      if (direction == Direction::kForward) {
        json_.print("\"q\": {}, \"kv\": {}, \"o\": [{}, {:d}], ", tile.q.value, tile.kv.value,
                    tile.result.value, tile.init_result);
      } else {
        json_.print("\"q\": {}, \"do\": {}, \"kv\": {}, \"dq\": [{}, {:d}], \"dkv\": [{}, {:d}], ",
                    tile.q.value, tile.d_o.value, tile.kv.value, tile.result.value,
                    tile.init_result, tile.dkv.value, tile.init_dkv);
      }
      json_.print("\"pairs\": {}}}", tile.pairs);
    });
  }

  void write_op(const ReduceOp& op, Direction) {
    write_unit(op.kind, op.block, op.group);
    json_.print(", \"dst\": {}, \"srcs\": ", op.dst.value);
    json_.list(op.srcs, "", [this](SlotId slot) { json_.print("{}", slot.value); });
  }

  void write_op(const CopyOp& op, Direction) {
    write_unit(op.kind, op.block, op.group);
    json_.print(", \"dst\": {}, \"src\": {}", op.dst.value, op.src.value);
  }

  void write_op(const LaunchOp& op, Direction) {
    json_.print("\"id\": {}, \"sends\": ", op.id);
    write_ends(op.sends);
    json_.print(", \"recvs\": ");
    write_ends(op.recvs);
  }

  void write_op(const WaitOp& op, Direction) { json_.print("\"id\": {}", op.id); }

  void write_ends(const std::vector<TransferEnd>& ends) {
    json_.list(ends, "", [this](const TransferEnd& end) {
      json_.print("{{");
      write_unit(end.kind, end.block, end.group);
      json_.print(", \"slot\": {}, \"peer\": {}, \"wire\": \"{}\"}}", end.slot.value,
                  end.peer.value, to_string(end.wire));
    });
  }

  void write_unit(Kind kind, BlockId block, GroupId group) {
    json_.print("\"kind\": \"{}\", \"block\": {}, \"group\": {}", to_string(kind), block.value,
                group.value);
  }

  const Plan& plan_;
  JsonStream json_;
  std::optional<Rank> only_;
};

}  // namespace

void export_json(const Plan& plan, std::ostream& out, std::optional<Rank> only,
                 ExportedHeadGroups head_groups) {
  check_whole(plan, "plan export");
  CONTEXTILE_CHECK(!only || (only->valid() && only->value < plan.num_devices()),
                   "expected a rank in [0, {}), found {}", plan.num_devices(), only->value);
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const PlanRound& round = plan.rounds[r];
    if (std::cmp_not_equal(round.owners.size(), round.blocks.num_blocks())) {
      fail_plan("plan export: round {}: expected {} owners, one for every block, found {}", r,
                round.blocks.num_blocks(), round.owners.size());
    }
  }
  if (head_groups == ExportedHeadGroups::kEven && has_block_head_groups(plan)) {
    PlanExport(with_even_head_groups(plan), out, only).write();
  } else {
    PlanExport(plan, out, only).write();
  }
}

}  // namespace contextile
