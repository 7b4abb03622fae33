#include "support/host_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "gpu/emulated/box_map_format.h"
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

// Memory returns to the system only with the driver, so an address names one block.
std::byte* HostDriver::take(std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto* memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment}));
  std::memset(memory, 0xff, size);
  blocks_[address(memory)] = {bytes, kNone};
  return memory;
}

std::byte* HostDriver::allocate(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  return take(bytes);
}

void HostDriver::free(std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  blocks_.at(address(memory)).end = ops_.empty() ? kNone : ops_.size() - 1;
}

std::byte* HostDriver::allocate_on(Stream stream, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::byte* memory = take(bytes);
  if (is_captured(stream)) {
    captured_memory_.push_back(memory);
    graph_memory_.insert(memory);
    return memory;
  }
  add("allocate", stream, {.reads = {}, .writes = {{memory, bytes, 1, bytes}}}, [] {});
  return memory;
}

void HostDriver::free_on(Stream stream, std::byte* memory) {
  const std::lock_guard lock(mutex_);
  if (graph_memory_.contains(memory)) return;
  refuse_in_capture("free", stream);
  if (mode_ == Mode::kAtOnce) {
    blocks_.erase(address(memory));
    ::operator delete (memory, std::align_val_t{kAlignment});
    return;
  }
  Block& block = blocks_.at(address(memory));
  // Later readers find the contents gone.
  block.end = add("free", stream, {.reads = {}, .writes = {{memory, block.bytes, 1, block.bytes}}},
                  [memory, bytes = block.bytes] {
                    std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
                  });
}

void HostDriver::check_memory(std::size_t op, const std::vector<bool>& before,
                              std::vector<std::string>& faults) const {
  for (const Intervals* touched : {&ops_[op].reads, &ops_[op].writes}) {
    for (const auto& [begin, end] : *touched) {
      auto at = blocks_.upper_bound(begin);
      const bool is_inside = at != blocks_.begin() &&
                             end <= (--at)->first + static_cast<std::uintptr_t>(at->second.bytes);
      const bool is_over =
          is_inside && at->second.end != kNone && before[at->second.end * ops_.size() + op];
      if (!is_inside || is_over) {
        faults.push_back(fmt::format("{} touches {} bytes that are {}", ops_[op].name, end - begin,
                                     is_inside ? "free" : "no memory of the device"));
      }
    }
  }
}

BoxMap HostDriver::map_boxes(const BoxSource& source) { return packed_map(source); }

// ------------------------------------------------------------------------- streams and events

Stream HostDriver::create_stream(Priority /*priority*/) {
  const std::lock_guard lock(mutex_);
  streams_.push_back(kNone);
  return {static_cast<std::int32_t>(streams_.size() - 1)};
}

Stream HostDriver::adopt_stream(void* native) {
  if (native != nullptr) {
    return {static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(native) - 1)};
  }
  if (default_stream_ == Stream{}) default_stream_ = create_stream();
  return default_stream_;
}

void* HostDriver::native(Stream stream) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream.id) + 1);
}

Event HostDriver::create_event() {
  const std::lock_guard lock(mutex_);
  events_.emplace_back();
  return {static_cast<std::int32_t>(events_.size() - 1)};
}

void HostDriver::record(Event event, Stream stream) {
  const std::lock_guard lock(mutex_);
  Recorded& recorded = events_.at(static_cast<std::size_t>(event.id));
  if (is_captured(stream)) {
    recorded = {kNone, num_captures_, capture_->add(stream.id, {"record", {}, {}, [] {}})};
    return;
  }
  recorded = {add("record", stream, {}, [] {}), kNone, kNone};
}

void HostDriver::wait(Stream stream, Event event) {
  const std::lock_guard lock(mutex_);
  const Recorded& found = events_.at(static_cast<std::size_t>(event.id));
  if (is_captured(stream) || found.capture != kNone) return wait_in_capture(stream, found);
  const std::size_t recorded = found.op;
  if (recorded == kNone && mode_ == Mode::kRecorded) {
    faults_.push_back("a wait for an event that nobody has recorded");
  }
  if (forgotten_ && forgotten_(stream)) return;
  add(
      "wait", stream, {}, [] {}, recorded);
}

std::size_t HostDriver::add(std::string name, Stream stream, const Access& access,
                            std::function<void()> run, std::size_t also_after) {
  if (is_captured(stream)) {
    capture_->add(stream.id, {std::move(name), intervals_of(access.reads),
                              intervals_of(access.writes), std::move(run)});
    return kNone;
  }
  if (mode_ == Mode::kAtOnce) {
    run();
    return kNone;
  }
  std::size_t* const last =
      stream.id < 0 ? nullptr : &streams_.at(static_cast<std::size_t>(stream.id));
  Op op{std::move(name), stream, {}, 0, intervals_of(access.reads), intervals_of(access.writes),
        std::move(run)};
  if (last != nullptr && *last != kNone) op.after.push_back(*last);
  if (also_after != kNone) op.after.push_back(also_after);
  const std::size_t index = ops_.size();
  ops_.push_back(std::move(op));
  waiting_.push_back(index);
  if (last != nullptr) *last = index;
  added_.notify_all();
  return index;
}

std::size_t HostDriver::add_group(Stream stream, std::int64_t num_transfers) {
  const std::lock_guard lock(mutex_);
  refuse_in_capture("a group of messages", stream);
  const std::size_t begin = add("group", stream, {}, [] {});
  const std::size_t end = add("group end", stream, {}, [] {});
  ops_[end].num_open = num_transfers;
  return begin;
}

