// Ranks as processes, of one machine or of many, over TCP by gloo. No launcher is needed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "contextile/transport.h"

namespace contextile {

struct GlooOptions {
  Rank rank;              // this process, 0 … size-1
  std::int32_t size = 0;  // processes of the group, the same on all
  // Where the processes find each other, the same on all:
  //   file:///shared/folder  a folder that all of them see
  //   tcp://host:port        rank 0 listens there, the others come
  // A group of one rank needs none.
  std::string rendezvous;
  // Tells runs apart, the same on all ranks of one group and another for every group: what an
  // earlier run left behind is never taken for a peer. A folder asks for one, for an address it
  // may be empty.
  std::string run_id;
  // The network to use: that of an interface ("eth0"), or else that on which a name or an address
  // of this machine is ("10.0.0.7"). Both empty: the one that leads to rank 0 for tcp://, that of
  // the machine's name for file://.
  std::string interface_name;
  std::string hostname;
  std::chrono::milliseconds connect_timeout{60'000};  // until all ranks have come
  std::chrono::milliseconds timeout{60'000};          // without a byte moving in the whole group
};

// Whether this build has gloo (Debian and Ubuntu: libgloo-dev).
[[nodiscard]] bool gloo_transport_available();

// Throws InvalidArgument unless GlooOptions::rendezvous may be that text. Looks for no folder and
// no host.
void check_rendezvous(const std::string& rendezvous);

// This rank's end of a new group; returns when every rank has connected to every other. Throws
// InvalidArgument for options that cannot be and where the build has no gloo, TransportError
// naming the ranks that did not come or do not fit: a number taken twice, another size.
// Takes two threads for every peer beside gloo's own, and memory for at most eight pieces of 1 MiB.
[[nodiscard]] std::unique_ptr<Transport> make_gloo_transport(const GlooOptions& options);

}  // namespace contextile
