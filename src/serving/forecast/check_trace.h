// Checks a request of a trace.
#pragma once

#include <string_view>

#include "contextile/serving/serve_simulation.h"

namespace contextile {

// Throws InvalidArgument that begins with `where`. earliest_s: arrival of the request before it.
void check_request(const TraceRequest& request, double earliest_s, std::string_view where);

}  // namespace contextile
