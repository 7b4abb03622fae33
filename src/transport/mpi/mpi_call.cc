#include "transport/mpi/mpi_call.h"

#include <fmt/format.h>
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // declares MPIX_ERR_PROC_FAILED where the MPI tolerates faults (ULFM)
#endif

#include <algorithm>
#include <array>
#include <cstddef>

#include "contextile/base.h"

namespace contextile {
namespace {

bool says_peer_died([[maybe_unused]] int error_class) {
#ifdef MPIX_ERR_PROC_FAILED
  if (error_class == MPIX_ERR_PROC_FAILED) return true;
#endif
#ifdef MPIX_ERR_PROC_FAILED_PENDING
  if (error_class == MPIX_ERR_PROC_FAILED_PENDING) return true;
#endif
  return false;
}

}  // namespace

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  int error_class = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS ||
      MPI_Error_class(code, &error_class) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", code);
  }
  const std::string said(text.data(), static_cast<std::size_t>(std::max(length, 0)));
  return says_peer_died(error_class) ? fmt::format("a peer has died ({})", said) : said;
}

void check_mpi(int code, std::string_view call) {
  if (code != MPI_SUCCESS) throw TransportError(fmt::format("{}: {}", call, mpi_error_text(code)));
}

}  // namespace contextile
