// Units of the rates of links.
#pragma once

namespace contextile {

inline constexpr double kUsPerByteOfGbytes = 1e-3;  // 1 GB/s = 1000 bytes/µs

}  // namespace contextile
