// The address of a Redis server.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace contextile {

struct RedisAddress {
  std::string host;  // empty: `socket`
  std::int32_t port = 6379;
  std::string socket;  // a path on this machine
  std::int32_t database = 0;
  std::string user;      // empty: the default one
  std::string password;  // empty: none is asked for

  // Without user and password.
  [[nodiscard]] std::string text() const;
};

// "//[USER:PASSWORD@]HOST[:PORT][/DATABASE]"; user and password may hold %XX. Throws
// InvalidArgument, which does not show the password.
[[nodiscard]] RedisAddress parse_redis_address(std::string_view text);
// "///SOCKET".
[[nodiscard]] RedisAddress parse_redis_socket(std::string_view text);

}  // namespace contextile
