// "did you mean": the nearest of some names, for error messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace contextile {

// "; did you mean 'x'?" when one of `names` is within a third of its length in edits, else "".
[[nodiscard]] std::string did_you_mean(std::string_view found, std::span<const std::string> names);

}  // namespace contextile
