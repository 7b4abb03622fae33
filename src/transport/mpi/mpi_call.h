// What MPI calls return, as errors of ours.
#pragma once

#include <string>
#include <string_view>

namespace contextile {

// Throws TransportError with the call and MPI's text unless `code` is MPI_SUCCESS. A peer that MPI
// knows to be dead (fault-tolerant MPIs say so) is called that.
void check_mpi(int code, std::string_view call);

[[nodiscard]] std::string mpi_error_text(int code);

}  // namespace contextile
