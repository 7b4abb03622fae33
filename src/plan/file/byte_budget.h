// A guard against FlatBuffers whose offsets name one object many times: a small buffer can then
// describe very much. What an honest buffer visits never exceeds its size.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "plan/file/byte_codec.h"

namespace contextile {

class ByteBudget {
 public:
  ByteBudget(std::size_t section_bytes, FilePlace place) : left_(section_bytes), place_(place) {}

  // Every table takes at least its own offset and the one that names it.
  void visit_table() { spend(2 * sizeof(flatbuffers::uoffset_t)); }

  [[nodiscard]] std::span<const std::uint8_t> bytes(const flatbuffers::Vector<std::uint8_t>* v) {
    spend(v->size());
    return {v->data(), v->size()};
  }
  [[nodiscard]] std::string text(const flatbuffers::String* s) {
    spend(s->size());
    return s->str();
  }

 private:
  void spend(std::size_t bytes) {
    if (bytes > left_) {
      fail_plan("{}: expected every object once, found some that are named repeatedly",
                place_.text());
    }
    left_ -= bytes;
  }

  std::size_t left_;
  FilePlace place_;
};

}  // namespace contextile
