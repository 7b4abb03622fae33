#include "contextile/extend/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "kernel/cpu/cpu_features.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/paged_tasks.h"
#include "kernel/paged/row_tiles.h"
#include "kernel/row_ops.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr struct {
  KvDtype dtype;
  std::string_view name;
} kDtypes[] = {{KvDtype::kF32, "f32"},
               {KvDtype::kBf16, "bf16"},
               {KvDtype::kF16, "f16"},
               {KvDtype::kFp8, "fp8"},
               {KvDtype::kInt8, "int8"}};

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

std::int32_t padded(std::int32_t count, std::int32_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// One run of a task: its memory and the sums so far.
class TaskRun {
 public:
  TaskRun(const PagedTarget& target, const PagedParams& params, const PagedKv& kv,
          const TensorView& q_NHD, const PagedRequest& request, const PagedTask& task)
      : target_(target), params_(params), kv_(kv), request_(request), task_(task) {
    group_ = q_NHD.heads / kv.kv_heads;
    shape_.kv_heads = kv.kv_heads;
    shape_.rows_of_head = static_cast<std::int32_t>(task.num_rows) * group_;
    shape_.padded_rows = padded(shape_.rows_of_head, target.row_tile);
    shape_.padded_head_dim = padded(kv.k.dim, 16);
    shape_.padded_value_dim = padded(kv.v.dim, 16);
    shape_.k_scale = kv.k.scale_H.empty() ? nullptr : kv.k.scale_H.data();
    const auto rows =
        static_cast<std::size_t>(kv.kv_heads) * static_cast<std::size_t>(shape_.padded_rows);
    const auto head_dim = static_cast<std::size_t>(shape_.padded_head_dim);
    const auto value_dim = static_cast<std::size_t>(shape_.padded_value_dim);
    q_.assign(rows * head_dim, 0);
    scores_.assign(rows * kPagedChunk, 0);
    tile_.assign(static_cast<std::size_t>(
                     paged_tile(std::max(shape_.padded_head_dim, shape_.padded_value_dim))),
                 0);
    out_.assign(rows * value_dim, 0);
    top_.assign(rows, kEmpty);
    sum_.assign(rows, 0);
    read_queries(q_NHD);
  }

  // Takes all keys of the task, kPagedChunk at a time.
  void run() {
    std::vector<std::int64_t> all;
    for (const Range& range : task_.keys) {
      for (std::int64_t key = range.begin; key < range.end; ++key) all.push_back(key);
    }
    for (std::size_t first = 0; first < all.size(); first += kPagedChunk) {
      const std::size_t end = std::min(first + kPagedChunk, all.size());
      PagedKeys keys;
      keys.num_queries = static_cast<int>(task_.num_rows);
      for (std::size_t i = first; i < end; ++i, ++keys.count) {
        keys.k[keys.count] = at(kv_.k, all[i]);
        keys.v[keys.count] = at(kv_.v, all[i]);
      }
      // The first keys of the next chunk are known ahead so that they can be fetched into the
      // cache.
      for (std::size_t j = 0; j < kPagedKeys; ++j) {
        keys.next[j] = at(kv_.k, all[std::min(end + j, all.size() - 1)]);
      }
      const std::span<const std::int64_t> indices = std::span(all).subspan(first, end - first);
      keys.seen = find_seen(indices) ? seen_.data() : nullptr;
      target_.take(
          params_, kv_, shape_, keys,
          {q_.data(), scores_.data(), tile_.data(), out_.data(), top_.data(), sum_.data()});
    }
  }

  // Writes O and LSE of the task's rows.
  void write(const PartialOutput& out, std::int64_t first_row) {
    std::vector<float> row(static_cast<std::size_t>(kv_.v.dim));
    for (std::int32_t head = 0; head < kv_.kv_heads; ++head) {
      const float scale =
          kv_.v.scale_H.empty() ? 1.0F : kv_.v.scale_H[static_cast<std::size_t>(head)];
      for (std::int32_t r = 0; r < shape_.rows_of_head; ++r) {
        const std::size_t from = index(head, r);
        const float sum = sum_[from];
        const bool is_empty = top_[from] == kEmpty;
        const float* o = out_.data() + from * static_cast<std::size_t>(shape_.padded_value_dim);
        for (std::size_t d = 0; d < row.size(); ++d) row[d] = is_empty ? 0.0F : o[d] / sum * scale;
        const std::int64_t n = first_row + r / group_;
        const std::int32_t h = head * group_ + r % group_;
        write_row(out.o_NHD, n, h, row);
        stat_at(out.lse_NH, n, h) =
            is_empty ? kEmpty : (top_[from] + std::log2(sum)) * 0.69314718055994531F;
      }
    }
  }

 private:
  [[nodiscard]] std::size_t index(std::int32_t head, std::int32_t r) const {
    return static_cast<std::size_t>(head) * static_cast<std::size_t>(shape_.padded_rows) +
           static_cast<std::size_t>(r);
  }

  // Copies the queries, scaled so that scores are exponents of 2.
  void read_queries(const TensorView& q_NHD) {
    const auto dim = static_cast<std::size_t>(shape_.padded_head_dim);
    const float scale = params_.scale * 1.4426950408889634F;
    for (std::int32_t head = 0; head < kv_.kv_heads; ++head) {
      for (std::int32_t r = 0; r < shape_.rows_of_head; ++r) {
        const std::span<float> row =
            std::span(q_).subspan(index(head, r) * dim, static_cast<std::size_t>(q_NHD.dim));
        read_row(q_NHD, request_.first_row + task_.first_row + r / group_,
                 head * group_ + r % group_, row);
        for (float& x : row) x *= scale;
      }
    }
  }

  [[nodiscard]] const std::byte* at(const PagedTensor& tensor, std::int64_t key) const {
    const PageId page = request_.table[static_cast<std::size_t>(key / kv_.page_size)];
    const std::int64_t element =
        page.value * tensor.page_stride + key % kv_.page_size * tensor.token_stride;
    return static_cast<const std::byte*>(tensor.data) + element * bytes_per_element(kv_.dtype);
  }

  // Notes which row sees which key. Returns false if all rows see all keys.
  bool find_seen(std::span<const std::int64_t> indices) {
    if (task_.num_rows == 1) return false;  // it has only keys that its row sees
    const auto rows = static_cast<std::size_t>(task_.num_rows);
    seen_.assign(indices.size() * rows, 0);
    std::size_t count = 0;
    for (std::size_t row = 0; row < rows; ++row) {
      for (const Range& keys :
           keys_of_row(request_, task_.first_row + static_cast<std::int64_t>(row))) {
        const auto begin = std::lower_bound(indices.begin(), indices.end(), keys.begin);
        const auto end = std::lower_bound(begin, indices.end(), keys.end);
        for (auto it = begin; it != end; ++it, ++count) {
          seen_[static_cast<std::size_t>(it - indices.begin()) * rows + row] = 1;
        }
      }
    }
    return count < seen_.size();
  }

  const PagedTarget& target_;
  const PagedParams& params_;
  const PagedKv& kv_;
  const PagedRequest& request_;
  const PagedTask& task_;
  std::int32_t group_ = 1;
  PagedShape shape_;
  std::vector<float> q_;
  std::vector<float> scores_;
  std::vector<float> tile_;
  std::vector<float> out_;
  std::vector<float> top_;
  std::vector<float> sum_;
  std::vector<std::uint8_t> seen_;
};

class SimdPagedKernel final : public PagedKernel {
 public:
  explicit SimdPagedKernel(const PagedTarget& target) : target_(target) {}

  [[nodiscard]] std::string_view name() const override { return target_.name; }

 protected:
  void attend(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
              std::span<const PagedRequest> requests, const PartialOutput& out) const override {
    std::vector<PagedRequest> few;
    for (const PagedRequest& request : requests) {
      if (goes_by_tiles(request)) {
        run_by_tiles(preferred_kernel(Dtype::kF32), params, kv, q_NHD, request, out);
      } else {
        few.push_back(request);
      }
    }
    run_tasks(params, kv, q_NHD, few, out);
  }

 private:
  void run_tasks(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
                 std::span<const PagedRequest> requests, const PartialOutput& out) const {
    const std::vector<PagedTask> tasks = paged_tasks(requests);
    // Results of tasks that share rows wait here to be merged.
    std::vector<HostTensor> parts(tasks.size());
    std::vector<HostTensor> lse(tasks.size());
    parallel_for(std::size_t{0}, tasks.size(), [&](std::size_t i) {
      const PagedTask& task = tasks[i];
      const PagedRequest& request = requests[task.request];
      TaskRun run(target_, params, kv, q_NHD, request, task);
      run.run();
      if (task.is_alone) {
        run.write(out, request.first_row + task.first_row);
      } else {
        parts[i] = HostTensor(Dtype::kF32, task.num_rows, q_NHD.heads, kv.v.dim);
        lse[i] = HostTensor(Dtype::kF32, task.num_rows, q_NHD.heads, 1);
        run.write({parts[i].view(), lse[i].stats()}, 0);
      }
    });
    merge_parts(tasks, requests, parts, lse, out);
  }

  // Merges the results of tasks that share rows, in the order of their keys.
  static void merge_parts(const std::vector<PagedTask>& tasks,
                          std::span<const PagedRequest> requests, std::vector<HostTensor>& parts,
                          std::vector<HostTensor>& lse, const PartialOutput& out) {
    const RowOps& rows = preferred_kernel(Dtype::kF32).row_ops();
    for (std::size_t begin = 0; begin < tasks.size();) {
      std::size_t end = begin + 1;
      while (end < tasks.size() && tasks[end].request == tasks[begin].request &&
             tasks[end].first_row == tasks[begin].first_row) {
        ++end;
      }
      if (end > begin + 1) {
        std::vector<PartialOutput> sources;
        for (std::size_t i = begin; i < end; ++i) {
          sources.push_back({parts[i].view(), lse[i].stats()});
        }
        const std::int64_t first =
            requests[tasks[begin].request].first_row + tasks[begin].first_row;
        const TensorView o = slice(out.o_NHD, first, tasks[begin].num_rows, 0, out.o_NHD.heads);
        const RowStats stats = {&stat_at(out.lse_NH, first, 0), out.lse_NH.token_stride,
                                out.lse_NH.head_stride};
        rows.merge({o, stats}, sources);
      }
      begin = end;
    }
  }

  const PagedTarget& target_;
};

}  // namespace

