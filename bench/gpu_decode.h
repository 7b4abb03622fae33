// Decoding steps on a GPU: keys in pages, as cuda:paged reads them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "gpu/driver.h"

namespace contextile {

// The measured case: `q_heads` over `kv_heads` of head dim 128, pages of 16 tokens in any order.
struct DecodeBench {
  cuda::Driver& driver;
  const cuda::RankStreams& streams;
  std::int64_t longest = 16384;  // tokens of a request, at most
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;
  // Seconds of one call of some work on the stream.
  std::function<double(const std::function<void()>& work)> seconds_of;
};

// Checks a small batch, every dtype of a cache, against the CPU's kernel. Prints what is wrong.
[[nodiscard]] bool verify_decode(const DecodeBench& bench);
// Prints and returns a row for every dtype, number of requests and length: microseconds of a call,
// tables and uploads included, and GB/s of keys and values.
[[nodiscard]] nlohmann::ordered_json measure_decode(const DecodeBench& bench);

}  // namespace contextile
