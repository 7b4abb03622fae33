// Asynchronous products of warpgroups (section 9.7.15 of the PTX manual): wgmma.mma_async of
// m64nNk16, its descriptors, fence, commit_group and wait_group.
//
// Each warp of the group computes its 16 of the 64 rows. A product is computed when it is waited
// for. Until then its sums hold NaN, and neither they nor the operands may change.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/emulated/handlers.h"
#include "gpu/emulated/numbers.h"
#include "gpu/emulated/operands.h"

namespace contextile::ptx {
namespace {

constexpr std::uint32_t kPoison = 0x7fffffff;  // a NaN
constexpr int kDepth = 16;
constexpr int kMostColumns = 256;

// A matrix in shared memory (9.7.15.5.1, the matrix descriptor).
struct Descriptor {
  std::uint32_t start = 0;
  std::uint32_t leading = 0;
  std::uint32_t stride = 0;
};

Descriptor decoded(std::uint64_t bits, const Instruction& in) {
  const auto base_offset = static_cast<std::uint32_t>(bits >> 49 & 7);
  const auto swizzle = static_cast<std::uint32_t>(bits >> 62);
  if (swizzle != 1 || base_offset != 0) {
    fault("{}: expected the 128-byte swizzle at offset 0, found mode {} at {}", in.text, swizzle,
          base_offset);
  }
  const auto field = [&](int at) { return static_cast<std::uint32_t>(bits >> at & 0x3fff) << 4; };
  return {field(0), field(16), field(32)};
}

// The address of element (`outer`, `depth`), where outer is a row of A or a column of B. Usually 8
// outer values are 1,024 bytes, in rows of 64 elements of depth. Transposed, 8 of the depth are
// 1,024 bytes, in rows of 64 outer values.
std::uint32_t place_of(const Descriptor& of, bool is_transposed, int outer, int depth) {
  const auto part = [](int value) { return static_cast<std::uint32_t>(value); };
  const std::uint32_t address =
      is_transposed
          ? of.start + part(outer / 64) * of.leading + part(depth / 8) * of.stride +
                part(depth % 8) * 128 + part(outer % 64) * 2
          : of.start + part(outer / 8) * of.stride + part(outer % 8) * 128 + part(depth) * 2;
  return address ^ (address >> 7 & 7) << 4;
}

bool has_left_registers(const Instruction& in) {
  return in.operands[1].kind == Operand::Kind::kVector;
}

// Calls work(address) for every element of the operands in shared memory, A's before B's.
template <typename Work>
void each_element(const Warp& warp, const Product& product, const Work& work) {
  const Instruction& in = *product.instruction;
  if (!has_left_registers(in)) {
    const Descriptor left = decoded(product.left, in);
    const int first_row = warp.index % 4 * 16;
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < kDepth; ++k) work(place_of(left, false, first_row + row, k));
    }
  }
  const Descriptor right = decoded(product.right, in);
  for (int col = 0; col < in.form.columns; ++col) {
    for (int k = 0; k < kDepth; ++k) work(place_of(right, in.form.is_transposed, col, k));
  }
}

std::vector<std::uint16_t> elements_of(Block& block, const Warp& warp, const Product& product) {
  std::vector<std::uint16_t> elements;
  elements.reserve(static_cast<std::size_t>((16 + product.instruction->form.columns) * kDepth));
  each_element(warp, product, [&](std::uint32_t address) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, block.at(address, 2), 2);
    block.note_read(address, 2, warp);
    elements.push_back(bits);
  });
  return elements;
}

using Left = std::array<std::array<float, kDepth>, 16>;
using Sums = std::array<std::array<float, kMostColumns>, 16>;

