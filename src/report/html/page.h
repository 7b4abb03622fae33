// The page's own style and scripts, src/report/page/*, compiled into the library.
#pragma once

#include <string_view>

namespace contextile {

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace contextile
