// Checks settings that all ranks of a group must share.
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

// Collective. Throws InvalidArgument on all ranks, with the same text, unless they have the same
// settings: "run: expected the same repeats on all ranks, found 1 on rank 0 and 3 on rank 2".
void check_same_settings(Transport& transport, std::string_view who,
                         std::span<const Setting> settings);

// For an error that every rank has found from the same messages and is about to throw. Returns when
// all ranks have come this far or can no longer come. A rank that throws at once ends the group,
// and the others would hear of that while they still look.
void let_all_look(Transport& transport);

}  // namespace contextile
