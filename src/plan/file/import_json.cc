#include "plan/file/import_json.h"

#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "contextile/plan_file.h"
#include "plan/file/json_defaults.h"
#include "plan/file/magnitudes.h"
#include "plan/file/manifest.h"

namespace contextile {
namespace {

constexpr std::int64_t kEndOfInt64 = std::numeric_limits<std::int64_t>::max();

class DocumentReader {
 public:
  DocumentReader(std::string_view json, std::string_view where) : in_(json, where) {}

  // The digest is the document's, zero if it has none.
  Plan read() {
    bool has_positions = false;
    in_.object({{"format", [&] { read_format(); }},
                {"version", [&] { read_version(); }},
                {"strategy", [&] { plan_.strategy = in_.string("a strategy"); }},
                {"options", [&] { read_options(); }},
                {"digest", [&] { read_digest(); }, Presence::kOptional},
                {"shape", [&] { read_shape(); }},
                {"cluster", [&] { read_cluster(); }},
                {"sequences", [&] { read_ranges(plan_.sequences); }},
                {"home", [&] { read_home(); }, Presence::kOptional},
                {"positions",
                 [&] {
                   has_positions = true;
                   read_positions();
                 },
                 Presence::kOptional},
                {"padding", [&] { read_padding(); }, Presence::kOptional},
                {"rounds", [&] { in_.array([&](std::size_t) { read_round(); }); }}});
    in_.end();
    if (!has_positions) plan_.positions = positions_from_zero(plan_.sequences);
    return std::move(plan_);
  }

 private:
  void read_format() {
    constexpr std::array<std::string_view, 1> kFormats = {"contextile-plan"};
    static_cast<void>(in_.one_of(kFormats));
  }

  void read_version() {
    const std::int64_t version = in_.whole(0, kEndOfInt64, "a version");
    if (version != 1) in_.fail("expected version 1, found {}", version);
  }

  void read_options() {
    in_.map([&](std::string key) {
      if (plan_.options.contains(key)) in_.fail("expected every key once, found '{}' twice", key);
      plan_.options.emplace(std::move(key), in_.string("a text"));
    });
  }

  void read_digest() {
    constexpr std::size_t kDigits = 16;
    const std::string text(in_.string("a digest"));
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), plan_.digest, kDigits);
    if (text.size() != kDigits || error != std::errc() || text != digest_text(plan_.digest)) {
      in_.fail("expected {} hexadecimal digits in lower case, found '{}'", kDigits, text);
    }
  }

  void read_shape() {
    AttentionShape& shape = plan_.shape;
    bool scale_given = false;
    in_.object({{"q_heads", [&] { shape.q_heads = shape_number("query heads"); }},
                {"kv_heads", [&] { shape.kv_heads = shape_number("KV heads"); }},
                {"head_dim", [&] { shape.head_dim = shape_number("head dim"); }},
                {"value_dim", [&] { shape.value_dim = shape_number("value dim"); }},
                {"dtype", [&] { shape.dtype = dtype(); }},
                {"partial_wire", [&] { plan_.partial_wire = dtype(); }},
                {"scale", [&] { read_scale(shape.scale); }},
                {"softcap", [&] { read_softcap(shape.softcap); }},
                {"sink", [&] { shape.sink = in_.boolean(); }},
                {"scale_given", [&] { scale_given = in_.boolean(); }, Presence::kOptional}});
    if (!scale_given && shape.scale == scale_of_head_dim(shape)) shape.scale = 0;
  }
  void read_scale(double& scale) {
    scale = in_.number("a scale");
    if (scale == 0) in_.fail("expected a scale other than 0, found 0");
  }
  void read_softcap(double& softcap) {
    if (in_.null()) return;
    softcap = in_.number("a softcap");
    if (!(softcap > 0)) in_.fail("expected a softcap above 0 or null, found {}", softcap);
  }
  std::int32_t shape_number(std::string_view what) {
    return static_cast<std::int32_t>(in_.whole(1, kMaxShapeNumber + 1, what));
  }
  Dtype dtype() { return static_cast<Dtype>(in_.one_of(kDtypeNames)); }

  void read_cluster() {
    const auto count = [&](std::string_view what) {
      return static_cast<std::int32_t>(in_.whole(1, kEndOfInt32, what));
    };
    in_.object({{"name", [&] { plan_.cluster_name = in_.string("a name"); }},
                {"nodes", [&] { plan_.nodes = count("nodes"); }},
                {"devices_per_node", [&] { plan_.devices_per_node = count("devices"); }}});
  }

  std::int64_t token() { return in_.whole(0, kMaxTokens + 1, "a token"); }
  void read_bound(Range& range, std::size_t i) { (i == 0 ? range.begin : range.end) = token(); }
  void read_ranges(std::vector<Range>& ranges) {
    in_.array([&](std::size_t) {
      Range& range = ranges.emplace_back();
      in_.tuple(2, [&](std::size_t i) { read_bound(range, i); });
    });
  }

  void read_home() {
    in_.array([&](std::size_t) {
      HomeRange& home = plan_.home.emplace_back();
      in_.tuple(3, [&](std::size_t i) {
        if (i < 2) read_bound(home.tokens, i);
        if (i == 2) home.owner = rank();
      });
    });
  }

