#include "support/host_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "support/host_grid.h"

namespace contextile::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

std::uintptr_t address(const std::byte* place) { return reinterpret_cast<std::uintptr_t>(place); }

std::vector<std::pair<std::uintptr_t, std::uintptr_t>> intervals_of(const std::vector<Rows>& all) {
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> pieces;
  for (const Rows& rows : all) {
    if (rows.row_bytes == 0) continue;
    for (std::int64_t n = 0; n < rows.num_rows; ++n) {
      const std::uintptr_t begin = address(rows.data + n * rows.stride_bytes);
      pieces.emplace_back(begin, begin + static_cast<std::uintptr_t>(rows.row_bytes));
    }
  }
  std::ranges::sort(pieces);
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> joined;
  for (const auto& piece : pieces) {
    if (joined.empty() || joined.back().second < piece.first) {
      joined.push_back(piece);
    } else {
      joined.back().second = std::max(joined.back().second, piece.second);
    }
  }
  return joined;
}

template <typename Intervals>
bool meet(const Intervals& a, const Intervals& b) {
  if (a.empty() || b.empty()) return false;
  if (a.back().second <= b.front().first || b.back().second <= a.front().first) return false;
  auto at = a.begin();
  auto other = b.begin();
  while (at != a.end() && other != b.end()) {
    if (at->second <= other->first) {
      ++at;
    } else if (other->second <= at->first) {
      ++other;
    } else {
      return true;
    }
  }
  return false;
}

void copy_rows(const Rows& to, const Rows& from) {
  for (std::int64_t n = 0; n < to.num_rows; ++n) {
    std::memcpy(to.data + n * to.stride_bytes, from.data + n * from.stride_bytes,
                static_cast<std::size_t>(to.row_bytes));
  }
}

}  // namespace

HostDriver::~HostDriver() {
  for (const auto& [begin, block] : blocks_) {
    ::operator delete (reinterpret_cast<void*>(begin), std::align_val_t{kAlignment});
  }
}

// ---------------------------------------------------------------------------------- memory

// Memory comes back to the system with the driver alone: an address names one block.
std::byte* HostDriver::take(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto* memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment}));
  std::memset(memory, 0xff, size);
  blocks_[address(memory)] = {bytes, false};
  return memory;
}

std::byte* HostDriver::allocate(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return take(bytes);
}

void HostDriver::free(std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  blocks_.at(address(memory)).is_free = true;
}

std::byte* HostDriver::allocate_on(Stream stream, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* memory = take(bytes);
  add("allocate", stream, {.reads = {}, .writes = {{memory, bytes, 1, bytes}}}, [] {});
  return memory;
}

void HostDriver::free_on(Stream stream, std::byte* memory) {
  const std::lock_guard lock(mutex_);
  if (mode_ == Mode::kAtOnce) {
    blocks_.erase(address(memory));
    ::operator delete (memory, std::align_val_t{kAlignment});
    return;
  }
  Block& block = blocks_.at(address(memory));
  // What was here is gone for whoever comes later.
  add("free", stream, {.reads = {}, .writes = {{memory, block.bytes, 1, block.bytes}}},
      [memory, bytes = block.bytes] {
        std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
      });
  block.is_free = true;
}

void HostDriver::check_memory(const Op& op) {
  for (const Intervals* touched : {&op.reads, &op.writes}) {
    for (const auto& [begin, end] : *touched) {
      auto at = blocks_.upper_bound(begin);
      const bool is_inside = at != blocks_.begin() &&
                             end <= (--at)->first + static_cast<std::uintptr_t>(at->second.bytes);
      if (!is_inside || at->second.is_free) {
        faults_.push_back(fmt::format("{} touches {} bytes that are {}", op.name, end - begin,
                                      is_inside ? "free" : "no memory of the device"));
      }
    }
  }
}

// ------------------------------------------------------------------------- streams and events

Stream HostDriver::create_stream() {
  const std::lock_guard lock(mutex_);
  streams_.emplace_back();
  return {static_cast<std::int32_t>(streams_.size() - 1)};
}

Event HostDriver::create_event() {
  const std::lock_guard lock(mutex_);
  events_.push_back(kNone);
  return {static_cast<std::int32_t>(events_.size() - 1)};
}

void HostDriver::record(Event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  events_.at(static_cast<std::size_t>(event.id)) = add("record", stream, {}, [] {});
}

void HostDriver::wait(Stream stream, Event event) {
  const std::lock_guard lock(mutex_);
  const std::size_t recorded = events_.at(static_cast<std::size_t>(event.id));
  if (recorded == kNone && mode_ == Mode::kRecorded) {
    faults_.push_back("a wait for an event that nobody has recorded");
  }
  if (forgotten_ && forgotten_(stream)) return;
  add(
      "wait", stream, {}, [] {}, recorded);
}

