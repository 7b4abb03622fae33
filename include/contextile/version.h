// Which library this is.
#pragma once

#include <string_view>

namespace contextile {

// The linked library, as "0.1.0".
[[nodiscard]] std::string_view version();

}  // namespace contextile
