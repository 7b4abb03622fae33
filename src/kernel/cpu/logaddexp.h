// The log-sum-exp of two log-sum-exps.
#pragma once

namespace contextile {

// log(exp(a) + exp(b)); -inf when both are -inf, NaN when one is NaN.
[[nodiscard]] double logaddexp(double a, double b);

}  // namespace contextile
