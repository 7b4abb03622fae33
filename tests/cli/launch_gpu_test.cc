// Ranks that are processes with a GPU each, as users start them: gloo carries control messages,
// NCCL data. The libraries of the driver and of NCCL are the tests' own and run on this CPU.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/shell.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class LaunchGpu : public ShellTest {
 protected:
  LaunchGpu() {
    std::filesystem::copy_file(CONTEXTILE_FAKE_LIBCUDA, path("libcuda.so.1"));
    std::filesystem::copy_file(CONTEXTILE_FAKE_LIBNCCL_PROCESSES, path("libnccl.so.2"));
    for (const char* module : {"mma", "paged", "rows"}) {
      file(std::string(module) + ".sm_90a.cubin", std::string("\x7f"
                                                              "ELF") +
                                                      module);
    }
    static_cast<void>(
        bash("contextile plan -o p --lengths <(printf '300\\n20\\n') --heads 4 --kv-heads 2 "
             "--head-dim 64 --cluster local:1x2 --strategy dcp >/dev/null\n"));
  }
  void SetUp() override {
    for (const json& part : json::parse(contextile({"info", "--json"}).out).at("transports")) {
      if (part.at("name") != "gloo" || part.at("built_in")) continue;
      GTEST_SKIP() << "built without gloo (libgloo-dev)";
    }
  }
  // `words` are of the program, on a machine with so many GPUs.
  [[nodiscard]] Outcome on_gpus(int num_gpus, const std::string& words,
                                const std::string& more = "") const {
    return bash(
        fmt::format("export LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=. "
                    "CONTEXTILE_FAKE_NCCL=. CONTEXTILE_FAKE_DEVICES={}\n{}\n'{}' {}",
                    num_gpus, more, CONTEXTILE_PROGRAM, words));
  }
  static std::string bits_of(const Outcome& outcome) {
    return json::parse(outcome.out).at("masks").at(0).at("result_bits");
  }
};

TEST_F(LaunchGpu, RanksOnGpusOfTheirOwnHaveTheBitsOfRanksOnOne) {
  const std::string run = "run p --gpu 0 --seed 1 --json";
  const Outcome one = on_gpus(1, run);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  for (const char* more : {"", " --transport gloo", " --transport=gloo"}) {
    const Outcome launched = on_gpus(2, "launch -n 2 -- " + run + more);
    ASSERT_EQ(launched.exit_code, 0) << launched.err;
    EXPECT_EQ(bits_of(launched), bits_of(one)) << more;
    EXPECT_TRUE(json::parse(launched.out).at("ok"));
  }
}

// After the last GPU comes the first one.
TEST_F(LaunchGpu, RanksTakeTheGpusFromTheNamedOneOn) {
  const Outcome outcome = on_gpus(2, "launch -n 2 -- run p --gpu 1 --seed 1 --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(LaunchGpu, TwoRanksOnOneGpuAreRefusedByName) {
  const Outcome outcome = on_gpus(1, "launch -n 2 -- run p --gpu 0");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("nccl: expected a GPU of its own for each rank, found GPU 0 of "),
                    HasSubstr("for ranks 0 and 1; start at most one rank for each GPU")));
}

TEST_F(LaunchGpu, EveryRankSaysWhereItLookedForNccl) {
  const Outcome outcome =
      on_gpus(2, "launch -n 2 -- run p --gpu 0", "export CONTEXTILE_NCCL=/none/libnccl.so.2");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("rank 0: nccl: expected NCCL's library, found none (/none/libnccl.so.2: "
                        "cannot open shared object file"));
  const Outcome named = on_gpus(2, "launch -n 2 -- run p --gpu 0 --json",
                                "mv libnccl.so.2 other.so\nexport CONTEXTILE_NCCL=./other.so");
  EXPECT_EQ(named.exit_code, 0) << named.err;
}

}  // namespace
}  // namespace contextile
