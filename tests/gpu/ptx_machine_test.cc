// The machine that executes PTX, on small programs: it computes what the PTX manual says, and it
// notices the errors that it is there for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/emulated/machine.h"
#include "support/ptx_program.h"

namespace contextile::ptx {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

TEST(PtxMachine, ExtendsLoadsToTheRegister) {
  const std::string store = "mov.u32 %r8, -2; st.shared.u32 [%r2], %r8;";
  EXPECT_EQ(run_program(store + "ld.shared.s32 %rd9, [%r2]; st.global.u64 [%rd1], %rd9;")[0],
            0xfffffffffffffffeU);
  EXPECT_EQ(run_program(store + "ld.shared.u8 %rd9, [%r2]; st.global.u64 [%rd1], %rd9;")[0], 0xfeU);
}

TEST(PtxMachine, LanesThatPartMeetAgain) {
  const std::vector<std::uint64_t> found = run_program(R"(
mov.u32 %r9, 0;
LOOP:
add.s32 %r9, %r9, 1;
setp.lt.s32 %p1, %r9, %r1;
@%p1 bra LOOP;
mov.u32 %r10, 31;
shfl.sync.bfly.b32 %r11|%p2, %r9, 1, 31, -1;
st.global.u32 [%rd1], %r11;)");
  EXPECT_EQ(found[0], 1U);
  EXPECT_EQ(found[1], 1U);
  EXPECT_EQ(found[30], 31U);
  EXPECT_EQ(found[31], 30U);
}

TEST(PtxMachine, PredicatesChooseLanes) {
  const std::vector<std::uint64_t> found = run_program(R"(
setp.eq.s32 %p1, %r1, 3;
mov.u32 %r9, 7;
@%p1 mov.u32 %r9, 8;
@!%p1 add.s32 %r9, %r9, -1;
st.global.u32 [%rd1], %r9;)");
  EXPECT_EQ(found[3], 8U);
  EXPECT_EQ(found[4], 6U);
}

TEST(PtxMachine, LanesVote) {
  const auto found_by = [](const std::string& test) {
    return run_program("setp.eq.s32 %p1, %r1, " + test + R"(;
vote.sync.any.pred %p2, %p1, -1;
selp.u32 %r9, 1, 0, %p2;
st.global.u32 [%rd1], %r9;)");
  };
  EXPECT_EQ(found_by("31"), std::vector<std::uint64_t>(32, 1));
  EXPECT_EQ(found_by("32"), std::vector<std::uint64_t>(32, 0));
}

TEST(PtxMachine, WarpsMeetAtBarriers) {
  // Each thread reads what the thread 32 further wrote.
  const std::vector<std::uint64_t> found = run_program(R"(
st.shared.u32 [%r2], %r1;
bar.sync 0;
xor.b32 %r9, %r3, 512;
add.s32 %r9, %r9, 1024;
ld.shared.u32 %r10, [%r9];
st.global.u32 [%rd1], %r10;)",
                                                       64);
  EXPECT_EQ(found[0], 32U);
  EXPECT_EQ(found[63], 31U);
}

TEST(PtxMachine, CopiesEndLateOrAtOnce) {
  const std::string copy = R"(
mov.u64 %rd4, 5;
st.global.u64 [%rd1], %rd4;
and.b32 %r8, %r1, 30;
mul.wide.u32 %rd5, %r8, 8;
add.s64 %rd5, %rd2, %rd5;
cp.async.cg.shared.global [%r2], [%rd5], 16, 8;
)";
  const std::string early = copy + "ld.shared.u64 %rd9, [%r2]; cp.async.wait_all;";
  const std::string late = copy + "cp.async.wait_all; ld.shared.u64 %rd9, [%r2];";
  const std::string store = "st.global.u64 [%rd1], %rd9;";
  EXPECT_THAT(run_program(late + store), Each(5));
  EXPECT_THAT(run_program(early + store), Each(~std::uint64_t{0}));
  EXPECT_THAT(run_program(early + store, 32, Timing::kAtOnce), Each(5));
  EXPECT_THAT(run_program(copy + "cp.async.wait_all; ld.shared.u64 %rd9, [%r2+8];" + store),
              Each(0));
  EXPECT_THAT(fault_of(copy), HasSubstr("a wait for every cp.async"));
}

TEST(PtxMachine, NamesInstructionsThatItDoesNotKnow) {
  EXPECT_THAT(fault_of("popc.b32 %r9, %r1;"), HasSubstr("unknown instruction popc.b32"));
}

TEST(PtxMachine, NoticesWrongAddresses) {
  EXPECT_THAT(fault_of("st.global.u32 [%rd1+252], %r1;"), HasSubstr("memory of the device"));
  EXPECT_THAT(fault_of("st.global.u32 [%rd1+2], %r1;"), HasSubstr("an aligned address"));
  EXPECT_THAT(fault_of("st.shared.u32 [%r2+1020], %r1;"), HasSubstr("shared memory below 2048"));
  EXPECT_THAT(fault_of("st.shared.u32 [%r2+2], %r1;"), HasSubstr("an aligned shared address"));
}

