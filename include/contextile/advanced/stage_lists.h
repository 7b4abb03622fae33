// The work of one rank as lists for kernels on packed rows: variable-length attention
// (FlashAttention) and FlexAttention.
//
//   const Plan plan = load_plan("batch.plan");
//   for (const StageProgram& round : stage_lists(plan, Rank{0}, 0, Direction::kForward)) {
//     std::printf("%zu instructions\n", round.instructions.size());
//   }
//
// A buffer of each kind has rows [heads of a head group, dim]. First come the rank's own tokens,
// head group after head group, then the staging arena. So every unit (a block and a head group) is
// one run of rows: messages need no packing, and an attention instruction gathers own and received
// rows by one index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// Rows of a buffer, in the order in which they are gathered. A buffer has fewer than 2^31.
using RowList = std::vector<std::int32_t>;
using RowsByKind = std::array<RowList, kNumKinds>;

// The keys that row i of n sees among the m keys of an entry. Each is one window of FlashAttention,
// whose windows are aligned at the bottom right; in brackets (left, right).
enum class EntryClass : std::uint8_t {
  kFull,     // all (-1, -1)
  kCausal,   // j <= i + m - n (-1, 0)
  kWindow,   // i <= j <= i + w, m = n + w (w, 0)
  kInverse,  // j >= i, m = n (0, -1)
};
[[nodiscard]] std::string_view to_string(EntryClass entry_class);  // "full", "causal", …

// One call of a variable-length kernel. Its entries have one class. Their rows of queries are
// disjoint, so results need no atomic merge; rows of keys may repeat.
struct StageCall {
  EntryClass entry_class = EntryClass::kFull;
  std::int64_t window = 0;  // w of kWindow
  // Rows of the entries, one entry after the other: q and o in forward; q, do and dq in backward,
  // all as long; kv, in backward also dkv.
  RowsByKind rows;
  std::vector<std::int32_t> q_offsets;  // [entries + 1] of the entries' rows of queries
  std::vector<std::int32_t> k_offsets;  // [entries + 1] of their rows of keys
  std::vector<std::int32_t> groups;     // [entries] head group
  std::int64_t max_q = 0;               // most rows of queries of an entry
  std::int64_t max_k = 0;
  std::int64_t pairs = 0;
  // True if nothing was added before to its rows of o or dq, so that they may be overwritten.
  bool is_first = false;
  // With StageOptions::tokens: token of the batch of every row, and its position in its sequence.
  std::vector<std::int32_t> q_tokens, q_positions, k_tokens, k_positions;
};

// All of an attention instruction as one call of FlexAttention. No key occurs twice.
struct StageIntervals {
  RowsByKind rows;         // of queries and of keys, as in a call
  std::int32_t width = 1;  // intervals of keys per row, a power of two
  // [rows of queries, width]: a row sees key c if low <= c < high in one of its intervals. Unused
  // ones are empty.
  std::vector<std::int32_t> low, high;
  // With StageOptions::tokens: as in a call, and the head group of every row of queries.
  std::vector<std::int32_t> q_tokens, q_positions, q_groups, k_tokens, k_positions;

  // Blocks of `kBlock` rows and keys that hold pairs, by block of rows (kv_*) and by block of keys
  // (q_*). Lists are [blocks, width], their first `count` are used.
  static constexpr std::int32_t kBlock = 128;
  struct Blocks {
    std::vector<std::int32_t> counts;
    std::vector<std::int32_t> lists;
    std::int32_t width = 1;
  };
  Blocks kv_partial, kv_full, q_partial, q_full;
};

// An attention instruction.
struct StageAttention {
  std::vector<StageCall> calls;
  StageIntervals intervals;  // only with StageOptions::intervals
  // Rows of results that hold earlier results and begin again: LSE = -inf, gradients = 0.
  RowsByKind resets;
  std::int64_t pairs = 0;     // counted once per head group
  bool is_first = true;       // nothing was added before to any row of results that it writes
  std::int64_t num_keys = 0;  // rows of keys without repetition
};

// All rows of one kind that go to or come from one peer in a launch, in the plan's order.
struct StageMessage {
  Rank peer;
  Kind kind = Kind::kKv;
  Dtype wire = Dtype::kBf16;
  RowList rows;
};
struct StageLaunch {
  std::int32_t id = 0;
  std::vector<StageMessage> sends;
  std::vector<StageMessage> recvs;
};
struct StageWait {
  std::int32_t id = 0;
};
// dst := merge (o) or sum of several sources; all sources are read before a row is written.
struct StageReduce {
  Kind kind = Kind::kO;
  RowList dst;
  // The i-th sources of the rows. Rows with fewer sources come last, so that srcs[i] belongs to the
  // first srcs[i].size() rows of dst.
  std::vector<RowList> srcs;
};
struct StageCopy {
  Kind kind = Kind::kO;
  RowList dst;
  RowList src;
};
using StageInstruction =
    std::variant<StageAttention, StageReduce, StageCopy, StageLaunch, StageWait>;

// Rows of a unit that backward keeps from forward.
struct StageRetain {
  Kind kind = Kind::kKv;
  Range forward;
  Range backward;
};

// One rank, mask, direction and round.
struct StageProgram {
  std::int32_t head_groups = 1;
  std::int64_t own_tokens = 0;                    // of this round
  std::array<std::int64_t, kNumKinds> rows = {};  // of the buffer of each kind; 0: no buffer
  std::vector<StageInstruction> instructions;
  std::vector<StageRetain> retain;  // forward only
  // Number of instructions that a call may issue while an earlier one has not finished: messages of
  // a pair of ranks meet in order, so both must have begun the same ones. 0 for a slice.
  std::size_t begin_cut = 0;
  std::size_t launches_end = 0;  // number of instructions up to the last launch
};

struct StageOptions {
  bool intervals = false;  // make StageAttention::intervals
  bool tokens = false;     // make the tokens and positions of calls and intervals
  // A call takes further entries while its rows of queries and keys are at most that many. A row of
  // one of n head groups counts as 1/n.
  std::int64_t max_rows = std::int64_t{1} << 40;
};

// Returns the programs of a rank under one mask, round by round. Blocks with fewer head groups than
// their round are cut into the round's. Every count of pairs is held against the plan's. Throws
// InvalidPlan on a plan that the executor would refuse, and InvalidArgument unless the plan has
// that rank, mask and direction. O(rows of all lists + bands · log).
[[nodiscard]] std::vector<StageProgram> stage_lists(const Plan& plan, Rank rank, std::size_t mask,
                                                    Direction direction,
                                                    const StageOptions& options = {});

}  // namespace contextile
