// Takes the place of the transport in builds without gloo.

#include "base/check.h"
#include "contextile/extend/transport.h"

namespace contextile {

bool gloo_transport_available() { return false; }

std::unique_ptr<Transport> make_gloo_transport(const GlooOptions&) {
  fail_argument(
      "gloo: expected a build with gloo, found one without: install libgloo-dev and libssl-dev, "
      "and build again");
}

}  // namespace contextile
