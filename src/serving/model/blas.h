// OpenBLAS's matrix products, loaded with the first model.
//
// The library starts a thread for each core and takes memory for each as soon as it is loaded. A
// program that is linked with it does so whatever it is asked for, and where memory or threads are
// limited, it is ended by the library before main, or waits at its end for a thread that looks for
// memory for ever.
#pragma once

#include <cblas.h>

namespace contextile {

struct Blas {
  decltype(&cblas_sgemm) sgemm;
  decltype(&cblas_sgemv) sgemv;
};

// Throws DeviceError if the library cannot be loaded. Products use one thread each, in the whole
// process: OpenBLAS's threads for several ranks, in addition to oneTBB's, would only wait for each
// other.
[[nodiscard]] const Blas& blas();

}  // namespace contextile
