#include "contextile/base.h"

namespace contextile {

std::string_view version() { return CONTEXTILE_VERSION; }

}  // namespace contextile
