// The files of compiled modules that a device loads, and the shared memory that it has. The
// driver's library is the tests' own, with a device of any compute capability
// (CONTEXTILE_FAKE_CAPABILITY).
#include "gpu/module_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "contextile/advanced/gpu.h"
#include "gpu/libcuda.h"
#include "support/message_of.h"

namespace contextile::cuda {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class ModuleFolders : public ::testing::Test {
 protected:
  ModuleFolders() {
    for (const std::string& folder : {first_, second_}) std::filesystem::create_directories(folder);
  }
  ~ModuleFolders() override {
    ::unsetenv("CONTEXTILE_FAKE_CAPABILITY");
    std::filesystem::remove_all(root_);
  }

  static void put(const std::string& folder, const std::string& file) {
    const std::string module = file.substr(0, file.find('.'));
    std::ofstream(folder + "/" + file) << (file.ends_with(".ptx") ? "// "
                                                                  : "\x7f"
                                                                    "ELF")
                                       << module;
  }
  // Puts the modules that every device needs.
  static void put_all(const std::string& folder, const std::string& ending) {
    for (const char* module : {"mma", "paged", "rows"}) put(folder, module + ending);
  }
  [[nodiscard]] DeviceOptions options() const {
    return {.folders = {first_, second_},
            .modules = {"mma", "paged", "rows"},
            .optional_modules = {"wgmma"},
            .library = CONTEXTILE_FAKE_LIBCUDA};
  }
  [[nodiscard]] std::unique_ptr<Driver> open(const char* capability) const {
    ::setenv("CONTEXTILE_FAKE_CAPABILITY", capability, 1);
    return open_device(options());
  }
  [[nodiscard]] ModuleFiles found(std::int32_t major, std::int32_t minor) const {
    return find_modules(options(), architectures_for(major, minor), "a GPU");
  }

  const std::string root_ = ::testing::TempDir() + "/modules";
  const std::string first_ = root_ + "/first";
  const std::string second_ = root_ + "/second";
};

TEST_F(ModuleFolders, PtxIsLoadedWhereNoCubinFitsTheDevice) {
  put_all(first_, ".compute_80.ptx");
  put(first_, "wgmma.compute_90a.ptx");
  for (const char* capability : {"8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0"}) {
    SCOPED_TRACE(capability);
    const std::unique_ptr<Driver> gpu = open(capability);
    for (const char* module : {"mma", "paged", "rows"}) EXPECT_TRUE(gpu->has_module(module));
    // Its PTX is of an architecture that no other device runs.
    EXPECT_EQ(gpu->has_module("wgmma"), std::string(capability) == "9.0");
  }
}

TEST_F(ModuleFolders, ACubinIsPreferredToThePtxBesideIt) {
  for (const char* ending : {".sm_80.cubin", ".sm_90a.cubin", ".compute_80.ptx"}) {
    put_all(first_, ending);
  }
  const auto of_mma = [&](std::int32_t major) { return found(major, 0).find("mma")->second; };
  EXPECT_EQ(of_mma(8), first_ + "/mma.sm_80.cubin");
  EXPECT_EQ(of_mma(9), first_ + "/mma.sm_90a.cubin");
  EXPECT_EQ(of_mma(10), first_ + "/mma.compute_80.ptx");
}

TEST_F(ModuleFolders, AModuleWithoutACubinTakesThePtxBesideTheOthers) {
  put_all(first_, ".compute_80.ptx");
  put(first_, "mma.sm_90a.cubin");
  EXPECT_THAT(found(9, 0), ElementsAre(Pair("mma", first_ + "/mma.sm_90a.cubin"),
                                       Pair("paged", first_ + "/paged.compute_80.ptx"),
                                       Pair("rows", first_ + "/rows.compute_80.ptx")));
}

// Modules of two builds would not fit each other.
TEST_F(ModuleFolders, AllModulesComeFromTheFirstFolderThatHasThem) {
  put_all(first_, ".sm_80.cubin");
  put(first_, "mma.sm_90a.cubin");
  put(first_, "wgmma.sm_90a.cubin");
  put_all(second_, ".compute_80.ptx");
  EXPECT_THAT(found(9, 0), ElementsAre(Pair("mma", second_ + "/mma.compute_80.ptx"),
                                       Pair("paged", second_ + "/paged.compute_80.ptx"),
                                       Pair("rows", second_ + "/rows.compute_80.ptx")));
  EXPECT_TRUE(open("9.0")->has_module("rows"));
  EXPECT_EQ(found(8, 6).find("rows")->second, first_ + "/rows.sm_80.cubin");
}

TEST_F(ModuleFolders, EveryFolderAndFileThatWasLookedForIsNamed) {
  put_all(first_, ".sm_80.cubin");
  put(first_, "rows.compute_80.ptx");
  std::filesystem::remove_all(second_);
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { static_cast<void>(open("9.0")); }),
      AllOf(HasSubstr("cuda: expected kernels for a CPU (compute capability 9.0), each as "
                      "MODULE.sm_90a.cubin or MODULE.compute_90a.ptx or MODULE.compute_80.ptx in "
                      "one folder, found no mma, paged in " +
                      first_ + ", no folder " + second_ + "; "),
            HasSubstr("contextile_cuda compiles them"), HasSubstr("CONTEXTILE_CUDA_KERNELS")));
}

TEST(Architectures, AreThoseThatRunOnTheDeviceTheBestFirst) {
  EXPECT_THAT(architectures_for(8, 0), ElementsAre("sm_80", "compute_80"));
  EXPECT_THAT(architectures_for(8, 9), ElementsAre("sm_80", "compute_80"));
  EXPECT_THAT(architectures_for(9, 0), ElementsAre("sm_90a", "compute_90a", "compute_80"));
  EXPECT_THAT(architectures_for(9, 1), ElementsAre("compute_80"));
  EXPECT_THAT(architectures_for(10, 3), ElementsAre("sm_100", "compute_80"));
  EXPECT_THAT(architectures_for(12, 0), ElementsAre("compute_80"));
  EXPECT_THAT(message_of<InvalidArgument>([] { static_cast<void>(architectures_for(7, 5)); }),
              HasSubstr("expected a device of compute capability 8.0 or higher, found 7.5"));
}

// The kernel of pages of fp8 with heads of 576 and 512 needs more than these devices have.
TEST_F(ModuleFolders, AKernelThatNeedsMoreSharedMemoryThanTheDeviceHasIsNamed) {
  put_all(first_, ".compute_80.ptx");
  const Grid grid{.module = "paged",
                  .kernel = "paged_bytes_bf16_576_512",
                  .threads = 128,
                  .shared_bytes = 132'608};
  const auto launch = [&](const char* capability) {
    const std::unique_ptr<Driver> gpu = open(capability);
    const std::array<std::byte, 8> argument{};
    return message_of([&] { gpu->launch(gpu->create_stream(), grid, argument, nullptr); });
  };
  for (const char* capability : {"8.6", "8.9", "12.0"}) {
    EXPECT_THAT(launch(capability),
                HasSubstr("cuda: expected at most 101376 bytes of shared memory in a block, as "
                          "this GPU has, found 132608 for paged_bytes_bf16_576_512 in paged"));
  }
  EXPECT_THAT(launch("9.0"), HasSubstr("as this library passes"));
}

}  // namespace
}  // namespace contextile::cuda
