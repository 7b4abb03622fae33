#include "report/html/tile_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "report/html/tile_rows.h"
#include "report/html/varint_text.h"

namespace contextile {
namespace {

// A picture of more pieces takes too long. Rows are merged instead, and the devices of merged rows
// are found from a sample.
constexpr std::int64_t kMaxPieces = 8'000'000;

struct Plane {
  std::size_t mask = 0;
  Direction direction = Direction::kForward;
  std::int32_t group = 0;
};

std::vector<Plane> planes_of(const Plan& plan) {
  std::vector<Plane> planes;
  std::int32_t groups = 1;
  for (const PlanRound& round : plan.rounds) groups = std::max(groups, round.head_groups);
  const PlanRound& first = plan.rounds.front();
  for (std::size_t m = 0; m < first.masks.size(); ++m) {
    for (const Direction direction : kDirections) {
      if (!first.has_direction(m, direction)) continue;
      for (std::int32_t g = 0; g < groups; ++g) planes.push_back({m, direction, g});
    }
  }
  return planes;
}

// The round's head group of the plane's heads. Rounds may differ in their number of head groups.
GroupId group_of(const PlanRound& round, std::int32_t group, std::int32_t groups) {
  return GroupId{static_cast<std::int32_t>(std::int64_t{group} * round.head_groups / groups)};
}

struct Cell {
  std::int32_t column = 0;
  std::int32_t device = 0;
  std::int64_t pairs = 0;
};

struct Run {
  std::int32_t begin = 0;  // columns
  std::int32_t end = 0;
  std::int32_t device = 0;
  std::int32_t share_percent = 100;
};

// A share in steps of an eighth, so that runs of about the same share stay runs.
std::int32_t eighths_percent(std::int64_t part, std::int64_t all) {
  const double share = static_cast<double>(part) / static_cast<double>(all);
  return static_cast<std::int32_t>(std::lround(std::round(share * 8) * 12.5));
}

// The device of most pairs of each column; consecutive columns of one device form one run.
std::vector<Run> runs_of(std::vector<Cell>& cells, bool merged) {
  std::ranges::sort(cells, {}, [](const Cell& c) { return std::pair(c.column, c.device); });
  std::vector<Run> runs;
  for (std::size_t i = 0; i < cells.size();) {
    const std::int32_t column = cells[i].column;
    std::int64_t all = 0;
    std::int64_t most = -1;
    std::int32_t device = 0;
    while (i < cells.size() && cells[i].column == column) {
      std::int64_t pairs = 0;
      const std::int32_t candidate = cells[i].device;
      while (i < cells.size() && cells[i].column == column && cells[i].device == candidate) {
        pairs += cells[i++].pairs;
      }
      all += pairs;
      if (pairs > most) {
        most = pairs;
        device = candidate;
      }
    }
    const std::int32_t share = merged ? eighths_percent(most, all) : 100;
    if (!runs.empty() && runs.back().end == column && runs.back().device == device &&
        runs.back().share_percent == share) {
      ++runs.back().end;
    } else {
      runs.push_back({column, column + 1, device, share});
    }
  }
  return runs;
}

class PlaneEncoder {
 public:
  PlaneEncoder(const Plan& plan, const TileRows& rows, const Plane& plane, std::int32_t groups)
      : rows_(rows) {
    for (const PlanRound& round : plan.rounds) {
      const GroupId group = group_of(round, plane.group, groups);
      devices_.emplace_back(round, plane.mask, plane.direction, group);
      sweeps_.emplace_back(round.masks[plane.mask].mask.bands);
    }
  }

