#include "plan/file/magnitudes.h"

#include <algorithm>
#include <variant>

#include "base/check.h"

namespace contextile {
namespace {

// The sums of statistics, as doubles: inexact near 2^62, exact enough elsewhere.
struct Magnitude {
  double tokens = 0;  // of slots, arenas and transfers
  double pairs = 0;

  void add(const PlanRound& round, const Program& program) {
    for (const auto& slots : program.staging) {
      for (const StagingSlot& slot : slots) {
        tokens += static_cast<double>(slot.offset_tokens + slot.capacity_tokens);
      }
    }
    for (const Instruction& instruction : program.instructions) {
      if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
        for (const TileOp& tile : attention->tiles) pairs += static_cast<double>(tile.pairs);
      } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
        for (const auto* ends : {&launch->sends, &launch->recvs}) {
          for (const TransferEnd& end : *ends) {
            tokens += static_cast<double>(round.blocks.num_tokens(end.block));
          }
        }
      } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
        tokens += static_cast<double>(round.blocks.num_tokens(copy->block));
      }
    }
  }
};

}  // namespace

void check_magnitudes(const Plan& plan, std::string_view file) {
  Magnitude sum;
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const BlockId block : device.local_blocks) {
        sum.tokens += 2 * static_cast<double>(round.blocks.num_tokens(block));  // dq and dkv
      }
      for (const ProgramPair& pair : device.programs) {
        for (const Direction direction : kDirections) {
          if (pair.of(direction)) sum.add(round, *pair.of(direction));
        }
      }
    }
  }
  constexpr double kMost = 0x1p61;
  constexpr double kMaxBytesPerElement = 4;
  const AttentionShape& shape = plan.shape;
  const double bytes_per_token =
      kMaxBytesPerElement * shape.q_heads * (double{1} * shape.head_dim + shape.value_dim + 2);
  constexpr double kPackAlignmentBytes = 64;
  const double bytes = sum.tokens * (bytes_per_token + kPackAlignmentBytes) *
                       std::max(1.0, plan.padded_bytes_factor);
  const double pairs = sum.pairs * std::max(1.0, plan.padded_pairs_factor);
  if (bytes > kMost || pairs > kMost) {
    fail_plan(
        "{}: expected transfers, buffers and pairs below 2^61 in all, found about {:.3g} bytes "
        "and {:.3g} pairs",
        file, bytes, pairs);
  }
}

}  // namespace contextile
