// How far long work has come.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace contextile {

// Told now and then what is being done ("simulating candidates"), and how many of its `total` steps
// are. Called from any thread, one call at a time. What it throws ends the work: the call that it
// was handed to throws it on, and has changed nothing.
using ProgressHook =
    std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

}  // namespace contextile
