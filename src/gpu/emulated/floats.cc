// Arithmetic of fp32 and fp64 (section 9.7.3 of the PTX manual) and its comparisons (9.7.6).
#include <cmath>
#include <cstdint>
#include <limits>

#include "gpu/emulated/arithmetic.h"
#include "gpu/emulated/handlers.h"

namespace contextile::ptx {
namespace {

// Without the suffix u a comparison with NaN is false; with it, true.
template <typename T>
void add_comparisons(Handlers& all, const std::string& type) {
  all["setp.lt." + type] = each([](T x, T y) { return x < y; });
  all["setp.le." + type] = each([](T x, T y) { return x <= y; });
  all["setp.gt." + type] = each([](T x, T y) { return x > y; });
  all["setp.ge." + type] = each([](T x, T y) { return x >= y; });
  all["setp.eq." + type] = each([](T x, T y) { return x == y; });
  all["setp.ne." + type] = each([](T x, T y) { return x < y || x > y; });
  all["setp.ltu." + type] = each([](T x, T y) { return !(x >= y); });
  all["setp.leu." + type] = each([](T x, T y) { return !(x > y); });
  all["setp.gtu." + type] = each([](T x, T y) { return !(x <= y); });
  all["setp.geu." + type] = each([](T x, T y) { return !(x < y); });
  all["setp.equ." + type] = each([](T x, T y) { return !(x < y || x > y); });
  all["setp.neu." + type] = each([](T x, T y) { return !(x == y); });
  all["setp.nan." + type] = each([](T x, T y) { return std::isunordered(x, y); });
  all["setp.num." + type] = each([](T x, T y) { return !std::isunordered(x, y); });
}

// Round to nearest even, which is also the default of add, sub and mul.
template <typename T>
void add_arithmetic(Handlers& all, const std::string& type) {
  for (const std::string rounding : {"", ".rn"}) {
    all["add" + rounding + "." + type] = each([](T x, T y) { return x + y; });
    all["sub" + rounding + "." + type] = each([](T x, T y) { return x - y; });
    all["mul" + rounding + "." + type] = each([](T x, T y) { return x * y; });
  }
  all["div.rn." + type] = each([](T x, T y) { return x / y; });
  all["rcp.rn." + type] = each([](T x) { return T{1} / x; });
  all["sqrt.rn." + type] = each([](T x) { return std::sqrt(x); });
  all["fma.rn." + type] = each([](T x, T y, T z) { return std::fma(x, y, z); });
  // One NaN gives the other operand.
  all["min." + type] = each([](T x, T y) { return std::fmin(x, y); });
  all["max." + type] = each([](T x, T y) { return std::fmax(x, y); });
  all["abs." + type] = each([](T x) { return std::fabs(x); });
  all["neg." + type] = each([](T x) { return -x; });
  all["copysign." + type] = each([](T sign, T x) { return std::copysign(x, sign); });
}

// Directed rounding. fp64 holds what the standard functions of the compiler round this way.
void add_directed(Handlers& all) {
  all["fma.rm.f32"] = each([](float x, float y, float z) {
    const double exact = double{x} * double{y} + double{z};
    const auto nearest = static_cast<float>(exact);
    constexpr float kDown = -std::numeric_limits<float>::infinity();
    return double{nearest} > exact ? std::nextafter(nearest, kDown) : nearest;
  });
  all["add.rz.f32"] = each([](float x, float y) {
    const double exact = double{x} + double{y};
    const auto nearest = static_cast<float>(exact);
    const bool is_larger = std::fabs(double{nearest}) > std::fabs(exact);
    return is_larger ? std::nextafter(nearest, 0.0F) : nearest;
  });
}

}  // namespace

void add_float_handlers(Handlers& all) {
  add_comparisons<float>(all, "f32");
  add_comparisons<double>(all, "f64");
  add_arithmetic<float>(all, "f32");
  add_arithmetic<double>(all, "f64");
  add_directed(all);
  // The approximations are exact here. Their error is a property of the device.
  all["rcp.approx.ftz.f32"] = each([](float x) { return 1.0F / x; });
  all["ex2.approx.ftz.f32"] = each([](float x) { return std::exp2(x); });
  all["lg2.approx.ftz.f32"] = each([](float x) { return std::log2(x); });
}

}  // namespace contextile::ptx
