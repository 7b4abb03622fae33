// Checks that a program passes before it may touch memory: every index in range, every unit inside
// its slot.
//
// A plan may come from a file and need not have been verified. These checks keep a broken one from
// reading or writing outside its buffers or waiting for a launch that is not there. They do not say
// that it computes attention: `verify` does.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "contextile/plan.h"

namespace contextile {

struct RetainedSlot;

// Checks the sizes of tables, head groups and local blocks. Throws InvalidPlan.
void check_structure(const Plan& plan);

// Checks one program of one rank. Throws InvalidPlan naming `where` and the instruction.
void check_program(const Plan& plan, const PlanRound& round, const Program& program,
                   Direction direction, Rank rank, std::string_view where);

// Checks that retained units fit the slots backward expects them in.
void check_retained(const Plan& plan, const PlanRound& round,
                    std::span<const RetainedSlot> retained, const std::optional<Program>& backward,
                    Rank rank, std::string_view where);

}  // namespace contextile
