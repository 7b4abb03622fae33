#include "strategy/distca/distca.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/mask.h"
#include "contextile/strategies.h"
#include "strategy/distca/arranger.h"
#include "strategy/distca/plan.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

constexpr std::int32_t kMaxServers = 1 << 20;
constexpr std::string_view kInPlace = "in_place";
constexpr std::string_view kDedicated = "dedicated:";

void parse_pool(DistcaOptions& options, std::string_view text) {
  if (text == kInPlace) {
    options.attention_servers = 0;
    return;
  }
  CONTEXTILE_CHECK(text.starts_with(kDedicated),
                   "strategy option pool: expected in_place or dedicated:N, found '{}'", text);
  options.attention_servers = static_cast<std::int32_t>(
      parse_integer_option("pool", text.substr(kDedicated.size()), 1, kMaxServers));
}

std::string print_pool(const DistcaOptions& options) {
  if (options.attention_servers == 0) return std::string(kInPlace);
  return fmt::format("{}{}", kDedicated, options.attention_servers);
}

// What the original does, whatever the options that this decides say.
void apply_upstream(DistcaOptions& options) {
  if (!options.upstream) return;
  options.kv = KvAccounting::kDocument;
  options.granularity = 1;
  options.balance = TaskBalance::kOneSided;
  options.kv_subrange = false;
}

// Whether a query attends exactly the keys of its sequence up to its own. The bands are disjoint,
// so it is enough that each keeps below the diagonal of its sequences and that none is missing.
bool is_causal(const Mask& mask, std::span<const Range> sequences) {
  std::int64_t missing_pairs = 0;
  for (const Range& s : sequences) missing_pairs += s.size() * (s.size() + 1) / 2;
  for (const Band& band : mask.bands) {
    auto sequence = std::partition_point(sequences.begin(), sequences.end(),
                                         [&](const Range& s) { return s.end <= band.q.begin; });
    std::int64_t inside_pairs = 0;
    for (; sequence != sequences.end() && sequence->begin < band.q.end; ++sequence) {
      Band part = clip(band, *sequence, *sequence);
      part.hi = std::min<std::int64_t>(part.hi, 0);
      inside_pairs += num_pairs(part);
    }
    if (inside_pairs != num_pairs(band)) return false;
    missing_pairs -= inside_pairs;
  }
  return missing_pairs == 0;
}

// Why the original cannot place such a batch, or nothing.
std::optional<std::string> upstream_cannot(const Workload& workload, const DistcaOptions& options,
                                           std::int32_t num_owners) {
  if (!options.upstream) return std::nullopt;
  for (std::size_t s = 0; s < workload.sequences.size(); ++s) {
    if (workload.sequences[s].size() % 2 == 0) continue;
    return fmt::format("with upstream=on needs even lengths, found {} for sequence {}",
                       workload.sequences[s].size(), s);
  }
  const std::int64_t parts = std::int64_t{2} * options.nano_batches * num_owners;
  if (workload.num_tokens() % parts == 0) return std::nullopt;
  return fmt::format(
      "with upstream=on needs tokens in a multiple of {} (2 x nano-batches x devices with tokens), "
      "found {}",
      parts, workload.num_tokens());
}

CaPlanOptions plan_options(const Workload& workload, const DistcaOptions& options) {
  const AttentionShape& shape = workload.shape;
  CaPlanOptions result;
  MigrationOptions& migration = result.migration;
  migration.tolerance = options.tolerance;
  migration.kv = options.kv;
  migration.granularity_tokens = options.granularity;
  migration.balance = options.balance;
  migration.kv_subrange = options.kv_subrange;
  migration.fidelity = options.upstream ? Fidelity::kUpstream : Fidelity::kRefined;
  migration.q_bytes_per_token = static_cast<double>(unit_bytes(Kind::kQ, 1, shape, 1, shape.dtype));
  migration.kv_bytes_per_token =
      static_cast<double>(unit_bytes(Kind::kKv, 1, shape, 1, shape.dtype));
  result.attention_servers = options.attention_servers;
  result.nano_batches = options.nano_batches;
  result.buffer_limit_bytes = options.buffer_limit;
  return result;
}

