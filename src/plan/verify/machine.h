// The abstract run of one direction's programs: the unit in each slot at any time, and the tiles
// inside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "plan/verify/facts.h"
#include "plan/verify/findings.h"
#include "plan/verify/messages.h"
#include "plan/verify/slots.h"
#include "plan/verify/verify_progress.h"

namespace contextile {

// A unit that moved between ranks, or (retained) from forward's staging into backward's.
struct Movement {
  Direction direction = Direction::kForward;
  Kind kind = Kind::kKv;
  Dtype wire = Dtype::kF32;
  UnitId unit;
  std::int32_t parent = -1;  // the movement that had brought the data to the source
  bool retained = false;
  bool used = false;    // attention read it where it arrived; results always count
  bool needed = false;  // attention read it there or further on
};

// A received input that survives forward.
struct RetainedInput {
  Rank rank;
  Kind kind = Kind::kKv;
  SlotId backward_slot;
  SlotContent content;
};

// Runs all programs together. Launches do not block; a wait blocks until both ends of every message
// of its launch have been launched. Nothing may touch a slot in flight, so contents do not depend
// on timing, and one order of execution proves all. Reading a result consumes it.
class PlanMachine {
 public:
  PlanMachine(const RoundFacts& facts, const MaskFacts& mask, const MessagePlan& messages,
              const DirectionPrograms& programs, Direction direction, const PlanPlace& place,
              std::vector<Movement>& movements, Findings& findings);

  // Fills backward's staging slots before the run.
  void place_retained(std::span<const RetainedInput> inputs);
  // Call this if every tile of the mask is computed once and no other is (check_cover). A result is
  // then right when it holds as many tiles as it must: it holds only tiles of its own unit, and no
  // tile is in two results, since reading a partial takes it away.
  void trust_cover() { covered_ = true; }
  // Reports every instruction that has run to `progress`.
  void tell(VerifyProgress& progress) { progress_ = &progress; }
  // Returns false on a deadlock. Checks the owners' results at the end.
  bool run();
  // The inputs that the retain lists keep, after the run.
  [[nodiscard]] std::vector<RetainedInput> retained();

 private:
  struct Tile {
    BlockId other;  // of a result of one block: the tile's other block
    std::int32_t next = -1;
  };
  struct Cursor {
    std::size_t instruction = 0;
    std::size_t event = 0;
    bool blocked = false;
  };

  void run_rank(Rank rank);
  bool execute(const AttentionOp& op);
  bool execute(const ReduceOp& op);
  bool execute(const CopyOp& op);
  bool execute(const LaunchOp& op);
  bool execute(const WaitOp& op);

  void attend(Kind input, SlotId slot, UnitId unit);
  void accumulate(Kind result, SlotId slot, bool init, UnitId unit, BlockId other);
  void begin_send(const MessageSide& side);
  void begin_receive(const MessageSide& side);
  void end_send(const MessageSide& side);
  void end_receive(const MessageSide& side);
  void check_wire(const TransferEnd& end, const SlotContent& content);

  SlotPool::Slot* find(Kind kind, SlotId slot);
  SlotContent read(Kind kind, SlotId slot, UnitId unit);
  SlotContent consume(Kind kind, SlotId slot, UnitId unit, SlotPool::Gone how);
  void write(Kind kind, SlotId slot, UnitId unit, const SlotContent& content);
  void displace(Kind kind, SlotId slot, SlotId by);
  void check_apart(Kind kind, SlotId src, SlotId dst);

  SlotContent join(const SlotContent& a, const SlotContent& b);
  bool report_deadlock();
  void check_results();
  void check_owned_result(Kind kind, UnitId unit, const SlotContent& content);

  [[nodiscard]] SlotPool& pool(Kind kind) {
    return pools_[rank_.index()][static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::string unit_text(UnitId unit) const;
  template <typename... Args>
  void flag(fmt::format_string<Args...> format, Args&&... args) {
    findings_.violation(here_, format, std::forward<Args>(args)...);
  }

  const RoundFacts& facts_;
  const MaskFacts& mask_;
  const MessagePlan& messages_;
  const DirectionPrograms& programs_;
  const Direction direction_;
  const PlanPlace place_;
  std::vector<Movement>& movements_;
  Findings& findings_;

  std::vector<std::array<SlotPool, kNumKinds>> pools_;  // by rank
  std::vector<Cursor> cursors_;                         // by rank
  std::vector<std::int8_t> launched_sides_;             // of each message
  std::vector<std::int32_t> missing_sides_;  // of each launch: messages not launched by both
  std::vector<SlotContent> in_flight_;       // one for each of MessagePlan::units
  std::vector<Tile> tiles_;
  bool covered_ = false;
  VerifyProgress* progress_ = nullptr;
  std::vector<std::int32_t> seen_at_;  // scratch of check_owned_result, by block
  std::vector<SlotId> pushed_out_;     // scratch of write
  std::vector<Rank> awake_;

  Rank rank_;       // the rank that runs
  PlanPlace here_;  // and its instruction
};

}  // namespace contextile
