#include "kernel/cuda/device_row_ops.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kernel/cuda/access.h"
#include "kernel/cuda/row_calls.h"
#include "kernel/cuda/row_launch.h"
#include "kernel/cuda/row_lists.h"

namespace contextile::cuda {
namespace {

RowType type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return RowType::kF32;
    case Dtype::kBf16:
      return RowType::kBf16;
    case Dtype::kF16:
      return RowType::kF16;
  }
  fail_argument("cuda rows: expected f32, bf16 or f16, found {}", static_cast<int>(dtype));
}

// Returns true if all rows begin at multiples of the bytes of a chunk.
bool is_wide(const TensorView& view) {
  const std::int64_t chunk = kChunk * bytes_per_element(view.dtype);
  const bool begins =
      reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(chunk) == 0;
  return begins && (view.tokens <= 1 || view.token_stride % kChunk == 0) &&
         (view.heads <= 1 || view.head_stride % kChunk == 0);
}

RowsView rows_view(const TensorView& view) {
  const auto element = static_cast<std::uintptr_t>(bytes_per_element(view.dtype));
  CONTEXTILE_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % element == 0,
                   "cuda rows: expected elements at multiples of {} bytes, found {}", element,
                   view.data);
  return {view.data, view.token_stride, view.head_stride, type_of(view.dtype), is_wide(view)};
}
StatsView stats_view(const RowStats& stats) {
  return {stats.data, stats.token_stride, stats.head_stride};
}
PartialView partial_view(const PartialOutput& partial) {
  return {rows_view(partial.o_NHD), stats_view(partial.lse_NH)};
}

RowShape shape_of(const TensorView& view) { return {view.tokens, view.heads, view.dim}; }

// Returns the shape of rows that a warp holds whole.
RowShape held_shape_of(const TensorView& view) {
  CONTEXTILE_CHECK(view.dim <= kMaxRowDim,
                   "cuda rows: expected rows of up to {} elements, found {}", kMaxRowDim, view.dim);
  return shape_of(view);
}

void append_partial(std::vector<Rows>& rows, const PartialOutput& partial) {
  append_rows(rows, partial.o_NHD);
  append_stats(rows, partial.lse_NH, partial.o_NHD);
}
// Launches a call for every item; add_call(launcher, item) adds it.
template <typename List, typename Item, typename Append, typename AddCall>
void launch_all(const RankStreams& streams, std::string_view kernel, std::span<const Item> items,
                const Append& append, const AddCall& add_call) {
  ListLauncher<List, Item, Append> launcher(streams, kernel, append);
  for (const Item& item : items) add_call(launcher, item);
  launcher.flush();
}

}  // namespace

void DeviceRowOps::merge_all(std::span<const Merge> list) const {
  launch_all<MergeList>(
      streams_, "rows_merge", list,
      [](Access& access, const Merge& item) {
        for (const PartialOutput& src : item.srcs) append_partial(access.reads, src);
        append_partial(access.writes, item.dst);
      },
      [](auto& launcher, const Merge& item) {
        std::vector<PartialView> sources;
        for (const PartialOutput& src : item.srcs) sources.push_back(partial_view(src));
        launcher.add(
            {.shape = held_shape_of(item.dst.o_NHD), .dst = partial_view(item.dst), .sources = {}},
            item, sources);
      });
}

void DeviceRowOps::sum_all(std::span<const Sum> list) const {
  launch_all<SumList>(
      streams_, "rows_sum", list,
      [](Access& access, const Sum& item) {
        for (const TensorView& src : item.srcs) append_rows(access.reads, src);
        append_rows(access.writes, item.dst);
      },
      [](auto& launcher, const Sum& item) {
        std::vector<RowsView> sources;
        for (const TensorView& src : item.srcs) sources.push_back(rows_view(src));
        launcher.add({.shape = held_shape_of(item.dst), .dst = rows_view(item.dst), .sources = {}},
                     item, sources);
      });
}

void DeviceRowOps::delta_all(std::span<const Delta> list) const {
  launch_all<DeltaList>(
      streams_, "rows_delta", list,
      [](Access& access, const Delta& item) {
        append_rows(access.reads, item.dout_NHD);
        append_rows(access.reads, item.out_NHD);
        append_stats(access.writes, item.delta_NH, item.dout_NHD);
      },
      [](auto& launcher, const Delta& item) {
        launcher.add({.shape = shape_of(item.dout_NHD),
                      .dout = rows_view(item.dout_NHD),
                      .out = rows_view(item.out_NHD),
                      .delta = stats_view(item.delta_NH)},
                     item);
      });
}

