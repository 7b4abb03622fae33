// The options of every strategy as types, defined once: the strategies compute with these, and
// their text forms (--strategy name:key=value,…) are read into them.
//
//   plan_batch(workload, cluster, choice_of(DcpOptions{.divisions = 6}));  // dcp:divisions=6
//
// Fields are named as the keys of the text form, unless their comment gives the key. Numbers that
// are 0 by default leave the decision to the strategy; the plan's options say what it decided.
#pragma once

#include <cstdint>

#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// ---------------------------------------------------------------------------------------- schedule
//
// Words of layouts and schedules that options of strategies are made of (extend/strategies.h).

// Which tokens a rank holds.
enum class TokenLayout : std::uint8_t {
  kZigzag,  // every sequence in 2R chunks, rank r has chunks r and 2R-1-r (Megatron, TE, Llama 3)
  kContiguous,   // every sequence in R chunks, rank r has chunk r (RingAttention)
  kPerDocument,  // zigzag whose chunks differ by at most one token, remainders dealt round-robin
                 // over documents (WLB-LLM's per-document sharding, no padding)
  kPerSequence,  // the packed batch as one sequence in 2R chunks (WLB-LLM's per-sequence sharding)
};

// When partial results leave the device that computed them.
enum class ResultTiming : std::uint8_t {
  kAfter,  // when all attention is done, as DCP's Listing 3 has it
  kEarly,  // as soon as a device has computed its last tile of the unit
};

// -------------------------------------------------------------------------------------- strategies

// How a strategy with typed options is named where a StrategyChoice is expected, one overload for
// each strategy. The choice holds the options that differ from the defaults. Values out of range
// are refused with InvalidArgument where the choice is used, as those of the text form are.

// --------------------------------------------------------------------- heads x positions (axp)

// ring: contiguous slices, KV round the ring.
struct RingOptions {
  bool count_padding =
      false;  // statistics charge the original's padding of sequences to whole chunks

  friend bool operator==(const RingOptions&, const RingOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const RingOptions& options);

// zigzag: the same, balanced for causal masks.
struct ZigzagOptions {
  bool count_padding = false;  // as of RingOptions
  // Statistics count what the original keeps of every ring step until forward ends: a partial
  // output of all the rank's queries.
  bool count_stashed = false;

  friend bool operator==(const ZigzagOptions&, const ZigzagOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const ZigzagOptions& options);

// ulysses: heads split over all ranks.
struct UlyssesOptions {
  TokenLayout layout = TokenLayout::kZigzag;
  bool count_padding = false;  // as of RingOptions

  friend bool operator==(const UlyssesOptions&, const UlyssesOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const UlyssesOptions& options);

// hybrid: heads split inside consecutive ranks, a zigzag ring across.
struct HybridOptions {
  // Ranks that split heads, a divisor of KV heads and devices; 0: the largest common divisor of the
  // KV heads and a node's devices.
  std::int32_t head_parallel = 0;
  bool count_padding = false;  // as of RingOptions
  bool count_stashed = false;  // as of ZigzagOptions

  friend bool operator==(const HybridOptions&, const HybridOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const HybridOptions& options);

// double_ring: the same with inner rings joined by an outer ring.
struct DoubleRingOptions {
  std::int32_t inner_ring = 0;     // positions of an inner ring; 0: those of a node
  std::int32_t head_parallel = 1;  // as of HybridOptions
  bool count_padding = false;      // as of RingOptions

  friend bool operator==(const DoubleRingOptions&, const DoubleRingOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DoubleRingOptions& options);

enum class GatherAlgorithm : std::uint8_t {
  kRing,    // hop by hop, a node boundary crossed once per node
  kDirect,  // every owner to everybody
};

// all_gather: all KV before any compute.
struct AllGatherOptions {
  GatherAlgorithm algorithm = GatherAlgorithm::kRing;
  TokenLayout layout = TokenLayout::kZigzag;
  bool count_padding = false;  // as of RingOptions

  friend bool operator==(const AllGatherOptions&, const AllGatherOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const AllGatherOptions& options);

enum class Sharding : std::uint8_t {
  kAdaptive,  // the faster one by estimated attention time
  kPerDocument,
  kPerSequence,
};

// wlb: a micro-batch cut per document or per sequence, all KV gathered.
struct WlbOptions {
  Sharding sharding = Sharding::kAdaptive;
  GatherAlgorithm algorithm = GatherAlgorithm::kRing;

