// Time to enumerate the tiles of large batches. Every case is verified before it is timed: the
// pairs of its tiles, and of their bands, are the pairs of its mask.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/mask.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

struct Case {
  Mask mask;
  Blocking blocking;
};

Case cut(std::string_view spec, std::span<const std::int64_t> lengths, std::int64_t block_size) {
  const MaskUse use = parse_mask_use(spec);
  const Workload workload = make_workload(lengths, {}, {&use, 1});
  return {workload.masks[0].mask, cut_sequences(workload, block_size)};
}

// Ten thousand documents of 2^20 tokens in all.
std::vector<std::int64_t> many_lengths() {
  constexpr std::int64_t kDocuments = 10'000;
  Rng rng(1);
  std::vector<std::int64_t> lengths;
  std::int64_t left = 1 << 20;
  for (std::int64_t document = 1; document < kDocuments; ++document) {
    lengths.push_back(1 + static_cast<std::int64_t>(rng.uniform() * 200));
    left -= lengths.back();
  }
  lengths.push_back(left);
  return lengths;
}

Case one_long_document() { return cut("causal", std::vector<std::int64_t>{1 << 20}, 1024); }

// A block for every document.
Case many_documents() { return cut("causal", many_lengths(), 1024); }

// Blocks of 1024 tokens, each with parts of about ten documents.
Case packed_documents() {
  Case result = many_documents();
  const std::int64_t num_tokens = result.blocking.total_tokens();
  result.blocking = Blocking();
  for (std::int64_t begin = 0; begin < num_tokens; begin += 1024) {
    result.blocking.add({begin, std::min(begin + 1024, num_tokens)});
  }
  return result;
}

// Sixteen blocks, each with a sixteenth of every document: the blocks that eight ranks own in
// zigzag order.
Case sliced_documents() {
  constexpr std::int64_t kSlices = 16;
  Case result = many_documents();
  std::vector<std::vector<Range>> slices(kSlices);
  for (const Range tokens : sequences_from_lengths(many_lengths())) {
    for (std::int64_t s = 0; s < kSlices; ++s) {
      const Range slice{tokens.begin + tokens.size() * s / kSlices,
                        tokens.begin + tokens.size() * (s + 1) / kSlices};
      if (!slice.empty()) slices[static_cast<std::size_t>(s)].push_back(slice);
    }
  }
  result.blocking = Blocking();
  for (const std::vector<Range>& ranges : slices) result.blocking.add(ranges);
  return result;
}

Case published_mask(std::string_view spec) {
  return cut(spec, std::vector<std::int64_t>{131'072}, 1024);
}

std::string verify(const Case& input) {
  const TileIndex index(input.mask, input.blocking);
  std::vector<LocalBand> bands;
  std::int64_t tile_pairs = 0;
  std::int64_t band_pairs = 0;
  for (const Tile& tile : index.tiles()) {
    tile_pairs += tile.pairs;
    bands.clear();
    (void)index.append_bands(tile.q_block, tile.kv_block, bands);
    for (const LocalBand& band : bands) band_pairs += num_pairs(band);
  }
  const std::int64_t expected = input.mask.num_pairs();
  if (tile_pairs != expected) return "the tiles' pairs are not the mask's";
  if (band_pairs != expected) return "the bands' pairs are not the mask's";
  return "";
}

void enumerate_tiles(benchmark::State& state, const Case& input) {
  if (const std::string error = verify(input); !error.empty()) state.SkipWithError(error.c_str());
  std::size_t num_tiles = 0;
  for (auto _ : state) {
    const std::vector<Tile> tiles = TileIndex(input.mask, input.blocking).tiles();
    num_tiles = tiles.size();
    benchmark::DoNotOptimize(tiles.data());
  }
  state.counters["tiles"] = static_cast<double>(num_tiles);
  state.counters["tiles/s"] = benchmark::Counter(static_cast<double>(num_tiles),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void list_bands(benchmark::State& state, const Case& input) {
  const TileIndex index(input.mask, input.blocking);
  const std::vector<Tile> tiles = index.tiles();
  std::vector<LocalBand> bands;
  for (auto _ : state) {
    for (const Tile& tile : tiles) {
      bands.clear();
      benchmark::DoNotOptimize(index.append_bands(tile.q_block, tile.kv_block, bands));
    }
  }
  state.counters["tiles"] = static_cast<double>(tiles.size());
  state.counters["tiles/s"] = benchmark::Counter(static_cast<double>(tiles.size()),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

void prove_disjoint(benchmark::State& state, const Case& input) {
  for (auto _ : state) benchmark::DoNotOptimize(find_overlap(input.mask.bands));
  state.counters["bands"] = static_cast<double>(input.mask.bands.size());
}

void register_case(const std::string& name, Case (*make)(std::string_view), std::string_view spec) {
  const auto add = [&](const char* what, void (*run)(benchmark::State&, const Case&)) {
    benchmark::RegisterBenchmark((what + ("/" + name)).c_str(), [=](benchmark::State& state) {
      run(state, make(spec));
    })->Unit(benchmark::kMillisecond);
  };
  add("enumerate_tiles", enumerate_tiles);
  add("list_bands", list_bands);
  add("prove_disjoint", prove_disjoint);
}

void register_cases() {
  register_case(
      "causal_1M_1_document", [](std::string_view) { return one_long_document(); }, "");
  register_case(
      "causal_1M_10k_documents", [](std::string_view) { return many_documents(); }, "");
  register_case(
      "causal_1M_10k_documents_packed", [](std::string_view) { return packed_documents(); }, "");
  register_case(
      "causal_1M_10k_documents_sliced", [](std::string_view) { return sliced_documents(); }, "");
  for (const char* rule : {"causal", "lambda", "causal_blockwise", "shared_question"}) {
    register_case(std::string(rule) + "_128K", published_mask, rule);
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  contextile::register_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
