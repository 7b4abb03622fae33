// Ranks with a GPU each, as users have them: each is a process with a group for control messages.
// Here each is a thread, and the libraries of the driver and of NCCL run on this CPU.
#include "transport/cuda/nccl_group.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "contextile/advanced/gpu.h"
#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/host_driver.h"
#include "support/message_of.h"
#include "transport/cuda/nccl.h"

namespace contextile::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class Nccl : public ::testing::Test {
 protected:
  Nccl() {
    ::setenv("CONTEXTILE_FAKE_DEVICES", "4", 1);
    std::filesystem::create_directories(folder_);
    for (const char* module : {"mma", "paged", "rows"}) {
      std::ofstream(fmt::format("{}/{}.sm_90a.cubin", folder_, module)) << "\x7f"
                                                                           "ELF"
                                                                        << module;
    }
  }
  ~Nccl() override {
    std::filesystem::remove_all(folder_);
    ::unsetenv("CONTEXTILE_FAKE_DEVICES");
  }

  [[nodiscard]] GpuOptions on_gpu(std::int32_t ordinal) const {
    GpuOptions options;
    options.ordinal = ordinal;
    options.kernels = folder_;
    options.library = CONTEXTILE_FAKE_LIBCUDA;
    options.nccl_library = CONTEXTILE_FAKE_LIBNCCL;
    return options;
  }
  // Returns the error that each rank gets from joining; "no error" if it gets none.
  [[nodiscard]] static std::vector<std::string> refused(const std::vector<GpuOptions>& ranks) {
    std::vector<std::string> said(ranks.size());
    run_inproc(static_cast<std::int32_t>(ranks.size()), [&](Transport& control) {
      const std::unique_ptr<Gpu> gpu = open_gpu(ranks[control.rank().index()]);
      said[control.rank().index()] =
          message_of<InvalidArgument>([&] { return gpu->join(control) != nullptr; });
    });
    return said;
  }

  const std::string folder_ = ::testing::TempDir() + "/nccl_kernels";
};

TEST_F(Nccl, RanksOfAGroupRunPlansWithTheBitsOfOneDevice) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  shape.sink = true;
  const Workload workload = batch_of({300, 37, 190}, "lambda:16,100", shape);
  for (const char* strategy : {"zigzag", "dcp", "hybrid"}) {
    SCOPED_TRACE(strategy);
    const auto plan =
        plan_and_check(workload, cluster_of(1, 4), parse_strategies(strategy).at(0), {}).plan;
    HostDriver at_once(HostDriver::Mode::kAtOnce);
    DeviceRanks one(at_once);
    RunOptions options;
    options.compare = false;
    options.host = &one;
    const std::uint64_t expected = run_plan(plan, options).masks.at(0).result_bits;
    RunReport found;
    run_inproc(4, [&](Transport& control) {
      const GpuOptions gpu_options = on_gpu(control.rank().value);
      EXPECT_EQ(num_gpus(gpu_options), 4);
      const std::unique_ptr<Gpu> gpu = open_gpu(gpu_options);
      const std::unique_ptr<Transport> rank = gpu->join(control);
      RunOptions mine;
      mine.host = gpu.get();
      mine.rank = rank.get();
      const RunReport report = run_plan(plan, mine);
      if (control.rank() == Rank{0}) found = report;
    });
    EXPECT_TRUE(found.ok());
    EXPECT_EQ(found.masks.at(0).errors.size(), 6U);
    EXPECT_EQ(found.masks.at(0).result_bits, expected);
  }
}

TEST_F(Nccl, RanksWithTheSameGpuAreNamedOnAllRanks) {
  EXPECT_THAT(refused({on_gpu(2), on_gpu(0), on_gpu(2)}),
              Each(AllOf(HasSubstr("expected a GPU of its own for each rank, found GPU 2 of "),
                         HasSubstr("(a CPU, GPU-00000000-0000-0000-0000-000000000002) for ranks 0 "
                                   "and 2;"),
                         HasSubstr("torch.cuda.set_device(LOCAL_RANK)"),
                         HasSubstr("device=f\"cuda:{LOCAL_RANK}\""))));
  EXPECT_THAT(refused({on_gpu(0), on_gpu(0), on_gpu(0)}), Each(HasSubstr("for ranks 0, 1 and 2;")));
}

// Otherwise the others would wait for it, and hear only that it is gone.
TEST_F(Nccl, ARankWithoutTheLibraryIsNamedOnAllRanks) {
  for (const std::size_t without : {0, 1}) {
    std::vector<GpuOptions> ranks = {on_gpu(0), on_gpu(1), on_gpu(2)};
    ranks[without].nccl_library = "/none/libnccl.so";
    EXPECT_THAT(refused(ranks), Each(AllOf(HasSubstr(fmt::format("rank {}: nccl: expected NCCL's "
                                                                 "library, found none "
                                                                 "(/none/libnccl.so: ",
                                                                 without)),
                                           HasSubstr("CONTEXTILE_NCCL names its file"))));
  }
}

TEST_F(Nccl, TheEnvironmentMayNameTheLibrary) {
  std::vector<GpuOptions> ranks = {on_gpu(0), on_gpu(1)};
  for (GpuOptions& rank : ranks) rank.nccl_library = "";
  ::setenv("CONTEXTILE_NCCL", "/none/named.so", 1);
  EXPECT_THAT(refused(ranks), Each(HasSubstr("found none (/none/named.so: ")));
  ::setenv("CONTEXTILE_NCCL", CONTEXTILE_FAKE_LIBNCCL, 1);
  EXPECT_THAT(refused(ranks), Each("no error"));
  ::unsetenv("CONTEXTILE_NCCL");
}

TEST(NcclLibrary, TheFirstThatCanBeLoadedIsTaken) {
  EXPECT_EQ(find_nccl({"libnothing.so", CONTEXTILE_FAKE_LIBNCCL, "libnothing_else.so"}),
            CONTEXTILE_FAKE_LIBNCCL);
  EXPECT_THAT(message_of<InvalidArgument>([] {
                return find_nccl({"libnothing.so", "/none/libnccl.so.2"});
              }),
              AllOf(HasSubstr("(libnothing.so: "), HasSubstr("; /none/libnccl.so.2: "),
                    HasSubstr("nvidia/nccl/lib/libnccl.so.2")));
  EXPECT_THAT(message_of<InvalidArgument>([] { return make_nccl_id("libnothing.so"); }),
              HasSubstr("expected the library libnothing.so"));
}

}  // namespace
}  // namespace contextile::cuda
