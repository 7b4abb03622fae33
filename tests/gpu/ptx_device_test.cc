// Executes the compiled kernels: nvcc makes PTX of them, and the emulated device runs it (src/gpu).
// Judged are the suites that judge a GPU (bench/gpu_check) behind the driver library of
// support/fake_libcuda.cc, and whole plans. Skipped where there is no nvcc.
//
// CMake defines CONTEXTILE_NVCC, CONTEXTILE_PTX (where the PTX goes), CONTEXTILE_PTX_FOLDER (where
// a device of compute capability 9.0 finds it), CONTEXTILE_SOURCE, CONTEXTILE_FAKE_LIBCUDA and the
// programs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/gpu.h"
#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "gpu/libcuda.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/device_calls.h"
#include "support/message_of.h"
#include "support/strided_case.h"
#include "transport/cuda/run_copies.h"
#include "transport/strided_copy.h"

namespace contextile::cuda {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

struct Output {
  int status = 0;
  std::string text;
};

Output run_shell(const std::string& command) {
  Output output;
  std::FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return {-1, command};
  std::array<char, 4096> bytes;
  while (const std::size_t count = std::fread(bytes.data(), 1, bytes.size(), pipe)) {
    output.text.append(bytes.data(), count);
  }
  output.status = pclose(pipe);
  return output;
}

std::string folder() { return CONTEXTILE_PTX_FOLDER; }

// Compiles what is older than its source, and puts it where an sm_90a device looks for modules.
// Opcodes that run from here on are noted for ptx_opcodes.py.
std::string compile() {
  std::filesystem::create_directories(folder());
  const Output output = run_shell(fmt::format("{}/scripts/cuda-kernels --nvcc {} --ptx --output {}",
                                              CONTEXTILE_SOURCE, CONTEXTILE_NVCC, CONTEXTILE_PTX));
  if (output.status != 0) return output.text;
  const auto link = [](const std::string& to, const std::string& name) {
    std::filesystem::remove(folder() + "/" + name);
    std::filesystem::create_symlink(to, folder() + "/" + name);
  };
  for (const char* module : {"mma", "paged", "rows", "wgmma"}) {
    const std::string_view virtual_architecture =
        std::string_view(module) == "wgmma" ? "compute_90a" : "compute_80";
    link(fmt::format("{}/{}.{}.ptx", CONTEXTILE_PTX, module, virtual_architecture),
         fmt::format("{}.sm_90a.cubin", module));
  }
  link(CONTEXTILE_FAKE_LIBCUDA, "libcuda.so.1");
  const std::string opcodes = folder() + "/suites.opcodes";
  std::filesystem::remove(opcodes);
  setenv("CONTEXTILE_PTX_OPCODES", opcodes.c_str(), 1);
  return "";
}

class PtxDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(CONTEXTILE_NVCC)) {
      GTEST_SKIP() << "expected nvcc to compile the kernels with, found none";
    }
    static const std::string kError = compile();
    ASSERT_EQ(kError, "");
  }

  // Runs a test program on the device. `timing` is that of asynchronous work.
  static void expect_passes(const std::string& program, const std::string& filter,
                            const std::string& timing) {
    const Output output = run_shell(
        fmt::format("CONTEXTILE_TEST_GPU=0 CONTEXTILE_CUDA_KERNELS={0} CONTEXTILE_PTX_TIMING={1} "
                    "LD_LIBRARY_PATH={0}:$LD_LIBRARY_PATH {2} --gtest_filter='{3}'",
                    folder(), timing, program, filter));
    EXPECT_EQ(output.status, 0) << output.text;
    EXPECT_THAT(output.text, Not(ContainsRegex("Running 0 tests")));
    // Otherwise the tests chose another device.
    EXPECT_THAT(output.text, ContainsRegex("ptx: [1-9][0-9]* launches"));
    const std::size_t total = output.text.rfind("ptx: ");
    if (total != std::string::npos) fmt::print("{}", output.text.substr(total));
  }
};

TEST_F(PtxDevice, PassesTheConformanceSuite) {
  expect_passes(CONTEXTILE_KERNEL_TEST, "OfDevice*", "late");
}

