// Integer arithmetic (section 9.7.1 of the PTX manual), comparisons of integers (9.7.6), logic and
// shifts (9.7.8).
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/emulated/arithmetic.h"
#include "gpu/emulated/handlers.h"

namespace contextile::ptx {
namespace {

template <typename T>
T negative(T x) {
  return static_cast<T>(0 - static_cast<u64>(x));
}

// A division by zero has no specified result. All bits are set here, as on known devices.
template <typename T>
T quotient(T x, T y) {
  if (y == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && y == static_cast<T>(-1)) return negative(x);  // the least wraps around
  return static_cast<T>(x / y);
}
template <typename T>
T remainder(T x, T y) {
  if (y == 0) return static_cast<T>(-1);
  if (std::is_signed_v<T> && y == static_cast<T>(-1)) return 0;
  return static_cast<T>(x % y);
}

// Operations that do not depend on the sign. Unsigned arithmetic wraps around.
template <typename T>
void add_modular(Handlers& all, const std::string& type) {
  all["add." + type] = each([](T x, T y) { return static_cast<T>(x + y); });
  all["sub." + type] = each([](T x, T y) { return static_cast<T>(x - y); });
  all["mul.lo." + type] = each([](T x, T y) { return static_cast<T>(u64{x} * y); });
  all["mad.lo." + type] = each([](T x, T y, T z) { return static_cast<T>(u64{x} * y + z); });
  all["neg." + type] = each([](T x) { return static_cast<T>(0 - x); });
  all["setp.eq." + type] = each([](T x, T y) { return x == y; });
  all["setp.ne." + type] = each([](T x, T y) { return x != y; });
}

template <typename T>
void add_logic(Handlers& all, const std::string& type) {
  all["and." + type] = each([](T x, T y) { return static_cast<T>(x & y); });
  all["or." + type] = each([](T x, T y) { return static_cast<T>(x | y); });
  all["xor." + type] = each([](T x, T y) { return static_cast<T>(x ^ y); });
  all["not." + type] = each([](T x) { return static_cast<T>(~x); });
  // Shifts by more than all bits are those by all bits.
  all["shl." + type] =
      each([](T x, u32 by) { return static_cast<T>(by >= 8 * sizeof(T) ? 0 : x << by); });
}

template <typename T>
void add_ordered(Handlers& all, const std::string& type) {
  all["min." + type] = each([](T x, T y) { return std::min(x, y); });
  all["max." + type] = each([](T x, T y) { return std::max(x, y); });
  all["div." + type] = each([](T x, T y) { return quotient(x, y); });
  all["rem." + type] = each([](T x, T y) { return remainder(x, y); });
  all["setp.lt." + type] = each([](T x, T y) { return x < y; });
  all["setp.le." + type] = each([](T x, T y) { return x <= y; });
  all["setp.gt." + type] = each([](T x, T y) { return x > y; });
  all["setp.ge." + type] = each([](T x, T y) { return x >= y; });
  // A signed number shifts in copies of its sign.
  all["shr." + type] = each([](T x, u32 by) {
    constexpr u32 kLast = 8 * sizeof(T) - 1;
    if (by > kLast) return static_cast<T>(x < 0 ? -1 : 0);
    return static_cast<T>(x >> by);
  });
}

}  // namespace

void add_integer_handlers(Handlers& all) {
  for (const char* type : {"s16", "u16", "b16"}) add_modular<u16>(all, type);
  for (const char* type : {"s32", "u32", "b32"}) add_modular<u32>(all, type);
  for (const char* type : {"s64", "u64", "b64"}) add_modular<u64>(all, type);
  add_logic<u16>(all, "b16");
  add_logic<u32>(all, "b32");
  add_logic<u64>(all, "b64");
  add_ordered<s16>(all, "s16");
  add_ordered<u16>(all, "u16");
  add_ordered<s32>(all, "s32");
  add_ordered<u32>(all, "u32");
  add_ordered<s64>(all, "s64");
  add_ordered<u64>(all, "u64");
  for (const char* bits : {"16", "32", "64"}) {
    all[std::string("shr.b") + bits] = all[std::string("shr.u") + bits];
  }
  all["abs.s32"] =
      each([](s32 x) { return x < 0 ? 0U - static_cast<u32>(x) : static_cast<u32>(x); });
  all["mul.hi.s32"] = each([](s32 x, s32 y) { return static_cast<s32>(s64{x} * y >> 32); });
  all["mul.hi.u32"] = each([](u32 x, u32 y) { return static_cast<u32>(u64{x} * y >> 32); });
  all["mul.wide.s32"] = each([](s32 x, s32 y) { return s64{x} * y; });
  all["mul.wide.u32"] = each([](u32 x, u32 y) { return u64{x} * y; });
  all["mul.wide.s16"] = each([](s16 x, s16 y) { return s32{x} * y; });
  all["mul.wide.u16"] = each([](u16 x, u16 y) { return u32{x} * y; });
  all["mad.wide.s32"] = each([](s32 x, s32 y, u64 z) { return static_cast<u64>(s64{x} * y) + z; });
  all["mad.wide.u32"] = each([](u32 x, u32 y, u64 z) { return u64{x} * y + z; });
}

}  // namespace contextile::ptx
