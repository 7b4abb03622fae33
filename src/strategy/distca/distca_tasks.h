// DistCA's core-attention tasks as pure functions: documents placed by sequential fill, items
// migrated until devices are balanced, and the bytes that this sends.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/strategies.h"
#include "contextile/workload.h"
#include "strategy/stage_home.h"

namespace contextile {

// Query rows against keys, both as positions in one document, causal: row i attends keys
// [keys.begin, min(keys.end, i + 1)). Empty when it has no rows.
struct CaShard {
  Range queries;
  Range keys;

  [[nodiscard]] bool empty() const { return queries.empty(); }
  friend bool operator==(const CaShard&, const CaShard&) = default;
};
// Returns the number of attended (q, k) pairs. O(1).
[[nodiscard]] std::int64_t num_pairs(const CaShard& shard);

// The unit of migration: rows near the front of a document and rows as far from its end, so that
// every pair of rows costs the same (head-tail context parallelism). Either shard may be empty. In
// a document that is not cut, the two meet in the middle.
struct CaItem {
  std::int32_t document = 0;
  Rank source;  // where the rows live
  Rank server;  // the device that computes them
  CaShard head;
  CaShard tail;

  friend bool operator==(const CaItem&, const CaItem&) = default;
};
[[nodiscard]] std::int64_t num_pairs(const CaItem& item);  // attended, of both shards
[[nodiscard]] std::int64_t num_rows(const CaItem& item);
// Returns the shards that a kernel runs for an item: head and tail, or one shard where the two
// meet.
[[nodiscard]] std::vector<CaShard> shards_of(const CaItem& item);

// Rows that others attend and that have no queries to compute.
struct CaCachedRows {
  std::int32_t document = 0;
  Range rows;  // positions in the document
  Rank owner;

  friend bool operator==(const CaCachedRows&, const CaCachedRows&) = default;
};

// A home layout, split by the roles of its rows.
struct CaHome {
  std::vector<HomeRange> computed;   // tokens with queries
  std::vector<CaCachedRows> cached;  // tokens without; by document, ascending
};
// Splits a home layout by role. O(homes + roles + sequences).
[[nodiscard]] CaHome home_by_role(std::span<const Range> sequences, std::span<const HomeRange> home,
                                  std::span<const RoleRange> roles);

// Fills `num_devices` devices with the documents in order, equal tokens each (they differ by at
// most one). A piece of x rows takes floor(x/2) after the document's previous head and the other
// rows before its previous tail, so the extra row of an odd piece is the tail's. Source: DistCA's
// loader. O(documents + devices).
[[nodiscard]] std::vector<CaItem> place_documents(std::span<const DocumentRows> documents,
                                                  std::int32_t num_devices);

// Returns items of the rows (tokens with queries) that are on devices already, in nano-batches. The
// rows of a document on one device are paired from the outside in, its first with its last, so that
// head-tail homes give the items they came from. Unpaired rows that do not lie around the
// document's middle become a tail alone. Each nano-batch has the same number of rows of every
// device, to within one, and about the same work. Items of the longest documents come first. Each
// goes to the lightest nano-batch that has room and is cut where the room ends (outer rows first).
// O(homes · log).
[[nodiscard]] std::vector<std::vector<CaItem>> items_at_home(std::span<const Range> sequences,
                                                             std::span<const HomeRange> home,
                                                             std::int32_t num_devices,
                                                             std::int32_t nano_batches);

enum class Fidelity : std::uint8_t {
  kRefined,   // a move that would round to nothing is passed over
  kUpstream,  // such a move ends the device's search; items are split as if their lengths were even
};

struct MigrationOptions {
  double tolerance = 0.1;  // as a share of the mean load
  KvAccounting kv = KvAccounting::kActual;
  std::int64_t granularity_tokens = 128;  // rows (keys) of a split shard are multiples of this
  TaskBalance balance = TaskBalance::kTwoSided;
  bool relays = false;       // owners do not send every copy of a key themselves
  bool kv_subrange = false;  // a move may also take all rows of a tail against a range of its keys
  Fidelity fidelity = Fidelity::kRefined;
  double q_bytes_per_token = 1;   // of a row sent to a server; its result takes as many back
  double kv_bytes_per_token = 1;  // of a key with its value
  // Time of q rows that end at key kv, in any unit, growing with q; empty: attended pairs. A
  // sub-range of the keys costs its share of the pairs.
  std::function<double(std::int64_t q_tokens, std::int64_t kv_tokens)> cost;
};

[[nodiscard]] double shard_cost(const CaShard& shard, const MigrationOptions& options);
[[nodiscard]] double item_cost(const CaItem& item, const MigrationOptions& options);
// Returns the sum of the items' costs on every server.
[[nodiscard]] std::vector<double> server_loads(std::span<const CaItem> items,
                                               std::int32_t num_devices,
                                               const MigrationOptions& options);

// Lets one device compute all of a document in a nano-batch. The document must lie on so many
// devices that the keys for all of them are more bytes than the rows and keys for that one. It must
// cost no more than the mean of the devices. The costliest documents come first, and each goes to
// the least loaded device among those that pay. The sources do not change. O(items · log).
void gather_documents(std::vector<std::vector<CaItem>>& nano_batches, std::int32_t num_devices,
                      const MigrationOptions& options, std::span<const CaCachedRows> cached = {});

// Moves items, or parts of them, to underloaded servers. Devices below the mean, emptiest first,
// each take from the items of overloaded servers the one with the fewest bytes per work moved,
// until they lack at most tolerance·mean. Parts become items at the end of the list; rows leave an
// item where head and tail face each other. Servers may own nothing (attention servers), and items
// may come from several placements (the stages of a pipeline tick). Source: DistCA §4.2, App. B.
// Deterministic. O(moves · items).
void migrate(std::vector<CaItem>& items, std::int32_t num_devices, const MigrationOptions& options,
             std::span<const CaCachedRows> cached = {});

// Bytes of one layer's forward: Q to the server, the needed keys once to each server that lacks
// them, O back. `items` and `cached` must hold all rows of every document that items name.
struct CaVolume {
  std::int64_t q_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::int64_t o_bytes = 0;                    // without LSE
  std::vector<std::int64_t> input_sent_bytes;  // Q and KV, of every device
  std::vector<std::int64_t> input_received_bytes;
  std::vector<std::int64_t> output_sent_bytes;  // O
  std::vector<std::int64_t> output_received_bytes;

  // Returns the most bytes that any device sends or receives at once: a buffer has to hold them.
  [[nodiscard]] std::int64_t largest_buffer_bytes() const;
};
[[nodiscard]] CaVolume forward_volume(std::span<const CaItem> items, std::int32_t num_devices,
                                      std::int64_t q_bytes_per_token,
                                      std::int64_t kv_bytes_per_token,
                                      std::span<const CaCachedRows> cached = {});

}  // namespace contextile
