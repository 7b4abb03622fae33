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
#include "strategy/distca/arranger.h"
#include "strategy/distca/plan.h"
#include "strategy/options.h"

namespace contextile {
namespace {

enum class Upstream : std::uint8_t { kOff, kOn };

struct DistcaOptions {
  double tolerance = 0.1;
  KvAccounting kv = KvAccounting::kActual;
  std::int64_t granularity = 128;
  Balance balance = Balance::kOneSided;
  std::int32_t attention_servers = 0;
  KvSubrange kv_subrange = KvSubrange::kOff;
  std::int32_t nano_batches = 2;
  Resend resend = Resend::kOff;
  std::int64_t buffer_limit = 0;
  Upstream upstream = Upstream::kOff;
};

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
  if (options.upstream == Upstream::kOff) return;
  options.kv = KvAccounting::kDocument;
  options.granularity = 1;
  options.balance = Balance::kOneSided;
  options.kv_subrange = KvSubrange::kOff;
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
  if (options.upstream == Upstream::kOff) return std::nullopt;
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
  migration.fidelity = options.upstream == Upstream::kOn ? Fidelity::kUpstream : Fidelity::kRefined;
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
class DistcaStrategy : public Strategy {
 public:
  DistcaStrategy() {
    table_.real("tolerance", &DistcaOptions::tolerance, 0, 1000,
                "work a device may lack of the mean, as a share of it");
    table_.choice("kv", &DistcaOptions::kv, {"actual", "document"},
                  "keys a move is charged for: those it attends (the paper), the document's (its "
                  "code): actual, document");
    table_.integer("granularity", &DistcaOptions::granularity, 1, std::int64_t{1} << 31,
                   "tokens that split shards are multiples of");
    table_.choice("balance", &DistcaOptions::balance, {"one_sided", "two_sided"},
                  "one_sided: as the original, two_sided: overloaded devices keep the tolerance, "
                  "too, and hot senders are spared: one_sided, two_sided");
    table_.custom("pool", parse_pool, print_pool,
                  "in_place, or dedicated:N: the last N devices own no tokens");
    table_.choice("kv_subrange", &DistcaOptions::kv_subrange, {"off", "on"},
                  "a task may take a part of its keys, partial outputs are merged: off, on");
    table_.integer("nano_batches", &DistcaOptions::nano_batches, 1, 64,
                   "parts of the batch, one's transfers under another's compute; 1: none");
    table_.choice("resend", &DistcaOptions::resend, {"off", "on"},
                  "queries and keys travel again for backward instead of being kept: off, on");
    table_.integer("buffer_limit", &DistcaOptions::buffer_limit, 0, std::int64_t{1} << 50,
                   "bytes a device may send or receive at once; the tolerance grows by 0.05 until "
                   "they suffice; 0: none");
    table_.choice("upstream", &DistcaOptions::upstream, {"off", "on"},
                  "exactly the original's items: decides kv, granularity, balance, kv_subrange; "
                  "even lengths only: off, on");
  }

  [[nodiscard]] std::string_view name() const override { return "distca"; }
  [[nodiscard]] std::string_view summary() const override {
    return "DistCA: sequential fill, attention tasks migrated to underloaded devices, ping-pong";
  }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    const DistcaOptions options = parse(request);
    if (auto reason = cannot(workload, cluster, options)) return reason;
    if (options.buffer_limit > 0 && !plan(workload, cluster, options)) return over_limit(options);
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    DistcaOptions options = parse(request);
    if (const auto reason = cannot(workload, cluster, options)) {
      fail_argument("strategy {}: {}", name(), *reason);
    }
    const std::optional<CaPlan> planned = plan(workload, cluster, options);
    if (!planned) fail_argument("strategy {}: {}", name(), over_limit(options));
    options.tolerance = planned->tolerance;
    Arrangement arrangement = arrange_tasks(
        workload, *planned,
        {.resend = options.resend, .backward = request.backward, .block_size = request.block_size});
    arrangement.strategy = name();
    arrangement.options = table_.print(options);
    arrangement.partial_wire = request.wire.value_or(workload.shape.dtype);
    return arrangement;
  }

 private:
  [[nodiscard]] DistcaOptions parse(const StrategyRequest& request) const {
    DistcaOptions options = table_.parse(name(), request.options);
    apply_upstream(options);
    return options;
  }

  [[nodiscard]] static std::optional<std::string> cannot(const Workload& workload,
                                                         const Cluster& cluster,
                                                         const DistcaOptions& options) {
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

  [[nodiscard]] static std::optional<CaPlan> plan(const Workload& workload, const Cluster& cluster,
                                                  const DistcaOptions& options) {
    return plan_tasks(workload.sequences, cluster.num_devices(), plan_options(workload, options));
  }

  [[nodiscard]] static std::string over_limit(const DistcaOptions& options) {
    return fmt::format("needs more than buffer_limit={} bytes on a device even when nothing moves",
                       options.buffer_limit);
  }

  OptionTable<DistcaOptions> table_;
};

}  // namespace

const Strategy& distca_strategy() {
  static const DistcaStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile
