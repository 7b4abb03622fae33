// Tests that the machine refuses PTX from anywhere, or runs it within its bounds, whatever it says.
// `make sanitize` runs these tests, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gpu/emulated/machine.h"
#include "support/message_of.h"
#include "support/ptx_program.h"

namespace contextile::ptx {
namespace {

using ::testing::HasSubstr;

std::string fault_of_text(const std::string& text) {
  return message_of<Fault>([&] { static_cast<void>(run_module(text, 64, Timing::kLate, 20'000)); });
}

TEST(UntrustedPtx, IsRefusedIfItIsNoModule) {
  const std::string head = ".version 9.0\n.target sm_90a\n";
  for (const std::string& text :
       {std::string(), std::string("PTX"), std::string(std::size_t{1} << 16, '{')}) {
    EXPECT_THAT(fault_of_text(text), HasSubstr("expected PTX"));
  }
  EXPECT_THAT(fault_of_text(head), HasSubstr("expected a kernel test, found none"));
  EXPECT_THAT(fault_of_text(head + ".entry test"), HasSubstr("expected '('"));
  EXPECT_THAT(fault_of_text(head + ".entry test("), HasSubstr("expected ')'"));
  EXPECT_THAT(fault_of_text(head + ".entry test() {"), HasSubstr("expected a kernel that ends"));
}

TEST(UntrustedPtx, IsRefusedByItsStatement) {
  const struct {
    std::string body;
    std::string fault;
  } cases[] = {
      {"popc.b32 %r9, %r1;", "unknown instruction popc.b32 %r9, %r1"},
      {"ld.local.u32 %r9, [%r1];", "unknown instruction ld.local.u32"},
      {"ld.global.b128 %rd9, [%rd1];", "unknown instruction ld.global.b128"},
      {"add.s32 %r9, %r1;", "expected at least 3 operands, found 2"},
      {"add.s32;", "expected at least"},
      {"add.s32 %r9, , %r1;", "expected an operand, found ''"},
      {"add.s32 7, %r1, %r1;", "expected a register of 32 bits, found 7"},
      {"add.s32 %p1, %r1, %r1;", "expected a register of 32 bits, found %p1"},
      {"add.s64 %r9, %rd1, %rd1;", "expected a register of 64 bits, found %r9"},
      {"add.s32 %r9, nothing, %r1;", "expected an operand of 32 bits, found nothing"},
      {"setp.eq.s32 %r9, %r1, %r1;", "expected a predicate, found %r9"},
      {"@%r1 bra END; END:", "expected a predicate, found %r1"},
      {"bra NOWHERE;", "expected label NOWHERE"},
      {"ld.global.u32 %r9, [];", "expected PTX, found ld.global.u32"},
      {"ld.global.u32 {}, [%rd1];", "expected 1 to 4 elements, found 0"},
      {"mov.u32 {{{{%r1}}}}, 1;", "expected an operand"},
      {"mov.u32 %r9, 12x;", "expected a number, found 12x"},
      {".local .b8 x[4];", "expected no local or static shared memory"},
      {"wgmma.mma_async.sync.aligned.m64n512k16.f32.bf16.bf16 {%f1}, {%r1}, %rd1, 1, 1, 1, 0;",
       "unknown instruction wgmma"},
      {"wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f1}, {%r1}, %rd1, 1, 1, 1, 0;",
       "unknown instruction wgmma"},
      {"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r9}, [shared];", "expected at least"},
  };
  for (const auto& [body, fault] : cases) {
    EXPECT_THAT(fault_of(body), HasSubstr(fault)) << body;
  }
}

// Addresses whose end is beyond the last one are no way around a check.
TEST(UntrustedPtx, CannotReachMemoryOfOthers) {
  EXPECT_THAT(fault_of("mov.u64 %rd9, -8; ld.global.u64 %rd8, [%rd9];"),
              HasSubstr("expected memory of the device"));
  EXPECT_THAT(fault_of("mov.u64 %rd9, 0; st.u64 [%rd9], %rd9;"),
              HasSubstr("expected memory of the device"));
  EXPECT_THAT(fault_of("ld.param.u64 %rd9, [test_param_0+8];"),
              HasSubstr("expected memory of the device"));
  EXPECT_THAT(fault_of("mov.u32 %r9, -16; st.shared.v4.u32 [%r9], {%r9, %r9, %r9, %r9};"),
              HasSubstr("expected shared memory below"));
  EXPECT_THAT(fault_of("mov.u32 %r9, 0; ld.shared.u32 %r8, [%r9];"),
              HasSubstr("expected shared memory below"));
}

TEST(UntrustedPtx, DividesWithoutATrap) {
  const auto wide = [](const std::string& body) {
    return run_program(body + "st.global.u64 [%rd1], %rd9;")[0];
  };
  const std::string least = "mov.u64 %rd8, 0x8000000000000000; mov.u64 %rd7, -1;";
  EXPECT_EQ(wide(least + "div.s64 %rd9, %rd8, %rd7;"), std::uint64_t{1} << 63);
  EXPECT_EQ(wide(least + "rem.s64 %rd9, %rd8, %rd7;"), 0U);
  EXPECT_EQ(wide(least + "div.s64 %rd9, %rd8, 0;"), ~std::uint64_t{0});
  EXPECT_EQ(wide("mov.u32 %r8, 0x80000000; div.s32 %r9, %r8, -1; cvt.u64.u32 %rd9, %r9;"),
            std::uint64_t{1} << 31);
}

TEST(UntrustedPtx, Ends) {
  EXPECT_THAT(fault_of("AGAIN: bra AGAIN;"), HasSubstr("expected an end after 1000000"));
  EXPECT_THAT(fault_of("AGAIN: cp.async.cg.shared.global [%r2], [%rd2], 16; bra AGAIN;"),
              HasSubstr("expected"));
}

// A program with most kinds of instructions, and what happens when some of its text changes.
const std::string& rich_program() {
  static const std::string kText = program(R"(
setp.lt.s32 %p1, %r1, 40;
@%p1 bra MORE;
mov.u32 %r9, 3;
MORE:
st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1};
fence.proxy.async.shared::cta;
bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r10, %r11, %r12, %r13}, [%r2];
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r10, %r11, %r12, %r13}, {%r10, %r11}, {%f1, %f2, %f3, %f4};
shfl.sync.bfly.b32 %r14|%p2, %r10, 1, 31, -1;
mbarrier.init.shared::cta.b64 [shared], 1;
fence.mbarrier_init.release.cluster;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [shared], 16;
mbarrier.try_wait.parity.shared::cta.b64 %p3, [shared], 0;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, 4611686293305294912, 0, 1, 1, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
cp.async.cg.shared.global [%r2], [%rd2], 16, 8;
cp.async.wait_all;
fence.proxy.tensormap::generic.acquire.sys [%rd2], 128;
cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [shared], [%rd2, {%r1, %r1, %r1}], [shared];
setmaxnreg.inc.sync.aligned.u32 240;
mov.b64 {%r15, %r16}, %rd1;
selp.b32 %r17, %r15, %r16, %p1;
div.s32 %r18, %r17, %r1;
cvt.rn.bf16x2.f32 %r19, %f1, %f2;
st.global.u32 [%rd1], %r19;)");
  return kText;
}

TEST(UntrustedPtx, EndsWithoutACrashHoweverItIsChanged) {
  std::mt19937_64 random(7);
  const std::string pieces[] = {
      "%r1", "%rd2", "%p1", "%f1", "{", "}",  "[",      "]", ",",          ";",
      "-1",  "0",    "@",   "|",   ":", "::", "shared", "%", "4294967295", "18446744073709551615",
      ".",   " ",    "_",   "+",   "\n"};
  int num_faults = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string text = rich_program();
    const int num_changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < num_changes; ++i) {
      const std::size_t at = 100 + random() % (text.size() - 100);
      const std::string& piece = pieces[random() % std::size(pieces)];
      text.replace(at, random() % 2 == 0 ? piece.size() : random() % 4, piece);
    }
    if (fault_of_text(text) != "no error") ++num_faults;
  }
  EXPECT_GT(num_faults, 10'000);
}

// Each instruction with the operands of another.
TEST(UntrustedPtx, EndsWithoutACrashWithOperandsOfOthers) {
  const std::string& text = rich_program();
  std::vector<std::string> opcodes;
  std::vector<std::string> operands;
  for (std::size_t at = text.find('{'); (at = text.find('\n', at)) != std::string::npos; ++at) {
    const std::size_t end = text.find(';', at);
    const std::size_t space = text.find(' ', at);
    if (end == std::string::npos || space > end) continue;
    opcodes.push_back(text.substr(at, space - at));
    operands.push_back(text.substr(space, end - space));
  }
  for (const std::string& opcode : opcodes) {
    for (const std::string& of : operands) {
      EXPECT_NE(fault_of_text(program(opcode + of + ";")), "");
    }
  }
}

}  // namespace
}  // namespace contextile::ptx
