// Tests the code that calls the driver's library against a library that emulates a device on the
// CPU (support/fake_libcuda.cc). It checks that every function is found and called as its manual
// says. CONTEXTILE_FAKE_LIBCUDA is the emulator's file.
#include "gpu/libcuda.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/gpu.h"
#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/device_calls.h"
#include "support/host_driver.h"
#include "support/message_of.h"

namespace contextile::cuda {
namespace {

using ::testing::HasSubstr;

class FakeGpu : public ::testing::Test {
 protected:
  FakeGpu() {
    std::filesystem::create_directories(folder_);
    for (const char* module : {"mma", "rows"}) put_module(module);
  }
  ~FakeGpu() override { std::filesystem::remove_all(folder_); }

  // The driver in libcuda's place knows a module by the name behind the first bytes.
  void put_module(const std::string& module) const {
    put(module, std::string("\x7f"
                            "ELF") +
                    module);
  }
  void put(const std::string& module, const std::string& text) const {
    std::ofstream(folder_ + "/" + module + ".sm_90a.cubin") << text;
  }
  [[nodiscard]] DeviceOptions options() const {
    return {.ordinal = 0,
            .folders = {folder_},
            .modules = {"mma", "rows"},
            .optional_modules = {},
            .library = CONTEXTILE_FAKE_LIBCUDA};
  }

