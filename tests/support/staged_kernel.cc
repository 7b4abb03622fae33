#include "support/staged_kernel.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "kernel/tensor.h"

namespace contextile {
namespace {

// The memory that a call's tensors span, here and on the device.
class Staging {
 public:
  explicit Staging(const cuda::RankStreams& streams) : streams_(streams) {}

  void add(const TensorView& view) {
    if (view.tokens == 0 || view.heads == 0) return;
    const std::int64_t elements =
        (view.tokens - 1) * view.token_stride + (view.heads - 1) * view.head_stride + view.dim;
    add(view.data, elements * bytes_per_element(view.dtype));
  }
  void add(const RowStats& stats, const TensorView& of) {
    add(as_tensor(stats, of.tokens, of.heads));
  }
  void add(const PartialOutput& partial) {
    add(partial.o_NHD);
    add(partial.lse_NH, partial.o_NHD);
  }
  template <typename T>
  void add(std::span<T> array) {
    add(array.data(), static_cast<std::int64_t>(array.size_bytes()));
  }

  // Called once everything is added.
  void upload() {
    std::ranges::sort(spans_, {}, &Span::begin);
    std::vector<Span> joined;
    for (const Span& span : spans_) {
      if (!joined.empty() && span.begin <= joined.back().end) {
        joined.back().end = std::max(joined.back().end, span.end);
      } else {
        joined.push_back(span);
      }
    }
    spans_ = std::move(joined);
    for (Span& span : spans_) {
      // The same place inside of what the device aligns.
      const std::int64_t before = span.begin % kAlignment;
      span.memory = std::make_shared<cuda::StreamMemory>(streams_.driver, streams_.compute,
                                                         before + span.size());
      span.there = span.memory->data() + before;
      streams_.driver.write(streams_.compute, span.there, span.bytes());
    }
  }
  void download() {
    for (const Span& span : spans_) {
      streams_.driver.read(streams_.compute, span.bytes(), span.there);
    }
  }

  template <typename T>
  [[nodiscard]] T* there(T* here) const {
    if (here == nullptr) return nullptr;
    const auto place = reinterpret_cast<std::intptr_t>(here);
    for (const Span& span : spans_) {
      if (span.begin <= place && place < span.end) {
        return reinterpret_cast<T*>(span.there + (place - span.begin));
      }
    }
    return here;  // of nothing
  }
  [[nodiscard]] TensorView there(TensorView view) const {
    view.data = there(static_cast<std::byte*>(view.data));
    return view;
  }
  [[nodiscard]] RowStats there(RowStats stats) const {
    stats.data = there(stats.data);
    return stats;
  }
  [[nodiscard]] PartialOutput there(const PartialOutput& partial) const {
    return {there(partial.o_NHD), there(partial.lse_NH)};
  }
  template <typename T>
  [[nodiscard]] std::span<T> there(std::span<T> array) const {
    return {there(array.data()), array.size()};
  }

 private:
  static constexpr std::int64_t kAlignment = 256;
  struct Span {
    std::intptr_t begin = 0;
    std::intptr_t end = 0;
    std::shared_ptr<cuda::StreamMemory> memory = nullptr;
    std::byte* there = nullptr;

    [[nodiscard]] std::int64_t size() const { return end - begin; }
    [[nodiscard]] std::span<std::byte> bytes() const {
      return {reinterpret_cast<std::byte*>(begin), static_cast<std::size_t>(size())};
    }
  };

  void add(const void* data, std::int64_t bytes) {
    if (bytes == 0) return;
    const auto begin = reinterpret_cast<std::intptr_t>(data);
    spans_.push_back({begin, begin + bytes});
  }

