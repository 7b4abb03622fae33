#include "contextile/workload.h"

namespace contextile {

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::kQ:
      return "q";
    case Kind::kKv:
      return "kv";
    case Kind::kO:
      return "o";
    case Kind::kDo:
      return "do";
    case Kind::kDq:
      return "dq";
    case Kind::kDkv:
      return "dkv";
  }
  return "?";
}

std::string_view to_string(Direction direction) {
  return direction == Direction::kForward ? "forward" : "backward";
}

std::int64_t unit_bytes(Kind kind, std::int64_t tokens, const AttentionShape& shape,
                        std::int32_t head_groups, Dtype wire) {
  const std::int64_t q_heads = shape.q_heads / head_groups;
  const std::int64_t kv_heads = shape.kv_heads / head_groups;
  const std::int64_t element = bytes_per_element(wire);
  constexpr std::int64_t kFp32 = 4;
  switch (kind) {
    case Kind::kQ:
    case Kind::kDq:
      return tokens * q_heads * shape.head_dim * element;
    case Kind::kKv:
    case Kind::kDkv:
      return tokens * kv_heads * (shape.head_dim + shape.value_dim) * element;
    case Kind::kO:
      return tokens * q_heads * (shape.value_dim * element + kFp32);
    case Kind::kDo:
      return tokens * q_heads * (shape.value_dim * element + 2 * kFp32);
  }
  return 0;
}

}  // namespace contextile
