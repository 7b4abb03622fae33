// What every request of a trace keeps to.
#pragma once

#include <string_view>

#include "contextile/advanced/serve_simulation.h"

namespace contextile {

// Throws InvalidArgument that begins with `where`. earliest_s: when the request before it came.
void check_request(const TraceRequest& request, double earliest_s, std::string_view where);

}  // namespace contextile
