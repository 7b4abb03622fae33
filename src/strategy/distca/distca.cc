#include "strategy/distca/distca.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategies.h"
#include "contextile/mask.h"
#include "strategy/distca/distca_arranger.h"
#include "strategy/distca/distca_plan.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

constexpr std::int32_t kMaxServers = 1 << 20;

// Sets the options that match_original decides to what the original does.
void apply_upstream(DistcaOptions& options) {
  if (!options.match_original) return;
  options.kv = KvAccounting::kDocument;
  options.granularity = 1;
  options.balance = TaskBalance::kOneSided;
  options.cost = TaskCost::kPairs;
  options.kv_subrange = false;
}

// Returns true if every query attends exactly the keys of its sequence up to its own. The bands are
// disjoint, so it is enough that each stays below the diagonal of its sequences and that no pair is
// missing.
bool is_causal(const Mask& mask, std::span<const Range> sequences,
               std::span<const RoleRange> roles) {
  std::int64_t missing_pairs = 0;
  auto role = roles.begin();
  for (const Range& s : sequences) {
    missing_pairs += num_pairs(CaShard{{0, s.size()}, {0, s.size()}});
    for (; role != roles.end() && role->tokens.begin < s.end; ++role) {
      const Range part = intersect(role->tokens, s);
      const Range rows{part.begin - s.begin, part.end - s.begin};
      if (role->role == Role::kKvOnly) missing_pairs -= num_pairs(CaShard{rows, {0, rows.end}});
      if (role->tokens.end > s.end) break;
    }
  }
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

// Returns an error if rows at home are not shaped like the original's items: head and tail rows in
// pairs, and the two rows of a pair together attend one key more than the document has.
std::optional<std::string> not_head_tail(const Workload& workload, std::int32_t num_devices,
                                         std::int32_t nano_batches) {
  for (const auto& items :
       items_at_home(workload.sequences, workload.home, num_devices, nano_batches)) {
    for (const CaItem& item : items) {
      const Range& head = item.head.queries;
      const Range& tail = item.tail.queries;
      const Range& sequence = workload.sequences[static_cast<std::size_t>(item.document)];
      if (head.size() == tail.size() && head.begin + tail.end == sequence.size()) continue;
      return fmt::format(
          "with match_original=on needs homes of as many rows from a sequence's front as from its "
          "end, "
          "found [{}, {}) and [{}, {}) of sequence {} on rank {}",
          head.begin, head.end, tail.begin, tail.end, item.document, item.source.value);
    }
  }
  return std::nullopt;
}

// Returns why the original cannot place such a batch, or nothing if it can.
std::optional<std::string> upstream_cannot(const Workload& workload, const DistcaOptions& options,
                                           std::int32_t num_owners) {
  if (!options.match_original) return std::nullopt;
  if (!workload.roles.empty())
    return "with match_original=on needs queries and keys for every token";
  for (std::size_t s = 0; s < workload.sequences.size(); ++s) {
    if (workload.sequences[s].size() % 2 == 0) continue;
    return fmt::format("with match_original=on needs even lengths, found {} for sequence {}",
                       workload.sequences[s].size(), s);
  }
  if (!workload.home.empty()) {
    return not_head_tail(workload, num_owners, options.nano_batches);
  }
  const std::int64_t parts = std::int64_t{2} * options.nano_batches * num_owners;
  if (workload.num_tokens() % parts == 0) return std::nullopt;
  return fmt::format(
      "with match_original=on needs tokens in a multiple of {} (2 x nano-batches x devices with "
      "tokens), "
      "found {}",
      parts, workload.num_tokens());
}

// Returns a cost function of rows against all keys before them: the number of pairs that take as
// long on large full tiles. Plans are simulated with the same costs, except for cuts inside a
// shard.
auto profiled_cost(const Cluster& cluster, Direction direction) {
  return [profile = cluster.attention, shares = AttentionShares(cluster.attention), direction](
             std::int64_t q_tokens, std::int64_t kv_tokens) {
    const std::int64_t pairs =
        num_pairs(CaShard{{kv_tokens - q_tokens, kv_tokens}, {0, kv_tokens}});
    const auto rows = static_cast<double>(q_tokens);
    const double computed = profile.computed_pairs(q_tokens, kv_tokens, pairs);
    return computed / (direction == Direction::kForward ? shares.forward(rows, computed / rows)
                                                        : shares.backward(rows, computed / rows));
  };
}

MigrationOptions migration_options(const Workload& workload, const Cluster& cluster,
                                   const DistcaOptions& options, Direction direction) {
  const AttentionShape& shape = workload.shape;
  const auto bytes = [&](Kind kind) {
    return static_cast<double>(unit_bytes(kind, 1, shape, 1, shape.dtype));
  };
  const bool forward = direction == Direction::kForward;
  MigrationOptions migration;
  migration.tolerance = options.tolerance;
  migration.kv = options.kv;
  migration.granularity_tokens = options.granularity;
  migration.balance = options.balance;
  migration.relays = options.relays;
  migration.kv_subrange = options.kv_subrange;
  migration.fidelity = options.match_original ? Fidelity::kUpstream : Fidelity::kRefined;
  migration.q_bytes_per_token =
      forward ? bytes(Kind::kQ) : (bytes(Kind::kQ) + bytes(Kind::kDo) + bytes(Kind::kDq)) / 2;
  migration.kv_bytes_per_token = forward ? bytes(Kind::kKv) : bytes(Kind::kKv) + bytes(Kind::kDkv);
  if (options.cost == TaskCost::kProfile) migration.cost = profiled_cost(cluster, direction);
  return migration;
}

CaPlanOptions plan_options(const Workload& workload, const Cluster& cluster,
                           const DistcaOptions& options) {
  CaPlanOptions result;
  result.migration = migration_options(workload, cluster, options, Direction::kForward);
  if (options.backward == BackwardTasks::kOwn) {
    result.backward = migration_options(workload, cluster, options, Direction::kBackward);
  }
  result.attention_servers = options.attention_servers;
  result.nano_batches = options.nano_batches;
  result.buffer_limit_bytes = options.buffer_limit;
  return result;
}

// Source: DistCA (core attention disaggregation), §4: attention split off as stateless tasks,
// scheduled greedily by communication; its code where the paper is silent. Steps: documents fill
// devices in order with equal tokens, a cut document as head and tail pieces; with a home layout,
// rows are where it says. Parts of items move from overloaded devices to underloaded ones, those
// with the fewest bytes per work first. Each nano-batch runs what is local, then what it received;
// its transfers travel under the compute of the other nano-batch. Bytes: Q, O and dO, dQ of the
// rows that moved, each needed key block once to each server, dKV back. Memory: received Q and KV
// of the layer, retained for backward (resend=on: of two nano-batches), and an accumulator for
// every remote result. relays=on, which the original does not have: a server that has keys passes
// them on, so that an owner sends about one copy; gradients come back the same way. Loses where
// documents are longer than a device's share: every device then holds a piece of them and fetches
// all keys before it, and without relays the owner of rows of a giant document sends many times as
// much as the others.
class DistcaStrategy : public TypedStrategy<DistcaOptions> {
 public:
  DistcaStrategy()
      : TypedStrategy({"distca",
                       "DistCA: sequential fill, attention tasks migrated to underloaded devices, "
                       "ping-pong",
                       PartialWire::kActivations, Deciding::kBySearch},
                      option_table()) {}

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(
      const Workload& workload, const Cluster& cluster,
      const DistcaOptions& options) const override {
    for (const NamedMask& mask : workload.masks) {
      if (is_causal(mask.mask, workload.sequences, workload.roles)) continue;
      return fmt::format("is causal only: mask '{}' is not exactly causal in every sequence",
                         mask.name);
    }
    if (workload.home.empty() && !workload.roles.empty()) {
      return fmt::format("needs a home for tokens without queries, found none for [{}, {})",
                         workload.roles.front().tokens.begin, workload.roles.front().tokens.end);
    }
    const std::int32_t num_owners = cluster.num_devices() - options.attention_servers;
    if (num_owners < 1) {
      return fmt::format("expected fewer attention servers than devices, found {} of {}",
                         options.attention_servers, cluster.num_devices());
    }
    for (const HomeRange& home : workload.home) {
      if (home.owner.value < num_owners) continue;
      return fmt::format(
          "expected no tokens at home on the {} attention servers, found [{}, {}) on "
          "rank {}",
          options.attention_servers, home.tokens.begin, home.tokens.end, home.owner.value);
    }
    if (options.backward == BackwardTasks::kOwn && !options.resend) {
      return "with backward=own needs resend=on: what forward keeps is where forward ran";
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
    if (request.equal_tokens && options.attention_servers > 0) {
      refuse("with attention_servers has devices without tokens, found equal_tokens");
    }
    const std::optional<CaPlan> planned = plan(workload, cluster, options);
    if (!planned) refuse(over_limit(options));
    options.tolerance = planned->tolerance;
    return arrange_tasks(workload, *planned,
                         {.resend = options.resend,
                          .backward = request.backward,
                          .relays = options.relays ? &cluster : nullptr,
                          .block_size = request.block_size});
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
                "one_sided: as the original's code, two_sided: overloaded devices keep the "
                "tolerance, too, as in its paper; our own part spares hot senders: one_sided, "
                "two_sided")
        .choice("cost", &DistcaOptions::cost, {"profile", "pairs"},
                "what tasks are balanced by: time by the cluster's attention profile, or attended "
                "pairs: profile, pairs")
        .choice("backward", &DistcaOptions::backward, {"forward", "own"},
                "where backward runs: where forward did, or balanced by what backward takes and "
                "sends, with resend=on: forward, own")
        .integer("attention_servers", &DistcaOptions::attention_servers, 0, kMaxServers,
                 "the last devices, so many, own no tokens and only compute; 0: none")
        .on_off("kv_subrange", &DistcaOptions::kv_subrange,
                "a task may take a part of its keys, partial outputs are merged: off, on")
        .integer("nano_batches", &DistcaOptions::nano_batches, 1, 64,
                 "parts of the batch, one's transfers under another's compute; 1: none")
        .on_off("resend", &DistcaOptions::resend,
                "queries and keys travel again for backward instead of being kept: off, on")
        .on_off("relays", &DistcaOptions::relays,
                "servers pass keys on to each other and gather their gradients: off, on")
        .integer("buffer_limit", &DistcaOptions::buffer_limit, 0, std::int64_t{1} << 50,
                 "bytes a device may send or receive at once; the tolerance grows by 0.05 until "
                 "they suffice; 0: none")
        .on_off(
            "match_original", &DistcaOptions::match_original,
            "exactly the original's items: decides kv, granularity, balance, cost, kv_subrange; "
            "even lengths only: off, on");
  }

  // Returns nothing if the buffer limit does not suffice even when nothing moves.
  [[nodiscard]] static std::optional<CaPlan> plan(const Workload& workload, const Cluster& cluster,
                                                  DistcaOptions options) {
    apply_upstream(options);
    return plan_tasks(workload.sequences, workload.home, cluster.num_devices(),
                      plan_options(workload, cluster, options), workload.roles);
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
