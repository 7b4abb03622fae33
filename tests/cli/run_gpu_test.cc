// contextile run --gpu with a driver's library whose device is the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/shell.h"

namespace contextile {
namespace {

using testing::HasSubstr;

class RunGpu : public ShellTest {
 protected:
  RunGpu() {
    std::filesystem::copy_file(CONTEXTILE_FAKE_LIBCUDA, path("libcuda.so.1"));
    for (const char* module : {"mma", "paged", "rows"}) {
      file(std::string(module) + ".sm_90a.cubin", std::string("\x7f"
                                                              "ELF") +
                                                      module);
    }
  }
  // `more` are options of the run, `environment` NAME=VALUE words before it.
  [[nodiscard]] Outcome run(const std::string& more, const std::string& environment) const {
    return bash(
        "contextile plan -o p --lengths <(printf '300\\n20\\n') --heads 4 --kv-heads 2 "
        "--head-dim 64 --cluster local:1x3 --strategy zigzag >/dev/null\n" +
        environment + " '" + CONTEXTILE_PROGRAM + "' run p --gpu 0 --seed 1 " + more);
  }
};

TEST_F(RunGpu, ExecutesThePlanThereAndChecksIt) {
  const Outcome outcome = run("", "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=.");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("kernel cuda:mma on a CPU"));
  EXPECT_THAT(outcome.out, HasSubstr("dv"));
}

TEST_F(RunGpu, TakesTheKernelForTheGpuWhereItIsCompiled) {
  const std::string here = "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=.";
  expect_bad_input(run("--gpu-kernel cuda:wgmma", here),
                   {"expected a device of compute capability 9.0 and wgmma.sm_90a.cubin",
                    "found a CPU without"});
  file("wgmma.sm_90a.cubin",
       "\x7f"
       "ELFwgmma");
  for (const char* asked : {"", "--gpu-kernel cuda:wgmma"}) {
    const Outcome outcome = run(asked, here);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("kernel cuda:wgmma on a CPU"));
  }
  EXPECT_THAT(run("--gpu-kernel cuda:mma", here).out, HasSubstr("kernel cuda:mma on a CPU"));
  expect_bad_input(run("--gpu-kernel wgmma", here),
                   {"gpu kernel: expected cuda:wgmma or cuda:mma, found 'wgmma'"});
}

// Repetitions are the same call, and their results are checked as always.
TEST_F(RunGpu, ReplaysRepetitionsAsGraphsUnlessToldNotTo) {
  for (const std::string graphs : {"auto", "on", "off"}) {
    const Outcome outcome =
        run("--repeats 3 --graphs " + graphs, "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=.");
    EXPECT_EQ(outcome.exit_code, 0) << graphs << outcome.err;
  }
  expect_bad_input(run("--graphs some", "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=."),
                   {"graphs: expected auto, on or off, found", "some"});
}

TEST_F(RunGpu, SaysWhatIsMissing) {
  expect_bad_input(run("", "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=/nowhere"),
                   {"expected compiled kernels in /nowhere", "contextile_cuda"});
  expect_bad_input(run("--predict", ""), {"--predict: expected --cluster with --gpu"});
  expect_bad_input(bash("'" CONTEXTILE_PROGRAM "' run p --gpu-kernel cuda:mma"),
                   {"--gpu-kernel cuda:mma: expected --gpu"});
}

}  // namespace
}  // namespace contextile
