// The stores there are, as the array in store.cc opens them.
#pragma once

#include <memory>
#include <string_view>

#include "contextile/advanced/store.h"

namespace contextile {

[[nodiscard]] std::unique_ptr<Store> open_memory_store(std::string_view rest,
                                                       const StoreOptions& options);
[[nodiscard]] std::unique_ptr<Store> open_file_store(std::string_view rest,
                                                     const StoreOptions& options);
[[nodiscard]] std::unique_ptr<Store> open_redis_store(std::string_view rest,
                                                      const StoreOptions& options);
[[nodiscard]] std::unique_ptr<Store> open_redis_unix_store(std::string_view rest,
                                                           const StoreOptions& options);
// Why this build has no Redis; empty if it has.
[[nodiscard]] std::string_view redis_missing();

}  // namespace contextile
