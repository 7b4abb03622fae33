#include "base/portable_math.h"

#include <cmath>

#include "base/check.h"

namespace contextile {
namespace {

// ln 2 in two parts: k times the first is exact for every exponent k of a double.
constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

}  // namespace

double portable_log(double x) {
  CONTEXTILE_DCHECK(x > 0 && std::isfinite(x));
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // x = m · 2^exponent, m in [1/2, 1)
  if (m < 0x1.6a09e667f3bcdp-1) {       // sqrt(1/2): keeps |t| below 0.172
    m *= 2;
    --exponent;
  }
  // log m = 2 atanh t = 2 (t + t³/3 + t⁵/5 + …), t = (m - 1) / (m + 1).
  const double t = (m - 1) / (m + 1);
  const double square = t * t;
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  const double k = exponent;
  return k * kLn2High + (k * kLn2Low + 2 * t * sum);
}

double portable_exp(double x) {
  CONTEXTILE_DCHECK(std::abs(x) <= 700);
  const double k = std::floor(x / (kLn2High + kLn2Low) + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;  // |r| <= 0.347
  double sum = 1;
  for (int n = 15; n >= 1; --n) sum = 1 + sum * r / n;  // Taylor series, innermost term first
  return std::ldexp(sum, static_cast<int>(k));
}

}  // namespace contextile
