// The places of a round's tokens, for calls with terms.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/plan.h"

namespace contextile {

class TokenPlaces {
 public:
  // The plan and the round must outlive it.
  TokenPlaces(const Plan& plan, const PlanRound& round) : plan_(plan), round_(round) {}

  // Returns the places of a block's tokens, which are made when they are first needed.
  [[nodiscard]] std::span<const TokenPlace> of(BlockId block);
  // Returns the places of part `part` of a tile's head groups.
  [[nodiscard]] TilePlaces of(const TileOp& tile, std::int32_t part);

 private:
  [[nodiscard]] std::int64_t position_of(std::int64_t token) const;

  const Plan& plan_;
  const PlanRound& round_;
  std::map<BlockId, std::vector<TokenPlace>> places_;
};

}  // namespace contextile
