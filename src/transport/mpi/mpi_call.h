// Turns what MPI calls return into errors.
#pragma once

#include <mpi.h>

#include <string>
#include <string_view>

namespace contextile {

// Throws TransportError with the call and MPI's text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view call);

[[nodiscard]] std::string mpi_error_text(int code);

// Returns the ranks of the communicator that MPI knows to be dead, as text for errors. The text is
// empty if MPI knows of none, or never does (MPIs without ULFM, the extension for fault tolerance).
[[nodiscard]] std::string dead_ranks_text(MPI_Comm comm);

}  // namespace contextile
