// The work of a CTA of warpgroups on sm_90a, in loops, as the PTX manual defines it: barriers,
// copies of boxes, products that run next to the threads. All of it happens as late as it may.
// Memory that must not be touched until then holds NaN or is compared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernel/cuda/wgmma_steps.h"
#include "support/group_turns.h"
#include "support/host_cta.h"

namespace contextile::cuda {

// Warps of the producer that have work of their own, and all that take turns.
inline constexpr int kProducerWarps = 2;
inline constexpr int kParts = kProducerWarps + kConsumers;

// The state that the groups of a CTA share.
class HostGroups {
 public:
  HostGroups(std::size_t shared_bytes, std::uint64_t seed);

  GroupTurns& turns() { return turns_; }
  [[nodiscard]] std::uint16_t* shared() const { return shared_.get(); }
  // Addresses in shared memory begin where those of devices do; kernels get the memory behind that.
  [[nodiscard]] std::uint32_t address(const void* place) const;
  [[nodiscard]] std::uint16_t& element_at(std::uint32_t address) const;

  void open(Barrier& barrier, int arrivals);
  void arrive(Barrier& barrier, int count);
  void expect(Barrier& barrier, std::int64_t bytes);
  void copy_box(std::uint16_t* to, const BoxMap& map, int col, int head, std::int32_t token,
                Barrier& full);
  void wait(int part, Barrier& barrier, std::uint32_t parity);
  void sync(int part);
  void await_turn(int part, int consumer);
  void pass_turn(int consumer) { ++turns_passed_[static_cast<std::size_t>(consumer)]; }
  // At the end: no turn was passed without being taken.
  void expect_no_turn() const;

 private:
  struct Copy {
    std::uint32_t to = 0;
    BoxSource source;
    int col = 0, head = 0;
    std::int32_t token = 0;
    [[nodiscard]] std::int64_t num_rows() const {
      return std::int64_t{source.box_heads} * source.box_tokens;
    }
    [[nodiscard]] std::int64_t bytes() const { return num_rows() * source.box_cols * 2; }
  };
  struct State {
    int arrivals = 0;  // of every phase
    int missing = 0;   // of this phase
    std::int64_t expected_bytes = 0;
    std::uint32_t phase = 0;
    std::vector<Copy> copies;

    [[nodiscard]] bool can_end() const;
  };

  State& state_of(Barrier& barrier);
  void end_phase(State& state);
  template <typename Value>
  void write_box(const Copy& copy, const Value& value) const;

  struct Free {
    void operator()(std::uint16_t* memory) const;
  };
  const std::size_t shared_bytes_;
  std::unique_ptr<std::uint16_t, Free> shared_;
  GroupTurns turns_;
  std::map<const Barrier*, State> barriers_;
  int num_synced_ = 0;
  std::array<int, 1 + kConsumers> turns_passed_ = {};  // to each and not taken
};

// Products of one group, in the order in which they were started.
class HostProducts {
 public:
  static constexpr int kRows = kGroupRows;
  // Sums or factors as matrices, rows first.
  template <typename T>
  using Matrix = std::vector<T>;
  using Bits = Matrix<std::uint16_t>;

  // A product that was started. Until it has ended, its sums hold NaN, and its factors must not
  // change.
  struct Product {
    const void* sums = nullptr;
    std::function<Bits()> left, right;  // as they are now: kRows x 16, width x 16
    Bits left_before, right_before;
    int width = 0;
    bool adds = true;
    float (*number)(std::uint16_t) = nullptr;
    Matrix<float> held;                             // of the sums; none: they are in flight already
    std::function<void(const Matrix<float>&)> end;  // writes them back
  };

  void fence() { is_fenced_ = true; }
  void start(Product product);
  void commit();
  void wait(std::size_t open);
  void expect_at_rest(const void* sums) const;
  [[nodiscard]] bool is_in_flight(const void* sums) const { return in_flight_.contains(sums); }
  void expect_none() const;

 private:
  struct InFlight {
    Matrix<float> values;
    int num_products = 0;
  };
  void finish(const Product& product);

  bool is_fenced_ = false;
  std::vector<Product> started_;
  std::deque<std::vector<Product>> committed_;
  std::map<const void*, InFlight> in_flight_;
};

class HostGroup : public HostCta {
 public:
  // Part `part` of those that take turns: warps of the producer first, then the consumers.
  HostGroup(HostGroups& cta, int part)
      : cta_(cta),
        part_(part),
        index_(part < kProducerWarps ? kProducer : part - kProducerWarps + 1),
        producer_warp_(part < kProducerWarps ? part : -1) {}

  [[nodiscard]] int index() const { return index_; }
  template <typename Work>
  void one_lane(const Work& work) {
    work();
  }
  void sync_cta() { cta_.sync(part_); }
  [[nodiscard]] int producer_warp() const { return producer_warp_; }
  void await_turn() { cta_.await_turn(part_, index_); }
  void pass_turn() { cta_.pass_turn(1 + kConsumers - index_); }
  template <int kRegisters>
  void give_registers() {}
  template <int kRegisters>
  void take_registers() {}

  void open(Barrier& barrier, int arrivals) { cta_.open(barrier, arrivals); }
  void publish_barriers() {}
  void publish_writes() {}
  void wait(Barrier& barrier, std::uint32_t parity) { cta_.wait(part_, barrier, parity); }
  void arrive(Barrier& barrier) { cta_.arrive(barrier, 1); }
  void arrive_warps(Barrier& barrier) { cta_.arrive(barrier, kGroupWarps); }
  void expect(Barrier& barrier, std::uint32_t bytes) { cta_.expect(barrier, bytes); }
  void read_maps(const BoxMap& first, const BoxMap& second) { read_.insert({&first, &second}); }
  void copy_box(std::uint16_t* to, const BoxMap& map, int col, int head, std::int32_t token,
                Barrier& full) {
    CONTEXTILE_CHECK(read_.contains(&map), "copy: expected a map that was read, found another");
    cta_.copy_box(to, map, col, head, token, full);
  }
  [[nodiscard]] std::uint32_t address(const void* place) const { return cta_.address(place); }

