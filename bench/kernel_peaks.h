// The highest rates of this processor's arithmetic units, by thread CPU time.
#pragma once

#include <cstdint>

namespace contextile {

enum class Peak : std::uint8_t {
  kFma512,    // fp32 fused multiply-add, vectors of 16
  kFma256,    // vectors of 8
  kDotBf16,   // vdpbf16ps: bf16 products, fp32 sums, vectors of 32
  kTileBf16,  // tdpbf16ps: the same by tiles of 16 x 32
};

[[nodiscard]] bool has_peak(Peak peak);
// FLOP/s over a slice of about 100 µs. Independent register operations only.
[[nodiscard]] double measure_peak(Peak peak);
// Seconds of CPU this thread has used.
[[nodiscard]] double thread_cpu_s();
// Seconds of CPU all threads of the process have used.
[[nodiscard]] double process_cpu_s();

}  // namespace contextile
