// How far long work has come.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace contextile {

// Told now and then what is being done ("simulating candidates"), and how many of its `total` steps
// are. Called from any thread, one call at a time; must not throw.
using ProgressHook =
    std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

}  // namespace contextile