  // Returns nothing if it takes more than `budget_bytes` or too long.
  [[nodiscard]] std::optional<VarintText> encode(std::size_t budget_bytes) {
    std::int32_t last_device = 0;
    for (std::int32_t row = 0; row < rows_.size(); ++row) {
      collect(row);
      const std::vector<Run> runs = runs_of(cells_, rows_.merged());
      packed_.add(static_cast<std::int64_t>(runs.size()));
      std::int32_t column = 0;
      for (const Run& run : runs) {
        packed_.add(run.begin - column);
        packed_.add(run.end - run.begin);
        packed_.add_signed(run.device - last_device);
        if (rows_.merged()) packed_.add(run.share_percent);
        column = run.end;
        last_device = run.device;
      }
      if (packed_.size() > budget_bytes || pieces_ > kMaxPieces) return std::nullopt;
    }
    return std::move(packed_);
  }

 private:
  void collect(std::int32_t row) {
    cells_.clear();
    const TileRows::Row& r = rows_[row];
    BandSweep& sweep = sweeps_[static_cast<std::size_t>(r.round)];
    const std::span<const Band> bands = sweep.advance(r.tokens);
    for (const Band& band : bands) {
      const Band tight = clip(band, r.tokens, band.k);
      if (tight.k.empty()) continue;
      for (std::int32_t column = rows_.row_at(tight.k.begin);
           column < rows_.size() && rows_[column].tokens.begin < tight.k.end; ++column) {
        ++pieces_;
        if (clip(tight, r.tokens, rows_[column].tokens).q.empty()) continue;
        collect_cell(row, column, tight);
      }
    }
  }

  // Adds the devices of the pairs that a band attends in one cell: of a sample of the merged
  // ranges, or of all if the sample meets none of them.
  void collect_cell(std::int32_t row, std::int32_t column, const Band& band) {
    for (const std::int32_t most : {kSampled, rows_.most_merged()}) {
      const std::size_t before = cells_.size();
      rows_.for_each_range(row, most, [&](const RangeOfBlock& q) {
        rows_.for_each_range(column, most, [&](const RangeOfBlock& k) {
          ++pieces_;
          const std::int64_t pairs = num_pairs(clip(band, q.tokens, k.tokens));
          if (pairs == 0) return;
          const std::int32_t device =
              devices_[static_cast<std::size_t>(rows_[row].round)].of(q.block, k.block);
          cells_.push_back({column, device, pairs});
        });
      });
      if (cells_.size() > before || pieces_ > kMaxPieces) return;
    }
  }

  static constexpr std::int32_t kSampled = 4;