  void read_positions() {
    in_.array([&](std::size_t) {
      PositionSegment& segment = plan_.positions.emplace_back();
      in_.tuple(4, 5, [&](std::size_t i) {
        if (i < 2) read_bound(segment.tokens, i);
        if (i == 4) segment.follows = in_.whole(kPositionsUnknown, kMaxTokens, "a token");
        if (i == 2) segment.sequence = in_.whole(0, kMaxTokens, "a sequence");
        if (i == 3) segment.first_position = in_.whole(0, kMaxPosition, "a position");
      });
    });
  }

  void read_padding() {
    const auto factor = [&](double& value) {
      value = in_.number("a factor");
      if (!(value > 0 && value <= kMaxPaddingFactor)) {
        in_.fail("expected a factor in (0, {}], found {}", kMaxPaddingFactor, value);
      }
    };
    in_.object({{"bytes_factor", [&] { factor(plan_.padded_bytes_factor); }},
                {"pairs_factor", [&] { factor(plan_.padded_pairs_factor); }}});
  }

  Rank rank() { return Rank{static_cast<std::int32_t>(in_.whole(0, kEndOfInt32, "a rank"))}; }

  void read_round() {
    PlanRound& round = plan_.rounds.emplace_back();
    in_.object(
        {{"head_groups", [&] { round.head_groups = shape_number("head groups"); }},
         {"blocks", [&] { in_.array([&](std::size_t) { read_block(round); }); }},
         {"masks", [&] { in_.array([&](std::size_t) { read_mask(round.masks.emplace_back()); }); }},
         {"token_limit", [&] { read_limit(round.limits.tokens); }},
         {"memory_limit_bytes", [&] { read_limit(round.limits.memory_bytes); }},
         {"devices", [&] {
            in_.array([&](std::size_t i) { read_device(i, round.devices.emplace_back()); });
          }}});
  }

  void read_block(PlanRound& round) {
    std::vector<Range> ranges;
    Role role = Role::kBoth;
    Rank owner;
    std::int32_t groups = 0;
    in_.object(
        {{"ranges", [&] { read_ranges(ranges); }},
         {"owner", [&] { owner = rank(); }},
         {"role", [&] { role = static_cast<Role>(in_.one_of(kRoleNames)); }},
         {"head_groups", [&] { groups = shape_number("head groups"); }, Presence::kOptional}});
    if (ranges.empty()) in_.fail("expected a block of at least one range, found none");
    for (const Range& range : ranges) {
      if (range.empty() || range.end > kMaxTokens) {
        in_.fail("expected non-empty ranges inside [0, {}), found [{}, {}]", kMaxTokens,
                 range.begin, range.end);
      }
    }
    round.blocks.add(ranges, role);
    round.owners.push_back(owner);
    if (groups == 0 && round.block_head_groups.empty()) return;
    round.block_head_groups.resize(round.owners.size());  // 0: those of the round
    round.block_head_groups.back() = groups;
  }

  void read_mask(NamedMask& mask) {
    in_.object({{"name", [&] { mask.name = in_.string("a name"); }},
                {"layers", [&] { mask.layers = shape_number("layers"); }},
                {"bands", [&] {
                   in_.array([&](std::size_t) { read_band(mask.mask.bands.emplace_back()); });
                 }}});
  }
  void read_band(Band& band) {
    in_.tuple(6, [&](std::size_t i) {
      if (i < 2) return read_bound(band.q, i);
      if (i < 4) return read_bound(band.k, i - 2);
      if (in_.null()) return;
      (i == 4 ? band.lo : band.hi) =
          in_.whole(-kUnbounded, kUnbounded + 1, i == 4 ? "a lower bound" : "an upper bound");
    });
  }

  void read_limit(std::optional<std::int64_t>& limit) {
    if (!in_.null()) limit = in_.whole(0, kEndOfInt64, "a limit");
  }

  // Devices and programs state their index, so that a part is not mistaken for the whole.
  void read_device(std::size_t index, DeviceProgram& device) {
    in_.object({{"rank", [&] { expect_index(index, "rank"); }},
                {"local_blocks",
                 [&] {
                   in_.array([&](std::size_t) {
                     device.local_blocks.emplace_back(
                         static_cast<std::int32_t>(in_.whole(0, kEndOfInt32, "a block")));
                   });
                 }},
                {"programs", [&] {
                   in_.array([&](std::size_t i) { read_pair(i, device.programs.emplace_back()); });
                 }}});
  }
  void read_pair(std::size_t index, ProgramPair& pair) {
    in_.object({{"mask", [&] { expect_index(index, "mask"); }},
                {"forward", [&] { pair.forward = read_program(in_, Direction::kForward); },
                 Presence::kOptional},
                {"backward", [&] { pair.backward = read_program(in_, Direction::kBackward); },
                 Presence::kOptional}});
  }
  void expect_index(std::size_t index, std::string_view what) {
    const std::int64_t found = in_.whole(0, kEndOfInt32, what);
    if (std::cmp_equal(found, index)) return;
    in_.fail(
        "expected {} {} (all of them stand in order, which an export of one rank lacks), found {}",
        what, index, found);
  }

  JsonReader in_;
  Plan plan_;
};

}  // namespace

Plan import_json(std::string_view json, std::string_view where) {
  Plan plan = DocumentReader(json, where).read();
  check_imported(plan, where);
  check_magnitudes(plan, where);
  const std::uint64_t said = plan.digest;
  plan.digest = compute_digest(plan);
  if (said != 0 && said != plan.digest) {
    fail_plan(
        "{}: digest: expected {}, that of the plan in this document, found {}: the document was "
        "changed after it was written (leave the digest out to import it as it is)",
        where, digest_text(plan.digest), digest_text(said));
  }
  return plan;
}

}  // namespace contextile