  std::string folder_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(FakeGpu, RunsPlansWithTheBitsOfTheHost) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 128;
  shape.sink = true;
  const Workload workload = batch_of({300, 37, 190}, "causal", shape);
  RunOptions run;
  run.compare = false;
  for (const char* strategy : {"zigzag", "dcp", "hybrid"}) {
    SCOPED_TRACE(strategy);
    const auto plan =
        plan_and_check(workload, cluster_of(1, 4), parse_strategies(strategy).at(0), {}).plan;
    HostDriver at_once(HostDriver::Mode::kAtOnce);
    DeviceRanks on_host(at_once);
    run.host = &on_host;
    const std::uint64_t expected = run_plan(plan, run).masks.at(0).result_bits;
    const std::unique_ptr<Driver> gpu = open_device(options());
    EXPECT_EQ(gpu->device_name(), "a CPU");
    DeviceRanks ranks(*gpu);
    run.host = &ranks;
    EXPECT_EQ(run_plan(plan, run).masks.at(0).result_bits, expected);
  }
}

// The maps come from the driver; the launches are the same as those of mma.
TEST_F(FakeGpu, RunsPlansByWgmmaWithTheBitsOfTheHost) {
  put_module("wgmma");
  DeviceOptions with_wgmma = options();
  with_wgmma.optional_modules = {"wgmma", "absent"};
  AttentionShape shape;
  shape.q_heads = 6;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.value_dim = 32;
  const Workload workload = batch_of({300, 37, 190}, "lambda:16,100", shape);
  const auto plan =
      plan_and_check(workload, cluster_of(1, 4), parse_strategies("zigzag").at(0), {}).plan;
  RunOptions run;
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  DeviceRanks on_host(at_once, {}, Program::kWgmma);
  run.host = &on_host;
  const RunReport expected = run_plan(plan, run);
  EXPECT_TRUE(expected.ok());
  const std::unique_ptr<Driver> gpu = open_device(with_wgmma);
  EXPECT_TRUE(gpu->has_module("wgmma"));
  EXPECT_FALSE(gpu->has_module("absent"));
  DeviceRanks ranks(*gpu, {}, Program::kWgmma);
  run.host = &ranks;
  EXPECT_EQ(run_plan(plan, run).masks.at(0).result_bits, expected.masks.at(0).result_bits);
}

// Calls of both directions: the first of each is captured and the others are replayed, with inputs
// written between them. With wgmma every call uploads maps, which its graph keeps.
TEST_F(FakeGpu, ReplaysCallsWithTheBitsOfTheHost) {
  put_module("wgmma");
  DeviceOptions with_wgmma = options();
  with_wgmma.optional_modules = {"wgmma"};
  const Workload workload = batch_of({300, 37, 190}, "causal", small_heads());
  const auto plan =
      plan_and_check(workload, cluster_of(1, 4), parse_strategies("hybrid").at(0), {}).plan;
  for (const Program program : {Program::kMma, Program::kWgmma}) {
    HostDriver at_once(HostDriver::Mode::kAtOnce);
    DeviceRanks run_ranks(at_once, {}, program, Graphs::kOff);
    DeviceCalls run(run_ranks, plan);
    const std::unique_ptr<Driver> gpu = open_device(with_wgmma);
    DeviceRanks ranks(*gpu, {}, program, Graphs::kOn);
    DeviceCalls calls(ranks, plan);
    for (std::uint64_t seed = 0; seed < 2; ++seed) {
      EXPECT_TRUE(results_of(calls, seed) == results_of(run, seed)) << name_of(program) << seed;
    }
  }
}

// Memory and uploads of a capture live as long as its graph. Calls that a capture forbids are
// errors, after which the device still works.
TEST_F(FakeGpu, CapturesKeepWhatTheyNeed) {
  const std::unique_ptr<Driver> gpu = open_device(options());
  const Stream stream = gpu->create_stream();
  const Event event = gpu->create_event();
  std::byte* const memory = gpu->allocate(4);
  const auto read = [&] {
    std::array<std::byte, 4> bytes;
    gpu->read(stream, bytes, memory);
    return bytes;
  };
  const std::array<std::byte, 4> ones = {std::byte{1}, std::byte{1}, std::byte{1}, std::byte{1}};
  gpu->fill(stream, memory, 0, 4);
  gpu->begin_capture(stream);
  {
    const StreamMemory near(*gpu, stream, 4);
    gpu->write(stream, near.data(), ones);
    gpu->copy(stream, memory, near.data(), 4);
  }
  EXPECT_THAT(message_of<DeviceError>([&] { gpu->synchronize(stream); }), HasSubstr("error 900"));
  gpu->record(event, stream);
  EXPECT_THAT(message_of<DeviceError>([&] { static_cast<void>(gpu->is_done(event)); }),
              HasSubstr("error 907"));
  const Graph graph = gpu->end_capture(stream);
  EXPECT_EQ(read(), (std::array<std::byte, 4>{}));
  for (int turn = 0; turn < 2; ++turn) {
    gpu->write(stream, memory, std::array<std::byte, 4>{});  // not a chunk that the graph reads
    gpu->launch_graph(stream, graph);
    EXPECT_EQ(read(), ones);
  }
  gpu->free_graph(graph);
  const Stream other = gpu->create_stream();
  gpu->begin_capture(stream);
  gpu->record(event, stream);
  gpu->wait(other, event);
  EXPECT_THAT(message_of<DeviceError>([&] { static_cast<void>(gpu->end_capture(stream)); }),
              HasSubstr("error 904"));
  gpu->begin_capture(stream);
  static_cast<void>(gpu->allocate_on(stream, 8));
  gpu->drop_capture(stream);
  gpu->drop_capture(stream);
  EXPECT_EQ(read(), ones);
  gpu->free(memory);
}

TEST_F(FakeGpu, FailuresOfTheDeviceAreNamed) {
  const std::unique_ptr<Driver> gpu = open_device(options());
  EXPECT_THAT(
      message_of<DeviceError>([&] { static_cast<void>(gpu->allocate(std::int64_t{1} << 40)); }),
      HasSubstr("a CPU: cuMemAlloc: out of memory (CUDA error 2)"));
}

TEST_F(FakeGpu, WhatIsMissingIsNamed) {
  DeviceOptions wrong = options();
  wrong.library = "libnothing.so";
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(open_device(wrong)); }),
              HasSubstr("expected the driver's library libnothing.so"));
  wrong = options();
  wrong.ordinal = 1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(open_device(wrong)); }),
              HasSubstr("expected a device below 1, found 1"));
  wrong = options();
  wrong.modules.emplace_back("other");
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(open_device(wrong)); }),
              HasSubstr("found no other in " + folder_));
  put("rows", "text");
  EXPECT_THAT(message_of<InvalidArgument>([&] { static_cast<void>(open_device(options())); }),
              HasSubstr("expected a compiled CUDA module (ELF, or PTX)"));
}

