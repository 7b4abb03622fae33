// Matrix instructions of a warp: ldmatrix and mma (section 9.7.14 of the PTX manual; its figures
// for m16n8k16 give the places of elements).
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "gpu/emulated/handlers.h"
#include "gpu/emulated/numbers.h"
#include "gpu/emulated/operands.h"

namespace contextile::ptx {
namespace {

constexpr int kMatrices = 4;

// Four matrices of 8x8. Lane L gives the address of row L % 8 of matrix L / 8, and gets two
// neighbors of row L / 4, or with .trans of column L / 4.
void load_matrices(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  std::array<const std::uint8_t*, kLanes> rows;
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto address = static_cast<std::uint32_t>(address_of(block, warp, in.operands[1], lane));
    rows[static_cast<std::size_t>(lane)] = block.at(address, 16);
    block.note_read(address, 16, warp);
  }
  const auto element = [&](int matrix, int row, int col) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, rows[static_cast<std::size_t>(matrix * 8 + row)] + 2 * col, 2);
    return std::uint32_t{bits};
  };
  const Operand& to = in.operands[0];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int outer = lane / 4;
    const int inner = lane % 4 * 2;
    for (int matrix = 0; matrix < kMatrices; ++matrix) {
      const std::uint32_t pair =
          in.form.is_transposed
              ? element(matrix, inner, outer) | element(matrix, inner + 1, outer) << 16
              : element(matrix, outer, inner) | element(matrix, outer, inner + 1) << 16;
      write_word(warp, to.parts[static_cast<std::size_t>(matrix)], lane, pair);
    }
  }
}

// D = A B + C with A of 16x16, B of 16x8 and fp32 sums.
void multiply(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  float left[16][16];
  float right[16][8];
  const auto number = [&](const Words& pairs, int lane, int half) {
    return number_of(static_cast<std::uint16_t>(pairs[lane] >> 16 * half), in.form.is_bf16);
  };
  for (int part = 0; part < 4; ++part) {
    const Words pairs(block, warp, in.operands[1].parts[static_cast<std::size_t>(part)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int half = 0; half < 2; ++half) {
        left[lane / 4 + 8 * (part % 2)][lane % 4 * 2 + half + 8 * (part / 2)] =
            number(pairs, lane, half);
      }
    }
  }
  for (int part = 0; part < 2; ++part) {
    const Words pairs(block, warp, in.operands[2].parts[static_cast<std::size_t>(part)]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int half = 0; half < 2; ++half) {
        right[lane % 4 * 2 + half + 8 * part][lane / 4] = number(pairs, lane, half);
      }
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) sums[row][col] += left[row][k] * right[k][col];
    }
  }
  std::array<Lanes32, 4> results;
  for (std::size_t part = 0; part < 4; ++part) {
    const Words before(block, warp, in.operands[3].parts[part]);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float sum = sums[lane / 4 + 8 * (part / 2)][lane % 4 * 2 + part % 2];
      const auto added = std::bit_cast<float>(before[static_cast<int>(lane)]) + sum;
      results[part][lane] = std::bit_cast<std::uint32_t>(added);
    }
  }
  for (std::size_t part = 0; part < 4; ++part) {
    words_of(warp, in.operands[0].parts[part]) = results[part];
  }
}

}  // namespace

void add_tensor_handlers(Handlers& all) {
  all["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = load_matrices;
  all["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = load_matrices;
  all["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = multiply;
  all["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] = multiply;
}

}  // namespace contextile::ptx
