// Tests what instructions of one lane compute against the PTX manual. Expected values are literals,
// so that nothing of the machine is on both sides.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "support/ptx_program.h"

namespace contextile::ptx {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint64_t wide_of(const std::string& body) {
  return run_program(body + " st.global.u64 [%rd1], %rd9;")[0];
}
std::uint32_t word_of(const std::string& body) {
  return static_cast<std::uint32_t>(run_program(body + " st.global.u32 [%rd1], %r9;")[0]);
}
// True if %p1 is, for lane 0.
bool holds(const std::string& body) { return word_of(body + " selp.u32 %r9, 1, 0, %p1;") == 1; }
std::string hexadecimal(std::uint64_t bits, int digits) {
  std::string text;
  for (int at = digits - 1; at >= 0; --at) text += "0123456789ABCDEF"[bits >> 4 * at & 15];
  return text;
}
std::string literal(float x) { return "0f" + hexadecimal(std::bit_cast<std::uint32_t>(x), 8); }
std::string literal(double x) { return "0d" + hexadecimal(std::bit_cast<std::uint64_t>(x), 16); }
// %f8 after an instruction whose sources are literals.
template <typename... Sources>
float real_of(const std::string& opcode, Sources... sources) {
  std::string text = opcode + " %f8";
  ((text += ", " + literal(sources)), ...);
  return std::bit_cast<float>(word_of(text + "; mov.b32 %r9, %f8;"));
}
template <typename... Sources>
double double_of(const std::string& opcode, Sources... sources) {
  std::string text = opcode + " %fd8";
  ((text += ", " + literal(sources)), ...);
  return std::bit_cast<double>(wide_of(text + "; mov.b64 %rd9, %fd8;"));
}

TEST(PtxArithmetic, AddsAndMultipliesIntegers) {
  EXPECT_EQ(word_of("mov.u16 %rs1, 65535; add.s16 %rs1, %rs1, 2; cvt.u32.u16 %r9, %rs1;"), 1U);
  EXPECT_EQ(word_of("add.s32 %r9, -1, 3;"), 2U);
  EXPECT_EQ(wide_of("add.s64 %rd9, -1, 3;"), 2U);
  EXPECT_EQ(word_of("sub.s32 %r9, 3, 5;"), 0xfffffffeU);
  EXPECT_EQ(wide_of("sub.s64 %rd9, 3, 5;"), 0xfffffffffffffffeU);
  EXPECT_EQ(word_of("mul.lo.s32 %r9, -3, 5;"), 0xfffffff1U);
  EXPECT_EQ(wide_of("mul.lo.s64 %rd9, -3, 5;"), 0xfffffffffffffff1U);
  EXPECT_EQ(word_of("mul.hi.s32 %r9, -7, 2;"), 0xffffffffU);
  EXPECT_EQ(word_of("mul.hi.u32 %r9, -1, -1;"), 0xfffffffeU);
  EXPECT_EQ(wide_of("mul.wide.s32 %rd9, -7, 2;"), 0xfffffffffffffff2U);
  EXPECT_EQ(wide_of("mul.wide.u32 %rd9, -1, 2;"), 0x1fffffffeU);
  EXPECT_EQ(word_of("mov.u16 %rs1, 65535; mul.wide.u16 %r9, %rs1, %rs1;"), 0xfffe0001U);
  EXPECT_EQ(word_of("mad.lo.s32 %r9, -3, 5, 16;"), 1U);
}

TEST(PtxArithmetic, DividesTowardsZero) {
  EXPECT_EQ(word_of("div.s32 %r9, -7, 2;"), 0xfffffffdU);
  EXPECT_EQ(word_of("div.u32 %r9, -7, 2;"), 0x7ffffffcU);
  EXPECT_EQ(word_of("div.u32 %r9, -7, 0;"), 0xffffffffU);
  EXPECT_EQ(wide_of("div.s64 %rd9, -7, 2;"), 0xfffffffffffffffdU);
  EXPECT_EQ(word_of("rem.s32 %r9, -7, 2;"), 0xffffffffU);
  EXPECT_EQ(word_of("rem.u32 %r9, 7, 4;"), 3U);
  EXPECT_EQ(wide_of("rem.s64 %rd9, -7, 4;"), 0xfffffffffffffffdU);
  EXPECT_EQ(word_of("min.s32 %r9, -7, 2;"), 0xfffffff9U);
  EXPECT_EQ(word_of("max.s32 %r9, -7, 2;"), 2U);
  EXPECT_EQ(wide_of("max.s64 %rd9, -7, 2;"), 2U);
  EXPECT_EQ(wide_of("neg.s64 %rd9, 7;"), 0xfffffffffffffff9U);
}

TEST(PtxArithmetic, ShiftsAndMasksBits) {
  EXPECT_EQ(word_of("mov.u16 %rs1, 12; and.b16 %rs2, %rs1, 10; cvt.u32.u16 %r9, %rs2;"), 8U);
  EXPECT_EQ(word_of("mov.u16 %rs1, 12; or.b16 %rs2, %rs1, 10; cvt.u32.u16 %r9, %rs2;"), 14U);
  EXPECT_EQ(word_of("and.b32 %r9, 12, 10;"), 8U);
  EXPECT_EQ(word_of("or.b32 %r9, 12, 10;"), 14U);
  EXPECT_EQ(word_of("xor.b32 %r9, 12, 10;"), 6U);
  EXPECT_EQ(word_of("not.b32 %r9, 12;"), 0xfffffff3U);
  EXPECT_EQ(wide_of("and.b64 %rd9, 0xf00000000f, 0x100000000a;"), 0x100000000aU);
  EXPECT_EQ(wide_of("or.b64 %rd9, 0xf000000000, 10;"), 0xf00000000aU);
  EXPECT_EQ(wide_of("not.b64 %rd9, 12;"), 0xfffffffffffffff3U);
  EXPECT_EQ(word_of("shl.b32 %r9, 3, 30;"), 0xc0000000U);
  EXPECT_EQ(word_of("shl.b32 %r9, 3, 32;"), 0U);
  EXPECT_EQ(wide_of("shl.b64 %rd9, 3, 40;"), 0x30000000000U);
  EXPECT_EQ(word_of("shr.s32 %r9, -7, 1;"), 0xfffffffcU);
  EXPECT_EQ(word_of("shr.s32 %r9, -7, 40;"), 0xffffffffU);
  EXPECT_EQ(word_of("shr.u32 %r9, -7, 31;"), 1U);
  EXPECT_EQ(word_of("shr.u32 %r9, -7, 40;"), 0U);
  EXPECT_EQ(wide_of("shr.s64 %rd9, -7, 1;"), 0xfffffffffffffffcU);
  EXPECT_EQ(wide_of("shr.u64 %rd9, -7, 60;"), 15U);
  EXPECT_EQ(word_of("mov.u16 %rs1, 65535; shr.u16 %rs2, %rs1, 12; cvt.u32.u16 %r9, %rs2;"), 15U);
}

TEST(PtxArithmetic, ComparesIntegersWithAndWithoutASign) {
  EXPECT_TRUE(holds("setp.lt.s32 %p1, -1, 1;"));
  EXPECT_FALSE(holds("setp.lt.u32 %p1, -1, 1;"));
  EXPECT_TRUE(holds("setp.lt.s64 %p1, -1, 1;"));
  EXPECT_FALSE(holds("setp.lt.u64 %p1, -1, 1;"));
  EXPECT_TRUE(holds("setp.le.s32 %p1, 1, 1;"));
  EXPECT_FALSE(holds("setp.le.s64 %p1, 2, 1;"));
  EXPECT_TRUE(holds("setp.ge.s32 %p1, 1, 1;"));
  EXPECT_FALSE(holds("setp.ge.s64 %p1, -1, 1;"));
  EXPECT_FALSE(holds("setp.gt.s32 %p1, 1, 1;"));
  EXPECT_TRUE(holds("setp.gt.s64 %p1, 1, -1;"));
  EXPECT_TRUE(holds("setp.gt.u32 %p1, -1, 1;"));
  EXPECT_FALSE(holds("mov.u16 %rs1, 65535; setp.gt.s16 %p1, %rs1, 1;"));
  EXPECT_TRUE(holds("mov.u16 %rs1, 65535; setp.eq.s16 %p1, %rs1, -1;"));
  EXPECT_FALSE(holds("mov.u16 %rs1, 65535; setp.ne.s16 %p1, %rs1, -1;"));
  for (const char* type : {"b32", "s32", "s64"}) {
    EXPECT_TRUE(holds(std::string("setp.eq.") + type + " %p1, 3, 3;")) << type;
    EXPECT_FALSE(holds(std::string("setp.ne.") + type + " %p1, 3, 3;")) << type;
  }
}

TEST(PtxArithmetic, ComparesRealNumbersAndNan) {
  const auto compares = [](const std::string& opcode, auto x, auto y) {
    return holds(opcode + " %p1, " + literal(x) + ", " + literal(y) + ";");
  };
  const float nan = std::bit_cast<float>(0x7fc00000U);
  for (const char* opcode : {"setp.eq.f32", "setp.ge.f32", "setp.gt.f32", "setp.lt.f32"}) {
    EXPECT_FALSE(compares(opcode, nan, 1.0F)) << opcode;
  }
  for (const char* opcode : {"setp.leu.f32", "setp.neu.f32", "setp.ltu.f32"}) {
    EXPECT_TRUE(compares(opcode, nan, 1.0F)) << opcode;
  }
  EXPECT_TRUE(compares("setp.eq.f32", 0.0F, -0.0F));
  EXPECT_TRUE(compares("setp.ge.f32", 2.0F, 1.0F));
  EXPECT_TRUE(compares("setp.gt.f32", 2.0F, 1.0F));
  EXPECT_TRUE(compares("setp.lt.f32", -kInfinity, 1.0F));
  EXPECT_FALSE(compares("setp.leu.f32", 2.0F, 1.0F));
  EXPECT_FALSE(compares("setp.neu.f32", 2.0F, 2.0F));
  EXPECT_TRUE(compares("setp.eq.f64", 2.0, 2.0));
  EXPECT_TRUE(compares("setp.lt.f64", -2.0, 2.0));
}

TEST(PtxArithmetic, CombinesAndSelectsByPredicates) {
  const std::string both = "setp.eq.s32 %p2, 1, 1; setp.eq.s32 %p3, 1, 2;";
  EXPECT_FALSE(holds(both + "and.pred %p1, %p2, %p3;"));
  EXPECT_TRUE(holds(both + "or.pred %p1, %p2, %p3;"));
  EXPECT_TRUE(holds(both + "not.pred %p1, %p3;"));
  EXPECT_EQ(word_of(both + "selp.b32 %r9, 5, 6, %p3;"), 6U);
  EXPECT_EQ(word_of(both + "selp.f32 %f1, 0f3F800000, 0f40000000, %p2; mov.b32 %r9, %f1;"),
            0x3f800000U);
  EXPECT_EQ(wide_of(both + "selp.f64 %fd1, 0d3FF0000000000000, %fd2, %p2; mov.b64 %rd9, %fd1;"),
            0x3ff0000000000000U);
  for (const char* type : {"b16", "u16"}) {
    const std::string text = std::string("selp.") + type + " %rs1, 5, 6, %p3;";
    EXPECT_EQ(word_of(both + text + "cvt.u32.u16 %r9, %rs1;"), 6U) << type;
  }
}

TEST(PtxArithmetic, RoundsEachOperation) {
  constexpr float kHalfStep = 0x1p-24F;                  // of 1
  EXPECT_EQ(real_of("add.f32", 1.0F, kHalfStep), 1.0F);  // a tie goes to the even neighbor
  EXPECT_EQ(real_of("add.rn.f32", 1.0F, 0x1.000002p-24F), 1.0F + 0x1p-23F);
  EXPECT_EQ(real_of("add.rz.f32", 1.0F, 0x1.fffffep-24F), 1.0F);
  EXPECT_EQ(real_of("sub.f32", 1.0F, 3.0F), -2.0F);
  EXPECT_EQ(real_of("mul.f32", 1.0F + 0x1p-23F, 1.0F + 0x1p-23F), 1.0F + 0x1p-22F);
  EXPECT_EQ(real_of("mul.rn.f32", 3.0F, -2.0F), -6.0F);
  // One rounding: the product alone would lose its last bit.
  EXPECT_EQ(real_of("fma.rn.f32", 1.0F + 0x1p-23F, 1.0F + 0x1p-23F, -1.0F - 0x1p-22F), 0x1p-46F);
  EXPECT_EQ(real_of("fma.rm.f32", 1.0F, 1.0F, -0x1p-30F), 1.0F - 0x1p-24F);
  EXPECT_EQ(real_of("fma.rm.f32", 1.0F, 1.0F, 0x1p-30F), 1.0F);
  EXPECT_EQ(real_of("div.rn.f32", 1.0F, 3.0F), 0x1.555556p-2F);
  EXPECT_EQ(real_of("rcp.rn.f32", 3.0F), 0x1.555556p-2F);
  EXPECT_EQ(double_of("add.rn.f64", 1.0, 0x1p-53), 1.0);
  EXPECT_EQ(double_of("sub.rn.f64", 1.0, 3.0), -2.0);
  EXPECT_EQ(double_of("mul.rn.f64", 1.0 + 0x1p-52, 1.0 + 0x1p-52), 1.0 + 0x1p-51);
  EXPECT_EQ(double_of("div.rn.f64", 1.0, 3.0), 0x1.5555555555555p-2);
  EXPECT_EQ(double_of("rcp.rn.f64", 3.0), 0x1.5555555555555p-2);
}

TEST(PtxArithmetic, TreatsSignsNanAndInfinity) {
  const float nan = std::bit_cast<float>(0x7fc00000U);
  EXPECT_EQ(real_of("max.f32", nan, 2.0F), 2.0F);
  EXPECT_EQ(real_of("max.f32", -2.0F, 2.0F), 2.0F);
  EXPECT_EQ(real_of("abs.f32", -2.0F), 2.0F);
  EXPECT_EQ(real_of("neg.f32", 2.0F), -2.0F);
  EXPECT_EQ(real_of("copysign.f32", -1.0F, 2.0F), -2.0F);  // the sign of the first
  EXPECT_EQ(real_of("ex2.approx.ftz.f32", 3.0F), 8.0F);
  EXPECT_EQ(real_of("ex2.approx.ftz.f32", -kInfinity), 0.0F);
  EXPECT_EQ(real_of("lg2.approx.ftz.f32", 8.0F), 3.0F);
  EXPECT_EQ(real_of("lg2.approx.ftz.f32", 0.0F), -kInfinity);
  EXPECT_EQ(real_of("rcp.approx.ftz.f32", 4.0F), 0.25F);
  EXPECT_EQ(real_of("rcp.approx.ftz.f32", kInfinity), 0.0F);
}

TEST(PtxArithmetic, Converts) {
  EXPECT_EQ(wide_of("cvt.s64.s32 %rd9, -7;"), 0xfffffffffffffff9U);
  EXPECT_EQ(wide_of("mov.u32 %r9, -7; cvt.u64.u32 %rd9, %r9;"), 0xfffffff9U);
  EXPECT_EQ(word_of("mov.u64 %rd9, 0x500000006; cvt.u32.u64 %r9, %rd9;"), 6U);
  EXPECT_EQ(word_of("mov.u32 %r9, 0x50006; cvt.u16.u32 %rs1, %r9; cvt.u32.u16 %r9, %rs1;"), 6U);
  EXPECT_EQ(word_of("mov.u16 %rs1, 65535; cvt.s32.s16 %r9, %rs1;"), 0xffffffffU);
  const auto number = [](const std::string& body) {
    return std::bit_cast<float>(word_of(body + " mov.b32 %r9, %f8;"));
  };
  EXPECT_EQ(number("cvt.rn.f32.s32 %f8, -16777217;"), -16777216.0F);  // a tie
  EXPECT_EQ(number("mov.u16 %rs1, 65535; cvt.rn.f32.u16 %f8, %rs1;"), 65535.0F);
  EXPECT_EQ(number("cvt.rn.f32.f64 %f8, " + literal(0x1.0000010000001p0) + ";"), 1.0F + 0x1p-23F);
  EXPECT_EQ(number("cvt.sat.f32.f32 %f8, " + literal(2.0F) + ";"), 1.0F);
  EXPECT_EQ(number("cvt.sat.f32.f32 %f8, " + literal(-2.0F) + ";"), 0.0F);
  EXPECT_EQ(double_of("cvt.f64.f32", 1.5F), 1.5);
  // Ties go to even, NaN is 0x7fff, and the first operand goes to the upper half.
  EXPECT_EQ(word_of("cvt.rn.bf16x2.f32 %r9, 0f3F808000, 0f7FC00001;"), 0x3f807fffU);
  EXPECT_EQ(word_of("cvt.rn.bf16x2.f32 %r9, 0f3F818000, 0fC0000000;"), 0x3f82c000U);
  EXPECT_EQ(word_of("cvt.rn.f16x2.f32 %r9, 0f477FE000, 0f477FF000;"), 0x7bff7c00U);
  EXPECT_EQ(word_of("cvt.rn.f16x2.f32 %r9, 0f33800000, 0f33000000;"), 0x00010000U);
}

TEST(PtxArithmetic, MovesNumbersAndTheirHalves) {
  EXPECT_EQ(word_of("mov.u16 %rs1, 7; mov.u16 %rs2, 9; mov.b32 %r9, {%rs1, %rs2};"), 0x90007U);
  EXPECT_EQ(word_of("mov.b32 {%rs1, %rs2}, 0x90007; cvt.u32.u16 %r9, %rs2;"), 9U);
  EXPECT_EQ(wide_of("mov.u32 %r8, 7; mov.u32 %r9, 9; mov.b64 %rd9, {%r8, %r9};"), 0x900000007U);
  EXPECT_EQ(word_of("mov.b64 {_, %r9}, 0x900000007;"), 9U);
  EXPECT_EQ(word_of("mov.f32 %f1, 0f3F800000; mov.b32 %r9, %f1;"), 0x3f800000U);
  EXPECT_EQ(wide_of("mov.f64 %fd1, 0d3FF0000000000000; mov.b64 %rd9, %fd1;"), 0x3ff0000000000000U);
  EXPECT_EQ(wide_of("mov.b64 %rd9, test_param_0; cvta.param.u64 %rd8, %rd9; ld.param.u64 %rd9, "
                    "[test_param_0]; sub.s64 %rd9, %rd9, %rd2;"),
            0U);
  EXPECT_EQ(wide_of("cvta.to.global.u64 %rd9, %rd1; sub.s64 %rd9, %rd9, %rd1;"), 0U);
}

TEST(PtxArithmetic, LoadsAndStoresElementsOfEverySize) {
  const std::string minus_two = "mov.u32 %r8, -2; st.shared.u32 [%r2], %r8;";
  EXPECT_EQ(wide_of(minus_two + "ld.shared.s32 %rd9, [%r2];"), 0xfffffffffffffffeU);
  EXPECT_EQ(wide_of(minus_two + "ld.shared.u8 %rd9, [%r2];"), 0xfeU);
  EXPECT_EQ(word_of(minus_two + "ld.shared.u32 %r9, [%r2];"), 0xfffffffeU);
  EXPECT_EQ(word_of("mov.u16 %rs1, 7; st.shared.u32 [%r2], 0; st.shared.u16 [%r2+2], %rs1;"
                    "ld.shared.u32 %r9, [%r2];"),
            0x70000U);
  EXPECT_EQ(word_of("st.shared.v2.u32 [%r2], {1, 2}; ld.shared.u32 %r9, [%r2+4];"), 2U);
  EXPECT_EQ(word_of("st.shared.v2.u32 [%r2], {1, 2}; ld.shared.v2.f32 {%f1, %f2}, [%r2];"
                    "mov.b32 %r9, %f2;"),
            2U);
  EXPECT_EQ(word_of("st.global.u64 [%rd1], %rd1; bar.sync 0; ld.global.v4.u32 {%r9, %r8, %r7, %r6},"
                    "[%rd2]; cvt.u32.u64 %r8, %rd2; sub.s32 %r9, %r9, %r8;"),
            0U);
  EXPECT_EQ(word_of("st.shared.v4.u32 [%r2], {1, 2, 3, 4}; ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, "
                    "[%r2];"),
            3U);
  EXPECT_EQ(word_of("st.shared.f32 [%r2], 0f3F800000; ld.shared.f32 %f1, [%r2]; mov.b32 %r9, %f1;"),
            0x3f800000U);
  const std::string stored = "mov.u64 %rd8, 0x8182838485868788; st.global.u64 [%rd1], %rd8;";
  EXPECT_EQ(wide_of(stored + "ld.global.u64 %rd9, [%rd1];"), 0x8182838485868788U);
  EXPECT_EQ(wide_of(stored + "ld.u64 %rd9, [%rd1];"), 0x8182838485868788U);
  EXPECT_EQ(wide_of(stored + "ld.global.s32 %rd9, [%rd1+4];"), 0xffffffff81828384U);
  EXPECT_EQ(word_of(stored + "ld.global.u32 %r9, [%rd1+4];"), 0x81828384U);
  EXPECT_EQ(word_of(stored + "ld.global.u16 %rs1, [%rd1+2]; cvt.u32.u16 %r9, %rs1;"), 0x8586U);
  EXPECT_EQ(word_of(stored + "ld.global.u8 %r9, [%rd1+1];"), 0x87U);
  EXPECT_EQ(word_of(stored + "ld.u8 %r9, [%rd1+1];"), 0x87U);
  EXPECT_EQ(word_of(stored + "ld.f32 %f1, [%rd1]; mov.b32 %r9, %f1;"), 0x85868788U);
  EXPECT_EQ(word_of(stored + "ld.global.f32 %f1, [%rd1]; mov.b32 %r9, %f1;"), 0x85868788U);
  EXPECT_EQ(wide_of(stored + "ld.global.f64 %fd1, [%rd1]; mov.b64 %rd9, %fd1;"),
            0x8182838485868788U);
  const auto left = [](const std::string& store) { return run_program(store)[0]; };
  EXPECT_EQ(left("st.f32 [%rd1+4], 0f3F800000;"), 0x3f80000000000000U);
  EXPECT_EQ(left("st.global.f32 [%rd1], 0f3F800000;"), 0x3f800000U);
  EXPECT_EQ(left("mov.f64 %fd1, 0d3FF0000000000000; st.global.f64 [%rd1], %fd1;"),
            0x3ff0000000000000U);
  EXPECT_EQ(left("mov.u16 %rs1, 7; st.global.u16 [%rd1+2], %rs1;"), 0x70000U);
}

TEST(PtxArithmetic, ReadsParameters) {
  EXPECT_EQ(wide_of("ld.param.u64 %rd9, [test_param_0]; sub.s64 %rd9, %rd9, %rd2;"), 0U);
  EXPECT_EQ(wide_of("ld.param.v2.u32 {%r7, %r8}, [test_param_0]; mov.b64 %rd9, {%r7, %r8};"
                    "sub.s64 %rd9, %rd9, %rd2;"),
            0U);
  for (const char* type : {"u32", "s32", "f32"}) {
    const std::string name = type == std::string("f32") ? "%f1" : "%r9";
    const std::string text = std::string("ld.param.") + type + " " + name + ", [test_param_0];";
    const std::string moved = text + "mov.b32 %r9, " + name + "; cvt.u32.u64 %r8, %rd2;";
    EXPECT_EQ(word_of(moved + "sub.s32 %r9, %r9, %r8;"), 0U) << type;
  }
  EXPECT_EQ(word_of("ld.param.u8 %r9, [test_param_0]; cvt.u32.u64 %r8, %rd2; and.b32 %r8, %r8, 255;"
                    "sub.s32 %r9, %r9, %r8;"),
            0U);
}

}  // namespace
}  // namespace contextile::ptx
