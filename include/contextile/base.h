// Ids, ranges and errors: the vocabulary that every other header uses.
//
//   const Rank rank{3};
//   const Range tokens = intersect({0, 500}, {400, 900});  // [400, 500)
//   if (rank.valid() && tokens.contains(450)) return 1;
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace contextile {

// A 32-bit index with a type of its own, so that a rank cannot be passed where a block is expected.
template <typename Tag>
struct Id {
  std::int32_t value = -1;  // -1: invalid

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}

  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  // The id as an index into arrays. The id must be valid.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using Rank = Id<struct RankTag>;      // a device of the context-parallel group, 0 … R-1
using BlockId = Id<struct BlockTag>;  // a token block, numbered within one round
using GroupId = Id<struct GroupTag>;  // a head group, 0 … G-1
using SlotId = Id<struct SlotTag>;    // a slot of one kind on one device (owned, then staging)
using PageId = Id<struct PageTag>;    // a page of a cache; on every rank it holds different tokens

inline constexpr Rank kInvalidRank{};
inline constexpr BlockId kInvalidBlock{};
inline constexpr GroupId kInvalidGroup{};
inline constexpr SlotId kInvalidSlot{};

// Half-open interval of token indices [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
  [[nodiscard]] constexpr bool empty() const { return end <= begin; }
  [[nodiscard]] constexpr bool contains(std::int64_t x) const { return begin <= x && x < end; }

  friend constexpr auto operator<=>(const Range&, const Range&) = default;
};

[[nodiscard]] constexpr Range intersect(Range a, Range b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

// Base class of every failure of the library. The message says what was expected, what was found
// and where. The library never prints and never exits.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller's input is wrong: lengths, mask, cluster, options, shapes.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A plan (or a serialized plan) is broken or does not fit the call that uses it.
class InvalidPlan : public Error {
 public:
  using Error::Error;
};

// A file cannot be read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

// A peer died, stalled past the timeout, or sent something other than agreed.
class TransportError : public Error {
 public:
  using Error::Error;
};
// A GPU failed or is out of memory. The message names the driver call and quotes the driver's
// error.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace contextile

template <typename Tag>
struct std::hash<contextile::Id<Tag>> {
  std::size_t operator()(contextile::Id<Tag> id) const noexcept {
    return std::hash<std::int32_t>{}(id.value);
  }
};

namespace contextile {

// --------------------------------------------------------------------------------------- id vector
//
// Arrays that are indexed by an id, so that the number of a net never selects the entry of a
// vertex.

// The ids 0 … size-1: a range to iterate over, and the size of an IdVector.
template <typename I>
class IdRange {
 public:
  class Iterator {
   public:
    using value_type = I;
    using difference_type = std::ptrdiff_t;

    constexpr Iterator() = default;
    constexpr explicit Iterator(std::int32_t value) : value_(value) {}

    constexpr I operator*() const { return I{value_}; }
    constexpr Iterator& operator++() {
      ++value_;
      return *this;
    }
    constexpr Iterator operator++(int) { return Iterator{value_++}; }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    std::int32_t value_ = 0;
  };

  constexpr IdRange() = default;
  constexpr explicit IdRange(std::int32_t size) : size_(size) {}

  [[nodiscard]] constexpr Iterator begin() const { return Iterator{0}; }
  [[nodiscard]] constexpr Iterator end() const { return Iterator{size_}; }
  [[nodiscard]] constexpr std::size_t size() const { return static_cast<std::size_t>(size_); }

 private:
  std::int32_t size_ = 0;
};

// A std::vector whose index is the id I. It is as unchecked as a vector: an index must be valid and
// below size().
template <typename I, typename T>
class IdVector {
 public:
  using value_type = T;

  IdVector() = default;
  IdVector(std::initializer_list<T> values) : values_(values) {}
  // One entry for every id of the range.
  explicit IdVector(IdRange<I> ids, const T& value = T()) : values_(ids.size(), value) {}
  // Entry i belongs to the id i.
  explicit IdVector(std::vector<T> values) : values_(std::move(values)) {}

  [[nodiscard]] decltype(auto) operator[](I id) { return values_[id.index()]; }
  [[nodiscard]] decltype(auto) operator[](I id) const { return values_[id.index()]; }

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  // The ids that have an entry.
  [[nodiscard]] IdRange<I> ids() const {
    return IdRange<I>(static_cast<std::int32_t>(values_.size()));
  }

  // The entries in the order of their ids, as one array.
  [[nodiscard]] const T* data() const { return values_.data(); }

  [[nodiscard]] auto begin() { return values_.begin(); }
  [[nodiscard]] auto end() { return values_.end(); }
  [[nodiscard]] auto begin() const { return values_.begin(); }
  [[nodiscard]] auto end() const { return values_.end(); }
  [[nodiscard]] decltype(auto) front() { return values_.front(); }
  [[nodiscard]] decltype(auto) front() const { return values_.front(); }
  [[nodiscard]] decltype(auto) back() { return values_.back(); }
  [[nodiscard]] decltype(auto) back() const { return values_.back(); }

  void assign(IdRange<I> ids, const T& value) { values_.assign(ids.size(), value); }
  void resize(IdRange<I> ids) { values_.resize(ids.size()); }
  void reserve(std::size_t size) { values_.reserve(size); }
  void clear() { values_.clear(); }
  // Appends an entry and returns its id.
  I push_back(T value) {
    values_.push_back(std::move(value));
    return I{static_cast<std::int32_t>(values_.size()) - 1};
  }
  template <typename... Arguments>
  decltype(auto) emplace_back(Arguments&&... arguments) {
    return values_.emplace_back(std::forward<Arguments>(arguments)...);
  }

  friend bool operator==(const IdVector&, const IdVector&) = default;

 private:
  std::vector<T> values_;
};

// ---------------------------------------------------------------------------------------- progress
//
// Progress reports of long work.

// Callback that is called now and then with the current activity ("simulating candidates") and how
// many of its `total` steps are done. It may be called from any thread, but one call at a time. An
// exception from it ends the work: the function that received the hook rethrows the exception and
// has changed nothing.
using ProgressHook =
    std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

// ----------------------------------------------------------------------------------------- version
//
// Version of the library.

// The version of the linked library, such as "0.1.0".
[[nodiscard]] std::string_view version();

}  // namespace contextile
