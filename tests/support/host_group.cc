#include "support/host_group.h"

#include <algorithm>
#include <new>

#include "gpu/emulated/box_map_format.h"

namespace contextile::cuda {
namespace {

constexpr std::uint32_t kFirstAddress = kSwizzleBytes;  // what is before is the system's
constexpr std::uint16_t kPoison = 0xffff;               // NaN

std::uint32_t swizzled(std::uint32_t address) { return address ^ ((address >> 7 & 7U) << 4); }

Operand checked(std::uint64_t descriptor) {
  const Operand operand = decode(descriptor);
  CONTEXTILE_CHECK(operand.swizzle == 1 && (descriptor >> 49 & 7U) == 0,
                   "descriptor: expected the swizzle of 128 bytes, found {:#x}", descriptor);
  return operand;
}

}  // namespace

void HostGroups::Free::operator()(std::uint16_t* memory) const {
  ::operator delete (memory, std::align_val_t{kSwizzleBytes});
}

HostGroups::HostGroups(std::size_t shared_bytes, std::uint64_t seed)
    : shared_bytes_(shared_bytes),
      shared_(static_cast<std::uint16_t*>(
          ::operator new (shared_bytes, std::align_val_t{kSwizzleBytes}))),
      turns_(kParts, seed) {
  std::fill_n(shared_.get(), shared_bytes / 2, kPoison);
}

std::uint32_t HostGroups::address(const void* place) const {
  const std::ptrdiff_t offset =
      static_cast<const std::byte*>(place) - reinterpret_cast<const std::byte*>(shared_.get());
  return kFirstAddress + static_cast<std::uint32_t>(offset);
}

std::uint16_t& HostGroups::element_at(std::uint32_t address) const {
  const std::size_t offset = address - kFirstAddress;
  CONTEXTILE_CHECK(offset % 2 == 0 && offset < shared_bytes_,
                   "shared memory: expected an element below {}, found {}", shared_bytes_, offset);
  return shared_.get()[offset / 2];
}

// ------------------------------------------------------------------------------------ barriers

HostGroups::State& HostGroups::state_of(Barrier& barrier) {
  const auto found = barriers_.find(&barrier);
  CONTEXTILE_CHECK(found != barriers_.end(), "barrier: expected one that is open, found another");
  return found->second;
}

void HostGroups::open(Barrier& barrier, int arrivals) {
  State& state = barriers_[&barrier];
  state.arrivals = state.missing = arrivals;
}

// True if copies that are on their way could have arrived.
bool HostGroups::State::can_end() const {
  std::int64_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.bytes();
  return missing == 0 && bytes == expected_bytes;
}

void HostGroups::end_phase(State& state) {
  for (const Copy& copy : state.copies) {
    write_box(copy, [&](int row, int col) -> std::uint16_t {
      const BoxSource& from = copy.source;
      const std::int64_t c = copy.col + col;
      const std::int64_t head = copy.head + row % from.box_heads;
      const std::int64_t token = std::int64_t{copy.token} + row / from.box_heads;
      if (c >= from.cols || head >= from.heads || token >= from.tokens) return 0;
      const auto* place = static_cast<const std::byte*>(from.data) +
                          token * from.token_stride_bytes + head * from.head_stride_bytes;
      return reinterpret_cast<const std::uint16_t*>(place)[c];
    });
  }
  state.copies.clear();
  state.expected_bytes = 0;
  state.missing = state.arrivals;
  ++state.phase;
}

void HostGroups::arrive(Barrier& barrier, int count) {
  State& state = state_of(barrier);
  CONTEXTILE_CHECK(count <= state.missing, "barrier: expected at most {} arrivals, found {}",
                   state.missing, count);
  state.missing -= count;
  if (state.missing == 0 && state.expected_bytes == 0) end_phase(state);
}

void HostGroups::expect(Barrier& barrier, std::int64_t bytes) {
  state_of(barrier).expected_bytes += bytes;
}

template <typename Value>
void HostGroups::write_box(const Copy& copy, const Value& value) const {
  for (int row = 0; row < copy.num_rows(); ++row) {
    for (int col = 0; col < copy.source.box_cols; ++col) {
      const auto at = copy.to + static_cast<std::uint32_t>(row * kSwizzleCols + col) * 2;
      element_at(swizzled(at)) = value(row, col);
    }
  }
}

void HostGroups::copy_box(std::uint16_t* to, const BoxMap& map, int col, int head,
                          std::int32_t token, Barrier& full) {
  const Copy copy{address(to), source_of(map), col, head, token};
  CONTEXTILE_CHECK(copy.to % kSwizzleBytes == 0 && copy.source.box_cols == kSwizzleCols,
                   "copy: expected boxes of 64 columns at multiples of 1024 bytes, found {} at {}",
                   copy.source.box_cols, copy.to);
  write_box(copy, [](int, int) { return kPoison; });
  state_of(full).copies.push_back(copy);
}

void HostGroups::wait(int part, Barrier& barrier, std::uint32_t parity) {
  State& state = state_of(barrier);
  const auto is_over = [&state, parity] { return state.phase % 2 != parity; };
  turns_.wait_until(part, [&] { return is_over() || state.can_end(); });
  if (!is_over()) end_phase(state);
}

void HostGroups::sync(int part) {
  const int all = (num_synced_ / kParts + 1) * kParts;
  ++num_synced_;
  turns_.wait_until(part, [this, all] { return num_synced_ >= all; });
}

void HostGroups::await_turn(int part, int consumer) {
  int& passed = turns_passed_.at(static_cast<std::size_t>(consumer));
  turns_.wait_until(part, [&] { return passed > 0; });
  --passed;
}

void HostGroups::expect_no_turn() const {
  for (const int passed : turns_passed_) {
    CONTEXTILE_CHECK(passed == 0, "turns: expected all to be taken, found {} left", passed);
  }
}

// ------------------------------------------------------------------------------------ products

void HostProducts::start(Product product) {
  CONTEXTILE_CHECK(is_fenced_, "products: expected a fence before {}", "them, found none");
  const auto [at, is_new] = in_flight_.try_emplace(product.sums);
  if (is_new) at->second.values = std::move(product.held);
  ++at->second.num_products;
  started_.push_back(std::move(product));
}

void HostProducts::commit() {
  committed_.push_back(std::move(started_));
  started_.clear();
}

void HostProducts::wait(std::size_t open) {
  CONTEXTILE_CHECK(started_.empty(),
                   "products: expected all to be committed, found {} that are not",
                   started_.size());
  is_fenced_ = false;
  while (committed_.size() > open) {
    for (const Product& product : committed_.front()) finish(product);
    committed_.pop_front();
  }
}

void HostProducts::finish(const Product& product) {
  const Bits left = product.left();
  const Bits right = product.right();
  CONTEXTILE_CHECK(left == product.left_before && right == product.right_before,
                   "products: expected factors as they were, found {} changed",
                   left == product.left_before ? "the right ones" : "the left ones");
  InFlight& flight = in_flight_.at(product.sums);
  const auto width = static_cast<std::size_t>(product.width);
  const auto numbers = [&](const Bits& bits) {
    std::vector<double> values(bits.size());
    std::ranges::transform(bits, values.begin(),
                           [&](std::uint16_t x) { return double{product.number(x)}; });
    return values;
  };
  const std::vector<double> a = numbers(left);
  const std::vector<double> b = numbers(right);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t col = 0; col < width; ++col) {
      float& held = flight.values[row * width + col];
      double sum = product.adds ? double{held} : 0;
      for (std::size_t k = 0; k < kDepth; ++k) sum += a[row * kDepth + k] * b[col * kDepth + k];
      held = static_cast<float>(sum);
    }
  }
  if (--flight.num_products > 0) return;
  product.end(flight.values);
  in_flight_.erase(product.sums);
}