template <typename Function>
Function* of_library(const char* name) {
  void* const library = ::dlopen(CONTEXTILE_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

// compute-sanitizer counts a search for a function in a module without it as an error.
TEST_F(FakeGpu, AsksForFunctionsInTheirModulesAlone) {
  put_module("wgmma");
  DeviceOptions with_wgmma = options();
  with_wgmma.optional_modules = {"wgmma"};
  const Workload workload = batch_of({300, 37}, "causal", small_heads());
  const auto plan =
      plan_and_check(workload, cluster_of(1, 2), parse_strategies("zigzag").at(0), {}).plan;
  RunOptions run;
  run.compare = false;
  const auto missed = of_library<int()>("contextileFakeMissedFunctions");
  const int before = missed();
  const std::unique_ptr<Driver> gpu = open_device(with_wgmma);
  DeviceRanks ranks(*gpu, {}, Program::kWgmma);
  run.host = &ranks;
  EXPECT_GT(run_plan(plan, run).masks.at(0).result_bits, 0U);
  EXPECT_EQ(missed(), before);
}

// A function that its first launch loads makes that launch wait for kernels of NCCL under way.
TEST_F(FakeGpu, LoadsAllFunctionsBeforeTheFirstLaunch) {
  const auto loaded = of_library<int()>("contextileFakeLoadedFunctions");
  const int before = loaded();
  const std::unique_ptr<Driver> gpu = open_device(options());
  EXPECT_EQ(loaded(), before + 2);
}

TEST_F(FakeGpu, LeavesTheContextOfTheThreadAlone) {
  const auto current = of_library<int(void**)>("cuCtxGetCurrent");
  void* context = this;
  const std::unique_ptr<Driver> gpu = open_device(options());
  const Stream stream = gpu->create_stream();
  std::byte* const memory = gpu->allocate(4);
  gpu->fill(stream, memory, 1, 4);
  gpu->synchronize(stream);
  ASSERT_EQ(current(&context), 0);
  EXPECT_EQ(context, nullptr);
  gpu->within([&] {
    ASSERT_EQ(current(&context), 0);
    EXPECT_NE(context, nullptr);
    gpu->fill(stream, memory, 2, 4);
    void* still = nullptr;
    ASSERT_EQ(current(&still), 0);
    EXPECT_EQ(still, context);
  });
  gpu->free(memory);
}

TEST_F(FakeGpu, MovesDataBeforeAttentionThatHasNotBegun) {
  const auto priority = of_library<int(void*, int*)>("cuStreamGetPriority");
  const std::unique_ptr<Driver> gpu = open_device(options());
  const RankStreams streams(*gpu);
  gpu->within([&] {
    int compute = -1;
    int moves = 0;
    ASSERT_EQ(priority(gpu->native(streams.compute), &compute), 0);
    ASSERT_EQ(priority(gpu->native(streams.moves), &moves), 0);
    EXPECT_EQ(compute, 0);
    EXPECT_EQ(moves, -5);  // a lower number is more urgent
  });
}

// Drivers know no modules of newer toolkits.
TEST_F(FakeGpu, SaysWhichDriverAModuleNeeds) {
  put("rows", "//\nof a format that this driver does not know\n");
  EXPECT_THAT(message_of<DeviceError>([&] { static_cast<void>(open_device(options())); }),
              ::testing::AllOf(HasSubstr("rows.sm_90a.cubin, which needs a driver of the major "
                                         "version of the CUDA toolkit that compiled it, or newer"),
                               HasSubstr("CUDA error 200")));
}

TEST_F(FakeGpu, TakesPtxForAModule) {
  put("rows", "// rows");
  EXPECT_TRUE(open_device(options())->has_module("rows"));
}

// A kernel that was compiled from other sources than the library has another argument.
TEST_F(FakeGpu, RefusesKernelsOfOtherSources) {
  put("rows",
      "//\n.version 9.0\n.target sm_90a\n"
      ".visible .entry rows_fill(.param .align 8 .b8 rows_fill_param_0[24]) { ret; }\n");
  const std::unique_ptr<Driver> gpu = open_device(options());
  const Stream stream = gpu->create_stream();
  const Grid grid{.module = "rows", .kernel = "rows_fill", .threads = 32};
  const std::array<std::byte, 24> argument{};
  const auto launch = [&](std::size_t bytes) {
    gpu->launch(stream, grid, std::span(argument).first(bytes), nullptr);
  };
  EXPECT_EQ(message_of([&] { launch(24); }), "no error");
  EXPECT_THAT(message_of([&] { launch(16); }),
              HasSubstr("expected rows_fill in rows to take 16 bytes, as this library passes, "
                        "found a kernel of 24"));
}

TEST_F(FakeGpu, IsNoEmulatedOne) {
  put_module("paged");
  const std::unique_ptr<Gpu> gpu =
      open_gpu("0", {.kernels = folder_, .library = CONTEXTILE_FAKE_LIBCUDA});
  EXPECT_FALSE(gpu->is_emulated());
  const std::array<std::byte, 4> memory{};
  EXPECT_THAT(message_of([&] { static_cast<void>(gpu->lend(memory)); }),
              HasSubstr("expected an emulated one, to lend memory to, found a CPU"));
}

TEST(EmulatedGpu, SaysWhichOptionsItLacks) {
  const auto message = [](const std::string& device, const GpuOptions& options) {
    return message_of([&] { static_cast<void>(open_gpu(device, options)); });
  };
  EXPECT_THAT(message("emulated", {.ordinal = 1}), HasSubstr("expected number 0, found 1"));
  EXPECT_THAT(message("emulated", {.library = "libcuda.so"}),
              HasSubstr("expected no library, found 'libcuda.so'"));
  EXPECT_THAT(message("emulated", {.kernels = "/nowhere"}),
              HasSubstr("expected the PTX of the kernels"));
  for (const char* device : {"", "-1", "1x", "99999999999"}) {
    EXPECT_THAT(message(device, {}), HasSubstr("gpu: expected a number or emulated")) << device;
  }
}

}  // namespace
}  // namespace contextile::cuda
