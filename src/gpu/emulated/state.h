// A block of threads while it runs.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpu/box_map.h"
#include "gpu/emulated/kernel.h"
#include "gpu/emulated/machine.h"
#include "gpu/emulated/races.h"

namespace contextile::ptx {

template <typename... Values>
[[noreturn]] void fault(fmt::format_string<Values...> format, Values&&... values) {
  throw Fault(fmt::format(format, std::forward<Values>(values)...));
}

inline constexpr std::uint32_t kPiece = 16;  // bytes whose proxy is tracked as one

// A cp.async that has not completed.
struct PendingCopy {
  std::uint32_t to = 0;
  std::uint64_t from = 0;
  std::uint32_t bytes = 0;  // the rest of 16 bytes becomes zeros
};

// A wgmma.mma_async that has not completed, and its operands as they were when it began.
struct Product {
  const Instruction* instruction = nullptr;
  std::uint64_t left = 0;  // descriptors
  std::uint64_t right = 0;
  std::array<Lanes32, 4> left_registers = {};
  std::vector<std::uint16_t> elements;  // those of shared memory, left before right
  bool adds = false;
};

// The true sums of a register that holds NaN while products of it are under way.
struct HiddenSum {
  Lanes32 sum = {};
  int num_products = 0;
};

struct Warp {
  int index = 0;
  std::vector<LaneMask> predicates;
  std::vector<Lanes32> words;
  std::vector<Lanes64> wides;

  // Control flow. While the lanes are together, `at` is the counter of all.
  LaneMask alive = kAllLanes;
  bool is_together = true;
  std::uint32_t at = 0;
  std::array<std::uint32_t, kLanes> counters = {};
  LaneMask jumping = 0;  // lanes that the last instruction sent to its target
  bool is_blocked = false;
  bool gives_way = false;  // ends its turn
  int num_failed_waits = 0;

  std::vector<PendingCopy> copies;
  std::vector<Product> open;                // since the last commit
  std::deque<std::vector<Product>> groups;  // committed
  bool has_product_fence = false;
  std::unordered_map<std::uint32_t, HiddenSum> hidden;
  std::set<std::uint32_t> unfenced;         // pieces of shared memory
  std::set<std::uint32_t> unfenced_phases;  // mbarriers that it initialized
  std::set<std::uint64_t> acquired_maps;
  int num_registers = 0;  // by setmaxnreg, 0 before
};

// A named barrier of bar.sync and bar.arrive.
struct NamedBarrier {
  std::uint32_t num_arrived = 0;
  std::uint32_t num_expected = 0;
  std::vector<int> waiting;  // warps
  Races::Clock clock;
};

struct PhaseBarrier {
  int num_expected = 0;
  int num_pending = 0;
  std::int64_t pending_bytes = 0;
  std::uint32_t phase = 0;
  bool is_fenced = false;  // the asynchronous proxy sees its initialization
  Races::Clock clock;
};

// A TMA copy that has not completed.
struct BoxCopy {
  std::uint32_t to = 0;
  cuda::BoxSource source;
  std::int32_t col = 0;
  std::int32_t head = 0;
  std::int32_t token = 0;
  std::uint32_t barrier = 0;
  std::uint32_t time = 0;  // of the proxy
};

struct Block {
  Machine* machine = nullptr;
  const Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  std::uint8_t* has_run = nullptr;  // by instruction of the kernel
  int x = 0;
  int y = 0;
  std::mt19937_64 random;
  std::vector<std::uint8_t> shared;
  std::vector<int> writer;  // per piece: 1 + the warp whose write needs a proxy fence, or 0
  std::vector<Warp> warps;
  std::array<NamedBarrier, 16> barriers;
  std::map<std::uint32_t, PhaseBarrier> phases;  // by address
  std::vector<BoxCopy> box_copies;
  Races races;

  [[nodiscard]] bool is_late() const { return machine->timing == Timing::kLate; }

  // The bytes of shared memory at an address, which must be aligned to their number.
  [[nodiscard]] std::uint8_t* at(std::uint32_t address, std::uint32_t bytes) {
    if (address < kSharedBegin || std::uint64_t{address} + bytes > kSharedBegin + shared.size()) {
      fault("expected shared memory below {}, found {} bytes at {}", kSharedBegin + shared.size(),
            bytes, address);
    }
    if (address % (bytes > 16 ? 16 : bytes) != 0) {
      fault("expected an aligned shared address, found {} bytes at {}", bytes, address);
    }
    return shared.data() + (address - kSharedBegin);
  }
  [[nodiscard]] static std::uint32_t piece_of(std::uint32_t address) {
    return (address - kSharedBegin) / kPiece;
  }
  // Notes a write of the generic proxy, of at most 16 bytes.
  void note_write(std::uint32_t address, std::uint32_t bytes, Warp& warp) {
    races.write(warp.index, address - kSharedBegin, bytes);
    writer[piece_of(address)] = 1 + warp.index;
    warp.unfenced.insert(piece_of(address));
  }
  void note_read(std::uint32_t address, std::uint32_t bytes, const Warp& warp) {
    races.read(warp.index, address - kSharedBegin, bytes);
  }
  // Requires a proxy fence between a write of the generic proxy and an access of the other one.
  void require_fenced(std::uint32_t address, std::string_view who) {
    static_cast<void>(at(address, 1));
    if (writer[piece_of(address)] != 0) {
      fault("expected fence.proxy.async between a write at {} and its use by {}", address, who);
    }
  }
  void require_memory(std::uint64_t address, std::uint64_t bytes, const Instruction& in) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(launch->parameters.data());
    const std::uint64_t offset = address - begin;
    const std::size_t size = launch->parameters.size();
    const bool is_parameter = offset <= size && bytes <= size - offset;
    const bool is_known = machine->is_memory == nullptr || machine->is_memory(address, bytes);
    if (address < kNullPage || (!is_parameter && !is_known)) {
      fault("{}: expected memory of the device, found {} bytes at {:#x}", in.text, bytes, address);
    }
  }
  static constexpr std::uint64_t kNullPage = 65536;
};

// Instructions of whole warps (.aligned) are reached by all lanes together.
inline void require_whole_warp(const Warp& warp, const Instruction& in, LaneMask mask) {
  if (mask != kAllLanes || mask != warp.alive) {
    fault("{}: expected all lanes of the warp, found mask {:#010x}", in.text, mask);
  }
}

}  // namespace contextile::ptx
