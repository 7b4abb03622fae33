// The path that means no file.
#pragma once

#include <string_view>

namespace contextile {

// Standard input for what is read, standard output for what is written.
inline constexpr std::string_view kStandardStream = "-";

}  // namespace contextile
