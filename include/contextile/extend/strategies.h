// The options of every strategy as types, defined once: the strategies compute with these types,
// and their text forms (--strategy name:key=value,…) are parsed into them.
//
//   plan_batch(workload, cluster, choice_of(DcpOptions{.divisions = 6}));  // dcp:divisions=6
//
// Fields have the names of the keys of the text form, unless their comment gives the key. For
// numbers that are 0 by default, 0 leaves the decision to the strategy; the plan's options record
// the decision.
#pragma once

#include <cstdint>

#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// ---------------------------------------------------------------------------------------- schedule
//
// The layouts and schedules that options of strategies refer to (extend/strategies.h).

// The tokens that a rank holds.
enum class TokenLayout : std::uint8_t {
  kZigzag,  // every sequence in 2R chunks, rank r has chunks r and 2R-1-r (Megatron, TE, Llama 3)
  kContiguous,   // every sequence in R chunks, rank r has chunk r (RingAttention)
  kPerDocument,  // zigzag whose chunks differ by at most one token, remainders dealt round-robin
                 // over documents (WLB-LLM's per-document sharding, no padding)
  kPerSequence,  // the packed batch as one sequence in 2R chunks (WLB-LLM's per-sequence sharding)
};

// The time when partial results leave the device that computed them.
enum class ResultTiming : std::uint8_t {
  kAfter,  // when all attention is done, as in DCP's Listing 3
  kEarly,  // as soon as a device has computed its last tile of the unit
};

// The data that a pair of devices may move for one division of DCP's schedule. Its share is 1/T of
// all that the pair moves.
enum class PairShare : std::uint8_t {
  kWithin,   // no more than its share: a tile that would exceed it waits (Listing 3)
  kReached,  // its share and the rest of the tile that reaches it
};

// -------------------------------------------------------------------------------------- strategies

// Each strategy with typed options has one overload of choice_of, for use where a StrategyChoice is
// expected. The choice holds the options that differ from the defaults. Values out of range are
// refused with InvalidArgument when the choice is used, like those of the text form.

// --------------------------------------------------------------------- heads x positions (axp)

// ring: contiguous slices, KV sent round the ring.
struct RingOptions {
  bool count_padding =
      false;  // statistics charge the original's padding of sequences to whole chunks

  friend bool operator==(const RingOptions&, const RingOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const RingOptions& options);

// zigzag: the same as ring, balanced for causal masks.
struct ZigzagOptions {
  bool count_padding = false;  // as of RingOptions
  // Statistics count the memory that the original keeps for every ring step until forward ends: a
  // partial output of all the rank's queries.
  bool count_stashed = false;

  friend bool operator==(const ZigzagOptions&, const ZigzagOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const ZigzagOptions& options);

// ulysses: heads split over all ranks. Ranks that are a multiple of the KV heads hold replicas.
struct UlyssesOptions {
  TokenLayout layout = TokenLayout::kZigzag;
  bool count_padding = false;  // as of RingOptions

  friend bool operator==(const UlyssesOptions&, const UlyssesOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const UlyssesOptions& options);

// hybrid: heads split inside groups of consecutive ranks, a zigzag ring across the groups.
struct HybridOptions {
  // Number of ranks that split heads, a divisor of KV heads and devices; 0: the largest common
  // divisor of the KV heads and a node's devices.
  std::int32_t head_parallel = 0;
  bool count_padding = false;  // as of RingOptions
  bool count_stashed = false;  // as of ZigzagOptions

  friend bool operator==(const HybridOptions&, const HybridOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const HybridOptions& options);

// double_ring: the same as hybrid, with inner rings joined by an outer ring.
struct DoubleRingOptions {
  std::int32_t inner_ring = 0;     // positions of an inner ring; 0: the positions of a node
  std::int32_t head_parallel = 1;  // as of HybridOptions
  bool count_padding = false;      // as of RingOptions

