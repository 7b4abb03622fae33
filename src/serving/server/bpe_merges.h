// Byte-pair encoding: pieces of a word are joined, beginning with the pair that was learnt first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/look.h"

namespace contextile {

class BpeMerges {
 public:
  // `tokens` are by their text; `merges` are pairs of texts, the first learnt first. Throws
  // InvalidArgument if a merge joins or makes a text that is no token.
  BpeMerges(std::unordered_map<std::string, std::int32_t> tokens,
            const std::vector<std::pair<std::string, std::string>>& merges);

  [[nodiscard]] std::optional<std::int32_t> token(const std::string& text) const;
  // `tokens` are the smallest tokens of a word. O(n log n) in their number.
  [[nodiscard]] std::vector<std::int32_t> join(const std::vector<std::int32_t>& tokens,
                                               RareLook& look_up) const;

 private:
  struct Merge {
    std::int32_t order = 0;
    std::int32_t token = 0;
  };
  [[nodiscard]] const Merge* find(std::int32_t left, std::int32_t right) const;

  std::unordered_map<std::string, std::int32_t> tokens_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left and right token
};

}  // namespace contextile
