// The common parts of the partitioning benchmarks: batches, masks, their grids of tiles, the
// results of other partitioners on them, and the timing and averaging of results.
#pragma once

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/extend/partition.h"
#include "contextile/mask.h"
#include "contextile/workload.h"
#include "geometric_mean.h"

namespace contextile::bench {

inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Batch {
  std::string name;
  std::vector<std::int64_t> lengths;
};

// FOLDER/batches/*.txt, or samples of the built-in datasets if there is no such folder.
inline std::vector<Batch> load_batches(const std::filesystem::path& data) {
  std::vector<Batch> batches;
  const std::filesystem::path folder = data / "batches";
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      batches.push_back({entry.path().stem().string(), read_lengths(entry.path().string())});
    }
    std::sort(batches.begin(), batches.end(),
              [](const Batch& a, const Batch& b) { return a.name < b.name; });
    return batches;
  }
  fmt::print("no batches in {}: built-in datasets only\n", folder.string());
  for (const Dataset& dataset : datasets()) {
    batches.push_back({std::string(dataset.name),
                       batches_from_dataset(dataset.name, {.tokens = 131072, .seed = 1}).front()});
  }
  batches.push_back({"single", {131072}});
  return batches;
}

inline const std::pair<const char*, const char*> kMasks[] = {
    {"causal", "causal"},
    {"lambda", "lambda:64,4096"},
    {"blockwise", "causal_blockwise:256,2,1"},
    {"sharedq", "shared_question:0.2,4"}};

// 8 query and 2 KV heads of 128 in bf16: Q in and O out of a row, K and V of a column.
inline AttentionGrid grid_of(const std::vector<std::int64_t>& lengths, const std::string& mask,
                             std::int64_t block_size, std::int32_t head_groups,
                             BandCuts cuts = BandCuts::kNone) {
  const MaskUse use = parse_mask_use(mask);
  AttentionShape shape;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  const Workload workload = make_workload(lengths, shape, {&use, 1});
  const Blocking blocks = cut_sequences(workload, block_size, cuts);
  AttentionGrid grid;
  grid.head_groups = head_groups;
  grid.row_bytes_per_token = std::int64_t{2} * shape.q_heads / head_groups * shape.head_dim * 2;
  grid.column_bytes_per_token = std::int64_t{2} * shape.kv_heads / head_groups * shape.head_dim * 2;
  SequenceId sequence{0};
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    const Range range = blocks.ranges(b).front();
    while (workload.sequences[sequence.index()].end <= range.begin) ++sequence.value;
    grid.blocks.push_back({range.size(), sequence});
  }
  for (const Tile& tile : TileIndex(workload.masks[0].mask, blocks).tiles()) {
    for (const GroupId g : IdRange<GroupId>(head_groups)) {
      grid.tiles.push_back({tile.q_block, tile.kv_block, g, tile.pairs});
    }
  }
  return grid;
}

// The results of Mt-KaHyPar, compute first, the best of five seeds.
struct Peer {
  double seconds = 0;
  double inter_bytes = 0;
  double total_bytes = 0;
  double max_device_bytes = 0;
};
using PeerKey = std::tuple<std::string, std::string, std::int64_t>;  // batch, mask, block

// The file's columns: batch, mask, block, solver, use, two eps, seconds, inter, total and busiest
// device's bytes. Without the file the result is empty.
inline std::map<PeerKey, Peer> read_peers(const std::filesystem::path& file) {
  std::map<PeerKey, Peer> peers;
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    std::stringstream row(line);
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    if (cells.size() < 11 || cells[4] != "compute_first_best_of_5") continue;
    peers[{cells[0], cells[1], std::stoll(cells[2])}] = {std::stod(cells[7]), std::stod(cells[8]),
                                                         std::stod(cells[9]), std::stod(cells[10])};
  }
  return peers;
}

// In ratios of bytes, zero bytes of a peer or of the library count as a thousandth.
inline constexpr double kLeastRatio = 1e-3;

}  // namespace contextile::bench
