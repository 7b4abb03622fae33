// A step of tokens whose rows all ranks compute together: each rank some heads and some of the
// feed-forward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/decode.h"
#include "serving/model/decoder_core.h"

namespace contextile {

class DecodePass {
 public:
  explicit DecodePass(DecoderCore& core);

  // Caches keys and values of the requests' tokens. Returns the activations of the tokens that need
  // logits. A request may read what an earlier one writes in the same call.
  [[nodiscard]] Floats forward(std::span<const StepRequest> requests);

 private:
  struct Rows;
  struct Group;
  struct PendingLayer;

  [[nodiscard]] Rows rows_of(std::span<const StepRequest> requests) const;
  void keep(std::int32_t layer, const Rows& rows, std::span<const float> x);
  void compute_layers(std::vector<Group>& groups);
  [[nodiscard]] PendingLayer begin_layer(std::int32_t layer, Group& group);
  [[nodiscard]] PendingLayer begin_attention(std::int32_t layer, Group& group, Floats& q);
  [[nodiscard]] std::vector<Range> keys_of(std::int32_t layer, const Rows& rows);
  void finish_layer(PendingLayer pending);

  DecoderCore& core_;
  DecodeGroup group_;
};

}  // namespace contextile