std::string_view to_string(KvDtype dtype) {
  return std::find_if(std::begin(kDtypes), std::end(kDtypes),
                      [&](const auto& entry) { return entry.dtype == dtype; })
      ->name;
}

KvDtype parse_kv_dtype(std::string_view text) {
  for (const auto& [dtype, name] : kDtypes) {
    if (name == text) return dtype;
  }
  fail_argument("KV dtype: expected one of f32, bf16, f16, fp8, int8; found {}", quote(text));
}

void PagedKernel::run(const PagedParams& params, const PagedKv& kv, const TensorView& q_NHD,
                      std::span<const PagedRequest> requests, const PartialOutput& out) const {
  check_paged(kv, q_NHD, requests, out);
  attend(params, kv, q_NHD, requests, out);
}

std::span<const PagedKernel* const> paged_kernels() {
  static const std::vector<std::unique_ptr<const PagedKernel>> kOwned = [] {
    std::vector<std::unique_ptr<const PagedKernel>> found;
    const auto add = [&](const PagedTarget* target, bool can_run) {
      if (target != nullptr && can_run) found.push_back(std::make_unique<SimdPagedKernel>(*target));
    };
    add(paged_avx512(), cpu_has_avx512());
    add(paged_avx2(), cpu_has_avx2());
    add(paged_portable(), true);
    return found;
  }();
  static const std::vector<const PagedKernel*> kAll = [] {
    std::vector<const PagedKernel*> list;
    for (const auto& kernel : kOwned) list.push_back(kernel.get());
    return list;
  }();
  return kAll;
}

const PagedKernel& find_paged_kernel(std::string_view name) {
  if (name.empty()) return *paged_kernels().front();
  std::vector<std::string> names;
  for (const PagedKernel* kernel : paged_kernels()) {
    if (kernel->name() == name) return *kernel;
    names.emplace_back(kernel->name());
  }
  fail_argument("kernel: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile
