#include "gpu/emulated/operands.h"

#include <utility>

namespace contextile::ptx {
namespace {

std::uint64_t special_of(const Block& block, const Warp& warp, std::uint32_t which, int lane) {
  switch (static_cast<Special>(which)) {
    case Special::kThread:
      return static_cast<std::uint64_t>(warp.index * kLanes + lane);
    case Special::kBlockX:
      return static_cast<std::uint64_t>(block.x);
    case Special::kBlockY:
      return static_cast<std::uint64_t>(block.y);
    case Special::kNumThreads:
      return static_cast<std::uint64_t>(block.launch->threads);
  }
  return 0;
}

std::uint64_t parameters_of(const Block& block) {
  return reinterpret_cast<std::uintptr_t>(block.launch->parameters.data());
}

}  // namespace

const Operand& Operands::operator[](std::size_t at) const {
  if (at >= all_.size()) fault("expected at least {} operands, found {}", at + 1, all_.size());
  return all_[at];
}
const Operand& Operands::back() const { return (*this)[all_.empty() ? 0 : all_.size() - 1]; }
std::size_t Operands::size() const { return all_.size(); }
void Operands::push_back(Operand operand) { all_.push_back(std::move(operand)); }

Words::Words(const Block& block, const Warp& warp, const Operand& operand) : at_(&own_) {
  switch (operand.kind) {
    case Operand::Kind::kWord:
      at_ = &warp.words[operand.index];
      return;
    case Operand::Kind::kConstant:
      at_ = &block.kernel->constants[operand.index].word;
      return;
    case Operand::Kind::kWide:
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        own_[lane] = static_cast<std::uint32_t>(warp.wides[operand.index][lane]);
      }
      return;
    case Operand::Kind::kSpecial:
      for (int lane = 0; lane < kLanes; ++lane) {
        own_[static_cast<std::size_t>(lane)] =
            static_cast<std::uint32_t>(special_of(block, warp, operand.index, lane));
      }
      return;
    default:
      fault("expected an operand of 32 bits, found {}", operand.text);
  }
}

Wides::Wides(const Block& block, const Warp& warp, const Operand& operand) : at_(&own_) {
  switch (operand.kind) {
    case Operand::Kind::kWide:
      at_ = &warp.wides[operand.index];
      return;
    case Operand::Kind::kConstant:
      at_ = &block.kernel->constants[operand.index].wide;
      return;
    case Operand::Kind::kParameter:
      own_.fill(parameters_of(block) + static_cast<std::uint64_t>(operand.value));
      return;
    default:
      fault("expected an operand of 64 bits, found {}", operand.text);
  }
}

LaneMask read_predicate(const Block& block, const Warp& warp, const Operand& operand) {
  if (operand.kind == Operand::Kind::kPredicate) return warp.predicates[operand.index];
  return Words(block, warp, operand)[0] != 0 ? kAllLanes : 0;
}

std::uint64_t address_of(const Block& block, const Warp& warp, const Operand& operand, int lane) {
  const auto offset = static_cast<std::uint64_t>(operand.value);
  const auto at = static_cast<std::size_t>(lane);
  switch (operand.base) {
    case Operand::Kind::kWide:
      return warp.wides[operand.index][at] + offset;
    case Operand::Kind::kWord:
      return std::uint64_t{warp.words[operand.index][at]} + offset;
    case Operand::Kind::kParameter:
      return parameters_of(block) + offset;
    default:
      return offset;
  }
}

}  // namespace contextile::ptx