std::size_t HostDriver::add(std::string name, Stream stream, const Access& access,
                            std::function<void()> run, std::size_t also_after) {
  if (mode_ == Mode::kAtOnce) {
    run();
    return kNone;
  }
  StreamState& state = streams_.at(static_cast<std::size_t>(stream.id));
  Op op{std::move(name), stream, {}, {}, intervals_of(access.reads), intervals_of(access.writes),
        std::move(run)};
  if (state.last != kNone) op.after.push_back(state.last);
  if (also_after != kNone) op.after.push_back(also_after);
  op.clock = state.clock;
  op.clock.resize(streams_.size());
  if (also_after != kNone) {
    const std::vector<std::int64_t>& other = ops_[also_after].clock;
    for (std::size_t s = 0; s < other.size(); ++s) op.clock[s] = std::max(op.clock[s], other[s]);
  }
  op.clock[static_cast<std::size_t>(stream.id)] = ++state.length;
  state.clock = op.clock;
  state.last = ops_.size();
  check_memory(op);
  ops_.push_back(std::move(op));
  waiting_.push_back(state.last);
  return state.last;
}

// In any order that streams and events allow.
void HostDriver::run_all() {
  while (!waiting_.empty()) {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
      const std::vector<std::size_t>& after = ops_[waiting_[i]].after;
      if (std::ranges::all_of(after, [&](std::size_t op) { return ops_[op].run == nullptr; })) {
        ready.push_back(i);
      }
    }
    const std::size_t chosen = ready[rng_.next() % ready.size()];
    // One stream runs as far as it can while the others stand still.
    std::size_t next = waiting_[chosen];
    const Stream stream = ops_[next].stream;
    for (;;) {
      Op& op = ops_[next];
      op.run();
      op.run = nullptr;
      waiting_.erase(std::ranges::find(waiting_, next));
      const auto follows =
          std::ranges::find_if(waiting_, [&](std::size_t w) { return ops_[w].stream == stream; });
      if (follows == waiting_.end()) break;
      next = *follows;
      const bool is_ready = std::ranges::all_of(
          ops_[next].after, [&](std::size_t before) { return ops_[before].run == nullptr; });
      if (!is_ready || rng_.next() % 8 == 0) break;
    }
  }
}

// ------------------------------------------------------------------------------------ work

void HostDriver::write(Stream stream, std::byte* to, std::span<const std::byte> from) {
  const std::lock_guard lock(mutex_);
  const auto size = static_cast<std::int64_t>(from.size());
  add("write", stream, {.reads = {}, .writes = {{to, size, 1, size}}},
      [to, bytes = std::vector<std::byte>(from.begin(), from.end())] {
        if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
      });
}

void HostDriver::copy(Stream stream, const Rows& to, const Rows& from) {
  const std::lock_guard lock(mutex_);
  CONTEXTILE_CHECK(to.row_bytes == from.row_bytes && to.num_rows == from.num_rows,
                   "copy: expected equal rows, found {} x {} and {} x {}", to.num_rows,
                   to.row_bytes, from.num_rows, from.row_bytes);
  add("copy", stream, {.reads = {from}, .writes = {to}}, [to, from] { copy_rows(to, from); });
}

void HostDriver::fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  add("fill", stream, {.reads = {}, .writes = {{to, bytes, 1, bytes}}},
      [=] { std::memset(to, value, static_cast<std::size_t>(bytes)); });
}

void HostDriver::launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
                        const std::function<Access()>& access) {
  if (mode_ == Mode::kAtOnce) return run_on_host(grid, arguments);
  const std::lock_guard lock(mutex_);
  add(std::string(grid.kernel), stream, access(),
      [kernel = std::string(grid.kernel), shape = grid,
       bytes = std::vector<std::byte>(arguments.begin(), arguments.end())] {
        Grid named = shape;
        named.kernel = kernel;
        run_on_host(named, bytes);
      });
}

void HostDriver::synchronize(Stream /*stream*/) {
  const std::lock_guard lock(mutex_);
  ++num_synchronizations_;
  run_all();
}

void HostDriver::read(Stream stream, std::span<std::byte> to, const std::byte* from) {
  synchronize(stream);
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}

// ----------------------------------------------------------------------------------- races

bool HostDriver::comes_before(const Op& first, const Op& second) const {
  const auto stream = static_cast<std::size_t>(first.stream.id);
  return stream < second.clock.size() && first.clock[stream] <= second.clock[stream];
}

std::vector<std::string> HostDriver::races() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all = faults_;
  std::vector<const Op*> touching;
  for (const Op& op : ops_) {
    if (!op.reads.empty() || !op.writes.empty()) touching.push_back(&op);
  }
  for (std::size_t i = 0; i < touching.size(); ++i) {
    const Op& a = *touching[i];
    for (std::size_t j = i + 1; j < touching.size(); ++j) {
      const Op& b = *touching[j];
      if (a.stream == b.stream || comes_before(a, b) || comes_before(b, a)) continue;
      if (meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes)) {
        all.push_back(fmt::format("{} on stream {} and {} on stream {}", a.name, a.stream.id,
                                  b.name, b.stream.id));
      }
    }
  }
  return all;
}

std::int64_t HostDriver::count(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::count_if(ops_, [&](const Op& op) { return op.name.starts_with(name); });
}

}  // namespace contextile::cuda
