// Ranks as processes of an MPI job.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "contextile/transport.h"

namespace contextile {

struct MpiOptions {
  std::chrono::milliseconds timeout{60'000};  // without a byte to or from the rank that waits
  // Messages are cut into pieces of at most this size, so that one under way shows that it moves.
  // The same on every rank. A rank holds at most four of them for every peer.
  std::int64_t piece_bytes = 1 << 20;
};

// Whether this build has MPI (Debian and Ubuntu: libopenmpi-dev).
[[nodiscard]] bool mpi_transport_available();

// This process's end of a group of all processes of the job. Called by all of them together, once
// for every group.
//
// Unless the program has, initialises MPI with MPI_THREAD_MULTIPLE; then MPI is finalised at exit,
// and the transport has to be destroyed before. While a transport lives and the program handles
// SIGTERM by default, the signal does not end the process but every launch and wait: launchers
// send it when another process has died, and kill a moment later.
//
// Throws InvalidArgument where the build has no MPI, for options that cannot be or differ between
// ranks, or an MPI initialised
// with less than MPI_THREAD_MULTIPLE; TransportError if a rank does not come within the timeout.
[[nodiscard]] std::unique_ptr<Transport> make_mpi_transport(const MpiOptions& options = {});

}  // namespace contextile