  void begin_products() { products_.fence(); }
  void commit_products() { products_.commit(); }
  template <int kOpen>
  void wait_products() {
    products_.wait(kOpen);
  }
  template <int kTiles>
  void pin(PerWarp<PerLane<Sums<kTiles>>>& sums) {
    products_.expect_at_rest(&sums);
  }
  template <int kTiles, int kBegin = 0, int kEnd = kTiles>
  void pin(PerWarp<PerLane<Weights<kTiles>>>& /*weights*/) {}
  template <typename Rows>
  void settle(const Rows& /*rows*/, const void* /*place*/) {}
  template <int kTiles>
  void settle_weights(PerWarp<PerLane<Sums<kTiles>>>& weights, Barrier& over, std::uint32_t parity,
                      const void* /*place*/) {
    pin(weights);
    wait(over, parity);
  }

  // wgmma.mma_async.sync.aligned.m64nNk16 with both factors in shared memory.
  template <Number kNumber, int kTiles>
  void multiply_rows(PerWarp<PerLane<Sums<kTiles>>>& sums, std::uint64_t left, std::uint64_t right,
                     bool adds) {
    start<kNumber>(
        sums, [=, this] { return rows_at(left, kGroupRows); },
        [=, this] { return rows_at(right, kTiles * 8); }, adds);
  }
  // … with the left factor in registers, and the right one's rows along the depth.
  template <Number kNumber, int kTiles, int kDepthTiles>
  void multiply_weights(PerWarp<PerLane<Sums<kTiles>>>& sums,
                        const PerWarp<PerLane<Weights<kDepthTiles>>>& weights, int step,
                        std::uint64_t right) {
    start<kNumber>(
        sums, [&weights, step] { return bits_of(weights, step); },
        [=, this] { return depth_at(right, kTiles * 8); }, true);
  }

  // Called at the end of the program.
  void expect_over() const { products_.expect_none(); }

 private:
  using Bits = HostProducts::Bits;

  // Canonical layouts of the 128-byte swizzle: groups of eight rows of 128 bytes, chunks of 16
  // bytes that change places with the address's bits 7 to 9.
  [[nodiscard]] Bits rows_at(std::uint64_t descriptor, int num_rows) const;
  [[nodiscard]] Bits depth_at(std::uint64_t descriptor, int width) const;

  // "Register fragments" of wgmma: warp w has rows 16w to 16w + 15.
  template <int kTiles>
  static Bits bits_of(const PerWarp<PerLane<Weights<kTiles>>>& weights, int step) {
    Bits bits(kGroupRows * kDepth);
    for_all_lanes([&](std::size_t warp, std::size_t lane) {
      for (int r = 0; r < 4; ++r) {
        for (int half = 0; half < 2; ++half) {
          const std::size_t row = warp * 16 + lane / 4 + static_cast<std::size_t>(r % 2 * 8);
          const std::size_t col = lane % 4 * 2 + static_cast<std::size_t>(r / 2 * 8 + half);
          bits[row * kDepth + col] =
              static_cast<std::uint16_t>(weights[warp][lane].x[step][r] >> (16 * half));
        }
      }
    });
    return bits;
  }
  template <int kTiles, typename Visit>
  static void for_all_sums(const Visit& visit) {
    for_all_lanes([&](std::size_t warp, std::size_t lane) {
      for (std::size_t tile = 0; tile < kTiles; ++tile) {
        for (std::size_t i = 0; i < 4; ++i) {
          const std::size_t row = warp * 16 + lane / 4 + i / 2 * 8;
          const std::size_t col = tile * 8 + lane % 4 * 2 + i % 2;
          visit(warp, lane, tile, i, row * kTiles * 8 + col);
        }
      }
    });
  }
  template <typename Visit>
  static void for_all_lanes(const Visit& visit) {
    for (std::size_t warp = 0; warp < kGroupWarps; ++warp) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) visit(warp, lane);
    }
  }

  template <Number kNumber, int kTiles>
  void start(PerWarp<PerLane<Sums<kTiles>>>& sums, std::function<Bits()> left,
             std::function<Bits()> right, bool adds) {
    HostProducts::Product product;
    product.sums = &sums;
    product.left_before = left();
    product.right_before = right();
    product.left = std::move(left);
    product.right = std::move(right);
    product.width = kTiles * 8;
    product.adds = adds;
    product.number = kNumber == Number::kBf16 ? bf16_to_float : f16_to_float;
    if (!products_.is_in_flight(&sums)) {
      product.held.resize(std::size_t{kGroupRows} * kTiles * 8);
      for_all_sums<kTiles>(
          [&](std::size_t warp, std::size_t lane, std::size_t tile, std::size_t i, std::size_t at) {
            float& sum = sums[warp][lane].x[tile][i];
            product.held[at] = std::exchange(sum, std::numeric_limits<float>::quiet_NaN());
          });
    }
    product.end = [&sums](const std::vector<float>& values) {
      for_all_sums<kTiles>([&](std::size_t warp, std::size_t lane, std::size_t tile, std::size_t i,
                               std::size_t at) { sums[warp][lane].x[tile][i] = values[at]; });
    };
    products_.start(std::move(product));
  }

  HostGroups& cta_;
  const int part_;
  const int index_;
  const int producer_warp_;
  HostProducts products_;
  std::set<const BoxMap*> read_;
};

}  // namespace contextile::cuda