void HostDriver::add_transfer(std::size_t group, std::size_t other, const Rows& to,
                              const Rows& from) {
  const std::lock_guard lock(mutex_);
  const std::size_t transfer = add(
      "transfer", Stream{}, {.reads = {from}, .writes = {to}}, [to, from] { copy_rows(to, from); },
      group);
  ops_[transfer].after.push_back(other);
  for (const std::size_t begin : {group, other}) {
    ops_[begin + 1].after.push_back(transfer);
    --ops_[begin + 1].num_open;
  }
  added_.notify_all();
}

bool HostDriver::is_ready(const Op& op) const {
  return op.num_open == 0 && std::ranges::all_of(op.after, [&](std::size_t before) {
           return ops_[before].run == nullptr;
         });
}

// Runs work in an order that streams and events allow: one stream runs as far as it can while the
// others wait.
void HostDriver::run_ready() {
  for (;;) {
    std::vector<std::size_t> ready;
    for (const std::size_t op : waiting_) {
      if (is_ready(ops_[op])) ready.push_back(op);
    }
    if (ready.empty()) return;
    std::size_t next = ready[rng_.next() % ready.size()];
    const Stream stream = ops_[next].stream;
    for (;;) {
      ops_[next].run();
      ops_[next].run = nullptr;
      waiting_.erase(std::ranges::find(waiting_, next));
      const auto follows = std::ranges::find_if(
          waiting_, [&](std::size_t op) { return stream.id >= 0 && ops_[op].stream == stream; });
      if (follows == waiting_.end() || !is_ready(ops_[*follows]) || rng_.next() % 8 == 0) break;
      next = *follows;
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

void HostDriver::copy(Stream stream, std::byte* to, const std::byte* from, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  CONTEXTILE_CHECK(bytes > 0, "copy: expected bytes, found none");
  add("copy", stream,
      {.reads = {{const_cast<std::byte*>(from), bytes, 1, bytes}},
       .writes = {{to, bytes, 1, bytes}}},
      [=] { std::memmove(to, from, static_cast<std::size_t>(bytes)); });
}

void HostDriver::fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  CONTEXTILE_CHECK(bytes > 0, "fill: expected bytes, found none");
  add("fill", stream, {.reads = {}, .writes = {{to, bytes, 1, bytes}}},
      [=] { std::memset(to, value, static_cast<std::size_t>(bytes)); });
}

void HostDriver::launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
                        const std::function<Access()>& access) {
  std::unique_lock lock(mutex_);
  if (mode_ == Mode::kAtOnce && !is_captured(stream)) {
    lock.unlock();
    return run_on_host(grid, arguments);
  }
  add(std::string(grid.kernel), stream, access(),
      [kernel = std::string(grid.kernel), shape = grid,
       bytes = std::vector<std::byte>(arguments.begin(), arguments.end())] {
        Grid named = shape;
        named.kernel = kernel;
        run_on_host(named, bytes);
      });
}

bool HostDriver::is_done(Event event) {
  const std::lock_guard lock(mutex_);
  run_ready();
  const Recorded& found = events_.at(static_cast<std::size_t>(event.id));
  if (found.capture != kNone) throw DeviceError("host: an event of a capture is never done");
  const std::size_t recorded = found.op;
  return recorded == kNone || ops_[recorded].run == nullptr;
}

// Other threads may still add what the stream waits for.
void HostDriver::synchronize(Stream stream) {
  std::unique_lock lock(mutex_);
  refuse_in_capture("synchronize", stream);
  ++num_synchronizations_;
  constexpr std::chrono::seconds kPatience{10};
  for (;;) {
    run_ready();
    const std::size_t last = streams_.at(static_cast<std::size_t>(stream.id));
    if (last == kNone || ops_[last].run == nullptr) return;
    if (added_.wait_for(lock, kPatience) == std::cv_status::timeout) {
      faults_.push_back(fmt::format("stream {} stands still at {}", stream.id, ops_[last].name));
      return;
    }
  }
}

void HostDriver::read(Stream stream, std::span<std::byte> to, const std::byte* from) {
  synchronize(stream);
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
}

// ----------------------------------------------------------------------------------- races

std::vector<bool> HostDriver::orders() const {
  const std::size_t count = ops_.size();
  std::vector<std::size_t> num_before(count);
  std::vector<std::vector<std::size_t>> next(count);
  for (std::size_t op = 0; op < count; ++op) {
    num_before[op] = ops_[op].after.size();
    for (const std::size_t before : ops_[op].after) next[before].push_back(op);
  }
  std::vector<std::size_t> ready;
  for (std::size_t op = 0; op < count; ++op) {
    if (num_before[op] == 0) ready.push_back(op);
  }
  std::vector<bool> before(count * count);
  while (!ready.empty()) {
    const std::size_t op = ready.back();
    ready.pop_back();
    for (const std::size_t after : next[op]) {
      before[op * count + after] = true;
      for (std::size_t i = 0; i < count; ++i) {
        if (before[i * count + op]) before[i * count + after] = true;
      }
      if (--num_before[after] == 0) ready.push_back(after);
    }
  }
  return before;
}

std::vector<std::string> HostDriver::races() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> all = faults_;
  const std::vector<bool> before = orders();
  std::vector<std::size_t> touching;
  for (std::size_t op = 0; op < ops_.size(); ++op) {
    if (ops_[op].reads.empty() && ops_[op].writes.empty()) continue;
    touching.push_back(op);
    check_memory(op, before, all);
  }
  for (std::size_t i = 0; i < touching.size(); ++i) {
    const Op& a = ops_[touching[i]];
    for (std::size_t j = i + 1; j < touching.size(); ++j) {
      const Op& b = ops_[touching[j]];
      if (before[touching[i] * ops_.size() + touching[j]]) continue;
      if (before[touching[j] * ops_.size() + touching[i]]) continue;
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
