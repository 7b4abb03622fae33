// Connections to all peers, and how gloo gets them.
#include <fcntl.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/check.h"
#include "transport/gloo/inherited_sockets.h"
#include "transport/gloo/link.h"
#include "transport/gloo/rendezvous.h"

namespace contextile {
namespace {

namespace tcp = gloo::transport::tcp;

// How many connections may wait until they are accepted, in addition to those of the ranks.
constexpr int kMaxStrangersWaiting = 64;

// Gloo listens at the second address until its pair connects to the first, which is the lower one:
// of two addresses, gloo connects from the higher to the lower.
constexpr std::uint32_t kHandoverHost = INADDR_LOOPBACK;
constexpr const char* kGlooHost = "127.0.0.2";

std::string purpose_for(Rank host) { return fmt::format("link to rank {}", host.value); }

// Returns a socket that listens for connections of this process alone.
Socket listen_for_handover() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kHandoverHost);
  return listen_at(reinterpret_cast<const sockaddr&>(address), sizeof(address), 1);
}

// Returns the name of one end of a connection in the form of gloo's addresses.
sockaddr_storage end_of(const Socket& socket, decltype(::getsockname)* name) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  name(socket.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return address;
}

// Returns the socket of this process that is the other end of an accepted connection, or -1: the
// connection is a stranger's. Both ends are compared, because several connections to different
// addresses may share one local port.
int own_socket_of(const Socket& accepted) {
  const sockaddr_storage here = end_of(accepted, ::getpeername);
  const sockaddr_storage there = end_of(accepted, ::getsockname);
  const auto has = [](int fd, decltype(::getsockname)* name, const sockaddr_storage& expected) {
    sockaddr_storage found{};
    socklen_t size = sizeof(found);
    return name(fd, reinterpret_cast<sockaddr*>(&found), &size) == 0 &&
           std::memcmp(&found, &expected, sizeof(sockaddr_in)) == 0;
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    if (has(fd, ::getsockname, here) && has(fd, ::getpeername, there)) return fd;
  }
  return -1;
}

}  // namespace

GlooMesh::GlooMesh(const GlooOptions& options, const Member& member, const std::string& hostname)
    : member_(member) {
  tcp::attr attributes;
  attributes.iface = options.interface_name;
  attributes.hostname = hostname;
  try {
    const tcp::attr found = tcp::CreateDeviceAttr(attributes);
    listener_ =
        listen_at(reinterpret_cast<const sockaddr&>(found.ai_addr),
                  static_cast<socklen_t>(found.ai_addrlen), options.size + kMaxStrangersWaiting);
    if (!listener_.valid()) throw TransportError(std::strerror(errno));
    device_ = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(tcp::attr(kGlooHost)));
    context_ = device_->createContext(options.rank.value, options.size);
    context_->setTimeout(options.connect_timeout);
  } catch (const std::exception& error) {
    fail_argument("gloo: expected a network of this machine{}, found none: {}",
                  !options.interface_name.empty() ? " called " + options.interface_name
                  : !hostname.empty()             ? " at " + hostname
                                                  : std::string(),
                  reason_of(error));
  }
  address_ = address_of(listener_);
}

GlooMesh::~GlooMesh() = default;

void GlooMesh::connect(const std::vector<HostAndPort>& members, Clock::time_point deadline) {
  // Each rank calls those before it, then hears those behind it. Rank 0 calls none, so that no
  // circle of ranks waits for each other.
  for (std::int32_t r = 0; r < member_.rank.value; ++r) {
    call(Rank{r}, members[static_cast<std::size_t>(r)], deadline);
  }
  welcome_callers(deadline);
  listener_ = Socket();
}

void GlooMesh::call(Rank peer, const HostAndPort& address, Clock::time_point deadline) {
  const auto fail = [&](const std::string& why) {
    throw TransportError(fmt::format("rank {}, rendezvous: cannot connect to rank {} at {}:{}: {}",
                                     member_.rank.value, peer.value, address.host, address.port,
                                     why));
  };
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.host.c_str(), address.port.c_str(), &hints, &found)) {
    fail(::gai_strerror(error));
  }
  Socket socket = connect_to(*found->ai_addr, found->ai_addrlen, deadline);
  const int error = errno;
  ::freeaddrinfo(found);
  if (!socket.valid()) fail(std::strerror(error));
  Caller call(std::move(socket), member_, purpose_for(peer));
  std::optional<Caller::Answer> answer;
  if (call.greet("", deadline)) answer = call.answer(0, deadline);
  if (!answer || answer->verdict != Reception::kWelcome) {
    fail(call.met_impostor() || answer ? "it does not know the secret and the run of this rank"
                                       : "no greeting came from it");
  }
  give(peer, call.take_socket(), deadline);
}

void GlooMesh::welcome_callers(Clock::time_point deadline) {
  Door door(member_, purpose_for(member_.rank), 0);
  for (std::int32_t num_here = member_.rank.value + 1; num_here < member_.size; ++num_here) {
    std::optional<Guest> guest = door.next_guest(listener_, deadline);
    if (!guest) {
      std::vector<std::int32_t> missing;
      for (std::int32_t r = member_.rank.value + 1; r < member_.size; ++r) {
        if (!is_linked(Rank{r})) missing.push_back(r);
      }
      throw TransportError(fmt::format("rank {}, rendezvous: no connection came from {}{}",
                                       member_.rank.value, list_of_ranks(missing, member_.size),
                                       door.refusals()));
    }
    if (guest->size != member_.size || guest->rank <= member_.rank || is_linked(guest->rank)) {
      throw TransportError(
          fmt::format("rank {}, rendezvous: expected one connection of each rank after it in a "
                      "group of {}, found another of rank {} of {}",
                      member_.rank.value, member_.size, guest->rank.value, guest->size));
    }
    answer_guest(*guest, member_, Reception::kWelcome, "");
    give(guest->rank, std::move(guest->socket), deadline);
  }
}

bool GlooMesh::is_linked(Rank peer) const { return context_->getPair(peer.value) != nullptr; }

// Gloo takes no socket. So its pair connects to a socket of this process, and then the connection
// to the peer takes the place of that one.
void GlooMesh::give(Rank peer, Socket socket, Clock::time_point deadline) {
  try {
    gloo::transport::Pair& pair = *context_->createPair(peer.value);
    const Socket handover = listen_for_handover();
    if (!handover.valid()) throw TransportError(std::strerror(errno));
    pair.connect(tcp::Address(end_of(handover, ::getsockname), 0).bytes());
    int place = -1;
    Socket accepted;
    while (place < 0) {
      // A connection may be made for one end a little before the other end can accept it.
      if (!wait_for(handover, POLLIN, deadline)) throw TransportError(std::strerror(ETIMEDOUT));
      accepted = Socket(::accept4(handover.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (accepted.valid()) place = own_socket_of(accepted);
    }
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::dup3(socket.fd(), place, O_CLOEXEC) < 0) throw TransportError(std::strerror(errno));
    close_in_children(place);
    device_->registerDescriptor(place, EPOLLIN, &dynamic_cast<tcp::Handler&>(pair));
  } catch (const std::exception& error) {
    throw TransportError(
        fmt::format("rank {}, rendezvous: gloo does not take the connection to "
                    "rank {}: {}",
                    member_.rank.value, peer.value, reason_of(error)));
  }
}

std::unique_ptr<GlooLink> GlooMesh::link(Rank peer) {
  return std::make_unique<GlooLink>(*context_, peer);
}

}  // namespace contextile
