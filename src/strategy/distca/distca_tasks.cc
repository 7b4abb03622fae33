#include "strategy/distca/distca_tasks.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/ranges.h"
#include "contextile/mask.h"

namespace contextile {

std::int64_t num_pairs(const CaShard& shard) {
  return num_pairs(Band{shard.queries, shard.keys, -kUnbounded, 0});
}

std::int64_t num_pairs(const CaItem& item) { return num_pairs(item.head) + num_pairs(item.tail); }

std::int64_t num_rows(const CaItem& item) {
  return item.head.queries.size() + item.tail.queries.size();
}

std::vector<CaShard> shards_of(const CaItem& item) {
  if (item.head.empty()) return {item.tail};
  if (item.tail.empty()) return {item.head};
  if (item.head.queries.end == item.tail.queries.begin &&
      item.head.keys.begin == item.tail.keys.begin) {
    return {{{item.head.queries.begin, item.tail.queries.end}, item.tail.keys}};
  }
  return {item.head, item.tail};
}

double shard_cost(const CaShard& shard, const MigrationOptions& options) {
  if (shard.empty()) return 0;
  const auto pairs = static_cast<double>(num_pairs(shard));
  if (!options.cost) return pairs;
  const CaShard all_keys{shard.queries, {0, shard.queries.end}};
  return options.cost(shard.queries.size(), shard.queries.end) * pairs /
         static_cast<double>(num_pairs(all_keys));
}

double item_cost(const CaItem& item, const MigrationOptions& options) {
  double cost = 0;
  for (const CaShard& shard : shards_of(item)) cost += shard_cost(shard, options);
  return cost;
}

std::vector<double> server_loads(std::span<const CaItem> items, std::int32_t num_devices,
                                 const MigrationOptions& options) {
  std::vector<double> loads(static_cast<std::size_t>(num_devices));
  for (const CaItem& item : items) loads[item.server.index()] += item_cost(item, options);
  return loads;
}

namespace {

// Rows of one document on one device.
struct OwnedRows {
  Range rows;
  Rank owner;
};

// One document's share of the volume.
struct DocumentTasks {
  std::vector<OwnedRows> owned;
  std::map<Rank, std::vector<Range>> keys;                   // that a server reads
  std::map<std::pair<Rank, Rank>, std::vector<Range>> rows;  // (source, server): rows that move
};

void add_keys(const DocumentTasks& tasks, std::int64_t kv_bytes_per_token, CaVolume& volume) {
  for (const auto& [server, needed] : tasks.keys) {
    auto owned = tasks.owned.begin();
    for (const Range& range : merged(needed)) {
      while (owned != tasks.owned.end() && owned->rows.end <= range.begin) ++owned;
      for (auto it = owned; it != tasks.owned.end() && it->rows.begin < range.end; ++it) {
        if (it->owner == server) continue;
        const std::int64_t bytes = intersect(it->rows, range).size() * kv_bytes_per_token;
        volume.kv_bytes += bytes;
        volume.input_sent_bytes[it->owner.index()] += bytes;
        volume.input_received_bytes[server.index()] += bytes;
      }
    }
  }
}

void add_rows(const DocumentTasks& tasks, std::int64_t q_bytes_per_token, CaVolume& volume) {
  for (const auto& [ends, rows] : tasks.rows) {
    const auto [source, server] = ends;
    std::int64_t bytes = 0;
    for (const Range& range : merged(rows)) bytes += range.size() * q_bytes_per_token;
    volume.q_bytes += bytes;
    volume.o_bytes += bytes;
    volume.input_sent_bytes[source.index()] += bytes;
    volume.input_received_bytes[server.index()] += bytes;
    volume.output_sent_bytes[server.index()] += bytes;
    volume.output_received_bytes[source.index()] += bytes;
  }
}

}  // namespace

std::int64_t CaVolume::largest_buffer_bytes() const {
  std::int64_t largest = 0;
  for (const auto* side :
       {&input_sent_bytes, &input_received_bytes, &output_sent_bytes, &output_received_bytes}) {
    for (const std::int64_t bytes : *side) largest = std::max(largest, bytes);
  }
  return largest;
}

CaVolume forward_volume(std::span<const CaItem> items, std::int32_t num_devices,
                        std::int64_t q_bytes_per_token, std::int64_t kv_bytes_per_token,
                        std::span<const CaCachedRows> cached) {
  std::map<std::int32_t, DocumentTasks> documents;
  for (const CaCachedRows& rows : cached) {
    documents[rows.document].owned.push_back({rows.rows, rows.owner});
  }
  for (const CaItem& item : items) {
    DocumentTasks& tasks = documents[item.document];
    for (const CaShard& shard : {item.head, item.tail}) {
      if (shard.empty()) continue;
      // Rows whose keys are divided appear once per share: the share with the diagonal owns them.
      if (shard.keys.end == shard.queries.end) tasks.owned.push_back({shard.queries, item.source});
      tasks.keys[item.server].push_back(shard.keys);
      if (item.server != item.source) {
        tasks.rows[{item.source, item.server}].push_back(shard.queries);
      }
    }
  }
  CaVolume volume;
  for (auto* side : {&volume.input_sent_bytes, &volume.input_received_bytes,
                     &volume.output_sent_bytes, &volume.output_received_bytes}) {
    side->resize(static_cast<std::size_t>(num_devices));
  }
  for (auto& [document, tasks] : documents) {
    std::sort(tasks.owned.begin(), tasks.owned.end(),
              [](const OwnedRows& a, const OwnedRows& b) { return a.rows.begin < b.rows.begin; });
    add_keys(tasks, kv_bytes_per_token, volume);
    add_rows(tasks, q_bytes_per_token, volume);
  }
  return volume;
}

}  // namespace contextile
