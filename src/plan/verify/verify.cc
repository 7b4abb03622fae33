#include "contextile/verify.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "plan/verify/facts.h"
#include "plan/verify/findings.h"
#include "plan/verify/machine.h"
#include "plan/verify/messages.h"
#include "plan/verify/verify_progress.h"

namespace contextile {
namespace {

// Examines both directions of one mask in one round.
class MaskVerifier {
 public:
  MaskVerifier(const RoundFacts& facts, std::size_t mask, MaskFacts mask_facts, PlanPlace place,
               const VerifyOptions& options, VerifyProgress& progress, VerifyReport& report,
               Findings& findings)
      : facts_(facts),
        mask_index_(mask),
        options_(options),
        progress_(progress),
        report_(report),
        findings_(findings),
        mask_(std::move(mask_facts)),
        place_(std::move(place)) {}

  void verify() {
    check_mask_facts(facts_, mask_, facts_.round.masks[mask_index_].mask.num_pairs(), place_,
                     findings_);
    for (const Direction direction : kDirections) {
      PlanPlace place = place_;
      place.direction = direction;
      verify_direction(direction, place);
    }
    mark_needed();
    count_movements();
  }

 private:
  // Every rank's program, or nothing if the direction is absent or cannot be examined.
  std::optional<DirectionPrograms> programs_of(Direction direction, const PlanPlace& place) {
    DirectionPrograms programs;
    for (const DeviceProgram& device : facts_.round.devices) {
      const std::optional<Program>& program = device.programs[mask_index_].of(direction);
      if (program) programs.push_back(&*program);
    }
    if (programs.empty()) return std::nullopt;
    if (programs.size() != facts_.round.devices.size()) {
      findings_.cause(place, "{} of {} ranks have a program", programs.size(),
                      facts_.round.devices.size());
      return std::nullopt;
    }
    bool sound = true;
    for (std::size_t r = 0; r < programs.size(); ++r) {
      const PlanPlace at = place.at_rank(static_cast<std::int64_t>(r));
      sound &= check_program_structure(facts_, *programs[r], direction, at, findings_);
      const ProgramPair& pair = facts_.round.devices[r].programs[mask_index_];
      if (programs[r]->retain.empty()) continue;
      if (direction == Direction::kBackward) {
        findings_.violation(at, "backward retains {} slots", programs[r]->retain.size());
      } else if (!pair.backward) {
        findings_.violation(at, "retains {} slots without a backward", programs[r]->retain.size());
      }
    }
    if (sound) return programs;
    for (const Program* program : programs) lost_retained_ |= !program->retain.empty();
    return std::nullopt;
  }

  void verify_direction(Direction direction, const PlanPlace& place) {
    const std::optional<DirectionPrograms> programs = programs_of(direction, place);
    if (!programs || (direction == Direction::kBackward && lost_retained_)) return;
    const bool covered = check_cover(facts_, mask_, *programs, place, findings_);
    const MessagePlan messages = match_messages(facts_, *programs, place, findings_);
    PlanMachine machine(facts_, mask_, messages, *programs, direction, place, movements_,
                        findings_);
    if (direction == Direction::kBackward) machine.place_retained(retained_);
    if (covered) machine.trust_cover();
    machine.tell(progress_);
    if (machine.run()) {
      check_grouped(messages, place);
    } else {
      report_.grouped_launches_ok = false;
    }
    if (direction == Direction::kForward) retained_ = machine.retained();
    check_memory(direction, place);
  }

  void check_grouped(const MessagePlan& messages, const PlanPlace& place) {
    const std::vector<std::int32_t> stuck = stuck_grouped_launches(messages);
    if (stuck.empty()) return;
    report_.grouped_launches_ok = false;
    const PlannedLaunch& first = messages.launches[static_cast<std::size_t>(stuck.front())];
    const PlanPlace at =
        place.at_rank(first.rank.value).at_instruction(first.instruction, "launch");
    if (options_.require_grouped_launches) {
      findings_.violation(at, "deadlock of grouped launches, {} ranks are stuck", stuck.size());
    } else {
      findings_.warning(at, "deadlock of grouped launches, {} ranks are stuck", stuck.size());
    }
  }

