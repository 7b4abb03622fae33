// The amounts of data that a CTA has on chip at once, by head dim (of Q and K) and value dim (of V
// and O). A thread has at most 255 registers, of which sums of 64 rows of d numbers take d / 2. Two
// CTAs of every shape fit the shared memory of an SM of sm_80 (164 KiB, of which every CTA takes
// one more).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/cuda/layout.h"

namespace contextile::cuda {

// The gradient that a pass of backward writes. Query rows own dQ; keys own the others.
enum class Gradient : std::uint8_t { kQ, kKAndV, kK, kV };
inline constexpr Gradient kGradients[] = {Gradient::kQ, Gradient::kKAndV, Gradient::kK,
                                          Gradient::kV};

CONTEXTILE_HD constexpr bool keys_own(Gradient gradient) { return gradient != Gradient::kQ; }
CONTEXTILE_HD constexpr bool has_first(Gradient gradient) { return gradient != Gradient::kV; }
CONTEXTILE_HD constexpr bool has_second(Gradient gradient) {
  return gradient == Gradient::kKAndV || gradient == Gradient::kV;
}

// Number of keys that forward streams at a time. At value dim 256 the scores of 64 keys would leave
// room for only one CTA on an SM of sm_80.
template <int kDim, int kValueDim>
inline constexpr int kForwardKeys = kDim > 192 || kValueDim > 128 ? 32 : 64;

// True if dK and dV have one pass: their sums together must leave registers for scores and dP.
template <int kDim, int kValueDim>
inline constexpr bool kOnePassOfKeys = kDim + kValueDim <= 320;

template <Gradient kGradient, int kDim, int kValueDim>
inline constexpr bool kHasPass = kGradient == Gradient::kQ ||
                                 kOnePassOfKeys<kDim, kValueDim> == (kGradient == Gradient::kKAndV);

// Number of rows that backward streams at a time: their scores and dP are in registers along with
// the sums.
template <Gradient kGradient, int kDim, int kValueDim>
inline constexpr int kBackwardRows = kGradient == Gradient::kKAndV
                                         ? (kDim + kValueDim > 256 ? 16 : 32)
                                     : kGradient == Gradient::kV ? 32
                                     : kDim > 192                ? 16
                                                                 : 32;

// Bytes of shared memory that forward needs for Q, K and V.
template <int kDim, int kValueDim>
inline constexpr std::size_t kForwardShared =
    std::size_t{kOwnedRows * kDim + kForwardKeys<kDim, kValueDim> * (kDim + kValueDim)} *
    sizeof(std::uint16_t);

// Bytes of shared memory that backward needs: two tensors of owned rows (dV needs only K) and of
// streamed ones, LSE and delta of query rows.
template <Gradient kGradient, int kDim, int kValueDim>
inline constexpr std::size_t kBackwardShared =
    std::size_t{kOwnedRows * (kDim + (has_first(kGradient) ? kValueDim : 0)) +
                kBackwardRows<kGradient, kDim, kValueDim> * (kDim + kValueDim)} *
        sizeof(std::uint16_t) +
    2 * kOwnedRows * sizeof(float);

}  // namespace contextile::cuda
