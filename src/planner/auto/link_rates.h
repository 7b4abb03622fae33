// What rates of links are in.
#pragma once

namespace contextile {

inline constexpr double kUsPerByteOfGbytes = 1e-3;  // 1 GB/s = 1000 bytes/µs

}  // namespace contextile
