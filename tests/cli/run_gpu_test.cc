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
  // The same on an emulated GPU, whose modules are PTX.
  [[nodiscard]] Outcome emulated(const std::string& more, const std::string& environment) const {
    return run(more, environment, "emulated");
  }
  // `more` are options of the run, `environment` NAME=VALUE words before it.
  [[nodiscard]] Outcome run(const std::string& more, const std::string& environment,
                            const std::string& gpu = "0") const {
    return bash(
        "contextile plan -o p --lengths <(printf '300\\n20\\n') --heads 4 --kv-heads 2 "
        "--head-dim 64 --cluster local:1x3 --strategy zigzag >/dev/null\n" +
        environment + " '" + CONTEXTILE_PROGRAM + "' run p --gpu " + gpu + " --seed 1 " + more);
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
                   {"expected a device of compute capability 9.0 and wgmma.sm_90a.cubin or",
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

// `make python` and --target contextile_ptx leave only PTX, which the driver compiles.
TEST_F(RunGpu, TakesPtxIfNothingIsCompiledForTheGpu) {
  for (const char* module : {"mma", "paged", "rows"}) {
    std::filesystem::remove(path(std::string(module) + ".sm_90a.cubin"));
    file(std::string(module) + ".compute_80.ptx", std::string("// ") + module);
  }
  const std::string here = "LD_LIBRARY_PATH=. CONTEXTILE_CUDA_KERNELS=.";
  const Outcome mma = run("", here);
  EXPECT_EQ(mma.exit_code, 0) << mma.err;
  EXPECT_THAT(mma.out, HasSubstr("kernel cuda:mma on a CPU"));
  file("wgmma.compute_90a.ptx", "// wgmma");
  EXPECT_THAT(run("", here).out, HasSubstr("kernel cuda:wgmma on a CPU"));
  EXPECT_THAT(run("", here + " CONTEXTILE_FAKE_CAPABILITY=12.0").out,
              HasSubstr("kernel cuda:mma on a CPU"));
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
                   {"expected kernels for a CPU", "found no folder /nowhere", "contextile_cuda"});
  expect_bad_input(run("--predict", ""), {"--predict: expected --cluster with --gpu"});
  expect_bad_input(bash("'" CONTEXTILE_PROGRAM "' run p --gpu-kernel cuda:mma"),
                   {"--gpu-kernel cuda:mma: expected --gpu"});
}

// ptx_device_test runs plans there, where there is nvcc.
TEST_F(RunGpu, SaysWhatIsMissingToEmulateOne) {
  expect_bad_input(emulated("", "CONTEXTILE_CUDA_KERNELS=/nowhere"),
                   {"emulated GPU: expected the PTX of the kernels", "found no folder /nowhere",
                    "--target contextile_ptx", "scripts/install-nvcc", "CONTEXTILE_CUDA_KERNELS"});
  const std::string here = "CONTEXTILE_CUDA_KERNELS=.";
  expect_bad_input(emulated("", here), {"expected the PTX of the kernels"});  // only cubins
  expect_bad_input(emulated("--predict", here),
                   {"--predict: expected a GPU to measure, found --gpu emulated"});
  expect_bad_input(emulated("--transport gloo", here),
                   {"--transport gloo: expected inproc with --gpu emulated"});
  expect_bad_input(run("", here, "simulated"),
                   {"--gpu: expected the number of a GPU or emulated, found 'simulated'"});
}

// Instructions that the machine does not know and text that is no PTX are errors, which name them.
TEST_F(RunGpu, SaysWhatItCannotEmulate) {
  const std::string here = "CONTEXTILE_CUDA_KERNELS=.";
  const std::string head = "//\n.version 9.0\n.target sm_80\n";
  for (const char* module : {"mma", "paged", "rows"}) {
    file(std::string(module) + ".compute_80.ptx", head);
  }
  expect_bad_input(emulated("", here), {"cuda: expected a kernel rows_", "in rows, found none"});
  expect_bad_input(emulated("--gpu-kernel cuda:wgmma", here),
                   {"wgmma.compute_90a.ptx", "found emulated GPU without"});
  std::string kernels = head;
  for (const char* name : {"place", "fill", "convert", "delta", "merge", "sum"}) {
    kernels += ".visible .entry rows_" + std::string(name) + "() { popc.b32 %r1, 7; }\n";
  }
  file("rows.compute_80.ptx", kernels);
  const Outcome unknown = emulated("", here);
  EXPECT_EQ(unknown.exit_code, 3) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("emulated GPU: rows_"));
  EXPECT_THAT(unknown.err, HasSubstr("unknown instruction popc.b32 %r1, 7"));
  file("rows.compute_80.ptx", "// rows");
  const Outcome no_ptx = emulated("", here);
  EXPECT_EQ(no_ptx.exit_code, 3) << no_ptx.err;
  EXPECT_THAT(no_ptx.err, HasSubstr("rows.compute_80.ptx: expected PTX"));
}

}  // namespace
}  // namespace contextile
