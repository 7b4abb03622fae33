// The emulated driver as its callers see it (functions.h).
#pragma once

#include <string_view>

namespace contextile::emulated {

// Stands for the emulated driver where the file of a driver's library is asked for.
inline constexpr std::string_view kLibrary = "(emulated)";

// Returns the function with a symbol of the driver's library, such as "cuMemAlloc_v2"; null if the
// emulated driver has none. As with dlsym, the caller knows its type.
[[nodiscard]] void* find_function(const char* symbol);

}  // namespace contextile::emulated
