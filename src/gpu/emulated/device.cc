#include "gpu/emulated/device.h"

#include <algorithm>
#include <iterator>

namespace contextile::emulated {
namespace {

// Makes the union of all lent ranges. Needs the lock.
void unite_lent() {
  std::map<std::uintptr_t, std::uintptr_t>& united = device().lent_union;
  united.clear();
  for (const auto& [begin, end] : device().lent) {
    if (!united.empty() && begin <= united.rbegin()->second) {
      std::uintptr_t& last = united.rbegin()->second;
      last = std::max(last, end);
    } else {
      united[begin] = end;
    }
  }
}

// True if `size` bytes at the last place not behind `address` contain the range.
bool is_within(std::uintptr_t first, std::uintptr_t size, std::uint64_t address,
               std::uint64_t bytes) {
  const std::uint64_t offset = address - first;
  return offset <= size && bytes <= size - offset;
}

}  // namespace

Device& device() {
  // Never destroyed: a GPU that is a global variable may outlive other global variables.
  static Device* const kOnly = new Device;
  return *kOnly;
}

void*& current_context() {
  static thread_local void* current = nullptr;
  return current;
}

bool is_stream(void* stream) { return stream == nullptr || device().streams.contains(stream); }

bool is_memory(std::uint64_t address, std::uint64_t bytes) {
  if (device().has_all_memory) return true;
  const auto& allocations = device().allocations;
  if (auto at = allocations.upper_bound(address); at != allocations.begin()) {
    --at;
    if (is_within(at->first, at->second, address, bytes)) return true;
  }
  const auto& lent = device().lent_union;
  auto at = lent.upper_bound(address);
  if (at == lent.begin()) return false;
  --at;
  return is_within(at->first, at->second - at->first, address, bytes);
}

bool is_captured(void* stream) { return device().capture && device().capture->has(stream); }

Result on_stream(void* stream, std::function<Result()> work) {
  if (!is_captured(stream)) return work();
  device().capture->add(stream, std::move(work));
  return kSuccess;
}

LentMemory::LentMemory(std::span<const std::byte> memory)
    : begin_(reinterpret_cast<std::uintptr_t>(memory.data())), end_(begin_ + memory.size()) {
  const std::lock_guard lock(device().mutex);
  device().lent.emplace(begin_, end_);
  unite_lent();
}

LentMemory::~LentMemory() {
  const std::lock_guard lock(device().mutex);
  const auto [first, last] = device().lent.equal_range(begin_);
  const auto found = std::find_if(first, last, [&](const auto& of) { return of.second == end_; });
  if (found != last) device().lent.erase(found);
  unite_lent();
}

}  // namespace contextile::emulated
