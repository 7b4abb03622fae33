// Messages between ranks whose tensors are not one piece of memory: one launch copies a list of
// ranges. CONTEXTILE_FAKE_LIBCUDA is a driver's library that counts (support/fake_libcuda.cc).
#include "transport/cuda/run_copies.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "gpu/libcuda.h"
#include "support/host_driver.h"
#include "support/strided_case.h"
#include "transport/strided_copy.h"

namespace contextile::cuda {
namespace {

using ::testing::IsEmpty;

// Bytes that differ from each other and from those of another seed.
std::vector<std::byte> random_bytes(std::int64_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.next() & 0xff);
  return bytes;
}

// Widths are those of all accesses, and one that needs a narrower access.
TEST(RunCopies, GiveTheBytesOfCopiesOnTheHost) {
  for (const std::int64_t width : {16, 12, 8, 4, 2, 1}) {
    for (const std::int64_t units : {1, 3, 300, 5000}) {
      SCOPED_TRACE(testing::Message() << units << " times " << width << " bytes");
      Rng rng(static_cast<std::uint64_t>(width + units));
      const SegmentPlaces source(rng, units * width, width);
      const SegmentPlaces target(rng, units * width, width);
      const std::vector<std::byte> from = random_bytes(source.size_bytes(), 1);
      std::vector<std::byte> expected = random_bytes(target.size_bytes(), 2);
      HostDriver driver(HostDriver::Mode::kRecorded);
      const Stream stream = driver.create_stream();
      std::byte* const to_copy = driver.allocate(source.size_bytes());
      std::byte* const copied = driver.allocate(target.size_bytes());
      driver.write(stream, to_copy, from);
      driver.write(stream, copied, expected);
      RunCopies copies(driver, stream);
      copies.add(source.in(to_copy), target.in(copied));
      copies.flush();
      std::vector<std::byte> found(expected.size());
      driver.read(stream, found, copied);
      copy_segments(source.in(const_cast<std::byte*>(from.data())), target.in(expected.data()));
      EXPECT_EQ(found, expected);
      EXPECT_THAT(driver.races(), IsEmpty());
      driver.free(to_copy);
      driver.free(copied);
    }
  }
}

// A device of the driver's library, and how often copies and kernels were given to it.
class CountedDevice : public ::testing::Test {
 protected:
  CountedDevice() {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/rows.sm_90a.cubin") << "\x7f"
                                                     "ELFrows";
    gpu_ = open_device({.ordinal = 0,
                        .folders = {folder_},
                        .modules = {"rows"},
                        .optional_modules = {},
                        .library = CONTEXTILE_FAKE_LIBCUDA});
    stream_ = gpu_->create_stream();
    memory_ = gpu_->allocate(kBytes);
    other_ = gpu_->allocate(kBytes);
    packed_ = gpu_->allocate(2 * kBytes);
  }
  ~CountedDevice() override {
    for (std::byte* memory : {memory_, other_, packed_}) gpu_->free(memory);
    std::filesystem::remove_all(folder_);
  }
  static int number_of(const char* name) {
    void* const library = ::dlopen(CONTEXTILE_FAKE_LIBCUDA, RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<int (*)()>(::dlsym(library, name))();
  }
  // Returns {copies, launches} of a message that is packed.
  [[nodiscard]] std::array<int, 2> given_for(const std::vector<Segment>& from) const {
    const std::array<int, 2> before = {number_of("contextileFakeCopies"),
                                       number_of("contextileFakeLaunches")};
    std::int64_t bytes = 0;
    for (const Segment& segment : from) bytes += segment.size_bytes();
    const Segment to{packed_, bytes, 1, bytes};
    RunCopies copies(*gpu_, stream_);
    copies.add(from, {&to, 1});
    copies.flush();
    gpu_->synchronize(stream_);
    return {number_of("contextileFakeCopies") - before[0],
            number_of("contextileFakeLaunches") - before[1]};
  }

  static constexpr std::int64_t kBytes = 1 << 16;
  const std::string folder_ = ::testing::TempDir() + "/run_copies";
  std::unique_ptr<Driver> gpu_;
  Stream stream_;
  std::byte* memory_ = nullptr;
  std::byte* other_ = nullptr;
  std::byte* packed_ = nullptr;
};

using Given = std::array<int, 2>;

TEST_F(CountedDevice, CopiesAListOfRangesByOneLaunch) {
  std::vector<Segment> segments = {{memory_, 16, 100, 48}, {other_, 16, 2, 32}};
  EXPECT_EQ(given_for(segments), (Given{0, 1}));
  for (int i = 2; i < CopyList::kMostRanges; ++i) {
    segments.push_back({other_ + 96 * i, 16, 2, 32});
  }
  EXPECT_EQ(given_for(segments), (Given{0, 1}));
  segments.push_back({memory_, 32, 1, 32});
  EXPECT_EQ(given_for(segments), (Given{1, 1}));  // what is left is one piece
  segments.push_back({memory_, 16, 2, 32});
  EXPECT_EQ(given_for(segments), (Given{0, 2}));
}

TEST_F(CountedDevice, CopiesOnePieceOfMemoryWithoutAKernel) {
  EXPECT_EQ(given_for({{memory_, 64, 4, 64}}), (Given{1, 0}));
  EXPECT_EQ(given_for({}), (Given{0, 0}));
}

}  // namespace
}  // namespace contextile::cuda
