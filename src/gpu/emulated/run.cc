// Runs blocks of threads: turns of warps, lanes that take different ways, and what must hold when a
// block ends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "gpu/emulated/operands.h"
#include "gpu/emulated/state.h"

namespace contextile::ptx {
namespace {

constexpr int kLongestTurn = 400;      // instructions
constexpr int kMostFailedWaits = 500;  // of every warp that could run
constexpr int kRegistersPerBlock = 65536;

// The instruction that a warp executes next and the lanes that are there. Lanes that went different
// ways meet again because those at the least counter go first.
struct Next {
  std::uint32_t at = 0;
  LaneMask mask = 0;
};

Next next_of(Warp& warp) {
  if (warp.is_together) return {warp.at, warp.alive};
  Next next{~0U, 0};
  each_lane(warp.alive, [&](int lane) {
    next.at = std::min(next.at, warp.counters[static_cast<std::size_t>(lane)]);
  });
  each_lane(warp.alive, [&](int lane) {
    if (warp.counters[static_cast<std::size_t>(lane)] == next.at) next.mask |= LaneMask{1} << lane;
  });
  if (next.mask == warp.alive) {
    warp.is_together = true;
    warp.at = next.at;
  }
  return next;
}

// Moves the lanes of an executed instruction on.
void advance(Warp& warp, const Next& done, const Instruction& in) {
  const bool all_jump = warp.jumping == done.mask;
  if (warp.is_together && (warp.jumping == 0 || all_jump)) {
    warp.at = all_jump ? in.target : done.at + 1;
    return;
  }
  each_lane(done.mask, [&](int lane) {
    warp.counters[static_cast<std::size_t>(lane)] =
        has(warp.jumping, lane) ? in.target : done.at + 1;
  });
  warp.is_together = false;
}

void step(Block& block, Warp& warp) {
  const std::vector<Instruction>& code = block.kernel->code;
  const Next next = next_of(warp);
  if (next.at >= code.size()) {  // behind the last instruction
    warp.alive &= ~next.mask;
    return;
  }
  const Instruction& in = code[next.at];
  block.has_run[next.at] = 1;
  LaneMask mask = next.mask;
  if (in.guard >= 0) {
    const LaneMask guard = warp.predicates[static_cast<std::size_t>(in.guard)];
    mask &= in.is_guard_negated ? ~guard : guard;
  }
  warp.jumping = 0;
  if (mask != 0) in.run(block, warp, in, mask);
  advance(warp, next, in);
}

void prepare(Block& block) {
  const Kernel& kernel = *block.kernel;
  const auto bytes = static_cast<std::size_t>(block.launch->shared_bytes + 15) / 16 * 16;
  block.shared.assign(bytes, 0xff);
  block.writer.assign(bytes / kPiece + 1, 0);
  const int num_warps = block.launch->threads / kLanes;
  block.races.reset(num_warps, bytes);
  block.warps.resize(static_cast<std::size_t>(num_warps));
  int index = 0;
  for (Warp& warp : block.warps) {
    warp.index = index++;
    warp.predicates.resize(kernel.num_predicates);
    warp.words.resize(kernel.num_words);
    warp.wides.resize(kernel.num_wides);
    // Registers that were never written hold NaN.
    for (Lanes32& lanes : warp.words) lanes.fill(~0U);
    for (Lanes64& lanes : warp.wides) lanes.fill(~std::uint64_t{0});
  }
}

// The warps that could run now. Throws if none can, though some have not ended.
std::vector<Warp*> ready_warps(Block& block) {
  std::vector<Warp*> ready;
  bool is_over = true;
  for (Warp& warp : block.warps) {
    if (warp.alive == 0) continue;
    is_over = false;
    if (!warp.is_blocked) ready.push_back(&warp);
  }
  if (!is_over && ready.empty()) fault("expected warps that run, found that all wait at barriers");
  const auto is_stuck = [](const Warp* warp) { return warp->num_failed_waits > kMostFailedWaits; };
  if (!is_over && std::all_of(ready.begin(), ready.end(), is_stuck)) {
    fault("expected phases that end, found that all warps wait");
  }
  return ready;
}

void require_clean_end(const Block& block) {
  if (!block.box_copies.empty()) fault("expected a wait for every TMA copy");
  int num_registers = 0;
  for (const Warp& warp : block.warps) {
    if (!warp.open.empty() || !warp.groups.empty()) fault("expected a wait for every product");
    if (!warp.copies.empty()) fault("expected a wait for every cp.async");
    num_registers += warp.num_registers * kLanes;
  }
  if (num_registers > kRegistersPerBlock) {
    fault("expected at most {} registers a block, found {}", kRegistersPerBlock, num_registers);
  }
  for (const NamedBarrier& barrier : block.barriers) {
    if (barrier.num_arrived > 0)
      fault("expected {} threads at a barrier, found {} at the end", barrier.num_expected,
            barrier.num_arrived);
  }
}

void run_block(Block& block) {
  prepare(block);
  const std::int64_t most = block.machine->most_instructions;
  std::int64_t num_left = most;
  for (std::vector<Warp*> ready = ready_warps(block); !ready.empty(); ready = ready_warps(block)) {
    Warp& warp = *ready[block.random() % ready.size()];
    const int turn = 1 + static_cast<int>(block.random() % kLongestTurn);
    warp.gives_way = false;
    for (int i = 0; i < turn && warp.alive != 0 && !warp.is_blocked && !warp.gives_way; ++i) {
      step(block, warp);
      ++block.machine->num_instructions;
      if (--num_left == 0) fault("expected an end after {} instructions", most);
    }
  }
  require_clean_end(block);
}

void note_opcodes(Machine& machine, const Kernel& kernel,
                  const std::vector<std::uint8_t>& has_run) {
  if (machine.opcodes == nullptr) return;
  for (std::size_t at = 0; at < has_run.size(); ++at) {
    if (has_run[at] != 0) machine.opcodes->insert(kernel.code[at].opcode);
  }
}

}  // namespace

void run(Machine& machine, const Kernel& kernel, const Launch& launch) {
  if (launch.threads % kLanes != 0) fault("{}: expected whole warps", kernel.name);
  if (launch.parameters.size() < kernel.parameter_bytes) {
    fault("{}: expected {} bytes of parameters, found {}", kernel.name, kernel.parameter_bytes,
          launch.parameters.size());
  }
  std::vector<std::uint8_t> has_run(kernel.code.size());
  for (int y = 0; y < launch.blocks_y; ++y) {
    for (int x = 0; x < launch.blocks_x; ++x) {
      Block block;
      block.machine = &machine;
      block.kernel = &kernel;
      block.launch = &launch;
      block.has_run = has_run.data();
      block.x = x;
      block.y = y;
      const std::uint64_t seed = machine.seed++;
      block.random.seed(seed);
      try {
        run_block(block);
      } catch (const std::exception& error) {
        note_opcodes(machine, kernel, has_run);
        fault("{}, block ({}, {}), seed {}: {}", kernel.name, x, y, seed, error.what());
      }
    }
  }
  note_opcodes(machine, kernel, has_run);
}

}  // namespace contextile::ptx
