// The slot table of one kind on one rank during an abstract run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "plan/verify/facts.h"

namespace contextile {

// The content of a slot. An input has the movement that brought it (-1: the owner's own). A result
// has the tiles inside, as a linked list, so that merging two partials costs O(1).
struct SlotContent {
  UnitId unit;  // invalid: nothing
  std::int32_t origin = -1;
  std::int32_t first_tile = -1;
  std::int32_t last_tile = -1;
  std::int32_t num_tiles = 0;
};

// The slots of one kind on one rank.
class SlotPool {
 public:
  // The last event that emptied a slot.
  enum class Gone : std::uint8_t { kNever, kSent, kReduced, kCopied, kOverwritten };

  struct Slot {
    SlotContent content;
    std::int32_t num_sending = 0;  // transfers under way that read it
    bool receiving = false;        // a transfer under way writes it
    bool in_use = false;           // since it was written, no slot that overlaps it was written
    bool apart = false;            // its range overlaps that of no other slot
    Gone gone = Gone::kNever;
    std::int32_t gone_at = 0;  // instruction

    // " (sent at instruction 12)"; empty if nothing was here.
    [[nodiscard]] std::string gone_text() const;
  };

  SlotPool() = default;
  SlotPool(std::int64_t num_owned, const std::vector<StagingSlot>& staging);

  [[nodiscard]] bool contains(SlotId slot) const {
    return slot.valid() && slot.index() < slots_.size();
  }
  [[nodiscard]] bool is_owned(SlotId slot) const { return slot.index() < num_owned_; }
  [[nodiscard]] std::size_t num_owned() const { return num_owned_; }
  [[nodiscard]] std::span<const Slot> slots() const { return slots_; }
  [[nodiscard]] Slot& at(SlotId slot) { return slots_[slot.index()]; }
  // The tokens of the arena that a staging slot takes.
  [[nodiscard]] Range range(SlotId slot) const;
  [[nodiscard]] bool overlap(SlotId a, SlotId b) const;

  // Marks a staging slot's range as in use; appends the other slots that were in use on a part of
  // it and no longer are. O(1) if the slot's own range was in use or overlaps no other, else
  // O(log + pushed out).
  void occupy(SlotId slot, std::vector<SlotId>& pushed_out);

 private:
  void find_apart();

  std::size_t num_owned_ = 0;
  const std::vector<StagingSlot>* staging_ = nullptr;
  std::vector<Slot> slots_;
  // Staging ranges in use, disjoint, by first token; without those that overlap no other.
  std::map<std::int64_t, SlotId> in_use_;
};

}  // namespace contextile
