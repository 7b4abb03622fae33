#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "plan/file/byte_budget.h"
#include "plan/file/byte_codec.h"
#include "plan/file/manifest.h"
#include "plan_generated.h"

namespace contextile {
namespace {

constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;
constexpr std::int32_t kMaxShapeNumber = 1 << 20;  // heads and dims
constexpr std::int64_t kMaxPosition = kUnbounded;
constexpr int kNumRoles = 3;

class ManifestDecoder {
 public:
  ManifestDecoder(std::span<const std::uint8_t> bytes, std::string_view file)
      : place_{.file = file, .section = "manifest"}, budget_(bytes.size(), place_) {
    flatbuffers::Verifier verifier(bytes.data(), bytes.size());
    if (!verifier.VerifyBuffer<fbs::Manifest>(nullptr)) {
      fail("expected a FlatBuffer of the manifest's schema, found bytes that are none");
    }
    manifest_ = flatbuffers::GetRoot<fbs::Manifest>(bytes.data());
  }

  DecodedManifest decode() {
    if (manifest_->version() != kPlanFileVersion) {
      fail("expected version {}, found {}", kPlanFileVersion, manifest_->version());
    }
    Plan& plan = out_.plan;
    plan.strategy = budget_.text(manifest_->strategy());
    read_options();
    read_shape();
    plan.partial_wire = read_dtype(manifest_->partial_wire(), "partial wire");
    plan.cluster_name = budget_.text(manifest_->cluster_name());
    read_devices();
    plan.padded_bytes_factor = read_factor(manifest_->padded_bytes_factor());
    plan.padded_pairs_factor = read_factor(manifest_->padded_pairs_factor());
    read_sequences();
    read_home();
    read_positions();
    read_rounds();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidPlan(place_.text() + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  std::int32_t checked(std::int32_t value, std::int32_t low, std::int32_t high,
                       std::string_view what) const {
    if (value < low || value > high) {
      fail("expected {} in [{}, {}], found {}", what, low, high, value);
    }
    return value;
  }

  Dtype read_dtype(std::uint8_t value, std::string_view what) const {
    return static_cast<Dtype>(checked(value, 0, kNumDtypes - 1, what));
  }

  double read_factor(double value) const {
    constexpr double kLargest = 1e6;
    if (!(value > 0 && value <= kLargest)) {
      fail("expected a padding factor in (0, {}], found {}", kLargest, value);
    }
    return value;
  }

  void read_options() {
    for (const fbs::Option* option : *manifest_->options()) {
      budget_.visit_table();
      std::string key = budget_.text(option->key());
      auto& options = out_.plan.options;
      if (!options.empty() && !(options.rbegin()->first < key)) {
        fail("expected options in ascending order, found '{}' after '{}'", key,
             options.rbegin()->first);
      }
      options.emplace_hint(options.end(), std::move(key), budget_.text(option->value()));
    }
  }

  void read_shape() {
    const fbs::Shape& in = *manifest_->shape();
    AttentionShape& shape = out_.plan.shape;
    shape.q_heads = checked(in.q_heads(), 1, kMaxShapeNumber, "query heads");
    shape.kv_heads = checked(in.kv_heads(), 1, kMaxShapeNumber, "KV heads");
    shape.head_dim = checked(in.head_dim(), 1, kMaxShapeNumber, "head dim");
    shape.value_dim = checked(in.value_dim(), 1, kMaxShapeNumber, "value dim");
    shape.dtype = read_dtype(in.dtype(), "dtype");
    shape.scale = in.scale();
    shape.softcap = in.softcap();
    shape.sink = in.sink();
    if (shape.q_heads % shape.kv_heads != 0) {
      fail("expected query heads to be a multiple of the {} KV heads, found {}", shape.kv_heads,
           shape.q_heads);
    }
    if (!std::isfinite(shape.scale) || !std::isfinite(shape.softcap) || shape.softcap < 0) {
      fail("expected a finite scale and softcap, found {} and {}", shape.scale, shape.softcap);
    }
  }

  void read_devices() {
    Plan& plan = out_.plan;
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    plan.nodes = checked(manifest_->nodes(), 1, kMost, "nodes");
    plan.devices_per_node = checked(manifest_->devices_per_node(), 1, kMost, "devices per node");
    const std::int64_t devices = std::int64_t{plan.nodes} * plan.devices_per_node;
    if (devices > kMost) fail("expected at most {} devices, found {}", kMost, devices);
  }

  ByteReader reader(const flatbuffers::Vector<std::uint8_t>* bytes, std::string_view stream) {
    FilePlace place = place_;
    place.stream = stream;
    return {budget_.bytes(bytes), place};
  }

  // Within [0, limit); `limit` at most kMaxTokens.
  static Range read_range(ByteReader& in, std::int64_t after, std::int64_t limit,
                          std::int64_t smallest) {
    Range range;
    range.begin = in.in_range(in.delta(after), 0, limit + 1, "the begin of a token range");
    range.end = in.in_range(in.delta(range.begin), range.begin + smallest, limit + 1,
                            "the end of a token range");
    return range;
  }
  // Ranges that partition [0, total).
  static Range read_next(ByteReader& in, std::int64_t after, std::int64_t total) {
    const Range range = read_range(in, after, total, 1);
    if (range.begin != after) in.fail("expected to begin at {}, found {}", after, range.begin);
    return range;
  }
  void expect_partition(const ByteReader& in, std::int64_t end) const {
    const std::int64_t total = out_.plan.num_tokens();
    if (end != total) in.fail("expected the last to end at {}, found {}", total, end);
    in.expect_end();
  }

  void read_sequences() {
    ByteReader in = reader(manifest_->sequences(), "sequence");
    std::vector<Range>& sequences = out_.plan.sequences;
    const std::int64_t count = in.count("sequences");
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      in.at_element(i);
      sequences.push_back(read_next(in, end, kMaxTokens));
      end = sequences.back().end;
    }
    in.expect_end();
  }

  void read_home() {
    ByteReader in = reader(manifest_->home(), "home range");
    const std::int64_t count = in.count("home ranges");
    HomeRange previous{{}, Rank{0}};
    for (std::int64_t i = 0; i < count; ++i) {
      in.at_element(i);
      previous.tokens = read_next(in, previous.tokens.end, out_.plan.num_tokens());
      previous.owner =
          Rank{in.delta32(previous.owner.value, 0, out_.plan.num_devices(), "an owner")};
      out_.plan.home.push_back(previous);
    }
    if (count > 0) expect_partition(in, previous.tokens.end);
    in.expect_end();
  }

  void read_positions() {
    ByteReader in = reader(manifest_->positions(), "position segment");
    const std::int64_t count = in.count("position segments");
    const auto num_sequences = static_cast<std::int64_t>(out_.plan.sequences.size());
    PositionSegment previous;
    for (std::int64_t i = 0; i < count; ++i) {
      in.at_element(i);
      previous.tokens = read_next(in, previous.tokens.end, out_.plan.num_tokens());
      previous.sequence = in.in_range(in.delta(previous.sequence), 0, num_sequences, "a sequence");
      previous.first_position = in.in_range(in.zigzag(), 0, kMaxPosition, "a position");
      out_.plan.positions.push_back(previous);
    }
    if (count > 0) expect_partition(in, previous.tokens.end);
    in.expect_end();
  }

  void read_rounds() {
    for (const fbs::Round* round : *manifest_->rounds()) {
      budget_.visit_table();
      place_.round = static_cast<std::int64_t>(out_.plan.rounds.size());
      read_round(*round);
    }
    place_.round = -1;
    if (out_.plan.rounds.empty()) fail("expected at least one round, found none");
  }

  void read_round(const fbs::Round& in) {
    PlanRound& round = out_.plan.rounds.emplace_back();
    const std::int32_t kv_heads = out_.plan.shape.kv_heads;
    round.head_groups = checked(in.head_groups(), 1, kv_heads, "head groups");
    if (kv_heads % round.head_groups != 0) {
      fail("expected head groups to divide the {} KV heads, found {}", kv_heads, round.head_groups);
    }
    round.token_limit = read_limit(in.token_limit(), "token limit");
    round.memory_limit_bytes = read_limit(in.memory_limit_bytes(), "memory limit");
    read_blocks(reader(in.blocks(), "block"), round);
    out_.directions.emplace_back();
    for (const fbs::Mask* mask : *in.masks()) {
      budget_.visit_table();
      place_.mask = static_cast<std::int64_t>(round.masks.size());
      read_mask(*mask, round);
    }
    place_.mask = -1;
    const std::vector<NamedMask>& first = out_.plan.rounds.front().masks;
    if (round.masks.empty() || round.masks.size() != first.size()) {
      fail("expected {} masks, found {}", std::max<std::size_t>(1, first.size()),
           round.masks.size());
    }
  }

  std::optional<std::int64_t> read_limit(flatbuffers::Optional<std::int64_t> value,
                                         std::string_view what) const {
    if (!value.has_value()) return std::nullopt;
    if (*value < 0) fail("expected a {} >= 0, found {}", what, *value);
    return *value;
  }

  void read_blocks(ByteReader in, PlanRound& round) {
    const std::int64_t count =
        in.in_range(in.count("blocks"), 0, kEndOfInt32, "a number of blocks");
    round.owners.reserve(static_cast<std::size_t>(count));
    Range previous;
    Rank owner{0};
    std::vector<Range> ranges;
    for (std::int64_t b = 0; b < count; ++b) {
      in.at_element(b);
      const std::uint64_t head = in.varint();
      const auto role = static_cast<Role>(
          in.in_range(static_cast<std::int64_t>(head & 3U), 0, kNumRoles, "a role"));
      owner = Rank{in.delta32(owner.value, 0, out_.plan.num_devices(), "an owner")};
      ranges.clear();
      if (head >> 2 == 0) in.fail("expected at least one range, found none");
      for (std::uint64_t i = 0; i < head >> 2; ++i) {
        const std::int64_t begin = in.delta(previous.end);
        const std::int64_t size = in.delta(previous.size());
        const std::int64_t total = out_.plan.num_tokens();
        in.in_range(begin, 0, total, "the begin of a range");
        in.in_range(size, 1, total - begin + 1, "the size of a range");
        previous = {begin, begin + size};
        ranges.push_back(previous);
      }
      round.blocks.add(ranges, role);
      round.owners.push_back(owner);
    }
    in.expect_end();
  }

  void read_mask(const fbs::Mask& in, PlanRound& round) {
    const std::size_t index = round.masks.size();
    NamedMask& mask = round.masks.emplace_back();
    mask.name = budget_.text(in.name());
    mask.layers = checked(in.layers(), 1, kMaxShapeNumber, "layers");
    const std::vector<NamedMask>& first = out_.plan.rounds.front().masks;
    if (index >= first.size() || mask.name != first[index].name ||
        mask.layers != first[index].layers) {
      fail("expected the masks of round 0 in the same order, found '{}' with {} layers", mask.name,
           mask.layers);
    }
    read_bands(reader(in.bands(), "band"), mask.mask);
    const MaskDirections directions{in.has_forward(), in.has_backward()};
    if (!directions.forward && !directions.backward) {
      fail("expected a forward or backward direction, found neither");
    }
    out_.directions.back().push_back(directions);
    out_.programs_per_device += (directions.forward ? 1 : 0) + (directions.backward ? 1 : 0);
  }

  void read_bands(ByteReader in, Mask& mask) const {
    const std::int64_t count = in.count("bands");
    mask.bands.reserve(static_cast<std::size_t>(count));
    std::int64_t q_end = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      in.at_element(i);
      const std::int64_t bounds = in.in_range(in.byte(), 0, 4, "the bounds' flags");
      Band band;
      band.q = read_range(in, q_end, out_.plan.num_tokens(), 0);
      band.k = read_range(in, band.q.begin, out_.plan.num_tokens(), 0);
      if ((bounds & 1) != 0) {
        band.lo = in.in_range(in.zigzag(), 1 - kUnbounded, kUnbounded + 1, "a lower bound");
      }
      if ((bounds & 2) != 0) {
        band.hi = in.in_range(in.zigzag(), -kUnbounded, kUnbounded, "an upper bound");
      }
      mask.bands.push_back(band);
      q_end = band.q.end;
    }
    in.expect_end();
  }

  const fbs::Manifest* manifest_ = nullptr;
  FilePlace place_;
  ByteBudget budget_;
  DecodedManifest out_;
};

}  // namespace

DecodedManifest decode_manifest(std::span<const std::uint8_t> bytes, std::string_view file) {
  return ManifestDecoder(bytes, file).decode();
}

}  // namespace contextile