  const cuda::RankStreams& streams_;
  std::vector<Span> spans_;
};

// Copies the named tensors, runs work with them, and copies them back.
template <typename Work, typename... Named>
void staged(const cuda::RankStreams& streams, const Work& work, const Named&... named) {
  Staging staging(streams);
  (staging.add(named), ...);
  staging.upload();
  work(staging);
  staging.download();
}

}  // namespace

void StagedRows::merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const {
  Staging staging(streams_);
  staging.add(dst);
  for (const PartialOutput& src : srcs) staging.add(src);
  staging.upload();
  std::vector<PartialOutput> there;
  for (const PartialOutput& src : srcs) there.push_back(staging.there(src));
  rows_.merge(staging.there(dst), there);
  staging.download();
}

void StagedRows::sum(const TensorView& dst, std::span<const TensorView> srcs) const {
  Staging staging(streams_);
  staging.add(dst);
  for (const TensorView& src : srcs) staging.add(src);
  staging.upload();
  std::vector<TensorView> there;
  for (const TensorView& src : srcs) there.push_back(staging.there(src));
  rows_.sum(staging.there(dst), there);
  staging.download();
}

void StagedRows::delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                       const RowStats& delta_NH) const {
  staged(
      streams_,
      [&](const Staging& on) {
        rows_.delta(on.there(dout_NHD), on.there(out_NHD), on.there(delta_NH));
      },
      dout_NHD, out_NHD, as_tensor(delta_NH, dout_NHD.tokens, dout_NHD.heads));
}

void StagedRows::convert(const TensorView& dst, const TensorView& src) const {
  staged(
      streams_, [&](const Staging& on) { rows_.convert(on.there(dst), on.there(src)); }, dst, src);
}

void StagedRows::finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                        const TensorView& out_NHD, const RowStats& lse_NH) const {
  staged(
      streams_,
      [&](const Staging& on) {
        rows_.finish(on.there(accumulated), on.there(sink_H), on.there(out_NHD), on.there(lse_NH));
      },
      accumulated, sink_H, out_NHD, as_tensor(lse_NH, out_NHD.tokens, out_NHD.heads));
}

void StagedRows::fill(const TensorView& dst, float value) const {
  staged(
      streams_, [&](const Staging& on) { rows_.fill(on.there(dst), value); }, dst);
}

void StagedRows::sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                               const RowStats& delta_NH, std::int64_t tokens,
                               std::span<double> sums_H) const {
  const auto heads = static_cast<std::int32_t>(sink_H.size());
  staged(
      streams_,
      [&](const Staging& on) {
        rows_.sink_gradient(on.there(sink_H), on.there(lse_NH), on.there(delta_NH), tokens,
                            on.there(sums_H));
      },
      sink_H, as_tensor(lse_NH, tokens, heads), as_tensor(delta_NH, tokens, heads), sums_H);
}

void StagedRows::round_sums(std::span<const double> sums_H, std::span<float> dst_H) const {
  staged(
      streams_, [&](const Staging& on) { rows_.round_sums(on.there(sums_H), on.there(dst_H)); },
      sums_H, dst_H);
}

void StagedKernel::forward(const KernelParams& params, std::span<const ForwardTile> tiles) const {
  Staging staging(streams_);
  for (const ForwardTile& tile : tiles) {
    for (const TensorView& view : {tile.q_NHD, tile.k_MHD, tile.v_MHD, tile.o_NHD}) {
      staging.add(view);
    }
    staging.add(tile.lse_NH, tile.q_NHD);
  }
  staging.upload();
  std::vector<ForwardTile> there;
  for (const ForwardTile& tile : tiles) {
    there.push_back({staging.there(tile.q_NHD), staging.there(tile.k_MHD),
                     staging.there(tile.v_MHD), staging.there(tile.o_NHD),
                     staging.there(tile.lse_NH), tile.bands, tile.init});
  }
  inner_.forward(params, there);
  staging.download();
}

void StagedKernel::backward(const KernelParams& params, std::span<const BackwardTile> tiles) const {
  Staging staging(streams_);
  for (const BackwardTile& tile : tiles) {
    for (const TensorView& view :
         {tile.q_NHD, tile.k_MHD, tile.v_MHD, tile.do_NHD, tile.dq_NHD, tile.dk_MHD, tile.dv_MHD}) {
      staging.add(view);
    }
    staging.add(tile.lse_NH, tile.q_NHD);
    staging.add(tile.delta_NH, tile.q_NHD);
  }
  staging.upload();
  std::vector<BackwardTile> there;
  for (const BackwardTile& tile : tiles) {
    there.push_back({staging.there(tile.q_NHD), staging.there(tile.k_MHD),
                     staging.there(tile.v_MHD), staging.there(tile.do_NHD),
                     staging.there(tile.lse_NH), staging.there(tile.delta_NH),
                     staging.there(tile.dq_NHD), staging.there(tile.dk_MHD),
                     staging.there(tile.dv_MHD), tile.bands, tile.init_dq, tile.init_dkv});
  }
  inner_.backward(params, there);
  staging.download();
}

}  // namespace contextile