TEST_F(PtxDevice, PassesTheConformanceSuiteWhenAsynchronousWorkEndsAtOnce) {
  expect_passes(CONTEXTILE_KERNEL_TEST, "OfDevice*", "at-once");
}

TEST_F(PtxDevice, GivesRowsTheBitsOfTheCpu) {
  expect_passes(CONTEXTILE_KERNEL_TEST, "*EveryRowOps*:RowOps*", "late");
}

TEST_F(PtxDevice, PassesThePagedSuite) {
  expect_passes(CONTEXTILE_PAGED_ATTENTION_TEST, "PagedAttention.*", "late");
}

std::unique_ptr<Driver> open_ptx_device() {
  return open_device({.ordinal = 0,
                      .folders = {folder()},
                      .modules = {"mma", "paged", "rows"},
                      .optional_modules = {"wgmma"},
                      .library = CONTEXTILE_FAKE_LIBCUDA});
}

// Four ranks compute both directions within the bounds of fp64, and replayed graphs give the bits
// of calls without graphs.
TEST_F(PtxDevice, RunsPlansOfFourRanksWithGraphs) {
  const Workload workload = batch_of({300, 37, 190}, "causal", small_heads());
  const auto plan =
      plan_and_check(workload, cluster_of(1, 4), parse_strategies("hybrid").at(0), {}).plan;
  const std::unique_ptr<Driver> gpu = open_ptx_device();
  for (const Program program : {Program::kMma, Program::kWgmma}) {
    SCOPED_TRACE(name_of(program));
    DeviceRanks plain(*gpu, {}, program, Graphs::kOff);
    RunOptions run;
    run.host = &plain;
    EXPECT_TRUE(run_plan(plan, run).ok());
    DeviceCalls expected(plain, plan);
    DeviceRanks replaying(*gpu, {}, program, Graphs::kOn);
    DeviceCalls calls(replaying, plan);
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      EXPECT_TRUE(results_of(calls, seed) == results_of(expected, seed)) << seed;
    }
  }
}

// Accesses of every width. The device checks all addresses.
TEST_F(PtxDevice, CopiesMessagesAsTheHostDoes) {
  const std::unique_ptr<Driver> gpu = open_ptx_device();
  const Stream stream = gpu->create_stream();
  for (const std::int64_t width : {16, 12, 2, 1}) {
    Rng rng(static_cast<std::uint64_t>(width));
    const SegmentPlaces source(rng, 3000 * width, width);
    const SegmentPlaces target(rng, 3000 * width, width);
    std::vector<std::byte> from(static_cast<std::size_t>(source.size_bytes()));
    for (std::byte& byte : from) byte = static_cast<std::byte>(rng.next() & 0xff);
    std::vector<std::byte> expected(static_cast<std::size_t>(target.size_bytes()));
    std::byte* const to_copy = gpu->allocate(source.size_bytes());
    std::byte* const copied = gpu->allocate(target.size_bytes());
    gpu->write(stream, to_copy, from);
    gpu->write(stream, copied, expected);
    RunCopies copies(*gpu, stream);
    copies.add(source.in(to_copy), target.in(copied));
    copies.flush();
    std::vector<std::byte> found(expected.size());
    gpu->read(stream, found, copied);
    copy_segments(source.in(from.data()), target.in(expected.data()));
    EXPECT_EQ(found, expected) << width;
    gpu->free(to_copy);
    gpu->free(copied);
  }
}

// The benchmark of GPUs ends, with results that it finds right. Its times mean nothing here.
TEST_F(PtxDevice, RunsTheBenchmarkToItsEnd) {
#ifdef CONTEXTILE_GPU_BENCH
  const Output output = run_shell(fmt::format(
      "CONTEXTILE_PTX_TIMING=at-once {} --library {} --kernels {} --gpu-kernel cuda:wgmma "
      "--longest 64 --heads 4 --kv-heads 2 --seconds 0",
      CONTEXTILE_GPU_BENCH, CONTEXTILE_FAKE_LIBCUDA, folder()));
  EXPECT_EQ(output.status, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("cuda:wgmma verified against fp64"));
  EXPECT_THAT(output.text, ContainsRegex("causal +dcp +8 ranks"));
#else
  GTEST_SKIP() << "expected gpu_bench (CONTEXTILE_BENCH), found none";
#endif
}

