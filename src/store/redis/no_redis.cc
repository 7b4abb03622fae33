// The store over Redis in builds without hiredis.

#include "base/check.h"
#include "store/implementations.h"

namespace contextile {

std::string_view redis_missing() { return "built without hiredis (libhiredis-dev)"; }

std::unique_ptr<Store> open_redis_store(std::string_view, const StoreOptions&) {
  fail_argument(
      "store: expected a build with hiredis for redis://, found one without: install "
      "libhiredis-dev and build again");
}

std::unique_ptr<Store> open_redis_unix_store(std::string_view, const StoreOptions&) {
  fail_argument(
      "store: expected a build with hiredis for redis+unix://, found one without: install "
      "libhiredis-dev and build again");
}

}  // namespace contextile
