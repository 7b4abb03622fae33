// Checks settings that all ranks of a group must share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// The settings of one rank, as another rank received them. Names and values may be any text.
class GatheredSettings {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  explicit GatheredSettings(Pairs pairs) : pairs_(std::move(pairs)) {}

  [[nodiscard]] const Pairs& pairs() const { return pairs_; }
  // Returns the value of the first setting of a name; empty if there is none.
  [[nodiscard]] std::string value(std::string_view name) const;

 private:
  Pairs pairs_;
};

// Returns the settings of all ranks, by rank. Collective. The settings of a rank have at most 64
// KiB.
[[nodiscard]] std::vector<GatheredSettings> gather_settings(Transport& transport,
                                                            std::span<const Setting> settings);

// For an error that every rank has found from the same messages and is about to throw. Returns when
// all ranks have come this far or can no longer come. A rank that throws at once ends the group,
// and the others would hear of that while they still look.
void let_all_look(Transport& transport);

}  // namespace contextile
