#include "serving/server/origin.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace contextile {
namespace {

// The name or address in "name:port", "[v6]:port" or the same without a port; else nothing.
std::string name_of(std::string_view host) {
  const bool is_v6 = host.starts_with('[');
  const std::size_t end = is_v6 ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string_view::npos) return {};
  const std::string_view port = host.substr(is_v6 ? end + 1 : end);
  const bool is_port =
      port.empty() || (port.front() == ':' && port.find_first_not_of("0123456789", 1) == port.npos);
  if (!is_port) return {};
  return std::string(is_v6 ? host.substr(1, end - 1) : host.substr(0, end));
}

bool is_address(const std::string& name) {
  in6_addr address{};
  return ::inet_pton(AF_INET, name.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

}  // namespace

bool is_own_page(std::string_view origin, std::string_view host, std::string_view own_name) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!origin.starts_with(scheme) || origin.substr(scheme.size()) != host) continue;
    const std::string name = name_of(host);
    return name == "localhost" || (!name.empty() && name == own_name) || is_address(name);
  }
  return false;
}

}  // namespace contextile