// Source: DistCA (core attention disaggregation), §4: attention split off as stateless tasks,
// scheduled greedily by communication; its code where the paper is silent. Steps: documents fill
// devices in order, equal tokens, cut ones as head and tail pieces; parts of items move from
// overloaded devices to underloaded ones, fewest bytes per work first; each nano-batch runs what is
// local, then what it received, its transfers under the other's compute. Bytes: Q, O and dO, dQ of
// the rows that moved, each needed key block once to each server, dKV back. Memory: received Q and
// KV of the layer, retained for backward (resend=on: of two nano-batches), an accumulator for every
// remote result. Loses where documents are longer than a device's share: then every device holds a
// piece of them and fetches all keys before it, and the owner of a giant's rows sends many times
// what others do.
class DistcaStrategy : public TypedStrategy<DistcaOptions> {
 public:
  DistcaStrategy()
      : TypedStrategy({"distca",
                       "DistCA: sequential fill, attention tasks migrated to underloaded devices, "
                       "ping-pong",
                       PartialWire::kActivations},
                      option_table()) {}

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(
      const Workload& workload, const Cluster& cluster,
      const DistcaOptions& options) const override {
    for (const NamedMask& mask : workload.masks) {
      if (is_causal(mask.mask, workload.sequences)) continue;
      return fmt::format("is causal only: mask '{}' is not exactly causal in every sequence",
                         mask.name);
    }
    const std::int32_t num_owners = cluster.num_devices() - options.attention_servers;
    if (num_owners < 1) {
      return fmt::format("expected fewer attention servers than devices, found {} of {}",
                         options.attention_servers, cluster.num_devices());
    }
    return upstream_cannot(workload, options, num_owners);
  }

  [[nodiscard]] std::optional<std::string> unplannable_with(
      const Workload& workload, const Cluster& cluster,
      const DistcaOptions& options) const override {
    if (options.buffer_limit == 0 || plan(workload, cluster, options)) return std::nullopt;
    return over_limit(options);
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         DistcaOptions& options) const override {
    apply_upstream(options);
    const std::optional<CaPlan> planned = plan(workload, cluster, options);
    if (!planned) refuse(over_limit(options));
    options.tolerance = planned->tolerance;
    return arrange_tasks(
        workload, *planned,
        {.resend = options.resend, .backward = request.backward, .block_size = request.block_size});
  }

 private:
  static OptionTable<DistcaOptions> option_table() {
    OptionTable<DistcaOptions> table;
    return table
        .real("tolerance", &DistcaOptions::tolerance, 0, 1000,
              "work a device may lack of the mean, as a share of it")
        .choice("kv", &DistcaOptions::kv, {"actual", "document"},
                "keys a move is charged for: those it attends (the paper), the document's (its "
                "code): actual, document")
        .integer("granularity", &DistcaOptions::granularity, 1, std::int64_t{1} << 31,
                 "tokens that split shards are multiples of")
        .choice("balance", &DistcaOptions::balance, {"one_sided", "two_sided"},
                "one_sided: as the original, two_sided: overloaded devices keep the tolerance, "
                "too, and hot senders are spared: one_sided, two_sided")
        .custom("pool", parse_pool, print_pool,
                "in_place, or dedicated:N: the last N devices own no tokens")
        .on_off("kv_subrange", &DistcaOptions::kv_subrange,
                "a task may take a part of its keys, partial outputs are merged: off, on")
        .integer("nano_batches", &DistcaOptions::nano_batches, 1, 64,
                 "parts of the batch, one's transfers under another's compute; 1: none")
        .on_off("resend", &DistcaOptions::resend,
                "queries and keys travel again for backward instead of being kept: off, on")
        .integer("buffer_limit", &DistcaOptions::buffer_limit, 0, std::int64_t{1} << 50,
                 "bytes a device may send or receive at once; the tolerance grows by 0.05 until "
                 "they suffice; 0: none")
        .on_off("upstream", &DistcaOptions::upstream,
                "exactly the original's items: decides kv, granularity, balance, kv_subrange; "
                "even lengths only: off, on");
  }

  // Nothing when the buffer limit does not suffice even where nothing moves.
  [[nodiscard]] static std::optional<CaPlan> plan(const Workload& workload, const Cluster& cluster,
                                                  DistcaOptions options) {
    apply_upstream(options);
    return plan_tasks(workload.sequences, cluster.num_devices(), plan_options(workload, options));
  }

  [[nodiscard]] static std::string over_limit(const DistcaOptions& options) {
    return fmt::format("needs more than buffer_limit={} bytes on a device even when nothing moves",
                       options.buffer_limit);
  }
};

const DistcaStrategy& distca() {
  static const DistcaStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& distca_strategy() { return distca(); }

StrategyChoice choice_of(const DistcaOptions& options) { return distca().choice(options); }

}  // namespace contextile
