// The log-sum-exp of two log-sum-exps.
#pragma once

namespace contextile {

// Returns log(exp(a) + exp(b)): -inf if both are -inf, NaN if one is NaN.
[[nodiscard]] double logaddexp(double a, double b);

}  // namespace contextile
