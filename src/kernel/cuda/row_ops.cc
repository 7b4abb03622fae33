#include "kernel/cuda/row_ops.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernel/cuda/access.h"
#include "kernel/cuda/row_calls.h"
#include "kernel/cuda/row_launch.h"

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

RowsView rows_view(const TensorView& view) {
  const auto element = static_cast<std::uintptr_t>(bytes_per_element(view.dtype));
  CONTEXTILE_CHECK(reinterpret_cast<std::uintptr_t>(view.data) % element == 0,
                   "cuda rows: expected elements at multiples of {} bytes, found {}", element,
                   view.data);
  return {view.data, view.token_stride, view.head_stride, type_of(view.dtype)};
}
StatsView stats_view(const RowStats& stats) {
  return {stats.data, stats.token_stride, stats.head_stride};
}
PartialView partial_view(const PartialOutput& partial) {
  return {rows_view(partial.o_NHD), stats_view(partial.lse_NH)};
}

RowShape shape_of(const TensorView& view) { return {view.tokens, view.heads, view.dim}; }

// The same where a warp holds a row whole.
RowShape held_shape_of(const TensorView& view) {
  CONTEXTILE_CHECK(view.dim <= kMaxRowDim,
                   "cuda rows: expected rows of up to {} elements, found {}", kMaxRowDim, view.dim);
  return shape_of(view);
}

void append_partial(std::vector<Rows>& rows, const PartialOutput& partial) {
  append_rows(rows, partial.o_NHD);
  append_stats(rows, partial.lse_NH, partial.o_NHD);
}
// Puts views of the sources into the call, and launches it while those that are far exist.
template <typename Call, typename Source, typename View, typename Launch>
void with_sources(const RankStreams& streams, Call& call, std::span<const Source> srcs,
                  const View& view, const Launch& launch) {
  using Viewed = std::remove_cvref_t<decltype(call.sources.near[0])>;
  std::vector<Viewed> views;
  for (const Source& src : srcs) views.push_back(view(src));
  call.sources.count = static_cast<std::int32_t>(views.size());
  const std::span<const std::byte> bytes = std::as_bytes(std::span(views));
  if (views.size() <= kNearSources) {
    std::copy(views.begin(), views.end(), call.sources.near);
    launch(std::vector<Rows>{});
    return;
  }
  const StreamMemory far(streams.driver, streams.compute, std::ssize(bytes));
  streams.driver.write(streams.compute, far.data(), bytes);
  call.sources.far = reinterpret_cast<const Viewed*>(far.data());
  launch(std::vector<Rows>{{far.data(), std::ssize(bytes), 1, 0}});
}

}  // namespace

void DeviceRowOps::merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const {
  MergeCall call{.shape = held_shape_of(dst.o_NHD), .dst = partial_view(dst), .sources = {}};
  with_sources(streams_, call, srcs, partial_view, [&](std::vector<Rows> far) {
    launch_rows(streams_, "rows_merge", call, [&] {
      Access access{.reads = far, .writes = {}};
      for (const PartialOutput& src : srcs) append_partial(access.reads, src);
      append_partial(access.writes, dst);
      return access;
    });
  });
}

void DeviceRowOps::sum(const TensorView& dst, std::span<const TensorView> srcs) const {
  SumCall call{.shape = held_shape_of(dst), .dst = rows_view(dst), .sources = {}};
  with_sources(streams_, call, srcs, rows_view, [&](std::vector<Rows> far) {
    launch_rows(streams_, "rows_sum", call, [&] {
      Access access{.reads = far, .writes = {}};
      for (const TensorView& src : srcs) append_rows(access.reads, src);
      append_rows(access.writes, dst);
      return access;
    });
  });
}

void DeviceRowOps::delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                         const RowStats& delta_NH) const {
  const DeltaCall call{.shape = shape_of(dout_NHD),
                       .dout = rows_view(dout_NHD),
                       .out = rows_view(out_NHD),
                       .delta = stats_view(delta_NH)};
  launch_rows(streams_, "rows_delta", call, [&] {
    Access access;
    append_rows(access.reads, dout_NHD);
    append_rows(access.reads, out_NHD);
    append_stats(access.writes, delta_NH, dout_NHD);
    return access;
  });
}

void DeviceRowOps::convert(const TensorView& dst, const TensorView& src) const {
  const ConvertCall call{.shape = shape_of(dst), .dst = rows_view(dst), .src = rows_view(src)};
  launch_rows(streams_, "rows_convert", call, [&] {
    Access access;
    append_rows(access.reads, src);
    append_rows(access.writes, dst);
    return access;
  });
}

void DeviceRowOps::finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                          const TensorView& out_NHD, const RowStats& lse_NH) const {
  const FinishCall call{.shape = shape_of(out_NHD),
                        .accumulated = partial_view(accumulated),
                        .sink_H = sink_H.empty() ? nullptr : sink_H.data(),
                        .out = rows_view(out_NHD),
                        .lse = stats_view(lse_NH)};
  launch_rows(streams_, "rows_finish", call, [&] {
    Access access;
    append_partial(access.reads, accumulated);
    if (!sink_H.empty()) access.reads.push_back(array_of(sink_H));
    append_rows(access.writes, out_NHD);
    append_stats(access.writes, lse_NH, out_NHD);
    return access;
  });
}

void DeviceRowOps::fill(const TensorView& dst, float value) const {
  const FillCall call{.shape = shape_of(dst), .dst = rows_view(dst), .value = value};
  launch_rows(streams_, "rows_fill", call, [&] {
    Access access;
    append_rows(access.writes, dst);
    return access;
  });
}

void DeviceRowOps::sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                                 const RowStats& delta_NH, std::int64_t tokens,
                                 std::span<double> sums_H) const {
  const auto heads = static_cast<std::int32_t>(sink_H.size());
  const SinkCall call{.shape = {.tokens = 1, .heads = heads, .dim = 1},
                      .sink_H = sink_H.data(),
                      .lse = stats_view(lse_NH),
                      .delta = stats_view(delta_NH),
                      .num_tokens = tokens,
                      .sums_H = sums_H.data()};
  launch_rows(streams_, "rows_sink", call, [&] {
    const TensorView of = as_tensor(lse_NH, tokens, heads);
    Access access;
    append_rows(access.reads, of);
    append_stats(access.reads, delta_NH, of);
    access.reads.push_back(array_of(sink_H));
    access.reads.push_back(array_of(sums_H));
    access.writes.push_back(array_of(sums_H));
    return access;
  });
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

}  // namespace contextile::cuda