  friend bool operator==(const WlbOptions&, const WlbOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const WlbOptions& options);

// ---------------------------------------------------------------------------- groups and rounds

enum class WaveSync : std::uint8_t {
  kWave,  // every wave is a round, a barrier between
  kStep,  // one round: ranks go on as soon as the ranks they need are done
};

// bytescale: ranks by document length, in waves.
struct BytescaleOptions {
  std::int64_t cap = 0;   // tokens of one rank and wave; 0: tokens of the batch over ranks
  bool balanced = false;  // ranks with the least work so far; false: with the fewest tokens
  WaveSync sync = WaveSync::kWave;

  friend bool operator==(const BytescaleOptions&, const BytescaleOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const BytescaleOptions& options);

// megatron_dynamic: rounds of groups, one sequence after another.
struct MegatronDynamicOptions {
  std::int64_t cap = 0;  // tokens of one rank and sequence; 0: tokens of the batch over ranks
  bool match_original = false;  // fail where the original fails

  friend bool operator==(const MegatronDynamicOptions&, const MegatronDynamicOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const MegatronDynamicOptions& options);

enum class PackedScheduler : std::uint8_t {
  kDynamic,     // groups by length
  kDpBalanced,  // equal groups, bins in order
};

// megatron_packed: the same, sequences of a group packed.
struct MegatronPackedOptions {
  PackedScheduler scheduler = PackedScheduler::kDynamic;
  std::int64_t cap = 0;           // tokens of one rank and round; 0: tokens of the batch over ranks
  std::int32_t min_cp = 1;        // kDynamic: least ranks of a group, a power of two
  std::int32_t cp = 0;            // kDpBalanced: ranks of a group, divides the devices; 0: all
  std::int32_t vpp_multiple = 1;  // rounds come in multiples of it, as interleaved pipelines need
  std::int32_t max_num_seqs = 0;  // kDpBalanced: sequences of a group and round; 0: no limit

  friend bool operator==(const MegatronPackedOptions&, const MegatronPackedOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const MegatronPackedOptions& options);

// ------------------------------------------------------------------ placements of their own

enum class MagiDispatch : std::uint8_t {
  kMinHeap,     // by area to the least loaded rank
  kToppHeap,    // … to that of the less loaded ones which has most of the keys already
  kSequential,  // equal runs in order
};
enum class CastLaunch : std::uint8_t {
  kNext,  // a stage's keys under the stage before
  kAll,   // those of all stages under the local keys
};

// magi: chunks of equal count by area, exactly the needed KV.
struct MagiOptions {
  std::int64_t chunk = 0;  // tokens of a dispatch chunk, at most what gives every rank eight; 0: as
                           // many, or the block size that is asked for
  MagiDispatch algorithm = MagiDispatch::kMinHeap;
  double top_p = 0;                     // kToppHeap: the share of ranks that a chunk chooses from
  std::int32_t stages = 1;              // that remote keys arrive and are computed in
  std::int64_t keys_per_element = 512;  // keys of the elements that stages are made of …
  std::int64_t max_elements = 64;       // … and how many there are at most: then they are larger
  CastLaunch launch = CastLaunch::kNext;
  bool hierarchical = false;  // a row crosses to a node once and is passed on inside

  friend bool operator==(const MagiOptions&, const MagiOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const MagiOptions& options);

enum class Partitioner : std::uint8_t {
  kGrid,        // the engine that knows grids of tiles (extend/partition.h)
  kHypergraph,  // the general one (extend/hypergraph.h) on the paper's hypergraph: slower
};

// dcp: tiles placed by partitioning, scheduled in divisions. Its block size is that of PlanOptions;
// left open, the planner times several.
struct DcpOptions {
  std::int32_t divisions = 4;    // of the schedule, at least 2
  double eps_node = 0.4;         // compute of a node above the mean of nodes, as a share of it
  double eps_device = 0.1;       // … of a device above the mean of its own node
  double data_tolerance = 1;     // blocks that a node or a device may own beyond what packing them
                                 // longest first needs
  std::int32_t head_groups = 0;  // divides the KV heads; 0: one each
  ResultTiming results = ResultTiming::kAfter;
  bool relays = false;              // a unit crosses a node boundary once and is passed on inside
  BandCuts cuts = BandCuts::kNone;  // where blocks end beside every block-size tokens
  double effort = 1;                // partitioning steps, in multiples of the fast setting
  Partitioner partitioner = Partitioner::kGrid;