  friend bool operator==(const DoubleRingOptions&, const DoubleRingOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DoubleRingOptions& options);

enum class GatherAlgorithm : std::uint8_t {
  kRing,    // hop by hop; each node boundary is crossed once per node
  kDirect,  // every owner sends to every rank
  kNested,  // round the rings of the nodes, and from node to node by every device, as over all NICs
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
  kWave,  // every wave is a round, with a barrier between rounds
  kStep,  // one round: a rank goes on as soon as the ranks it depends on are done
};

// bytescale: ranks by document length, in waves.
struct BytescaleOptions {
  std::int64_t cap = 0;   // tokens of one rank and wave; 0: tokens of the batch over ranks
  bool balanced = false;  // true: choose ranks with the least work so far; false: with the fewest
                          // tokens
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

// megatron_packed: the same, with the sequences of a group packed.
struct MegatronPackedOptions {
  PackedScheduler scheduler = PackedScheduler::kDynamic;
  std::int64_t cap = 0;           // tokens of one rank and round; 0: tokens of the batch over ranks
  std::int32_t min_cp = 1;        // kDynamic: least ranks of a group, a power of two
  std::int32_t cp = 0;            // kDpBalanced: ranks of a group, divides the devices; 0: all
  std::int32_t vpp_multiple = 1;  // the number of rounds is a multiple of it, as interleaved
                                  // pipelines need
  std::int32_t max_num_seqs = 0;  // kDpBalanced: sequences of a group and round; 0: no limit

  friend bool operator==(const MegatronPackedOptions&, const MegatronPackedOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const MegatronPackedOptions& options);

// ------------------------------------------------------------------ placements of their own

enum class MagiDispatch : std::uint8_t {
  kMinHeap,       // each chunk by area to the least loaded rank
  kToppHeap,      // to the one of the less loaded ranks that already has most of the keys
  kSequential,    // equal runs of chunks in order
  kBinarySearch,  // the least load of the fullest rank, by binary search; ranks may get unequally
                  // many chunks
  kBacktracking,  // the same with equally many chunks per rank, by branch and bound
};
enum class CastLaunch : std::uint8_t {
  kNext,  // a stage's keys travel while the stage before is computed
  kAll,   // the keys of all stages travel while the local keys are computed
};

// magi: chunks of equal count placed by area, exactly the needed KV moved.
struct MagiOptions {
  std::int64_t chunk = 0;  // tokens of a dispatch chunk, at most the size that gives every rank
                           // eight chunks; 0: that size, or the requested block size
  MagiDispatch algorithm = MagiDispatch::kMinHeap;
  double top_p = 0;         // kToppHeap: share of ranks that a chunk chooses from
  std::int32_t stages = 1;  // number of stages in which remote keys arrive and are computed; 0: the
                            // number of at most 8 with the least estimated time
  std::int64_t keys_per_element = 512;  // keys of an element; stages are made of elements
  std::int64_t max_elements = 64;       // most elements; if there would be more, they become larger
  CastLaunch launch = CastLaunch::kNext;
  bool hierarchical = false;  // a row crosses to a node once and is relayed inside

  friend bool operator==(const MagiOptions&, const MagiOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const MagiOptions& options);

enum class Partitioner : std::uint8_t {
  kGrid,        // the engine that knows grids of tiles (extend/partition.h)
  kHypergraph,  // the general engine (extend/hypergraph.h) on the paper's hypergraph: slower
};

// dcp: tiles placed by partitioning, scheduled in divisions. Its block size is that of PlanOptions;
// if it is left open, the planner times several.
struct DcpOptions {
  std::int32_t divisions = 4;  // divisions of the schedule, at least 2
  double eps_node = 0.4;       // compute of a node above the mean of nodes, as a share of the mean
  double eps_device = 0.1;     // compute of a device above the mean of its own node, likewise
  double data_tolerance = 0;   // blocks that a node or a device may own beyond the need of
                               // longest-first packing
  std::int32_t head_groups = 0;  // divides the KV heads; 0: one group per KV head
  PairShare share = PairShare::kWithin;
  ResultTiming results = ResultTiming::kAfter;
  bool relays = false;              // a unit crosses a node boundary once and is relayed inside
  BandCuts cuts = BandCuts::kNone;  // where blocks end in addition to every block-size tokens
  double effort = 1;                // partitioning steps, in multiples of the fast setting
  Partitioner partitioner = Partitioner::kGrid;

  friend bool operator==(const DcpOptions&, const DcpOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DcpOptions& options);

enum class Reshuffle : std::uint8_t {
  kOverlapped,  // while tiles with inputs at home are computed; results leave as soon as they are
                // complete
  kBefore,      // before any compute, and results after all of it
};

// The cost by which work is balanced.
enum class TaskCost : std::uint8_t {
  kProfile,  // time by the cluster's attention profile: rows by the keys they attend
  kPairs,    // attended pairs
};

// fcp: fixed-size blocks, KV moved in rounds without congestion.
struct FcpOptions {
  std::int64_t block = 4096;       // tokens; 0 ("auto"): the planner times several; if it has the
                                   // default value, a requested block size replaces it
  std::int32_t coalesce = 16;      // rounds of a stage, with a home layout as many bytes; 1: no
                                   // coalescing
  std::int32_t buffers = 3;        // stages whose keys a device computes with or receives
  std::int32_t head_parallel = 1;  // consecutive ranks of a node that split heads
  std::int64_t token_cap = 0;  // tokens a device may work on; 0 ("auto"): the mean and one block
  TaskCost cost = TaskCost::kProfile;  // cost by which blocks are balanced
  bool cut_heavy = true;               // a block that takes longer than the mean device is cut
  bool pipelining = true;              // transfers overlap with compute
  bool congestion_free = true;         // a device sends and receives once per round; false: every
                                       // receiver fetches in block order
  Reshuffle reshuffle = Reshuffle::kOverlapped;