// The places of A's elements in registers are those of mma.m16n8k16.
Left left_in_registers(const Product& product) {
  Left left;
  const bool is_bf16 = product.instruction->form.is_bf16;
  for (std::size_t part = 0; part < 4; ++part) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const std::uint32_t pair = product.left_registers[part][lane];
      for (std::size_t half = 0; half < 2; ++half) {
        left[lane / 4 + 8 * (part % 2)][lane % 4 * 2 + half + 8 * (part / 2)] =
            number_of(static_cast<std::uint16_t>(pair >> 16 * half), is_bf16);
      }
    }
  }
  return left;
}

const Sums& multiplied(const Product& product) {
  const Form& form = product.instruction->form;
  const auto columns = static_cast<std::size_t>(form.columns);
  auto next = product.elements.begin();
  const auto number = [&] { return number_of(*next++, form.is_bf16); };
  Left left;
  if (has_left_registers(*product.instruction)) {
    left = left_in_registers(product);
  } else {
    for (auto& row : left) std::generate(row.begin(), row.end(), number);
  }
  static thread_local std::array<std::array<float, kMostColumns>, kDepth> right;
  for (std::size_t col = 0; col < columns; ++col) {
    for (auto& row : right) row[col] = number();
  }
  static thread_local Sums sums;
  for (std::size_t row = 0; row < 16; ++row) {
    std::fill_n(sums[row].begin(), columns, 0.0F);
    for (std::size_t k = 0; k < kDepth; ++k) {
      const float factor = left[row][k];
      for (std::size_t col = 0; col < columns; ++col) sums[row][col] += factor * right[k][col];
    }
  }
  return sums;
}

void require_same_operands(Block& block, const Warp& warp, const Product& product) {
  const Instruction& in = *product.instruction;
  if (elements_of(block, warp, product) != product.elements) {
    fault("{}: expected operands in shared memory to stay until the wait", in.opcode);
  }
  if (!has_left_registers(in)) return;
  for (std::size_t part = 0; part < 4; ++part) {
    const Words now(block, warp, in.operands[1].parts[part]);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (now[static_cast<int>(lane)] != product.left_registers[part][lane]) {
        fault("{}: expected operands in registers to stay until the wait", in.opcode);
      }
    }
  }
}

// Adds a product to sums whose registers hold their true values.
void add_to_sums(Warp& warp, const Product& product) {
  const Sums& sums = multiplied(product);
  const Operands& to = product.instruction->operands[0].parts;
  for (std::size_t part = 0; part < to.size(); ++part) {
    Lanes32& lanes = words_of(warp, to[part]);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const float sum = sums[lane / 4 + 8 * (part / 2 % 2)][part / 4 * 8 + lane % 4 * 2 + part % 2];
      const float before = product.adds ? std::bit_cast<float>(lanes[lane]) : 0.0F;
      lanes[lane] = std::bit_cast<std::uint32_t>(before + sum);
    }
  }
}

void hide_sums(Warp& warp, const Instruction& in) {
  for (const Operand& part : in.operands[0].parts) {
    HiddenSum& hidden = warp.hidden[part.index];
    if (hidden.num_products++ == 0) {
      hidden.sum = words_of(warp, part);
      words_of(warp, part).fill(kPoison);
    }
  }
}

void show_sums(Warp& warp, const Instruction& in) {
  for (const Operand& part : in.operands[0].parts) {
    Lanes32& lanes = words_of(warp, part);
    if (std::any_of(lanes.begin(), lanes.end(), [](auto bits) { return bits != kPoison; })) {
      fault("{}: expected sums to stay until the wait, found {} changed", in.opcode, part.text);
    }
    lanes = warp.hidden.at(part.index).sum;
  }
}

void finish(Block& block, Warp& warp, const Product& product) {
  const Instruction& in = *product.instruction;
  require_same_operands(block, warp, product);
  show_sums(warp, in);
  add_to_sums(warp, product);
  for (const Operand& part : in.operands[0].parts) {
    HiddenSum& hidden = warp.hidden.at(part.index);
    if (--hidden.num_products > 0) {  // later products of the same sums
      hidden.sum = words_of(warp, part);
      words_of(warp, part).fill(kPoison);
    } else {
      warp.hidden.erase(part.index);
    }
  }
}

