// What must hold before a program may touch memory: every index in range, every unit inside its
// slot.
//
// A plan may come from a file and need not have been verified. These checks keep a broken one from
// reading or writing outside its buffers or waiting for a launch that is not there; whether it
// computes attention is for `verify` to say.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "contextile/plan.h"

namespace contextile {

struct RetainedSlot;

// Sizes of tables, head groups, owners and local blocks. Throws InvalidPlan.
void check_structure(const Plan& plan);

// One program of one rank. Throws InvalidPlan naming `where` and the instruction.
void check_program(const Plan& plan, const PlanRound& round, const Program& program,
                   Direction direction, Rank rank, std::string_view where);

// Retained units fit the slots backward expects them in.
void check_retained(const Plan& plan, const PlanRound& round,
                    std::span<const RetainedSlot> retained, const std::optional<Program>& backward,
                    Rank rank, std::string_view where);

}  // namespace contextile
