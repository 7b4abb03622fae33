// Batches of prompts that continue a cache, and their fp64 results on one device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/serving/prefill.h"

namespace contextile {

struct CachedAndNew {
  std::int64_t cached = 0;
  std::int64_t fresh = 0;
};

// Fewer tokens than ranks, no cache, nothing new, odd numbers of both.
inline const std::vector<CachedAndNew> kUnevenLengths = {{0, 1},  {0, 37}, {5, 3},   {70, 20},
                                                         {33, 0}, {1, 9},  {131, 50}};

// A rank's pages, NaN wherever it holds no cached token.
struct RankPages {
  HostTensor k;
  HostTensor v;
  std::int32_t page_size = 1;

  [[nodiscard]] PagedKv kv() const;
  void write(const NewKv& rows);
};

// The tensors that one rank passes to attend.
struct RankInputs {
  HostTensor q;
  HostTensor k;
  HostTensor v;
  RankPages pages;
};

class TestBatch {
 public:
  TestBatch(const KvLayout& layout, const AttentionShape& shape, std::vector<CachedAndNew> lengths,
            const std::string& mask = "causal", PrefillChunks chunks = PrefillChunks::kEven);

  // The same tokens, with other ones new; sums as before or less.
  [[nodiscard]] TestBatch with_lengths(std::vector<CachedAndNew> lengths) const;

  [[nodiscard]] PrefillBatch batch() const;
  [[nodiscard]] const AttentionShape& shape() const { return shape_; }
  [[nodiscard]] std::span<const float> sinks() const { return sinks_; }
  [[nodiscard]] std::int64_t num_new() const;
  [[nodiscard]] RankInputs inputs(Rank rank) const;

  // New tokens lie end to end: [tokens, q_heads, value_dim] and [tokens, q_heads].
  struct Result {
    std::vector<double> o;
    std::vector<double> lse;
  };
  [[nodiscard]] Result expected() const;

 private:
  void deal(std::vector<CachedAndNew> lengths);
  void attend_row(std::size_t sequence, std::int64_t position, const Mask& mask,
                  Result& result) const;

  KvLayout layout_;
  AttentionShape shape_;
  MaskSpec mask_;
  PrefillChunks chunks_;
  std::vector<CachedAndNew> lengths_;
  std::vector<HostTensor> q_;  // of every position of a sequence
  std::vector<HostTensor> k_;
  std::vector<HostTensor> v_;
  std::vector<float> sinks_;
  std::vector<std::vector<PageId>> tables_;
  std::int32_t num_pages_ = 0;
  std::vector<PrefillSequence> sequences_;
};

// All ranks' rows put together, and the bytes that each sent.
struct PrefillFound {
  TestBatch::Result result;
  std::vector<std::int64_t> sent_bytes;
};
[[nodiscard]] PrefillFound prefill(const TestBatch& test, const PrefillOptions& options,
                                   const InprocOptions& timing = {});

// Puts a rank's rows where they belong in results of all new tokens.
void put_result(const TestBatch& test, Rank rank, const HostTensor& out, const HostTensor& lse,
                TestBatch::Result& result);
[[nodiscard]] TestBatch::Result empty_result(const TestBatch& test);

// The largest difference of outputs, over the largest output, and of LSE, over its largest.
[[nodiscard]] double difference(const TestBatch::Result& a, const TestBatch::Result& b);

}  // namespace contextile
