#include "kernel/cuda/launch_lists.h"

#include "kernel/cuda/access.h"

namespace contextile::cuda {
namespace {

void add_launch(ListedLaunch launch, const LaunchTable& table, ByteList& lists,
                std::vector<ListedLaunch>& launches) {
  if (table.owned.empty()) return;
  launch.num_owned = static_cast<std::int32_t>(table.owned.size());
  launch.owned = lists.add(table.owned);
  launch.runs = lists.add(table.runs);
  launch.bands = lists.add(table.bands);
  launch.end_bytes = std::ssize(lists.bytes());
  launches.push_back(launch);
}

}  // namespace

std::vector<ListedLaunch> list_launches(Program program, const KernelParams& params,
                                        std::span<const ForwardTile> tiles, ByteList& lists) {
  std::vector<ListedLaunch> launches;
  for (std::size_t first = 0; first < tiles.size();) {
    const std::size_t end = end_of_launch(tiles, first);
    const Pass pass = forward_pass(program, params, tiles[first].q_NHD.dtype);
    add_launch({.pass = pass, .first = first, .end = end},
               forward_table(params, tiles, first, end, pass.rows), lists, launches);
    first = end;
  }
  return launches;
}

std::vector<ListedLaunch> list_launches(Program program, const KernelParams& params,
                                        std::span<const BackwardTile> tiles, ByteList& lists) {
  std::vector<ListedLaunch> launches;
  for (std::size_t first = 0; first < tiles.size();) {
    const std::size_t end = end_of_launch(tiles, first);
    for (const Gradient gradient : kGradients) {
      const Pass pass = gradient_pass(program, params, tiles[first].q_NHD.dtype, gradient);
      if (pass.entry.name.empty()) continue;
      const auto table_of = keys_own(gradient) ? key_gradient_table : query_gradient_table;
      add_launch({.pass = pass, .gradient = gradient, .first = first, .end = end},
                 table_of(params, tiles, first, end, pass.rows), lists, launches);
    }
    first = end;
  }
  return launches;
}

Access access_of(std::span<const ForwardTile> tiles, const ListedLaunch& launch) {
  Access access;
  for (const ForwardTile& tile : tiles.subspan(launch.first, launch.end - launch.first)) {
    for (const TensorView& view : {tile.q_NHD, tile.k_MHD, tile.v_MHD})
      append_rows(access.reads, view);
    if (!tile.init) {
      append_rows(access.reads, tile.o_NHD);
      append_stats(access.reads, tile.lse_NH, tile.o_NHD);
    }
    append_rows(access.writes, tile.o_NHD);
    append_stats(access.writes, tile.lse_NH, tile.o_NHD);
  }
  return access;
}

Access access_of(std::span<const BackwardTile> tiles, const ListedLaunch& launch) {
  Access access;
  const auto adds = [&](const TensorView& view, bool init) {
    if (!init) append_rows(access.reads, view);
    append_rows(access.writes, view);
  };
  for (const BackwardTile& tile : tiles.subspan(launch.first, launch.end - launch.first)) {
    for (const TensorView& view : {tile.q_NHD, tile.k_MHD, tile.v_MHD, tile.do_NHD}) {
      append_rows(access.reads, view);
    }
    append_stats(access.reads, tile.lse_NH, tile.q_NHD);
    append_stats(access.reads, tile.delta_NH, tile.q_NHD);
    if (!keys_own(launch.gradient)) {
      adds(tile.dq_NHD, tile.init_dq);
      continue;
    }
    if (has_first(launch.gradient)) adds(tile.dk_MHD, tile.init_dkv);
    if (has_second(launch.gradient)) adds(tile.dv_MHD, tile.init_dkv);
  }
  return access;
}

void launch_listed(const RankStreams& streams, const KernelParams& params,
                   const ListedLaunch& launch, const CallTables& tables,
                   const std::function<Access()>& tensors) {
  const Launch call{.tiles = tables.tiles,
                    .owned = reinterpret_cast<const OwnedBlock*>(tables.lists + launch.owned),
                    .runs = reinterpret_cast<const StreamedRun*>(tables.lists + launch.runs),
                    .bands = reinterpret_cast<const TokenBand*>(tables.lists + launch.bands),
                    .maps = tables.maps,
                    .heads = params.q_heads / params.kv_heads,
                    .head_dim = params.head_dim,
                    .value_dim = params.value_dim,
                    .scale = params.scale,
                    .softcap = params.softcap};
  const Grid grid{.module = launch.pass.module,
                  .kernel = launch.pass.entry.name,
                  .blocks_x = launch.num_owned,
                  .blocks_y = params.kv_heads,
                  .threads = launch.pass.threads,
                  .shared_bytes = launch.pass.entry.shared_bytes};
  streams.driver.launch(streams.compute, grid, std::as_bytes(std::span(&call, 1)), [&] {
    Access all = tensors();
    all.reads.push_back({tables.lists + launch.owned, launch.end_bytes - launch.owned, 1, 0});
    return all;
  });
}

}  // namespace contextile::cuda
