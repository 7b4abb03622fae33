// One rank's share of a plan, laid out: the places of slots in memory, the bands of every tile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/extend/kernel.h"
#include "contextile/mask.h"
#include "contextile/plan.h"
#include "kernel/prepared_program.h"
#include "runtime/executor/begin_cut.h"
#include "runtime/executor/unit_view.h"

namespace contextile {

template <typename T>
using ByKindAndPart = std::array<std::array<T, kMaxParts>, kNumKinds>;

// Bands of one tile in LocalMask::bands, and the form the kernel prepared (may be null).
struct BandSpan {
  std::size_t first = 0;
  std::size_t count = 0;
  const PreparedBands* prepared = nullptr;  // owned by LocalMask::prepared
};

// A unit that forward hands to backward, and its place in the saved bytes of its round.
struct RetainedSlot {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  SlotId slot;
  SlotId backward_slot;
  std::int64_t offset_bytes = 0;
};

// Returns the units that a forward program retains, and adds their bytes to `saved_bytes`. The unit
// in a retained slot is the last one received or copied there. Throws InvalidPlan naming `where` if
// there is none.
[[nodiscard]] std::vector<RetainedSlot> retained_slots(const Plan& plan, const PlanRound& round,
                                                       const Program& program,
                                                       std::string_view where,
                                                       std::int64_t& saved_bytes);

// One program of this rank. Offsets are bytes into a call's buffer; every array is 64-byte aligned.
// The padding is counted in total_bytes and nowhere else.
struct LocalProgram {
  const Program* program = nullptr;
  ByKindAndPart<std::int64_t> accumulator_offset{};  // of owned results
  ByKindAndPart<std::int64_t> staging_offset{};      // of the arenas
  std::int64_t conversion_offset = 0;
  std::int64_t total_bytes = 0;
  DeviceMemory memory;  // as allocated, without padding; retained_bytes of this forward
  ConversionLayout conversion;
  std::vector<BandSpan> tile_bands;                // of all tiles in program order
  std::vector<std::pair<Kind, SlotId>> unwritten;  // owned results no instruction writes
  std::vector<RetainedSlot> retained;              // forward only
  std::vector<std::size_t> batch_end;              // reduce_batches
  // The lists that the kernel made of all attention instructions (may be null), and the place of
  // their share in a call's buffer.
  std::unique_ptr<const PreparedProgram> lists;
  std::int64_t lists_offset = 0;
};

struct LocalMask {
  std::vector<LocalBand> bands;
  std::vector<std::unique_ptr<const PreparedBands>> prepared;
  std::array<std::optional<LocalProgram>, 2> programs;  // by Direction
};

struct LocalRound {
  const PlanRound* round = nullptr;
  std::int64_t first_row = 0;  // in the rank's local order
  std::int64_t num_rows = 0;
  std::vector<BlockId> blocks;    // local, by position
  std::vector<std::int64_t> row;  // of every position, inside the round
  // First row of every position in the accumulator of a result kind. Blocks whose role lacks the
  // kind have no rows there.
  std::array<std::vector<std::int64_t>, kNumKinds> accumulator_row;
  std::array<std::int64_t, kNumKinds> accumulator_rows{};  // in all
  std::vector<LocalMask> masks;
};

// Immutable once made; calls in flight share it.
struct PreparedPlan {
  std::shared_ptr<const Plan> plan;
  Rank rank;
  std::vector<LocalRound> rounds;
  std::int64_t local_rows = 0;
  std::int64_t buffer_bytes = 0;  // the largest program's, padding included
  DeviceMemory largest;           // of the program with the most bytes
  std::int64_t band_bytes = 0;    // of the bands of tiles, classified or not, and of lists
  BeginCuts begin_cuts;           // of the first round, if a rank has only a slice; else empty
};

// Throws InvalidPlan naming round, mask, direction and instruction when this rank's programs do not
// fit together (docs/runtime.md lists the checks; `verify` proves the rest). Throws InvalidArgument
// if the kernel does not support these heads. Costs O(bands + this rank's tiles and instructions)
// plus the kernel's prepare_bands. The plan is for calls of that kernel.
[[nodiscard]] PreparedPlan prepare_plan(std::shared_ptr<const Plan> plan, Rank rank,
                                        const AttentionKernel& kernel);

}  // namespace contextile