void start(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  constexpr std::size_t kMostProducts = 1024;
  if (warp.open.size() + warp.groups.size() >= kMostProducts) {
    fault("{}: expected a wait after at most {} products", in.opcode, kMostProducts);
  }
  if (!warp.has_product_fence) fault("{}: expected wgmma.fence before the product", in.opcode);
  Product product;
  product.instruction = &in;
  product.right = Wides(block, warp, in.operands[2])[0];
  const LaneMask adds = read_predicate(block, warp, in.operands[3]);
  if (adds != 0 && adds != kAllLanes) fault("{}: expected one scale of sums a warp", in.opcode);
  product.adds = adds != 0;
  if (has_left_registers(in)) {
    for (std::size_t part = 0; part < 4; ++part) {
      const Words lanes(block, warp, in.operands[1].parts[part]);
      for (int lane = 0; lane < kLanes; ++lane) {
        product.left_registers[part][static_cast<std::size_t>(lane)] = lanes[lane];
      }
    }
  } else {
    product.left = Wides(block, warp, in.operands[1])[0];
  }
  each_element(warp, product,
               [&](std::uint32_t address) { block.require_fenced(address, "wgmma"); });
  product.elements = elements_of(block, warp, product);
  if (block.is_late()) {
    hide_sums(warp, in);
    warp.open.push_back(std::move(product));
  } else {
    add_to_sums(warp, product);
  }
}

void fence(Block&, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  warp.has_product_fence = true;
}

void commit(Block&, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  constexpr std::size_t kMostGroups = 1024;
  if (warp.groups.size() >= kMostGroups) {
    fault("{}: expected a wait after at most {} groups", in.opcode, kMostGroups);
  }
  warp.groups.push_back(std::move(warp.open));
  warp.open.clear();
}

// Waits until at most as many groups are under way as the operand says.
void wait(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  const std::size_t most = Words(block, warp, in.operands[0])[0];
  while (warp.groups.size() > most) {
    for (const Product& product : warp.groups.front()) finish(block, warp, product);
    warp.groups.pop_front();
  }
  if (most == 0) warp.has_product_fence = false;
}

}  // namespace

// wgmma.mma_async D, A, B, scale-d, scale-a, scale-b, [trans-a,] trans-b. With A in registers there
// is no trans-a.
bool resolve_product(Instruction& in) {
  constexpr std::string_view kBegin = "wgmma.mma_async.sync.aligned.m64n";
  if (!in.opcode.starts_with(kBegin)) return false;
  const char* const end = in.opcode.data() + in.opcode.size();
  const char* const rest =
      std::from_chars(in.opcode.data() + kBegin.size(), end, in.form.columns).ptr;
  const std::string_view types(rest, static_cast<std::size_t>(end - rest));
  const bool is_known = types == "k16.f32.bf16.bf16" || types == "k16.f32.f16.f16";
  const bool has_registers = has_left_registers(in);
  const int columns = in.form.columns;
  if (!is_known || columns < 8 || columns > kMostColumns || columns % 8 != 0 ||
      in.operands[0].parts.size() != static_cast<std::size_t>(columns) / 2 ||
      in.operands.size() != (has_registers ? 7U : 8U)) {
    fault("unknown instruction {}", in.text);
  }
  if (in.operands[4].value != 1 || in.operands[5].value != 1) {
    fault("{}: expected operands without a scale", in.text);
  }
  if (!has_registers && in.operands[6].value != 0) fault("{}: expected A as it is", in.text);
  in.form.is_transposed = in.operands.back().value != 0;
  in.form.is_bf16 = in.opcode.find("bf16") != std::string::npos;
  in.run = start;
  return true;
}

void add_product_handlers(Handlers& all) {
  all["wgmma.fence.sync.aligned"] = fence;
  all["wgmma.commit_group.sync.aligned"] = commit;
  all["wgmma.wait_group.sync.aligned"] = wait;
}

}  // namespace contextile::ptx
