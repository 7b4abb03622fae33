// The place where the processes of a group meet, as text. Builds without gloo have it, too.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// Names either a folder, or a host and a port.
struct RendezvousPlace {
  std::string folder;
  std::string host;  // without the brackets of an IPv6 address
  std::string port;
};
// Throws InvalidArgument unless the text is file:///FOLDER or tcp://HOST:PORT, with a port of 1 to
// 65535.
[[nodiscard]] RendezvousPlace parse_rendezvous(std::string_view url);

}  // namespace contextile
