#include "transport/gloo/rendezvous_place.h"

#include <charconv>
#include <cstdint>
#include <system_error>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/extend/transport.h"

namespace contextile {

RendezvousPlace parse_rendezvous(std::string_view url) {
  constexpr std::string_view kFolder = "file://";
  constexpr std::string_view kAddress = "tcp://";
  if (url.starts_with(kFolder)) return {std::string(url.substr(kFolder.size())), "", ""};
  CONTEXTILE_CHECK(url.starts_with(kAddress),
                   "gloo: expected a rendezvous file:///folder or tcp://host:port, found {}",
                   quote(url));
  const std::string_view address = url.substr(kAddress.size());
  const std::size_t colon = address.rfind(':');
  CONTEXTILE_CHECK(colon != std::string_view::npos && colon > 0 && colon + 1 < address.size(),
                   "gloo: expected a rendezvous tcp://host:port, found {}", quote(url));
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string_view port = address.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  CONTEXTILE_CHECK(error == std::errc() && end == port.data() + port.size() && number > 0,
                   "gloo: expected a rendezvous with a port of 1 to 65535, found {} in {}",
                   quote(port), quote(url));
  return {"", std::string(host), std::string(port)};
}

void check_rendezvous(const std::string& rendezvous) {
  static_cast<void>(parse_rendezvous(rendezvous));
}

}  // namespace contextile
