// The places of documents before anything migrates.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <utility>

#include "strategy/distca/distca_tasks.h"

namespace contextile {
namespace {

// Returns an item of rows of one document on the device where they live, against all keys before
// them.
CaItem resident(std::int32_t document, Rank device, Range head, Range tail) {
  return {document, device, device, {head, {0, head.end}}, {tail, {0, tail.end}}};
}

}  // namespace

CaHome home_by_role(std::span<const Range> sequences, std::span<const HomeRange> home,
                    std::span<const RoleRange> roles) {
  CaHome result;
  auto role = roles.begin();
  std::size_t sequence = 0;
  const auto cache = [&](Range tokens, Rank owner) {
    while (sequences[sequence].end <= tokens.begin) ++sequence;
    for (std::size_t d = sequence; d < sequences.size() && sequences[d].begin < tokens.end; ++d) {
      const Range part = intersect(tokens, sequences[d]);
      if (part.empty()) continue;
      const std::int64_t begin = sequences[d].begin;
      result.cached.push_back(
          {static_cast<std::int32_t>(d), {part.begin - begin, part.end - begin}, owner});
    }
  };
  for (const HomeRange& range : home) {
    Range left = range.tokens;
    while (!left.empty()) {
      while (role != roles.end() &&
             (role->role != Role::kKvOnly || role->tokens.end <= left.begin)) {
        ++role;
      }
      const Range cached =
          role == roles.end() ? Range{left.end, left.end} : intersect(role->tokens, left);
      const Range before{left.begin, cached.empty() ? left.end : cached.begin};
      if (!before.empty()) result.computed.push_back({before, range.owner});
      if (!cached.empty()) cache(cached, range.owner);
      left.begin = cached.empty() ? left.end : cached.end;
    }
  }
  return result;
}

std::vector<CaItem> place_documents(std::span<const DocumentRows> documents,
                                    std::int32_t num_devices) {
  std::int64_t total_tokens = 0;
  for (const DocumentRows& document : documents) total_tokens += document.rows.size();
  const auto filled_before = [&](std::int32_t rank) { return total_tokens * rank / num_devices; };
  std::vector<CaItem> items;
  std::int32_t rank = 0;
  std::int64_t placed_tokens = 0;
  for (const DocumentRows& document : documents) {
    Range left = document.rows;
    while (!left.empty()) {
      while (filled_before(rank + 1) == placed_tokens) ++rank;
      const std::int64_t piece = std::min(left.size(), filled_before(rank + 1) - placed_tokens);
      const Range head{left.begin, left.begin + piece / 2};
      const Range tail{left.end - (piece - piece / 2), left.end};
      items.push_back(resident(document.document, Rank{rank}, head, tail));
      left = {head.end, tail.begin};
      placed_tokens += piece;
    }
  }
  return items;
}

namespace {

// Pairs the ascending rows of a document on one device into items, from the outside in. `all` spans
// the rows of the document on all devices.
void append_pairs(std::int32_t document, Range all, Rank device, std::vector<Range> rows,
                  std::vector<CaItem>& items) {
  std::size_t front = 0;
  std::size_t back = rows.size() - 1;
  while (front < back) {
    Range& first = rows[front];
    Range& last = rows[back];
    const std::int64_t taken = std::min(first.size(), last.size());
    items.push_back(resident(document, device, {first.begin, first.begin + taken},
                             {last.end - taken, last.end}));
    first.begin += taken;
    last.end -= taken;
    if (first.empty()) ++front;
    if (last.empty()) --back;
  }
  if (front > back) return;
  // Rows around the middle of the document become a head and a tail that meet; others a tail alone.
  const Range& middle = rows[front];
  const bool symmetric = std::abs(middle.begin + middle.end - all.begin - all.end) <= 1;
  const std::int64_t half = middle.begin + (symmetric ? middle.size() / 2 : 0);
  items.push_back(resident(document, device, {middle.begin, half}, {half, middle.end}));
}

// Returns the items of every device, ordered by document.
std::vector<std::vector<CaItem>> residents(std::span<const Range> sequences,
                                           std::span<const HomeRange> home,
                                           std::int32_t num_devices) {
  std::vector<std::vector<CaItem>> items(static_cast<std::size_t>(num_devices));
  auto next = home.begin();
  for (std::size_t d = 0; d < sequences.size(); ++d) {
    std::map<Rank, std::vector<Range>> rows;
    Range all;
    for (; next != home.end() && next->tokens.begin < sequences[d].end; ++next) {
      const Range part = intersect(next->tokens, sequences[d]);
      const Range in_document{part.begin - sequences[d].begin, part.end - sequences[d].begin};
      all = {all.empty() ? in_document.begin : all.begin, in_document.end};
      std::vector<Range>& mine = rows[next->owner];
      if (!mine.empty() && mine.back().end == in_document.begin) {
        mine.back().end = in_document.end;
      } else {
        mine.push_back(in_document);
      }
      if (next->tokens.end > sequences[d].end) break;
    }
    for (auto& [device, ranges] : rows) {
      append_pairs(static_cast<std::int32_t>(d), all, device, std::move(ranges),
                   items[device.index()]);
    }
  }
  return items;
}

// Takes the `rows` outermost rows out of an item and returns them.
CaItem take_outer_rows(CaItem& item, std::int64_t rows) {
  const std::int64_t head_rows =
      std::clamp(rows / 2, rows - item.tail.queries.size(), item.head.queries.size());
  const std::int64_t head_end = item.head.queries.begin + head_rows;
  const std::int64_t tail_begin = item.tail.queries.end - (rows - head_rows);
  CaItem outer = resident(item.document, item.source, {item.head.queries.begin, head_end},
                          {tail_begin, item.tail.queries.end});
  item = resident(item.document, item.source, {head_end, item.head.queries.end},
                  {item.tail.queries.begin, tail_begin});
  return outer;
}

}  // namespace

std::vector<std::vector<CaItem>> items_at_home(std::span<const Range> sequences,
                                               std::span<const HomeRange> home,
                                               std::int32_t num_devices,
                                               std::int32_t nano_batches) {
  const auto num_parts = static_cast<std::size_t>(nano_batches);
  std::vector<std::vector<CaItem>> parts(num_parts);
  std::int64_t placed_rows = 0;
  for (std::vector<CaItem>& items : residents(sequences, home, num_devices)) {
    // The longest documents come first, so that the parts of a document on several devices meet in
    // one nano-batch.
    std::stable_sort(items.begin(), items.end(), [&](const CaItem& a, const CaItem& b) {
      return sequences[static_cast<std::size_t>(a.document)].size() >
             sequences[static_cast<std::size_t>(b.document)].size();
    });
    std::int64_t rows = 0;
    for (const CaItem& item : items) rows += num_rows(item);
    // Carrying the rounding over makes nano-batches differ by one row in total, not by one per
    // device.
    const std::int64_t carried = placed_rows % nano_batches;
    std::vector<std::int64_t> room(num_parts);
    for (std::int64_t n = 0; n < nano_batches; ++n) {
      room[static_cast<std::size_t>(n)] =
          (rows * (n + 1) + carried) / nano_batches - (rows * n + carried) / nano_batches;
    }
    placed_rows += rows;
    std::vector<std::int64_t> work(num_parts);
    for (CaItem& item : items) {
      while (num_rows(item) > 0) {
        std::size_t lightest = num_parts;
        for (std::size_t n = 0; n < num_parts; ++n) {
          if (room[n] == 0) continue;
          if (lightest == num_parts || work[n] < work[lightest]) lightest = n;
        }
        const CaItem part = take_outer_rows(item, std::min(room[lightest], num_rows(item)));
        room[lightest] -= num_rows(part);
        work[lightest] += num_pairs(part);
        parts[lightest].push_back(part);
      }
    }
  }
  return parts;
}

namespace {

using RowsOf = std::map<std::pair<std::int32_t, Rank>, std::int64_t>;  // of a document on a device

// The items of one document in one nano-batch.
struct GatherChoice {
  std::vector<CaItem*> items;
  double cost = 0;
  std::vector<Rank> servers;  // where all items may run with fewer bytes than where they are
};

// Finds the servers: compares the bytes that devices receive for the items where they are with the
// bytes that one of them would receive to run them all.
void choose_servers(const RowsOf& rows_of, const MigrationOptions& options, GatherChoice& choice) {
  const std::int32_t document = choice.items.front()->document;
  std::map<Rank, std::int64_t> keys_end;
  RowsOf rows_here;
  std::int64_t rows = 0;
  std::int64_t last_key = 0;
  for (const CaItem* item : choice.items) {
    std::int64_t& end = keys_end[item->source];
    end = std::max({end, item->head.empty() ? 0 : item->head.keys.end,
                    item->tail.empty() ? 0 : item->tail.keys.end});
    last_key = std::max(last_key, end);
    rows_here[{document, item->source}] += num_rows(*item);
    rows += num_rows(*item);
  }
  const auto key_bytes = [&](Rank device, std::int64_t end) {
    const std::int64_t lacking = std::max<std::int64_t>(0, end - rows_of.at({document, device}));
    return static_cast<double>(lacking) * options.kv_bytes_per_token;
  };
  double bytes = 0;
  for (const auto& [device, end] : keys_end) bytes += key_bytes(device, end);
  for (const auto& [device, end] : keys_end) {
    const std::int64_t moved_rows = rows - rows_here.at({document, device});
    const double gathered = static_cast<double>(2 * moved_rows) * options.q_bytes_per_token +
                            key_bytes(device, last_key);
    if (gathered < bytes) choice.servers.push_back(device);
  }
}

}  // namespace

void gather_documents(std::vector<std::vector<CaItem>>& nano_batches, std::int32_t num_devices,
                      const MigrationOptions& options, std::span<const CaCachedRows> cached) {
  RowsOf rows_of;
  for (const CaCachedRows& rows : cached) rows_of[{rows.document, rows.owner}] += rows.rows.size();
  for (const std::vector<CaItem>& items : nano_batches) {
    for (const CaItem& item : items) rows_of[{item.document, item.source}] += num_rows(item);
  }
  for (std::vector<CaItem>& items : nano_batches) {
    std::vector<double> loads = server_loads(items, num_devices, options);
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / num_devices;
    std::map<std::int32_t, GatherChoice> documents;
    for (CaItem& item : items) {
      documents[item.document].items.push_back(&item);
      documents[item.document].cost += item_cost(item, options);
    }
    // Documents that pay are taken off their devices first, then given out again, the costliest
    // first.
    std::vector<GatherChoice> gathered;
    for (auto& [document, choice] : documents) {
      if (choice.items.size() == 1 || choice.cost > mean) continue;
      choose_servers(rows_of, options, choice);
      if (choice.servers.empty()) continue;
      for (const CaItem* item : choice.items) {
        loads[item->server.index()] -= item_cost(*item, options);
      }
      gathered.push_back(std::move(choice));
    }
    std::stable_sort(gathered.begin(), gathered.end(),
                     [](const GatherChoice& a, const GatherChoice& b) { return a.cost > b.cost; });
    for (const GatherChoice& choice : gathered) {
      const Rank server =
          *std::min_element(choice.servers.begin(), choice.servers.end(),
                            [&](Rank a, Rank b) { return loads[a.index()] < loads[b.index()]; });
      loads[server.index()] += choice.cost;
      for (CaItem* item : choice.items) item->server = server;
    }
  }
}

}  // namespace contextile
