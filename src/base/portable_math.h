// Logarithm and exponential that give the same bits on every machine.
//
// The C library's differ in the last bit from one version to the next; samples that are pinned by
// tests and quoted in tables must not. Only IEEE-exact operations are used, and the build keeps
// compilers from fusing them.
#pragma once

namespace contextile {

// Natural logarithm of a finite x > 0, within a few units in the last place.
[[nodiscard]] double portable_log(double x);
// e^x for |x| <= 700, within a few units in the last place.
[[nodiscard]] double portable_exp(double x);

}  // namespace contextile