  void check_memory(Direction direction, const PlanPlace& place) {
    const std::optional<std::int64_t> limit = facts_.round.limits.memory_bytes;
    if (!limit) return;
    for (std::int32_t r = 0; r < facts_.num_ranks(); ++r) {
      const std::int64_t bytes =
          device_memory(facts_.plan, static_cast<std::size_t>(facts_.place.round), mask_index_,
                        direction, Rank{r})
              .total_bytes();
      if (bytes <= *limit) continue;
      findings_.violation(place.at_rank(r), "needs {} bytes, the limit is {}", bytes, *limit);
    }
  }

  // Marks movements as needed: those that attention reads, those that brought them, and those that
  // were retained for a read.
  void mark_needed() {
    for (std::size_t n = 0; n < movements_.size(); ++n) {
      if (!movements_[n].used) continue;
      for (auto at = static_cast<std::int32_t>(n); at >= 0;) {
        Movement& move = movements_[static_cast<std::size_t>(at)];
        if (move.needed) break;
        move.needed = true;
        at = move.parent;
      }
    }
    for (const Movement& move : movements_) {
      if (!move.retained || !move.used || move.parent < 0) continue;
      movements_[static_cast<std::size_t>(move.parent)].used = true;
    }
  }

  void count_movements() {
    struct Count {
      std::int64_t all = 0;
      std::int64_t unread = 0;
    };
    std::array<Count, 2> moved{};
    std::array<Count, 2> kept{};
    for (const Movement& move : movements_) {
      const auto direction = static_cast<std::size_t>(move.direction);
      Count& count = (move.retained ? kept : moved)[direction];
      ++count.all;
      count.unread += !move.needed;
      if (move.retained) continue;
      const std::int64_t bytes =
          unit_bytes(move.kind, facts_.tokens_of(move.unit), facts_.plan.shape,
                     facts_.groups_of(move.unit), move.wire);
      DataMovement& total = report_.movement[direction];
      ++total.transfers;
      total.redundant_transfers += !move.needed;
      total.redundant_bytes += move.needed ? 0 : bytes;
      total.unused_by_receiver_transfers += !move.used;
      total.unused_by_receiver_bytes += move.used ? 0 : bytes;
    }
    for (const Direction direction : kDirections) {
      PlanPlace place = place_;
      place.direction = direction;
      const Count& m = moved[static_cast<std::size_t>(direction)];
      const Count& k = kept[static_cast<std::size_t>(direction)];
      if (m.unread > 0) {
        findings_.warning(place, "{} of {} transfers carry unread data", m.unread, m.all);
      }
      if (k.unread > 0) {
        findings_.warning(place, "{} of {} retained slots are never read", k.unread, k.all);
      }
    }
  }

  const RoundFacts& facts_;
  const std::size_t mask_index_;
  const VerifyOptions& options_;
  VerifyProgress& progress_;
  VerifyReport& report_;
  Findings& findings_;
  const MaskFacts mask_;
  PlanPlace place_;
  std::vector<Movement> movements_;
  std::vector<RetainedInput> retained_;
  bool lost_retained_ =
      false;  // forward could not be examined, so what backward starts with is unknown
};

void verify_rounds(const Plan& plan, const VerifyOptions& options, VerifyReport& report,
                   Findings& findings) {
  VerifyProgress progress(plan, options.progress);
  if (!check_plan_structure(plan, findings)) return;
  for (std::size_t n = 0; n < plan.rounds.size(); ++n) {
    const RoundFacts facts{plan, plan.rounds[n], {.round = static_cast<std::int64_t>(n)}};
    if (!check_round_structure(facts, findings)) continue;
    check_ownership(facts, findings);
    for (std::size_t m = 0; m < facts.round.masks.size(); ++m) {
      PlanPlace place = facts.place;
      place.mask = static_cast<std::int64_t>(m);
      place.mask_name = facts.round.masks[m].name;
      std::optional<MaskFacts> mask = facts_of_mask(facts, m, place, findings);
      if (!mask) continue;
      MaskVerifier(facts, m, std::move(*mask), place, options, progress, report, findings).verify();
    }
  }
}

}  // namespace

VerifyReport verify(const Plan& plan, const VerifyOptions& options) {
  VerifyReport report;
  Findings findings(options.max_shown);
  try {
    verify_rounds(plan, options, report, findings);
  } catch (const VerifyProgress::Stopped& stopped) {
    std::rethrow_exception(stopped.reason);
  } catch (const Error& error) {
    // Structure checks come before anything that throws; this is for cases they overlooked.
    findings.cause({}, "examination ends here: {}", error.what());
  }
  findings.move_into(report);
  return report;
}

}  // namespace contextile
