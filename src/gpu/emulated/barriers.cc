// Barriers of threads and of phases, and fences (section 9.7.13 of the PTX manual; 9.7.13.1 has
// bar, 9.7.13.4 membar and fence, 9.7.13.15 mbarrier), and setmaxnreg.
#include <cstdint>
#include <string>

#include "gpu/emulated/handlers.h"
#include "gpu/emulated/operands.h"

namespace contextile::ptx {
namespace {

// bar.sync waits until the expected number of threads has arrived; bar.arrive does not wait.
void meet(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  const Words numbers(block, warp, in.operands[0]);
  const std::uint32_t number = numbers[0];
  each_lane(mask, [&](int lane) {
    if (numbers[lane] != number) fault("{}: expected one barrier for all lanes", in.text);
  });
  if (number >= block.barriers.size())
    fault("{}: expected a barrier below 16, found {}", in.text, number);
  const bool has_count = in.operands.size() > 1;
  const std::uint32_t count = has_count ? Words(block, warp, in.operands[1])[0]
                                        : static_cast<std::uint32_t>(block.launch->threads);
  NamedBarrier& barrier = block.barriers[number];
  if (barrier.num_arrived > 0 && barrier.num_expected != count) {
    fault("{}: expected {} threads at barrier {} as its first warp, found {}", in.text,
          barrier.num_expected, number, count);
  }
  barrier.num_expected = count;
  barrier.num_arrived += kLanes;
  if (barrier.num_arrived > count) {
    fault("{}: expected {} threads at barrier {}, found more", in.text, count, number);
  }
  warp.gives_way = true;
  block.races.release(warp.index, barrier.clock);
  if (barrier.num_arrived == count) {
    if (!in.form.is_arrival) block.races.acquire(warp.index, barrier.clock);
    for (const int waiting : barrier.waiting) {
      block.warps[static_cast<std::size_t>(waiting)].is_blocked = false;
      block.races.acquire(waiting, barrier.clock);
    }
    barrier = {};
  } else if (!in.form.is_arrival) {
    warp.is_blocked = true;
    barrier.waiting.push_back(warp.index);
  }
}

void arrive_at_named(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  meet(block, warp, in, mask);
}

void meet_in_warp(Block&, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
}

std::uint32_t shared_address(const Block& block, const Warp& warp, const Operand& operand,
                             int lane) {
  return static_cast<std::uint32_t>(address_of(block, warp, operand, lane));
}

// A phase ends when all have arrived and all bytes have come.
void end_phase_if_complete(PhaseBarrier& barrier) {
  if (barrier.num_pending != 0 || barrier.pending_bytes != 0) return;
  ++barrier.phase;
  barrier.num_pending = barrier.num_expected;
}

void init_phases(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const Words counts(block, warp, in.operands[1]);
  each_lane(mask, [&](int lane) {
    const std::uint32_t address = shared_address(block, warp, in.operands[0], lane);
    static_cast<void>(block.at(address, 8));
    const auto count = static_cast<int>(counts[lane]);
    if (count < 1) fault("{}: expected at least one arrival, found {}", in.text, count);
    block.phases[address] = {count, count, 0, 0, false, {}};
    warp.unfenced_phases.insert(address);
  });
}

void arrive(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  each_lane(mask, [&](int lane) {
    const std::uint32_t address = shared_address(block, warp, in.operands[1], lane);
    PhaseBarrier& barrier = phase_barrier_at(block, address);
    block.races.release(warp.index, barrier.clock);
    if (--barrier.num_pending < 0) {
      fault("{}: expected {} arrivals at the mbarrier at {}, found more", in.text,
            barrier.num_expected, address);
    }
    end_phase_if_complete(barrier);
  });
  warp.gives_way = true;
}

void expect_bytes(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const Words bytes(block, warp, in.operands[1]);
  each_lane(mask, [&](int lane) {
    const std::uint32_t address = shared_address(block, warp, in.operands[0], lane);
    phase_barrier_at(block, address).pending_bytes += static_cast<std::int32_t>(bytes[lane]);
  });
}

// try_wait.parity is true if the phase of that parity has ended. A copy lands when somebody asks.
void try_wait(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const Words parities(block, warp, in.operands[2]);
  LaneMask ended = 0;
  each_lane(mask, [&](int lane) {
    const std::uint32_t address = shared_address(block, warp, in.operands[1], lane);
    if (parities[lane] > 1) fault("{}: expected parity 0 or 1, found {}", in.text, parities[lane]);
    const PhaseBarrier& barrier = phase_barrier_at(block, address);
    if ((barrier.phase & 1) == parities[lane]) finish_box_copies(block, address);
    if ((barrier.phase & 1) == parities[lane]) return;
    block.races.acquire(warp.index, barrier.clock);
    ended |= LaneMask{1} << lane;
  });
  write_predicate(warp, in.operands[0], mask, ended);
  if (ended != 0) {
    warp.num_failed_waits = 0;
  } else {
    ++warp.num_failed_waits;
    warp.gives_way = true;
  }
}

// Makes the warp's writes visible to the asynchronous proxy.
void fence_async_proxy(Block& block, Warp& warp, const Instruction&, LaneMask) {
  for (const std::uint32_t piece : warp.unfenced) {
    if (block.writer[piece] == 1 + warp.index) block.writer[piece] = 0;
  }
  warp.unfenced.clear();
}

void fence_phases(Block& block, Warp& warp, const Instruction&, LaneMask) {
  for (const std::uint32_t address : warp.unfenced_phases)
    block.phases.at(address).is_fenced = true;
  warp.unfenced_phases.clear();
}

// Each warp that copies by a map acquires it first.
void acquire_map(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  each_lane(mask, [&](int lane) {
    const std::uint64_t address = address_of(block, warp, in.operands[0], lane);
    if (address % 128 != 0) fault("{}: expected an address at 128 bytes", in.text);
    block.require_memory(address, 128, in);
    warp.acquired_maps.insert(address);
  });
}

// setmaxnreg takes 24 to 256 registers, a multiple of 8.
void set_registers(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  const auto count = static_cast<int>(Words(block, warp, in.operands[0])[0]);
  if (count < 24 || count > 256 || count % 8 != 0) {
    fault("{}: expected a multiple of 8 from 24 to 256, found {}", in.text, count);
  }
  warp.num_registers = count;
}

}  // namespace

PhaseBarrier& phase_barrier_at(Block& block, std::uint32_t address) {
  const auto found = block.phases.find(address);
  if (found == block.phases.end()) fault("expected an mbarrier at {}, found none", address);
  return found->second;
}

void complete_bytes(Block& block, std::uint32_t barrier, std::int64_t bytes) {
  PhaseBarrier& of = phase_barrier_at(block, barrier);
  of.pending_bytes -= bytes;
  end_phase_if_complete(of);
}

void add_barrier_handlers(Handlers& all) {
  all["bar.sync"] = meet;
  all["bar.arrive"] = arrive_at_named;
  all["bar.warp.sync"] = meet_in_warp;
  all["mbarrier.init.shared::cta.b64"] = init_phases;
  all["mbarrier.arrive.shared::cta.b64"] = arrive;
  all["mbarrier.expect_tx.relaxed.cta.shared::cta.b64"] = expect_bytes;
  all["mbarrier.try_wait.parity.shared::cta.b64"] = try_wait;
  all["fence.proxy.async.shared::cta"] = fence_async_proxy;
  all["fence.mbarrier_init.release.cluster"] = fence_phases;
  all["fence.proxy.tensormap::generic.acquire.sys"] = acquire_map;
  all["setmaxnreg.inc.sync.aligned.u32"] = set_registers;
  all["setmaxnreg.dec.sync.aligned.u32"] = set_registers;
  all["cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"] =
      start_box_copy;
}

}  // namespace contextile::ptx