  const TileRows& rows_;
  std::vector<TileDevices> devices_;  // by round
  std::vector<BandSweep> sweeps_;     // by round
  std::vector<Cell> cells_;
  VarintText packed_;
  std::int64_t pieces_ = 0;
};

std::string encode_ranges(const TileRows& rows, std::size_t& size) {
  VarintText packed;
  std::int32_t block = 0;
  std::int32_t owner = 0;
  std::int32_t round = 0;
  for (std::int32_t i = 0; i < rows.size(); ++i) {
    const TileRows::Row& row = rows[i];
    packed.add(row.tokens.size());
    packed.add(row.num_ranges);
    if (row.num_ranges == 1) {
      packed.add_signed(rows.range(row.first_range).block.value - block);
      block = rows.range(row.first_range).block.value;
    }
    packed.add_signed(row.owner.value - owner);
    packed.add_signed(row.round - round);
    owner = row.owner.value;
    round = row.round;
  }
  size = packed.size();
  return packed.base64();
}

// Returns nothing if it takes more than `budget_bytes`.
std::optional<std::string> encode_bands(const Plan& plan, std::size_t mask,
                                        std::size_t budget_bytes) {
  std::vector<Band> bands;
  for (const PlanRound& round : plan.rounds) {
    std::ranges::copy(round.masks[mask].mask.bands, std::back_inserter(bands));
  }
  std::ranges::sort(bands);
  VarintText packed;
  std::int64_t first_query = 0;
  for (const Band& band : bands) {
    packed.add(band.q.begin - first_query);
    packed.add(band.q.size());
    packed.add_signed(band.k.begin - band.q.begin);
    packed.add(band.k.size());
    const bool has_lo = band.lo > -kUnbounded;
    const bool has_hi = band.hi < kUnbounded;
    packed.add((has_lo ? 1 : 0) + (has_hi ? 2 : 0));
    if (has_lo) packed.add_signed(band.lo);
    if (has_hi) packed.add_signed(band.hi);
    first_query = band.q.begin;
    if (packed.size() > budget_bytes) return std::nullopt;
  }
  return packed.base64();
}

struct Encoded {
  std::string ranges;
  std::vector<VarintText> planes;
};

std::optional<Encoded> encode(const Plan& plan, const std::vector<Plane>& planes,
                              const TileRows& rows, std::size_t budget_bytes) {
  std::size_t used = 0;
  Encoded encoded;
  encoded.ranges = encode_ranges(rows, used);
  if (used > budget_bytes) return std::nullopt;
  const std::int32_t groups = planes.empty() ? 1 : planes.back().group + 1;
  for (const Plane& plane : planes) {
    std::optional<VarintText> packed =
        PlaneEncoder(plan, rows, plane, groups).encode(budget_bytes - used);
    if (!packed) return std::nullopt;
    const auto same = std::ranges::find(encoded.planes, packed->bytes(), &VarintText::bytes);
    if (same == encoded.planes.end()) used += packed->size();
    encoded.planes.push_back(std::move(*packed));
  }
  return encoded;
}

ReportJson planes_json(const std::vector<Plane>& planes, const Encoded& encoded) {
  ReportJson json = ReportJson::array();
  std::map<std::string_view, std::size_t> first_with;  // the same bytes are written once
  for (std::size_t i = 0; i < planes.size(); ++i) {
    ReportJson plane = {{"mask", planes[i].mask},
                        {"direction", to_string(planes[i].direction)},
                        {"group", planes[i].group}};
    const auto [found, is_new] = first_with.try_emplace(encoded.planes[i].bytes(), i);
    if (is_new) {
      plane["runs"] = encoded.planes[i].base64();
    } else {
      plane["same_as"] = found->second;
    }
    json.push_back(std::move(plane));
  }
  return json;
}

}  // namespace

TilePicture tile_picture(const Plan& plan, std::size_t budget_bytes) {
  TilePicture picture;
  const std::vector<NamedMask>& masks = plan.rounds.front().masks;
  const std::size_t for_bands = budget_bytes / 4;
  ReportJson bands = ReportJson::array();
  for (std::size_t m = 0; m < masks.size(); ++m) {
    const std::optional<std::string> packed = encode_bands(plan, m, for_bands / masks.size());
    bands.push_back(packed ? ReportJson(*packed) : ReportJson());
    if (!packed) {
      picture.notes.push_back(
          fmt::format("Mask {} has too many bands to draw: blocks are coloured as a whole wherever "
                      "anything in them is attended.",
                      masks[m].name));
    }
  }
  const std::vector<Plane> planes = planes_of(plan);
  TileRows rows(plan);
  std::optional<Encoded> encoded = encode(plan, planes, rows, budget_bytes - for_bands);
  while (!encoded && rows.coarsen()) encoded = encode(plan, planes, rows, budget_bytes - for_bands);
  picture.json = {{"merged", rows.merged()}, {"bands", std::move(bands)}};
  if (!encoded) {
    picture.notes.emplace_back("The tiles of this plan are too many to draw.");
    return picture;
  }
  if (rows.merged()) {
    picture.notes.push_back(fmt::format(
        "To keep the page small, up to {} {} are drawn as one; a cell has the colour of the device "
        "that computes most of it.",
        rows.most_merged(),
        rows.merges_documents() ? "token ranges, of several documents," : "token ranges"));
  }
  picture.json["ranges"] = encoded->ranges;
  picture.json["planes"] = planes_json(planes, *encoded);
  return picture;
}

}  // namespace contextile
