// A guard against FlatBuffers whose offsets name one object many times: a small buffer can then
// describe very much. An honest buffer is never visited for more bytes than it has.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "plan/file/file_place.h"

namespace contextile {

class ByteBudget {
 public:
  ByteBudget(std::size_t section_bytes, FilePlace place) : left_(section_bytes), place_(place) {}

  // Every table takes at least its own offset and the one that names it.
  void visit_table() { spend(2 * sizeof(flatbuffers::uoffset_t)); }

  // Counts a list of numbers or structs and returns it.
  template <typename T>
  [[nodiscard]] const flatbuffers::Vector<T>& list(const flatbuffers::Vector<T>* v) {
    constexpr std::size_t kElementBytes = flatbuffers::IndirectHelper<T>::element_stride;
    spend(v->size() * kElementBytes);
    // FlatBuffers' own check covers the list's size, 4 bytes before the elements.
    if (v->size() > 0 && reinterpret_cast<std::uintptr_t>(v->Data()) % kAlignment<T> != 0) {
      place_.fail("expected a list aligned to {} bytes, found one that is not", kAlignment<T>);
    }
    return *v;
  }
  [[nodiscard]] std::string text(const flatbuffers::String* s) {
    spend(s->size());
    return s->str();
  }

 private:
  template <typename T>
  static constexpr std::size_t kAlignment = alignof(std::remove_pointer_t<T>);

  void spend(std::size_t bytes) {
    if (bytes > left_) place_.fail("expected every object once, found some that are named often");
    left_ -= bytes;
  }

  std::size_t left_;
  FilePlace place_;
};

}  // namespace contextile
