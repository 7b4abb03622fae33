#include "transport/mpi/mpi_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // declares MPIX_ERR_PROC_FAILED where the MPI tolerates faults (ULFM)
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "contextile/base.h"

namespace contextile {

std::string mpi_error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return fmt::format("MPI error {}", code);
  }
  return {text.data(), static_cast<std::size_t>(std::max(length, 0))};
}

void check_mpi(int code, std::string_view call) {
  if (code != MPI_SUCCESS) throw TransportError(fmt::format("{}: {}", call, mpi_error_text(code)));
}

#ifdef MPIX_ERR_PROC_FAILED
std::string dead_ranks_text(MPI_Comm comm) {
  MPI_Group dead = MPI_GROUP_NULL;
  MPI_Group all = MPI_GROUP_NULL;
  int num_dead = 0;
  check_mpi(MPIX_Comm_failure_ack(comm), "MPIX_Comm_failure_ack");
  check_mpi(MPIX_Comm_failure_get_acked(comm, &dead), "MPIX_Comm_failure_get_acked");
  check_mpi(MPI_Comm_group(comm, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_size(dead, &num_dead), "MPI_Group_size");
  std::vector<int> places(static_cast<std::size_t>(num_dead));
  std::iota(places.begin(), places.end(), 0);
  std::vector<int> ranks(places.size());
  check_mpi(MPI_Group_translate_ranks(dead, num_dead, places.data(), all, ranks.data()),
            "MPI_Group_translate_ranks");
  check_mpi(MPI_Group_free(&dead), "MPI_Group_free");
  check_mpi(MPI_Group_free(&all), "MPI_Group_free");
  if (ranks.empty()) return {};
  return fmt::format("rank {} {} died", fmt::join(ranks, ", "), num_dead == 1 ? "has" : "have");
}
#else
std::string dead_ranks_text(MPI_Comm /*comm*/) { return {}; }
#endif

}  // namespace contextile
