#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "plan/file/byte_budget.h"
#include "plan/file/file_place.h"
#include "plan/file/manifest.h"
#include "plan/file/plan_file.h"
#include "plan_generated.h"

namespace contextile {
namespace {

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
    place_.fail(format, std::forward<Args>(args)...);
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
    if (!(value > 0 && value <= kMaxPaddingFactor)) {
      fail("expected a padding factor in (0, {}], found {}", kMaxPaddingFactor, value);
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

  // Reads one of the ranges that partition the tokens: the one after a range that ends at `after`.
  Range read_next(const fbs::Range& in, std::int64_t after, std::int64_t total) const {
    if (in.begin() != after) fail("expected to begin at {}, found {}", after, in.begin());
    place_.in_range(in.end(), after + 1, total + 1, "the end of a token range");
    return {in.begin(), in.end()};
  }
  void expect_end(std::int64_t end) const {
    const std::int64_t total = out_.plan.num_tokens();
    if (end != total) fail("expected the last to end at {}, found {}", total, end);
  }

  // Calls read(element) for each element of a list; messages name the list and its index.
  template <typename T, typename Read>
  void for_each(std::string_view list, const flatbuffers::Vector<T>* elements, const Read& read) {
    place_.list = list;
    place_.element = 0;
    for (const auto* element : budget_.list(elements)) {
      read(*element);
      ++place_.element;
    }
    leave_list();
  }
  void leave_list() {
    place_.list = {};
    place_.element = -1;
  }

  void read_sequences() {
    std::vector<Range>& sequences = out_.plan.sequences;
    for_each("sequence", manifest_->sequences(), [&](const fbs::Range& in) {
      sequences.push_back(read_next(in, out_.plan.num_tokens(), kMaxTokens));
    });
  }

  void read_home() {
    std::vector<HomeRange>& home = out_.plan.home;
    for_each("home range", manifest_->home(), [&](const fbs::HomeRange& in) {
      const std::int64_t after = home.empty() ? 0 : home.back().tokens.end;
      const Range tokens = read_next(in.tokens(), after, out_.plan.num_tokens());
      place_.in_range(in.owner(), 0, out_.plan.num_devices(), "an owner");
      home.push_back({tokens, Rank{in.owner()}});
    });
    if (!home.empty()) expect_end(home.back().tokens.end);
  }

  void read_positions() {
    std::vector<PositionSegment>& positions = out_.plan.positions;
    const auto num_sequences = static_cast<std::int64_t>(out_.plan.sequences.size());
    for_each("position segment", manifest_->positions(), [&](const fbs::PositionSegment& in) {
      const std::int64_t after = positions.empty() ? 0 : positions.back().tokens.end;
      const Range tokens = read_next(in.tokens(), after, out_.plan.num_tokens());
      place_.in_range(in.sequence(), 0, num_sequences, "a sequence");
      place_.in_range(in.first_position(), 0, kMaxPosition, "a position");
      positions.push_back({tokens, in.sequence(), in.first_position()});
    });
    if (!positions.empty()) expect_end(positions.back().tokens.end);
    if (manifest_->follows() != nullptr) read_follows(positions);
  }

  void read_follows(std::vector<PositionSegment>& positions) {
    const auto& follows = budget_.list(manifest_->follows());
    if (follows.size() != positions.size()) {
      fail("expected a token that each of {} position segments follows, found {}", positions.size(),
           follows.size());
    }
    std::size_t i = 0;
    for (const std::int64_t token : follows) {
      PositionSegment& segment = positions[i];
      if (token < kPositionsUnknown || token >= segment.tokens.begin) {
        fail("expected position segment {} to follow a token before {}, or {} to {}, found {}", i,
             segment.tokens.begin, kPositionsUnknown, kFollowsNone, token);
      }
      segment.follows = token;
      ++i;
    }
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
    round.limits.tokens = read_limit(in.token_limit(), "token limit");
    round.limits.memory_bytes = read_limit(in.memory_limit_bytes(), "memory limit");
    read_blocks(*in.blocks(), round);
    if (in.block_head_groups() != nullptr) read_block_head_groups(in.block_head_groups(), round);
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

  void read_blocks(const fbs::Blocks& in, PlanRound& round) {
    budget_.visit_table();
    const auto& owners = budget_.list(in.owner());
    const auto& roles = budget_.list(in.role());
    const auto& counts = budget_.list(in.num_ranges());
    const auto& begins = budget_.list(in.range_begin());
    const auto& sizes = budget_.list(in.range_size());
    if (roles.size() != owners.size() || counts.size() != owners.size()) {
      fail("expected roles and numbers of ranges of {} blocks, found {} and {}", owners.size(),
           roles.size(), counts.size());
    }
    if (sizes.size() != begins.size()) {
      fail("expected the sizes of {} ranges, found {}", begins.size(), sizes.size());
    }
    const std::int64_t total = out_.plan.num_tokens();
    round.owners.reserve(owners.size());
    std::vector<Range> ranges;
    flatbuffers::uoffset_t next = 0;
    place_.list = "block";
    for (flatbuffers::uoffset_t b = 0; b < owners.size(); ++b) {
      place_.element = b;
      place_.in_range(roles.Get(b), 0, kNumRoles, "a role");
      place_.in_range(owners.Get(b), 0, out_.plan.num_devices(), "an owner");
      const std::int64_t left = begins.size() - next;
      place_.in_range(counts.Get(b), 1, left + 1, "a number of ranges (of those left)");
      ranges.clear();
      for (const auto end = next + counts.Get(b); next < end; ++next) {
        const std::int64_t begin = begins.Get(next);
        place_.in_range(begin, 0, total, "the begin of a range");
        place_.in_range(sizes.Get(next), 1, total - begin + 1, "the size of a range");
        ranges.push_back({begin, begin + sizes.Get(next)});
      }
      round.blocks.add(ranges, static_cast<Role>(roles.Get(b)));
      round.owners.emplace_back(owners.Get(b));
    }
    leave_list();
    if (next != begins.size()) {
      fail("expected {} ranges of blocks, found {}", next, begins.size());
    }
  }

  void read_block_head_groups(const flatbuffers::Vector<std::int32_t>* in, PlanRound& round) {
    const auto& groups = budget_.list(in);
    if (groups.size() != round.owners.size() || groups.size() == 0) {
      fail("expected head groups of {} blocks, found {}", round.owners.size(), groups.size());
    }
    for (const std::int32_t of_block : groups) {
      if (of_block < 1 || round.head_groups % of_block != 0) {
        fail("expected head groups of block {} to divide the {} of the round, found {}",
             round.block_head_groups.size(), round.head_groups, of_block);
      }
      round.block_head_groups.push_back(of_block);
    }
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
    read_bands(in.bands(), mask.mask);
    const MaskDirections directions{in.has_forward(), in.has_backward()};
    if (!directions.forward && !directions.backward) {
      fail("expected a forward or backward direction, found neither");
    }
    out_.directions.back().push_back(directions);
    out_.programs_per_device += (directions.forward ? 1 : 0) + (directions.backward ? 1 : 0);
  }

  void read_bands(const flatbuffers::Vector<const fbs::Band*>* bands, Mask& mask) {
    for_each("band", bands, [&](const fbs::Band& in) {
      place_.in_range(in.lo(), -kUnbounded, kUnbounded + 1, "a lower bound");
      place_.in_range(in.hi(), -kUnbounded, kUnbounded + 1, "an upper bound");
      mask.bands.push_back({read_range(in.q()), read_range(in.k()), in.lo(), in.hi()});
    });
  }
  Range read_range(const fbs::Range& in) const {
    const std::int64_t total = out_.plan.num_tokens();
    place_.in_range(in.begin(), 0, total + 1, "the begin of a token range");
    place_.in_range(in.end(), in.begin(), total + 1, "the end of a token range");
    return {in.begin(), in.end()};
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
