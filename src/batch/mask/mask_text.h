// The checks of a rule's parameters, which the parser and the builders share.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "contextile/mask.h"

namespace contextile {

// "causal", "lambda", …: the rule's name in texts.
[[nodiscard]] std::string_view rule_name(MaskSpec::Rule rule);

// Throws InvalidArgument unless every parameter of the spec's rule is usable.
void check_mask_spec(const MaskSpec& spec);

// Returns true for rules under which sequences have branches, whose positions are not in order of
// storage.
[[nodiscard]] bool has_branches(MaskSpec::Rule rule);

// Throws InvalidArgument unless the given lengths of the spec sum to those of a sequence.
void check_sum_of_lengths(const MaskSpec& spec, std::int64_t length);

// The parts of a sequence of `length` tokens under shared_question: the question first, then every
// answer; they sum to `length`. Throws InvalidArgument when given lengths do not.
[[nodiscard]] std::vector<std::int64_t> shared_question_lengths(const MaskSpec& spec,
                                                                std::int64_t length);

}  // namespace contextile
