// The experts of a layer: a router that chooses some for each row, and their feed-forwards.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/transport.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {

// An expert that a row is sent to, and the weight of its output; expert -1: none.
struct Route {
  std::int32_t expert = -1;
  float weight = 0;
};

// Returns the top_k routes of every row from the router's logits [rows, experts]. `choice_bias` has
// an element for each expert with kSigmoid.
[[nodiscard]] std::vector<Route> choose_experts(const ExpertsConfig& config,
                                                std::span<const float> logits,
                                                std::span<const float> choice_bias);

// A rank's experts of one layer. Rows are fp32 [rows, hidden], with top_k routes each.
class ExpertLayer {
 public:
  // flops: to which additions and multiplications are added. All must outlive the object.
  ExpertLayer(const DecoderConfig& config, const DecoderWeights::Layer& layer,
              const DecoderPart& part, std::int64_t& flops);

  [[nodiscard]] std::vector<Route> routes(std::span<const float> x) const;
  // y += the weighted outputs of this rank's experts, for rows that all ranks have.
  void add_own(std::span<const float> x, std::span<const Route> routes, std::span<float> y) const;
  // The same for rows that no other rank of the group has, with the experts of all its ranks: a row
  // goes to the ranks of its experts, and their sums come back. Every rank sends, for each row that
  // it has and each other rank with experts of the row, 4·hidden + 8·top_k bytes, and 4·hidden for
  // each that it gets. Collective.
  void add_over(Transport& group, std::span<const float> x, std::span<const Route> routes,
                std::span<float> y) const;

 private:
  [[nodiscard]] std::vector<float> outputs(const DecoderWeights::Layer::Expert& expert,
                                           std::span<const float> x) const;

  const ExpertsConfig& config_;
  const DecoderWeights::Layer& layer_;
  DecoderPart part_;
  std::size_t hidden_;
  std::int64_t& flops_;
};

}  // namespace contextile
