#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "contextile/serving/prefill.h"
#include "serving/cache/error_of.h"
#include "serving/prefill/geometry.h"
#include "serving/prefill/prefill_batch.h"
#include "serving/vectors.h"

namespace contextile {
namespace {

using nlohmann::json;

std::vector<PrefillSequence> sequences_of(const std::vector<CachedAndNew>& lengths) {
  std::vector<PrefillSequence> sequences;
  for (const auto& [cached, fresh] : lengths) sequences.push_back({cached, fresh, {}});
  return sequences;
}

PrefillBatch batch_of(std::int32_t ranks, const std::vector<PrefillSequence>& sequences,
                      PrefillChunks chunks) {
  return {.layout = {.num_ranks = ranks}, .sequences = sequences, .chunks = chunks};
}

TEST(PrefillRows, EveryNewTokenIsOnOneRank) {
  const std::vector<PrefillSequence> sequences = sequences_of(kUnevenLengths);
  for (const PrefillChunks chunks : {PrefillChunks::kEven, PrefillChunks::kCeil}) {
    for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
      std::vector<int> seen(120, 0);
      for (const PrefillRows& rows : prefill_rows(batch_of(ranks, sequences, chunks))) {
        const auto tokens = rows.tokens(sequences);
        EXPECT_EQ(std::ssize(tokens), rows.num_rows());
        EXPECT_EQ(rows.positions(sequences).size(), tokens.size());
        for (const std::int64_t token : tokens) ++seen[static_cast<std::size_t>(token)];
      }
      EXPECT_EQ(seen, std::vector<int>(120, 1)) << ranks;
    }
  }
}

// SGLang pads a batch with tokens that its last request gets.
TEST(PrefillRows, EvenChunksAreThoseOfSglang) {
  const json cases = vectors("sglang_zigzag");
  if (cases.empty()) GTEST_SKIP() << "no vectors";
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    std::vector<PrefillSequence> sequences;
    for (std::size_t i = 0; i < one["new_tokens"].size(); ++i) {
      sequences.push_back({one["cached"][i], one["new_tokens"][i], {}});
    }
    sequences.back().new_tokens += one["padding"].get<std::int64_t>();
    const auto ranks = one["cp"].get<std::int32_t>();
    const auto rows = prefill_rows(batch_of(ranks, sequences, PrefillChunks::kEven));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      EXPECT_EQ(rows[r].num_rows(), one["rank_tokens"][r]);
      const json& of_rank = one["ranks"][r];
      EXPECT_EQ(rows[r].tokens(sequences), of_rank["q_indices"].get<std::vector<std::int64_t>>());
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const auto rank = static_cast<std::int32_t>(r);
        const auto chunk = [&](std::int32_t index) {
          return prefill_chunk(PrefillChunks::kEven, sequences[i].new_tokens, 2 * ranks, index);
        };
        const Range head = chunk(rank);
        const Range tail = chunk(2 * ranks - 1 - rank);
        const std::int64_t cached = sequences[i].cached_tokens;
        EXPECT_EQ(head.size(), of_rank["q_head"][i]);
        EXPECT_EQ(tail.size(), of_rank["q_tail"][i]);
        EXPECT_EQ(cached + head.end, of_rank["kv_len_head"][i]);
        EXPECT_EQ(cached + tail.end, of_rank["kv_len_tail"][i]);
      }
    }
  }
}

// Requests that vLLM gives to every rank as a whole (decoding, or too short for all chunks) are no
// partition; they are left out.
TEST(PrefillRows, ChunksRoundedUpAreThoseOfVllm) {
  const json cases = vectors("vllm_pcp_partition");
  if (cases.empty()) GTEST_SKIP() << "no vectors";
  std::int64_t compared = 0;
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    std::vector<PrefillSequence> sequences;
    std::vector<std::int64_t> first = {0};  // of every request in the flat batch
    for (std::size_t i = 0; i < one["query_lens"].size(); ++i) {
      const bool is_whole = one["replicated"][i].get<int>() != 0;
      const auto tokens = one["query_lens"][i].get<std::int64_t>();
      sequences.push_back({one["computed_lens"][i], is_whole ? 0 : tokens, {}});
      first.push_back(first.back() + tokens);
    }
    const auto rows =
        prefill_rows(batch_of(one["pcp"].get<std::int32_t>(), sequences, PrefillChunks::kCeil));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      std::vector<std::vector<std::int64_t>> expected;
      for (const json& segment : one["segments"][r]) {
        const auto of = segment.get<std::vector<std::int64_t>>();
        if (one["replicated"][static_cast<std::size_t>(of[0])].get<int>() == 0 && of[2] > 0) {
          expected.push_back(of);
        }
      }
      std::vector<std::vector<std::int64_t>> found;
      for (const auto& [sequence, tokens] : rows[r].segments) {
        const auto i = static_cast<std::size_t>(sequence);
        found.push_back({sequence, first[i] + tokens.begin, tokens.size(),
                         sequences[i].cached_tokens + tokens.begin});
      }
      EXPECT_EQ(found, expected);
      compared += std::ssize(found);
    }
  }
  EXPECT_GT(compared, 100);
}

TEST(PrefillRows, WorkCountsEveryPairOnce) {
  const std::vector<PrefillSequence> sequences = sequences_of(kUnevenLengths);
  std::int64_t pairs = 0;
  for (const auto& [cached, fresh] : kUnevenLengths)
    pairs += fresh * cached + fresh * (fresh + 1) / 2;
  for (const PrefillChunks chunks : {PrefillChunks::kEven, PrefillChunks::kCeil}) {
    const PrefillWork work = prefill_work(batch_of(4, sequences, chunks));
    std::int64_t found = 0;
    for (const std::int64_t of : work.pairs) found += of;
    EXPECT_EQ(found, pairs);
  }
}

TEST(PrefillRows, ReadsNamesOfChunks) {
  EXPECT_EQ(parse_prefill_chunks("even"), PrefillChunks::kEven);
  EXPECT_EQ(parse_prefill_chunks(to_string(PrefillChunks::kCeil)), PrefillChunks::kCeil);
  EXPECT_EQ(error_of([] { static_cast<void>(parse_prefill_chunks("odd")); }),
            "chunks: expected even or ceil, found 'odd'");
}

}  // namespace
}  // namespace contextile
