// Requests that engines of tests serve.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

using Requests = std::vector<GenerationRequest>;

// The tokens of random_requests are below this.
inline constexpr std::int32_t kRandomVocabulary = 23;

// Prompts that end with `times` copies of a part of 3 to 2 + `lengths` tokens. Every second one
// begins with the same 40 tokens. Outputs have 20 to 49 tokens, chosen by likelihood.
inline Requests random_requests(std::int32_t count, std::uint32_t seed, std::uint32_t lengths,
                                int times) {
  std::mt19937 random(seed);
  const auto token = [&] {
    return std::uniform_int_distribution<std::int32_t>(0, kRandomVocabulary - 1)(random);
  };
  std::vector<std::int32_t> shared(40);
  std::ranges::generate(shared, token);
  Requests requests;
  for (std::int32_t i = 0; i < count; ++i) {
    GenerationRequest request;
    request.id = RequestId(i);
    if (i % 2 == 0) request.prompt = shared;
    std::vector<std::int32_t> part(3 + random() % lengths);
    std::ranges::generate(part, token);
    for (int k = 0; k < times; ++k) {
      request.prompt.insert(request.prompt.end(), part.begin(), part.end());
    }
    request.max_tokens = 20 + static_cast<std::int32_t>(random() % 30);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace contextile
