// The layout in which the plan interpreter keeps the rows of units.
#pragma once

#include <cstdint>

#include "contextile/extend/arrangement.h"

namespace contextile {

// Heads of one group, and the layout of a row of each kind: head after head, with the following for
// each head. q: head_dim; kv: head_dim + value_dim; o: value_dim + LSE; do: value_dim + LSE +
// delta; dq: head_dim; dkv: head_dim + value_dim.
struct RowLayout {
  std::int32_t q_heads;
  std::int32_t kv_heads;
  std::int32_t head_dim;
  std::int32_t value_dim;

  [[nodiscard]] std::int32_t heads(Kind kind) const { return is_of_kv(kind) ? kv_heads : q_heads; }
  [[nodiscard]] std::int32_t head_width(Kind kind) const {
    switch (kind) {
      case Kind::kQ:
      case Kind::kDq:
        return head_dim;
      case Kind::kKv:
      case Kind::kDkv:
        return head_dim + value_dim;
      case Kind::kO:
        return value_dim + 1;
      case Kind::kDo:
        return value_dim + 2;
    }
    return 0;
  }
  [[nodiscard]] std::int64_t width(Kind kind) const {
    return std::int64_t{heads(kind)} * head_width(kind);
  }
};

}  // namespace contextile
