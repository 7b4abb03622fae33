#include "store/redis_address.h"

#include <gtest/gtest.h>

#include "support/message_of.h"

namespace contextile {
namespace {

TEST(RedisAddress, HasDefaults) {
  const RedisAddress address = parse_redis_address("//host");
  EXPECT_EQ(address.host, "host");
  EXPECT_EQ(address.port, 6379);
  EXPECT_EQ(address.database, 0);
  EXPECT_EQ(address.text(), "redis://host:6379");
}

TEST(RedisAddress, NamesEverything) {
  const RedisAddress address = parse_redis_address("//me:p%40ss%3a@10.0.0.7:7000/3");
  EXPECT_EQ(address.user, "me");
  EXPECT_EQ(address.password, "p@ss:");
  EXPECT_EQ(address.text(), "redis://10.0.0.7:7000/3");
  EXPECT_EQ(parse_redis_address("//[::1]:7000").host, "::1");
  EXPECT_EQ(parse_redis_address("//[::1]/").text(), "redis://[::1]:6379");
  EXPECT_EQ(parse_redis_socket("///run/redis.sock").text(), "redis+unix:///run/redis.sock");
}

TEST(RedisAddress, RefusesOthers) {
  for (const char* text : {"", "host", "//", "//:6379", "//host:", "//host:0", "//host:65536",
                           "//host:12x", "//host/x", "//host/-1", "//[::1", "//[::1]x",
                           "//user@host", "//:%4@host", "//:%zz@host"}) {
    EXPECT_THROW(static_cast<void>(parse_redis_address(text)), InvalidArgument) << text;
  }
  EXPECT_THROW(static_cast<void>(parse_redis_socket("//host")), InvalidArgument);
  EXPECT_EQ(message_of([] { return parse_redis_address("//host:70000"); }),
            "store: redis://: expected a port of 1 to 65535, found '70000'");
}

}  // namespace
}  // namespace contextile
