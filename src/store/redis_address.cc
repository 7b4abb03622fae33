#include "store/redis_address.h"

#include <charconv>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::int32_t kLargestPort = 65535;
constexpr std::int32_t kLargestDatabase = 1 << 20;

std::int32_t parse_whole(std::string_view what, std::string_view text, std::int32_t low,
                         std::int32_t high) {
  std::int32_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high) {
    fail_argument("store: redis://: expected a {} of {} to {}, found {}", what, low, high,
                  quote(text));
  }
  return number;
}

std::string decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    std::uint8_t byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    CONTEXTILE_CHECK(error == std::errc() && digits.size() == 2 && end == digits.data() + 2,
                     "store: redis://: expected two hexadecimal digits behind % in user and "
                     "password, found something else");
    plain += static_cast<char>(byte);
    i += 2;
  }
  return plain;
}

void parse_user(std::string_view text, RedisAddress& address) {
  const std::size_t colon = text.find(':');
  CONTEXTILE_CHECK(colon != std::string_view::npos,
                   "store: redis://: expected [USER]:PASSWORD in front of @, found no colon");
  address.user = decoded(text.substr(0, colon));
  address.password = decoded(text.substr(colon + 1));
}

// "HOST", "HOST:PORT", "[IPV6]:PORT".
void parse_host(std::string_view text, RedisAddress& address) {
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    CONTEXTILE_CHECK(end != std::string_view::npos,
                     "store: redis://: expected ] behind an address that begins with [, found {}",
                     quote(text));
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    address.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  CONTEXTILE_CHECK(!address.host.empty() && (port.empty() || port.starts_with(':')),
                   "store: redis://: expected HOST[:PORT], found {}", quote(text));
  if (!port.empty()) address.port = parse_whole("port", port.substr(1), 1, kLargestPort);
}

}  // namespace

std::string RedisAddress::text() const {
  if (host.empty()) return "redis+unix://" + socket;
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string name = is_v6 ? "[" + host + "]" : host;
  const std::string where = fmt::format("redis://{}:{}", name, port);
  return database == 0 ? where : fmt::format("{}/{}", where, database);
}

RedisAddress parse_redis_address(std::string_view text) {
  CONTEXTILE_CHECK(text.starts_with("//"),
                   "store: expected redis://HOST[:PORT][/DATABASE], found "
                   "something else behind redis:");
  text.remove_prefix(2);
  RedisAddress address;
  const std::size_t at = text.rfind('@');
  if (at != std::string_view::npos) {
    parse_user(text.substr(0, at), address);
    text.remove_prefix(at + 1);
  }
  const std::size_t slash = std::min(text.find('/'), text.size());
  parse_host(text.substr(0, slash), address);
  const std::string_view database = text.substr(slash);
  if (database.size() > 1) {
    address.database = parse_whole("database", database.substr(1), 0, kLargestDatabase);
  }
  return address;
}

RedisAddress parse_redis_socket(std::string_view text) {
  CONTEXTILE_CHECK(text.size() > 3 && text.starts_with("///"),
                   "store: expected redis+unix:///SOCKET, found {}",
                   quote("redis+unix:" + std::string(text)));
  RedisAddress address;
  address.socket = text.substr(2);
  return address;
}

}  // namespace contextile
