// Parts of prompts whose tokens the context-parallel ranks share: every rank computes the rows of
// its own tokens through the whole layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "serving/model/decoder_core.h"

namespace contextile {

class PrefillPass {
 public:
  explicit PrefillPass(DecoderCore& core);
  ~PrefillPass();

  // The same as DecodePass::forward, except that no request may read what another one writes in
  // this call. The returned activations are the same on every rank.
  [[nodiscard]] Floats forward(std::span<const StepRequest> requests);

 private:
  struct Batch;
  struct Attention;

  [[nodiscard]] Attention& attention_of(Batch& batch, std::int32_t layer);
  [[nodiscard]] Dtype kv_wire() const;
  [[nodiscard]] PrefillMode mode_of(const PrefillWork& work);
  void compute_layer(std::int32_t layer, Batch& batch, Floats& x);
  [[nodiscard]] Floats last_rows(const Batch& batch, std::span<const StepRequest> requests,
                                 std::span<const float> x);

  DecoderCore& core_;
  AttentionShape shape_;
  const AttentionKernel& kernel_;
  std::optional<PrefillRates> rates_;  // if modes are chosen
};

}  // namespace contextile
