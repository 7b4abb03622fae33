#include "kernel/paged/row_tiles.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/half.h"
#include "base/parallel_for.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr std::int64_t kLeastRows = 32;
constexpr std::int64_t kKeysOfTile = 512;
constexpr std::int64_t kTilesAtATime = 8;  // their keys are copied before they are attended

// Returns the keys that some row sees, ascending.
std::vector<Range> seen_by_any(const PagedRequest& request) {
  std::vector<Range> ranges;
  for (const Range& keys : request.keys) {
    if (!keys.empty()) ranges.push_back(keys);
  }
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> seen;
  for (const Range& keys : ranges) {
    if (!seen.empty() && keys.begin <= seen.back().end) {
      seen.back().end = std::max(seen.back().end, keys.end);
    } else {
      seen.push_back(keys);
    }
  }
  return seen;
}

// Returns the bands that the rows see. The keys that all rows see are one band, so that the edges
// of single rows cut up only the keys outside it.
std::vector<Band> bands_of(const PagedRequest& request) {
  Range common = request.keys.front();
  for (const Range& keys : request.keys) common = intersect(common, keys);
  std::vector<std::vector<Range>> rows(request.keys.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Range keys = request.keys[i];
    if (common.empty()) {
      if (!keys.empty()) rows[i].push_back(keys);
      continue;
    }
    if (keys.begin < common.begin) rows[i].push_back({keys.begin, common.begin});
    if (common.end < keys.end) rows[i].push_back({common.end, keys.end});
  }
  std::vector<Band> bands = mask_from_row_ranges(rows).bands;
  if (!common.empty()) bands.push_back({{0, request.num_rows}, common});
  return bands;
}

// Returns the parts of the bands within `keys`, counted from the first of these keys.
std::vector<LocalBand> bands_in(const std::vector<Band>& bands, std::int64_t num_rows, Range keys) {
  std::vector<LocalBand> local;
  for (const Band& band : bands) {
    Band part = clip(band, {0, num_rows}, keys);
    if (part.q.empty()) continue;
    part.k = {part.k.begin - keys.begin, part.k.end - keys.begin};
    if (part.lo > -kUnbounded) part.lo -= keys.begin;
    if (part.hi < kUnbounded) part.hi -= keys.begin;
    local.push_back(part);
  }
  return local;
}

float element(const std::byte* data, std::int64_t at, KvDtype dtype) {
  const auto* bytes = data + at * bytes_per_element(dtype);
  switch (dtype) {
    case KvDtype::kF32:
      return *reinterpret_cast<const float*>(bytes);
    case KvDtype::kBf16:
      return bf16_to_float(*reinterpret_cast<const std::uint16_t*>(bytes));
    case KvDtype::kF16:
      return f16_to_float(*reinterpret_cast<const std::uint16_t*>(bytes));
    case KvDtype::kFp8:
      return fp8_to_float(*reinterpret_cast<const std::uint8_t*>(bytes));
    case KvDtype::kInt8:
      return *reinterpret_cast<const std::int8_t*>(bytes);
  }
  return 0;
}

void copy_keys(const PagedTensor& tensor, const PagedKv& kv, std::span<const PageId> table,
               Range keys, float* out) {
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    const PageId page = table[static_cast<std::size_t>(key / kv.page_size)];
    for (std::int32_t head = 0; head < kv.kv_heads; ++head) {
      const std::int64_t at = page.value * tensor.page_stride +
                              key % kv.page_size * tensor.token_stride + head * tensor.head_stride;
      const float scale =
          tensor.scale_H.empty() ? 1.0F : tensor.scale_H[static_cast<std::size_t>(head)];
      for (std::int32_t d = 0; d < tensor.dim; ++d) {
        *out++ = scale * element(static_cast<const std::byte*>(tensor.data), at + d, kv.dtype);
      }
    }
  }
}

// Copies some keys of a request. Keys that no row sees become zeros and are not read, whatever
// their memory holds.
HostTensor copied(const PagedTensor& tensor, const PagedKv& kv, const PagedRequest& request,
                  const std::vector<Range>& seen, Range keys) {
  HostTensor all(Dtype::kF32, keys.size(), kv.kv_heads, tensor.dim);
  const std::span<float> values = all.values<float>();
  std::fill(values.begin(), values.end(), 0.0F);
  for (const Range& range : seen) {
    const Range part = intersect(range, keys);
    if (part.empty()) continue;
    const std::int64_t row = std::int64_t{kv.kv_heads} * tensor.dim;
    copy_keys(tensor, kv, request.table, part, values.data() + (part.begin - keys.begin) * row);
  }
  return all;
}

}  // namespace

bool goes_by_tiles(const PagedRequest& request) {
  return request.num_rows >= kLeastRows && request.row_splits.empty();
}

void run_by_tiles(const AttentionKernel& kernel, const PagedParams& params, const PagedKv& kv,
                  const TensorView& q_NHD, const PagedRequest& request, const PartialOutput& out) {
  HostTensor q(Dtype::kF32, request.num_rows, q_NHD.heads, q_NHD.dim);
  kernel.row_ops().convert(q.view(),
                           slice(q_NHD, request.first_row, request.num_rows, 0, q_NHD.heads));
  const TensorView o = slice(out.o_NHD, request.first_row, request.num_rows, 0, out.o_NHD.heads);
  const RowStats lse = {&stat_at(out.lse_NH, request.first_row, 0), out.lse_NH.token_stride,
                        out.lse_NH.head_stride};
  const std::vector<Range> seen = seen_by_any(request);
  const Range all = seen.empty() ? Range{} : Range{seen.front().begin, seen.back().end};
  const std::vector<Band> bands = bands_of(request);
  const KernelParams shape = {q_NHD.heads, kv.kv_heads,  kv.k.dim,
                              kv.v.dim,    params.scale, params.softcap};
  const std::int64_t num_tiles =
      std::max<std::int64_t>(1, (all.size() + kKeysOfTile - 1) / kKeysOfTile);
  for (std::int64_t first = 0; first < num_tiles; first += kTilesAtATime) {
    const auto count = static_cast<std::size_t>(std::min(kTilesAtATime, num_tiles - first));
    std::vector<HostTensor> k(count);
    std::vector<HostTensor> v(count);
    std::vector<std::vector<LocalBand>> local(count);
    parallel_for(std::size_t{0}, count, [&](std::size_t i) {
      const std::int64_t begin = all.begin + (first + static_cast<std::int64_t>(i)) * kKeysOfTile;
      const Range keys = {begin, std::min(begin + kKeysOfTile, all.end)};
      k[i] = copied(kv.k, kv, request, seen, keys);
      v[i] = copied(kv.v, kv, request, seen, keys);
      local[i] = bands_in(bands, request.num_rows, keys);
    });
    std::vector<ForwardTile> tiles;
    for (std::size_t i = 0; i < count; ++i) {
      tiles.push_back({q.view(), k[i].view(), v[i].view(), o, lse, local[i], first == 0 && i == 0});
    }
    kernel.forward(shape, tiles);
  }
}

}  // namespace contextile
