// What MPI calls return, as errors of ours.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

namespace contextile {

// Throws TransportError with the call and MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);

[[nodiscard]] std::string mpi_error_text(int code);

// The ranks of the communicator that MPI knows to be dead, as text for errors; empty where it knows
// of none, or never does (MPIs without ULFM, the extension for fault tolerance).
[[nodiscard]] std::string dead_ranks_text(MPI_Comm comm);

}  // namespace contextile
