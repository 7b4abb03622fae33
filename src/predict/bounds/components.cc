#include "predict/bounds/components.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

namespace contextile {
namespace {

Range hull(const Band& band) {
  return {std::min(band.q.begin, band.k.begin), std::max(band.q.end, band.k.end)};
}

// From `token` on, degrees are larger by `value` and grow by `slope` more per token.
struct DegreeEvent {
  std::int64_t token = 0;
  std::int64_t value = 0;
  std::int64_t slope = 0;
};

// Keys of query q in a band: from max(k.begin, q + lo) up to min(k.end, q + hi + 1). Each of the
// two limits bends at one query.
void append_events(const Band& band, std::vector<DegreeEvent>& events) {
  const std::int64_t upper_bend = band.k.end - band.hi - 1;  // rises before
  const std::int64_t lower_bend = band.k.begin - band.lo;    // rises after
  const auto degree = [&](std::int64_t q) {
    return (q < upper_bend ? q + band.hi + 1 : band.k.end) -
           (q > lower_bend ? q + band.lo : band.k.begin);
  };
  std::int64_t slope = (band.q.begin < upper_bend ? 1 : 0) - (band.q.begin >= lower_bend ? 1 : 0);
  events.push_back({band.q.begin, degree(band.q.begin), slope});
  const auto bend = [&](std::int64_t token) {
    if (token <= band.q.begin || token >= band.q.end) return;
    events.push_back({token, 0, -1});
    --slope;
  };
  bend(upper_bend);
  bend(lower_bend);
  events.push_back({band.q.end, -degree(band.q.end), -slope});
}

std::vector<DegreeRun> degree_runs(std::vector<DegreeEvent>& events) {
  std::ranges::sort(events, {}, &DegreeEvent::token);
  std::vector<DegreeRun> runs;
  std::int64_t value = 0;
  std::int64_t slope = 0;
  for (std::size_t i = 0; i < events.size();) {
    const std::int64_t token = events[i].token;
    for (; i < events.size() && events[i].token == token; ++i) {
      value += events[i].value;
      slope += events[i].slope;
    }
    if (i == events.size()) break;
    const std::int64_t count = events[i].token - token;
    if (value != 0 || slope != 0) runs.push_back({token, count, value, slope});
    value += slope * count;
  }
  return runs;
}

// Sorts the ranges and joins those that touch.
void join(std::vector<Range>& ranges) {
  std::ranges::sort(ranges);
  std::size_t kept = 0;
  for (const Range range : ranges) {
    if (kept > 0 && range.begin <= ranges[kept - 1].end) {
      ranges[kept - 1].end = std::max(ranges[kept - 1].end, range.end);
    } else {
      ranges[kept++] = range;
    }
  }
  ranges.resize(kept);
}

// Tokens of the disjoint `ranges` outside of all `holes`.
std::int64_t tokens_outside(std::vector<Range>& ranges, std::vector<Range>& holes) {
  join(ranges);
  join(holes);
  std::int64_t tokens = 0;
  std::size_t h = 0;
  for (const Range range : ranges) {
    tokens += range.size();
    while (h < holes.size() && holes[h].end <= range.begin) ++h;
    for (std::size_t i = h; i < holes.size() && holes[i].begin < range.end; ++i) {
      tokens -= intersect(range, holes[i]).size();
    }
  }
  return tokens;
}

void add_counts(std::span<const Band> bands, MaskComponent& component) {
  std::vector<Range> own;     // tokens that attend themselves
  std::vector<Range> future;  // rows that attend a later token
  for (const Band& band : bands) {
    component.pairs += num_pairs(band);
    Band later = band;
    later.lo = std::max<std::int64_t>(band.lo, 1);
    component.future_pairs += num_pairs(later);
    if (band.lo <= 0 && band.hi >= 0) own.push_back(intersect(band.q, band.k));
    if (band.hi >= 1) future.push_back({band.q.begin, std::min(band.q.end, band.k.end - 1)});
  }
  std::erase_if(own, [](const Range& range) { return range.empty(); });
  std::erase_if(future, [](const Range& range) { return range.empty(); });
  component.diagonal = tokens_outside(own, future);
}

// The keys of one of the largest bands, with all other rows that attend all of them. Bands are
// disjoint, so such rows have as many keys there.
void find_biclique(std::span<const Band> bands, MaskComponent& component) {
  constexpr std::size_t kMostTried = 4;
  std::vector<std::pair<std::int64_t, Range>> tried;  // (pairs, keys)
  for (const Band& band : bands) tried.emplace_back(num_pairs(band), band.k);
  std::ranges::sort(tried, std::greater<>());
  tried.resize(std::min(tried.size(), kMostTried));
  for (const auto& [pairs, keys] : tried) {
    std::vector<DegreeEvent> events;
    for (const Band& band : bands) {
      const Band among = clip(band, band.q, keys);
      if (!among.q.empty()) append_events(among, events);
    }
    std::int64_t rows = 0;
    for (const DegreeRun& run : degree_runs(events)) {
      const Range tokens = {run.begin, run.begin + run.count};
      if (run.slope == 0 && run.first == keys.size()) {
        rows += tokens.size() - intersect(tokens, keys).size();
      }
    }
    if (rows * keys.size() > component.biclique_rows * component.biclique_keys) {
      component.biclique_rows = rows;
      component.biclique_keys = keys.size();
    }
  }
}

// In a band that is more than a single diagonal, neighbouring rows share a key. So all its tokens
// are connected, also with those of bands that share a token.
std::int64_t most_connected(std::span<const Band> bands) {
  struct Piece {
    Range tokens;
    std::size_t band;
  };
  std::vector<Piece> pieces;
  for (std::size_t b = 0; b < bands.size(); ++b) {
    const bool is_diagonal = bands[b].lo == bands[b].hi && bands[b].q.size() > 1;
    if (is_diagonal) continue;
    pieces.push_back({bands[b].q, b});
    pieces.push_back({bands[b].k, b});
  }
  std::ranges::sort(pieces, {}, &Piece::tokens);
  std::vector<std::size_t> parent(bands.size());
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto root = [&](std::size_t b) {
    while (parent[b] != b) b = parent[b] = parent[parent[b]];
    return b;
  };
  std::int64_t end = 0;  // of the pieces so far
  std::size_t reaching = 0;
  for (const Piece& piece : pieces) {
    if (piece.tokens.begin < end) parent[root(piece.band)] = root(reaching);
    if (piece.tokens.end > end) {
      end = piece.tokens.end;
      reaching = piece.band;
    }
  }
  std::vector<std::int64_t> tokens(bands.size());
  end = 0;
  for (const Piece& piece : pieces) {
    tokens[root(piece.band)] += Range{std::max(end, piece.tokens.begin), piece.tokens.end}.size();
    end = std::max(end, piece.tokens.end);
  }
  return tokens.empty() ? 0 : std::ranges::max(tokens);
}

// The end of the runs, from `next` on, that begin inside the component.
std::size_t runs_within(const std::vector<DegreeRun>& runs, std::size_t next, Range tokens) {
  std::size_t end = next;
  while (end < runs.size() && runs[end].begin < tokens.end) ++end;
  return end;
}

}  // namespace

MaskComponents components_of(const Mask& mask) {
  std::vector<Band> bands;
  for (const Band& band : mask.bands) {
    Band tight = clip(band, band.q, band.k);
    if (tight.q.empty()) continue;
    tight.lo = std::max(tight.lo, -kUnbounded);
    tight.hi = std::min(tight.hi, kUnbounded);
    bands.push_back(tight);
  }
  std::ranges::sort(bands, {}, [](const Band& band) { return hull(band); });
  MaskComponents result;
  std::vector<DegreeEvent> row_events;
  std::vector<DegreeEvent> column_events;
  for (std::size_t first = 0; first < bands.size();) {
    MaskComponent component;
    component.tokens = hull(bands[first]);
    std::size_t last = first;
    for (; last < bands.size() && hull(bands[last]).begin < component.tokens.end; ++last) {
      component.tokens.end = std::max(component.tokens.end, hull(bands[last]).end);
      const Band& band = bands[last];
      append_events(band, row_events);
      append_events({band.k, band.q, -band.hi, -band.lo}, column_events);
    }
    const std::span<const Band> own = std::span(bands).subspan(first, last - first);
    add_counts(own, component);
    component.connected_tokens = most_connected(own);
    find_biclique(own, component);
    result.components.push_back(component);
    first = last;
  }
  result.row_runs = degree_runs(row_events);
  result.column_runs = degree_runs(column_events);
  std::size_t row = 0;
  std::size_t column = 0;
  for (MaskComponent& component : result.components) {
    component.first_row_run = row;
    component.first_column_run = column;
    const std::size_t end = runs_within(result.row_runs, row, component.tokens);
    for (; row < end; ++row) {
      const DegreeRun& run = result.row_runs[row];
      component.rows += run.count;
      component.max_degree = std::max({component.max_degree, run.first, run.last()});
    }
    column = runs_within(result.column_runs, column, component.tokens);
  }
  return result;
}

}  // namespace contextile
