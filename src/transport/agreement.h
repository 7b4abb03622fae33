// What the ranks of a group must have alike.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "contextile/extend/transport.h"

namespace contextile {

struct Setting {
  std::string_view name;
  std::string value;
};

// Collective. Throws InvalidArgument on all ranks, with the same words, unless they have the same
// settings: "run: expected the same repeats on all ranks, found 1 on rank 0 and 3 on rank 2".
void check_same_settings(Transport& transport, std::string_view who,
                         std::span<const Setting> settings);

// For what every rank has found out by the same messages and is about to throw: returns when all
// have come so far, or cannot any more. Who throws at once ends the group, and the others would
// hear of it while they still look.
void let_all_look(Transport& transport);

}  // namespace contextile
