// Kernels as the parser leaves them: lists of instructions whose operands are resolved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace contextile::ptx {

inline constexpr int kLanes = 32;
using Lanes32 = std::array<std::uint32_t, kLanes>;
using Lanes64 = std::array<std::uint64_t, kLanes>;
using LaneMask = std::uint32_t;  // bit L belongs to lane L
inline constexpr LaneMask kAllLanes = ~LaneMask{0};

// Shared memory of a block begins here. The first KiB belongs to the system, as on sm_90.
inline constexpr std::uint32_t kSharedBegin = 1024;

enum class Special : std::uint8_t { kThread, kBlockX, kBlockY, kNumThreads };

struct Operand;

// The operands of an instruction, or the parts of one.
class Operands {
 public:
  // Throws Fault if there are fewer.
  [[nodiscard]] const Operand& operator[](std::size_t at) const;
  [[nodiscard]] const Operand& back() const;
  [[nodiscard]] std::size_t size() const;
  void push_back(Operand operand);
  [[nodiscard]] auto begin() const { return all_.begin(); }
  [[nodiscard]] auto end() const { return all_.end(); }

 private:
  std::vector<Operand> all_;
};

struct Operand {
  enum class Kind : std::uint8_t {
    kNone,       // "_", a result that is dropped
    kPredicate,  // register number `index`
    kWord,       // register number `index` of at most 32 bits
    kWide,       // register number `index` of 64 bits
    kConstant,   // number `index` of the kernel
    kSpecial,    // a Special, number `index`
    kParameter,  // the address of the parameters
    kAddress,    // register `index` of kind `base`, plus `value`
    kVector,     // the operands in `parts`
    kLabel,      // `text`
  };
  Kind kind = Kind::kNone;
  Kind base = Kind::kNone;  // of an address: kNone, kWord, kWide or kParameter
  std::uint32_t index = 0;
  std::int64_t value = 0;  // of a constant, or the offset of an address
  Operands parts;
  std::string text;
};

struct Block;
struct Warp;
struct Instruction;
// Executes an instruction for the lanes of a mask that is never empty.
using Handler = void (*)(Block&, Warp&, const Instruction&, LaneMask);

// The parts of an opcode that its handler needs.
struct Form {
  int bytes = 0;    // of an element in memory
  int columns = 0;  // N of wgmma's m64nNk16
  bool is_signed = false;
  bool is_store = false;
  bool is_transposed = false;
  bool is_bf16 = false;
  bool is_arrival = false;  // bar.arrive, which does not wait
};

struct Instruction {
  Handler run = nullptr;
  std::string opcode;
  std::string text;
  Operands operands;
  int guard = -1;  // predicate register of "@p"
  bool is_guard_negated = false;
  std::uint32_t target = 0;  // of a branch
  Form form;
};

struct Constant {
  Lanes32 word;
  Lanes64 wide;
};

struct Kernel {
  std::string name;
  std::size_t parameter_bytes = 0;
  std::vector<Instruction> code;
  std::uint32_t num_predicates = 0;
  std::uint32_t num_words = 0;
  std::uint32_t num_wides = 0;
  std::vector<Constant> constants;
};

}  // namespace contextile::ptx