  friend bool operator==(const DcpOptions&, const DcpOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DcpOptions& options);

enum class Reshuffle : std::uint8_t {
  kOverlapped,  // under tiles whose inputs are at home; results leave as soon as they are complete
  kBefore,      // before any compute, and results after all of it
};

// fcp: fixed-size blocks, KV in rounds without congestion.
struct FcpOptions {
  std::int64_t block = 4096;       // tokens; 0 ("auto"): the planner times several; where it is the
                                   // default, a block size that is asked for takes its place
  std::int32_t coalesce = 16;      // rounds in a stage, with a home layout as many bytes; 1: no
                                   // coalescing
  std::int32_t buffers = 3;        // stages whose keys a device computes with or receives
  std::int32_t head_parallel = 1;  // consecutive ranks of a node that split heads
  std::int64_t token_cap = 0;      // tokens a device may work on; 0: equally many blocks each
  bool pipelining = true;          // transfers overlap with compute
  bool congestion_free = true;     // a device sends and receives once in a round; false: every
                                   // receiver fetches in block order
  Reshuffle reshuffle = Reshuffle::kOverlapped;

  friend bool operator==(const FcpOptions&, const FcpOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const FcpOptions& options);

enum class KvAccounting : std::uint8_t {
  kActual,    // the keys the moved rows attend, and Q and O of the moved rows (the paper)
  kDocument,  // keys of the whole document, Q of half the moved rows (the paper's code)
};
enum class TaskBalance : std::uint8_t {
  kOneSided,  // fills devices below (1 - tolerance)·mean; overloaded ones keep what is left over
  kTwoSided,  // first drains devices above (1 + tolerance)·mean; hot senders are dearer
};

enum class TaskCost : std::uint8_t {
  kProfile,  // time by the cluster's attention profile: rows by the keys they attend
  kPairs,    // attended pairs
};
enum class BackwardTasks : std::uint8_t {
  kForward,  // backward runs where forward ran
  kOwn,      // balanced anew by what backward takes and sends
};

// distca: attention as tasks that move to underloaded devices.
struct DistcaOptions {
  double tolerance = 0.1;                   // work a device may lack of the mean, as a share of it
  KvAccounting kv = KvAccounting::kActual;  // the keys that a move is charged for
  std::int64_t granularity = 128;           // tokens that split shards are multiples of
  TaskBalance balance = TaskBalance::kTwoSided;
  TaskCost cost = TaskCost::kProfile;                // what tasks are balanced by
  BackwardTasks backward = BackwardTasks::kForward;  // kOwn needs resend
  std::int32_t attention_servers = 0;  // the last devices, which own no tokens; 0: none
  bool kv_subrange = false;            // a task may take a part of its keys, outputs are merged
  std::int32_t nano_batches = 2;  // parts of the batch, one's transfers under another's compute
  bool resend = false;  // queries and keys travel again for backward instead of being kept
  std::int64_t buffer_limit = 0;  // bytes a device may send or receive at once: the tolerance grows
                                  // by 0.05 until they suffice; 0: none
  bool match_original = false;  // exactly the original's items, whatever kv, granularity, balance,
                                // cost and kv_subrange say; even lengths only

  friend bool operator==(const DistcaOptions&, const DistcaOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DistcaOptions& options);

// ------------------------------------------------------------------------------- by prediction

enum class RetainInputs : std::uint8_t {
  kAuto,  // where that takes at most 5% of a known device memory
  kOn,
  kOff,
};
enum class Candidates : std::uint8_t {
  kAll,  // placements of its own, and every other strategy with its defaults
  kOwn,  // placements of its own
};

// auto: the least predicted time.
// What tokens on a device count for when plans are compared.
enum class TokenWeight : std::uint8_t {
  kAuto,    // kPriced where StrategyRequest::linear_us_per_token is set, else kEven
  kEven,    // a device owns at most the mean and a block of 1024 tokens
  kPriced,  // linear layers of the device that owns most add to the time
  kFree,    // nothing
};
struct AutoOptions {
  double effort = 1;  // placements tried and partitioning steps, in multiples of the default
  RetainInputs retain = RetainInputs::kAuto;  // received q and kv stay for backward
  Candidates candidates = Candidates::kAll;
  TokenWeight tokens = TokenWeight::kAuto;
  std::int64_t steps = 0;      // of the search, each about a microsecond of one core; 0: 1.2e8
  std::int64_t budget_ms = 0;  // no candidate is started after that; plans then depend on the
                               // machine; 0: no limit

  friend bool operator==(const AutoOptions&, const AutoOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const AutoOptions& options);

}  // namespace contextile
