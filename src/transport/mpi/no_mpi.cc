// Takes the place of the transport in builds without MPI.
#include "base/check.h"
#include "contextile/extend/transport.h"

namespace contextile {

bool mpi_transport_available() { return false; }

std::unique_ptr<Transport> make_mpi_transport(const MpiOptions&) {
  fail_argument(
      "mpi: expected a build with MPI, found one without (Debian and Ubuntu: libopenmpi-dev, then "
      "configure again)");
}

}  // namespace contextile