GpuOptions emulated_options() { return {.kernels = CONTEXTILE_PTX}; }

// The public way to the same device.
TEST_F(PtxDevice, IsOpenToEverybody) {
  const std::unique_ptr<Gpu> gpu = open_gpu("emulated", emulated_options());
  EXPECT_EQ(gpu->name(), "emulated GPU");
  EXPECT_EQ(gpu->kernel_name(), "cuda:wgmma");
  EXPECT_TRUE(gpu->is_emulated());
  const Workload workload = batch_of({70, 27}, "causal", small_heads());
  const auto plan =
      plan_and_check(workload, cluster_of(1, 2), parse_strategies("zigzag").at(0), {}).plan;
  RunOptions run;
  run.host = gpu.get();
  run.repeats = 2;
  const RunReport report = run_plan(plan, run);
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(report.is_emulated);
  const MaskRun& mask = report.masks.at(0);
  EXPECT_FALSE(mask.errors.empty());
  EXPECT_TRUE(std::isnan(mask.forward_s) && std::isnan(mask.backward_s));
  EXPECT_TRUE(std::isnan(mask.repeats.at(1).at(1).forward.attention_s));
}

// Memory of the process is foreign until it is lent.
TEST_F(PtxDevice, TakesTensorsOfTheProcessThatItIsLent) {
  GpuOptions options = emulated_options();
  options.kernel = "cuda:mma";
  const std::unique_ptr<Gpu> gpu = open_gpu("emulated", options);
  const auto group = gpu->make_group(1);
  std::vector<float> memory(64, 1.0F);
  const RowOps& ops = gpu->kernel(Rank(0)).row_ops();
  const TensorView view = contiguous(memory.data(), Dtype::kF32, 2, 1, 32);
  const auto fill = [&] {
    ops.fill(view, 3);
    gpu->end_before(Rank(0), nullptr);
  };
  EXPECT_THAT(message_of<DeviceError>(fill), HasSubstr("expected memory of the device"));
  {
    const auto lent = gpu->lend(std::as_bytes(std::span(memory)));
    fill();
  }
  EXPECT_THAT(memory, Each(3.0F));
  EXPECT_THAT(message_of<DeviceError>(fill), HasSubstr("expected memory of the device"));
}

TEST_F(PtxDevice, RunsPlansForTheProgramWithoutTimes) {
  const std::string program = CONTEXTILE_PROGRAM;
  const std::string plan = folder() + "/emulated.plan";
  const std::string made = program + " plan -o " + plan +
                           " --lengths <(printf '70\\n27\\n') --heads 4 --kv-heads 2 --head-dim 64 "
                           "--cluster local:1x2 --strategy zigzag";
  const Output planned = run_shell("bash -c \"" + made + "\"");
  ASSERT_EQ(planned.status, 0) << planned.text;
  const std::string run = std::string("CONTEXTILE_CUDA_KERNELS=") + CONTEXTILE_PTX + " " + program +
                          " run " + plan + " --gpu emulated --seed 1 ";
  const Output text = run_shell(run);
  EXPECT_EQ(text.status, 0) << text.text;
  EXPECT_THAT(text.text, HasSubstr("kernel cuda:wgmma on emulated GPU"));
  EXPECT_THAT(text.text, ContainsRegex("causal +forward +emulated"));
  EXPECT_THAT(text.text, HasSubstr("waiting for transfers: causal emulated"));
  EXPECT_THAT(run_shell(run + "--csv").text, ContainsRegex("causal,backward,emulated,"));
  const std::string json = run_shell(run + "--json").text;
  EXPECT_THAT(json, HasSubstr("\"times\": \"emulated\""));
  EXPECT_THAT(json, HasSubstr("\"forward_s\": null"));
  EXPECT_THAT(json, Not(ContainsRegex("_s\": [0-9]")));
}

}  // namespace
}  // namespace contextile::cuda
