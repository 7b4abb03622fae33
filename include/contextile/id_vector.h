// Arrays that are indexed by an id, so that a net's number never picks a vertex's entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// The ids 0 … size-1, to iterate over and to size an IdVector by.
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

// A std::vector whose index is the id I. As unchecked as a vector: I must be valid and below size.
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
  // The ids that have an entry now.
  [[nodiscard]] IdRange<I> ids() const {
    return IdRange<I>(static_cast<std::int32_t>(values_.size()));
  }

  // Entries in the order of their ids, as one array.
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
  // The id of the new last entry.
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

}  // namespace contextile