  friend bool operator==(const FcpOptions&, const FcpOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const FcpOptions& options);

enum class KvAccounting : std::uint8_t {
  kActual,    // keys that the moved rows attend, and Q and O of the moved rows (the paper)
  kDocument,  // keys of the whole document, Q of half the moved rows (the paper's code)
};
enum class TaskBalance : std::uint8_t {
  kOneSided,  // fills devices below (1 - tolerance)·mean; overloaded ones keep the excess
  kTwoSided,  // first drains devices above (1 + tolerance)·mean; hot senders cost more
};

enum class BackwardTasks : std::uint8_t {
  kForward,  // backward runs where forward ran
  kOwn,      // balanced again, by the time and the bytes of backward
};

// distca: attention as tasks that move to underloaded devices.
struct DistcaOptions {
  double tolerance = 0.1;  // work a device may have below the mean, as a share of the mean
  KvAccounting kv = KvAccounting::kActual;  // keys that a move is charged for
  std::int64_t granularity = 128;           // number of tokens that the sizes of split shards are
                                            // multiples of
  TaskBalance balance = TaskBalance::kTwoSided;
  TaskCost cost = TaskCost::kProfile;                // cost by which tasks are balanced
  BackwardTasks backward = BackwardTasks::kForward;  // kOwn needs resend
  std::int32_t attention_servers = 0;  // the last devices, which own no tokens; 0: none
  bool kv_subrange = false;            // a task may take a part of its keys; outputs are merged
  std::int32_t nano_batches = 2;       // parts of the batch; the transfers of one overlap with the
                                       // compute of another
  bool resend = false;  // queries and keys are sent again for backward instead of being kept
  bool relays = false;  // servers pass keys on to each other, so that owners send fewer copies
  std::int64_t buffer_limit = 0;  // bytes a device may send or receive at once: the tolerance grows
                                  // by 0.05 until the tasks keep to it; 0: no limit
  bool match_original = false;    // exactly the original's items, regardless of kv, granularity,
                                  // balance, cost and kv_subrange; even lengths only

  friend bool operator==(const DistcaOptions&, const DistcaOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const DistcaOptions& options);

// ------------------------------------------------------------------------------- by prediction

enum class RetainInputs : std::uint8_t {
  kAuto,  // if that takes at most 5% of a known device memory
  kOn,
  kOff,
};
enum class Candidates : std::uint8_t {
  kAll,  // its own placements, and every other strategy with its defaults
  kOwn,  // its own placements
};

// The time that plans are compared by.
enum class Objective : std::uint8_t {
  kLayer,      // attention, and the linear layers of the device that owns the most tokens
  kAttention,  // attention alone
};
// The tokens that a device may own when plans are compared.
enum class TokenCap : std::uint8_t {
  kAuto,  // kFree for the layer, whose time decides; kEven for attention alone
  kEven,  // at most the mean plus a block of 1024 tokens
  kFree,  // any number
};
// auto: the plan with the least predicted time.
struct AutoOptions {
  double effort = 1;  // placements tried and partitioning steps, in multiples of the default
  RetainInputs retain = RetainInputs::kAuto;  // received q and kv are kept for backward
  Candidates candidates = Candidates::kAll;
  Objective objective = Objective::kLayer;
  TokenCap tokens = TokenCap::kAuto;
  std::int64_t steps = 0;  // of the search, each about a microsecond of one core; 0: 1.2e8
  std::int64_t steps_per_device = 0;  // steps for each device; the larger limit counts; 0: none
  std::int64_t budget_ms = 0;  // no candidate is started after that; plans then depend on the
                               // machine; 0: no limit

  friend bool operator==(const AutoOptions&, const AutoOptions&) = default;
};
[[nodiscard]] StrategyChoice choice_of(const AutoOptions& options);

}  // namespace contextile
