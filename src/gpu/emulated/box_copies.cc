// cp.async.bulk.tensor, the copies of TMA (section 9.7.9.27 of the PTX manual; 5.5 has tensors and
// their swizzle).
#include <cstdint>
#include <cstring>

#include "gpu/emulated/box_map_format.h"
#include "gpu/emulated/handlers.h"
#include "gpu/emulated/operands.h"

namespace contextile::ptx {
namespace {

constexpr std::uint32_t kRowBytes = 128;  // the width of the swizzle, and of a box

// The 128-byte swizzle exchanges the pieces of 16 bytes by the row within 1,024 bytes.
std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

constexpr std::size_t kMostCopies = 4096;  // of a block under way

bool is_side_of_box(std::int32_t size) { return 1 <= size && size <= 256; }
bool is_inside(std::int64_t at, std::int64_t size) { return 0 <= at && at < size; }

// Copies a row of a box; elements outside of the tensor become zeros.
void land_row(Block& block, const BoxCopy& copy, std::int64_t token, std::int64_t head,
              std::uint32_t to) {
  const cuda::BoxSource& from = copy.source;
  const bool is_row = is_inside(token, from.tokens) && is_inside(head, from.heads);
  // Unsigned numbers wrap around; the memory is checked below.
  const auto part = [](std::int64_t number) { return static_cast<std::uint64_t>(number); };
  const std::uint64_t row = reinterpret_cast<std::uintptr_t>(from.data) +
                            part(token) * part(from.token_stride_bytes) +
                            part(head) * part(from.head_stride_bytes);
  for (std::int32_t col = 0; col < from.box_cols; ++col) {
    std::uint16_t element = 0;
    const std::int64_t at = std::int64_t{copy.col} + col;
    if (is_row && is_inside(at, from.cols)) {
      const std::uint64_t address = row + part(at) * 2;
      if (block.machine->is_memory != nullptr && !block.machine->is_memory(address, 2)) {
        fault("TMA: expected memory of the device, found token {}, head {}", token, head);
      }
      std::memcpy(&element, reinterpret_cast<const void*>(address), 2);
    }
    std::memcpy(block.at(swizzled(to + static_cast<std::uint32_t>(col) * 2), 2), &element, 2);
  }
}

void land(Block& block, const BoxCopy& copy) {
  std::uint32_t num_rows = 0;
  for (std::int32_t token = 0; token < copy.source.box_tokens; ++token) {
    for (std::int32_t head = 0; head < copy.source.box_heads; ++head, ++num_rows) {
      land_row(block, copy, std::int64_t{copy.token} + token, std::int64_t{copy.head} + head,
               copy.to + num_rows * kRowBytes);
    }
  }
  block.races.release_proxy(copy.time, phase_barrier_at(block, copy.barrier).clock);
  complete_bytes(block, copy.barrier, std::int64_t{num_rows} * kRowBytes);
}

BoxCopy copy_of_lane(const Block& block, const Warp& warp, const Instruction& in, int lane) {
  BoxCopy copy;
  copy.to = static_cast<std::uint32_t>(address_of(block, warp, in.operands[0], lane));
  copy.barrier = static_cast<std::uint32_t>(address_of(block, warp, in.operands[2], lane));
  const Operand& source = in.operands[1];  // [map, {col, head, token}]
  const std::uint64_t map = address_of(block, warp, source.parts[0], lane);
  if (map % 64 != 0) fault("{}: expected a tensor map at 64 bytes, found {:#x}", in.text, map);
  block.require_memory(map, sizeof(cuda::BoxMap), in);
  if (!warp.acquired_maps.contains(map)) {
    fault("{}: expected fence.proxy.tensormap before the map is used", in.text);
  }
  cuda::BoxMap packed;
  std::memcpy(&packed, reinterpret_cast<const void*>(map), sizeof(packed));
  copy.source = cuda::source_of(packed);
  const auto coordinate = [&](std::size_t which) {
    const Words lanes(block, warp, source.parts[1].parts[which]);
    return static_cast<std::int32_t>(lanes[lane]);
  };
  copy.col = coordinate(0);
  copy.head = coordinate(1);
  copy.token = coordinate(2);
  return copy;
}

}  // namespace

void finish_box_copies(Block& block, std::uint32_t barrier) {
  for (std::size_t i = 0; i < block.box_copies.size();) {
    if (block.box_copies[i].barrier != barrier) {
      ++i;
      continue;
    }
    const BoxCopy copy = block.box_copies[i];
    block.box_copies.erase(block.box_copies.begin() + static_cast<std::ptrdiff_t>(i));
    land(block, copy);
  }
}

void start_box_copy(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  each_lane(mask, [&](int lane) {
    BoxCopy copy = copy_of_lane(block, warp, in, lane);
    if (copy.to % kRowBytes != 0)
      fault("{}: expected a destination at 128 bytes, found {}", in.text, copy.to);
    if (copy.source.box_cols != static_cast<std::int32_t>(kRowBytes) / 2) {
      fault("{}: expected a box as wide as its swizzle", in.text);
    }
    if (!is_side_of_box(copy.source.box_heads) || !is_side_of_box(copy.source.box_tokens)) {
      fault("{}: expected a box of 1 to 256 heads and tokens, found {} and {}", in.text,
            copy.source.box_heads, copy.source.box_tokens);
    }
    if (block.box_copies.size() >= kMostCopies) {
      fault("{}: expected a wait after at most {} copies", in.text, kMostCopies);
    }
    if (!phase_barrier_at(block, copy.barrier).is_fenced) {
      fault("{}: expected fence.mbarrier_init before an mbarrier counts bytes", in.text);
    }
    const auto num_rows =
        static_cast<std::uint32_t>(copy.source.box_heads * copy.source.box_tokens);
    static_cast<void>(block.at(copy.to, num_rows * kRowBytes));
    copy.time =
        block.races.write_by_proxy(warp.index, copy.to - kSharedBegin, num_rows * kRowBytes);
    for (std::uint32_t at = copy.to; at < copy.to + num_rows * kRowBytes; at += kPiece) {
      block.require_fenced(at, "TMA");
      std::memset(block.at(at, kPiece), 0xff, kPiece);
    }
    if (block.is_late()) {
      block.box_copies.push_back(copy);
    } else {
      land(block, copy);
    }
  });
}

}  // namespace contextile::ptx