void HostProducts::expect_at_rest(const void* sums) const {
  CONTEXTILE_CHECK(!is_in_flight(sums), "products: expected {}",
                   "sums that nobody computes, found some in flight");
}

void HostProducts::expect_none() const {
  CONTEXTILE_CHECK(started_.empty() && committed_.empty(),
                   "products: expected none at the end, found {} groups", committed_.size());
}

// The rows of a factor, 16 columns of each.
HostGroup::Bits HostGroup::rows_at(std::uint64_t descriptor, int num_rows) const {
  const Operand operand = checked(descriptor);
  Bits bits;
  for (std::uint32_t row = 0; row < static_cast<std::uint32_t>(num_rows); ++row) {
    for (std::uint32_t k = 0; k < kDepth; ++k) {
      const std::uint32_t at = operand.start + row / 8 * operand.stride + row % 8 * 128 + k * 2;
      bits.push_back(cta_.element_at(swizzled(at)));
    }
  }
  return bits;
}

// The columns of a factor whose 16 rows are the depth.
HostGroup::Bits HostGroup::depth_at(std::uint64_t descriptor, int width) const {
  const Operand operand = checked(descriptor);
  Bits bits;
  for (std::uint32_t col = 0; col < static_cast<std::uint32_t>(width); ++col) {
    for (std::uint32_t k = 0; k < kDepth; ++k) {
      const std::uint32_t at = operand.start + col / 64 * operand.leading + col % 64 * 2 +
                               k / 8 * operand.stride + k % 8 * 128;
      bits.push_back(cta_.element_at(swizzled(at)));
    }
  }
  return bits;
}

}  // namespace contextile::cuda
