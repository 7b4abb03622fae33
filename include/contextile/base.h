// Ids, ranges and errors: the words every other header uses.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace contextile {

// A 32-bit index with a type of its own, so that a rank is never passed where a block is meant.
template <typename Tag>
struct Id {
  std::int32_t value = -1;  // -1: invalid

  constexpr Id() = default;
  constexpr explicit Id(std::int32_t v) : value(v) {}

  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  // For indexing arrays; only meaningful on a valid id.
  [[nodiscard]] constexpr std::size_t index() const { return static_cast<std::size_t>(value); }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using Rank = Id<struct RankTag>;      // a device of the context-parallel group, 0 … R-1
using BlockId = Id<struct BlockTag>;  // a token block of one round
using GroupId = Id<struct GroupTag>;  // a head group, 0 … G-1
using SlotId = Id<struct SlotTag>;  // a slot of one kind on one device (owned first, then staging)
using PageId = Id<struct PageTag>;  // a page of a cache; on every rank it holds other tokens

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

// Every failure of the library is one of these. The message says what was expected, what was found
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

// A plan (or the bytes of one) is broken or does not fit what it is used with.
class InvalidPlan : public Error {
 public:
  using Error::Error;
};

// A file cannot be read or written.
class IoError : public Error {
 public:
  using Error::Error;
};

// A peer died, stalled past the timeout, or sent something else than agreed.
class TransportError : public Error {
 public:
  using Error::Error;
};
// A GPU failed or has no memory left: what was called, and what its driver says.
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