void DeviceRowOps::convert_all(std::span<const Convert> list) const {
  launch_all<ConvertList>(
      streams_, "rows_convert", list,
      [](Access& access, const Convert& item) {
        append_rows(access.reads, item.src);
        append_rows(access.writes, item.dst);
      },
      [](auto& launcher, const Convert& item) {
        launcher.add(
            {.shape = shape_of(item.dst), .dst = rows_view(item.dst), .src = rows_view(item.src)},
            item);
      });
}

void DeviceRowOps::finish_all(std::span<const Finish> list, std::span<const float> sink_H) const {
  launch_all<FinishList>(
      streams_, "rows_finish", list,
      [&](Access& access, const Finish& item) {
        append_partial(access.reads, item.accumulated);
        if (!sink_H.empty()) access.reads.push_back(array_of(sink_H));
        append_rows(access.writes, item.out_NHD);
        append_stats(access.writes, item.lse_NH, item.out_NHD);
      },
      [&](auto& launcher, const Finish& item) {
        launcher.add({.shape = shape_of(item.out_NHD),
                      .accumulated = partial_view(item.accumulated),
                      .sink_H = sink_H.empty() ? nullptr : sink_H.data(),
                      .out = rows_view(item.out_NHD),
                      .lse = stats_view(item.lse_NH)},
                     item);
      });
}

void DeviceRowOps::fill_all(std::span<const Fill> list) const {
  launch_all<FillList>(
      streams_, "rows_fill", list,
      [](Access& access, const Fill& item) { append_rows(access.writes, item.dst); },
      [](auto& launcher, const Fill& item) {
        launcher.add({.shape = shape_of(item.dst), .dst = rows_view(item.dst), .value = item.value},
                     item);
      });
}

void DeviceRowOps::sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                                     std::span<double> sums_H) const {
  const auto heads = static_cast<std::int32_t>(sink_H.size());
  for (std::size_t first = 0; first < list.size(); first += kSinkParts) {
    const auto some = list.subspan(first, std::min<std::size_t>(kSinkParts, list.size() - first));
    SinkCall call;
    call.shape = {.tokens = 1, .heads = heads, .dim = 1};
    call.sink_H = sink_H.data();
    call.sums_H = sums_H.data();
    call.num_parts = static_cast<std::int32_t>(some.size());
    for (std::size_t p = 0; p < some.size(); ++p) {
      call.parts[p] = {stats_view(some[p].lse_NH), stats_view(some[p].delta_NH), some[p].tokens};
    }
    launch_rows(streams_, "rows_sink", call, [&] {
      Access access;
      for (const SinkRows& rows : some) {
        const TensorView of = as_tensor(rows.lse_NH, rows.tokens, heads);
        append_rows(access.reads, of);
        append_stats(access.reads, rows.delta_NH, of);
      }
      access.reads.push_back(array_of(sink_H));
      access.reads.push_back(array_of(sums_H));
      access.writes.push_back(array_of(sums_H));
      return access;
    });
  }
}

void DeviceRowOps::round_sums(std::span<const double> sums_H, std::span<float> dst_H) const {
  if (sums_H.empty()) return;
  const RoundCall call{
      .shape = {.tokens = 1, .heads = 1, .dim = static_cast<std::int32_t>(sums_H.size())},
      .sums_H = sums_H.data(),
      .dst_H = dst_H.data()};
  launch_rows(streams_, "rows_round", call,
              [&] { return Access{.reads = {array_of(sums_H)}, .writes = {array_of(dst_H)}}; });
}

// --------------------------------------------------------------------------- lists of one call

void DeviceRowOps::merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const {
  const Merge call{dst, {srcs.begin(), srcs.end()}};
  merge_all({&call, 1});
}

void DeviceRowOps::sum(const TensorView& dst, std::span<const TensorView> srcs) const {
  const Sum call{dst, {srcs.begin(), srcs.end()}};
  sum_all({&call, 1});
}

void DeviceRowOps::delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                         const RowStats& delta_NH) const {
  const Delta call{dout_NHD, out_NHD, delta_NH};
  delta_all({&call, 1});
}

void DeviceRowOps::convert(const TensorView& dst, const TensorView& src) const {
  const Convert call{dst, src};
  convert_all({&call, 1});
}

void DeviceRowOps::finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                          const TensorView& out_NHD, const RowStats& lse_NH) const {
  const Finish call{accumulated, out_NHD, lse_NH};
  finish_all({&call, 1}, sink_H);
}

void DeviceRowOps::fill(const TensorView& dst, float value) const {
  const Fill call{dst, value};
  fill_all({&call, 1});
}

void DeviceRowOps::sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                                 const RowStats& delta_NH, std::int64_t tokens,
                                 std::span<double> sums_H) const {
  const SinkRows rows{lse_NH, delta_NH, tokens};
  sink_gradient_all(sink_H, {&rows, 1}, sums_H);
}

}  // namespace contextile::cuda