TEST(PtxMachine, NoticesWarpsThatWaitForever) {
  const std::string first_warp = "setp.lt.s32 %p1, %r1, 32; @%p1 bra END;";
  EXPECT_THAT(fault_of(first_warp + "bar.sync 0; END:", 64), HasSubstr("all wait at barriers"));
  EXPECT_THAT(fault_of("mbarrier.init.shared::cta.b64 [%r2], 1;"
                       "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;"
                       "@!%p1 bra AGAIN;"),
              HasSubstr("phases that end"));
}

TEST(PtxMachine, NoticesWrongCounts) {
  EXPECT_THAT(fault_of("bar.sync 1, 32; bar.arrive 1, 64;"), HasSubstr("32 at the end"));
  EXPECT_THAT(fault_of("setp.lt.s32 %p1, %r1, 32; @%p1 bra ONE; bar.sync 1, 32; ret;"
                       "ONE: bar.sync 1, 96;",
                       64),
              HasSubstr("expected"));
  EXPECT_THAT(fault_of("mbarrier.init.shared::cta.b64 [%r2], 2;"
                       "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 16;"
                       "mbarrier.arrive.shared::cta.b64 _, [%r2];"
                       "mbarrier.arrive.shared::cta.b64 _, [%r2];"
                       "mbarrier.arrive.shared::cta.b64 _, [%r2];"),
              HasSubstr("expected 2 arrivals"));
}

// Turns of warps do not matter: without a barrier every order is an error.
TEST(PtxMachine, NoticesRacesOfWarps) {
  const std::string write = "st.shared.u32 [%r2], %r1;";
  const std::string read = "xor.b32 %r9, %r3, 512; ld.shared.u32 %r10, [%r9+1024];";
  EXPECT_EQ(fault_of(write + "bar.sync 0;" + read, 64), "no error");
  EXPECT_THAT(fault_of(write + read, 64), HasSubstr("expected a barrier before warp"));
  EXPECT_THAT(fault_of(write + "bar.sync 0;" + read + write, 64),
              HasSubstr("expected a barrier before warp"));
  EXPECT_THAT(fault_of("st.shared.u32 [shared], %r1;", 64), HasSubstr("expected a barrier"));
}

TEST(PtxMachine, NoticesPartsOfWarps) {
  EXPECT_THAT(fault_of("setp.eq.s32 %p1, %r1, 0; @%p1 bar.sync 0;"), HasSubstr("all lanes"));
}

// A product of zeros in 8 KiB of shared memory, which no proxy fence made visible.
TEST(PtxMachine, NoticesMissingFences) {
  const std::string product = R"(
mov.u64 %rd8, 4611686293305294848;
or.b64 %rd8, %rd8, 64;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, %rd8, 0, 1, 1, 0;
wgmma.commit_group.sync.aligned;
)";
  const std::string write =
      "st.shared.v4.u32 [%r2], {0, 0, 0, 0}; st.shared.v4.u32 [%r2+512], {0, 0, 0, 0};";
  const std::string proxy_fence = "fence.proxy.async.shared::cta;";
  const std::string fence = "wgmma.fence.sync.aligned;";
  const std::string wait = "wgmma.wait_group.sync.aligned 0;";
  const std::string store = "st.global.f32 [%rd1], %f1;";
  EXPECT_THAT(run_program(write + proxy_fence + fence + product + wait + store), Each(0));
  EXPECT_THAT(run_program(write + proxy_fence + fence + product + store + wait), Each(0x7fffffffU));
  EXPECT_THAT(fault_of(write + fence + product + wait), HasSubstr("fence.proxy.async"));
  EXPECT_THAT(fault_of(write + proxy_fence + product + wait), HasSubstr("wgmma.fence"));
  EXPECT_THAT(fault_of(write + proxy_fence + fence + product), HasSubstr("every product"));
  EXPECT_THAT(fault_of(write + proxy_fence + fence + product + "mov.f32 %f2, %f8;" + wait),
              HasSubstr("sums to stay"));
  EXPECT_THAT(fault_of(write + proxy_fence + fence + product + "add.s32 %r1, %r1, 1;" + wait),
              HasSubstr("operands in registers to stay"));
  EXPECT_THAT(fault_of(write + proxy_fence + fence + product + "st.shared.u32 [%r2], 1;" + wait),
              HasSubstr("operands in shared memory to stay"));
}

TEST(PtxMachine, PrintsTheSeedOfAFault) {
  EXPECT_THAT(fault_of("bar.arrive 1, 64;"), HasSubstr("test, block (0, 0), seed 1: "));
}

}  // namespace
}  // namespace contextile::ptx
