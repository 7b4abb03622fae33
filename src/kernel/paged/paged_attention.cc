#include "contextile/extend/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "kernel/cpu/cpu_features.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/paged_tasks.h"
#include "kernel/paged/row_tiles.h"
#include "kernel/paged/task_keys.h"
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

// Cuts rows into panels of two vectors, one vector, or a part of one. Up to one row for each lane,
// rows are few: widening a key again for the next rows costs less than keeping it as floats.
std::vector<PagedPanel> panels_of(const PagedShape& shape, std::int32_t lanes) {
  const bool is_few = lanes >= 8 && shape.padded_rows <= lanes;
  std::vector<PagedPanel> panels;
  std::int32_t lane = 0;
  for (std::int32_t first = 0; first < shape.padded_rows;) {
    std::int32_t size = is_few ? lanes / 2 : 2 * lanes;
    while (size > shape.padded_rows - first) size /= 2;
    panels.push_back({first, size, std::max(1, lanes / size), lane});
    first += size;
    lane += panels.back().lanes();
  }
  return panels;
}

// Makes the keys that are read after some keys follow them.
void append(PagedKeys& keys, const PagedKeys& next) {
  const auto follow = [&](const std::byte** all, const std::byte* const* later) {
    for (int j = 0; j < kPagedChunk; ++j) {
      all[keys.count + j] =
          next.count == 0 ? all[keys.count - 1] : later[std::min(j, next.count - 1)];
    }
  };
  follow(keys.k, next.k);
  follow(keys.v, next.v);
}

bool is_shared(const PagedKv& kv) {
  const PagedTensor& k = kv.k;
  const PagedTensor& v = kv.v;
  return kv.kv_heads == 1 && k.data == v.data && k.page_stride == v.page_stride &&
         k.token_stride == v.token_stride && k.head_stride == v.head_stride && v.dim <= k.dim &&
         (v.dim == k.dim || v.dim % kPagedGroup == 0);
}

using Floats = std::vector<float, LineAllocator<float>>;

// One run of a task: its memory and the sums so far.
class TaskRun {
 public:
  TaskRun(const PagedTarget& target, const PagedParams& params, const PagedKv& kv,
          const TensorView& q_NHD, const PagedRequest& request, const PagedTask& task)
      : target_(target), params_(params), kv_(kv), request_(request), task_(task) {
    group_ = q_NHD.heads / kv.kv_heads;
    shape_.kv_heads = kv.kv_heads;
    shape_.rows_of_head = static_cast<std::int32_t>(task.num_rows) * group_;
    shape_.padded_rows = padded(shape_.rows_of_head, kPagedRows);
    shape_.padded_head_dim = padded(kv.k.dim, 16);
    shape_.padded_value_dim = padded(kv.v.dim, 16);
    shape_.is_shared = is_shared(kv);
    panels_ = panels_of(shape_, target.lanes);
    shape_.panels = panels_.data();
    shape_.num_panels = static_cast<std::int32_t>(panels_.size());
    shape_.lanes_of_head = panels_.back().first_lane + panels_.back().lanes();
    const auto rows =
        static_cast<std::size_t>(kv.kv_heads) * static_cast<std::size_t>(shape_.padded_rows);
    const auto lanes = static_cast<std::size_t>(shape_.lanes_of_head);
    q_.assign(rows * static_cast<std::size_t>(shape_.padded_head_dim), 0);
    scores_.assign(rows * kPagedChunk, 0);
    tile_.assign(static_cast<std::size_t>(paged_tile(shape_)), 0);
    out_.assign(rows * static_cast<std::size_t>(shape_.padded_value_dim), 0);
    top_.assign(static_cast<std::size_t>(kv.kv_heads) * lanes, kEmpty);
    sum_.assign(static_cast<std::size_t>(kv.kv_heads) * lanes, 0);
    shrink_.assign(static_cast<std::size_t>(kv.kv_heads) * lanes, 0);
    read_queries(q_NHD);
  }

  // Takes all keys of the task. The keys of the next chunk are known ahead so that they can be
  // fetched into the cache.
  void run() {
    TaskKeys keys(kv_, request_, task_);
    KeyChunk chunks[2];
    KeyChunk* chunk = &chunks[0];
    KeyChunk* next = &chunks[1];
    for (bool is_any = keys.next(*chunk); is_any; std::swap(chunk, next)) {
      is_any = keys.next(*next);
      append(chunk->keys, next->keys);
      target_.take(params_, kv_, shape_,
                   {&chunk->keys, chunk->seen.empty() ? nullptr : chunk->seen.data(),
                    static_cast<int>(task_.num_rows)},
                   {q_.data(), scores_.data(), tile_.data(), out_.data(), top_.data(), sum_.data(),
                    shrink_.data()});
    }
  }

  // Writes O and LSE of the task's rows.
  void write(const PartialOutput& out, std::int64_t first_row) {
    std::vector<float> row(static_cast<std::size_t>(kv_.v.dim));
    for (std::int32_t head = 0; head < kv_.kv_heads; ++head) {
      const float scale =
          target_.factor(kv_.dtype) *
          (kv_.v.scale_H.empty() ? 1.0F : kv_.v.scale_H[static_cast<std::size_t>(head)]);
      for (const PagedPanel& panel : panels_) {
        for (std::int32_t r = panel.first;
             r < std::min(panel.first + panel.rows, shape_.rows_of_head); ++r) {
          const auto lane = static_cast<std::size_t>(
              head * shape_.lanes_of_head + panel.first_lane + (r - panel.first) * panel.keys);
          float sum = 0;
          for (std::int32_t i = 0; i < panel.keys; ++i)
            sum += sum_[lane + static_cast<std::size_t>(i)];
          // A row that sees NaN only has no largest score, but it is not empty.
          const bool is_empty = top_[lane] == kEmpty && sum == 0;
          const float* o =
              out_.data() + index(head, r) * static_cast<std::size_t>(shape_.padded_value_dim);
          for (std::int32_t d = 0; d < shape_.padded_value_dim; ++d) {
            const std::int32_t element = value_elements_[static_cast<std::size_t>(d)];
            if (element >= kv_.v.dim) continue;
            row[static_cast<std::size_t>(element)] = is_empty ? 0.0F : o[d] / sum * scale;
          }
          const std::int64_t n = first_row + r / group_;
          const std::int32_t h = head * group_ + r % group_;
          write_row(out.o_NHD, n, h, row);
          stat_at(out.lse_NH, n, h) =
              is_empty ? kEmpty : (top_[lane] + std::log2(sum)) * 0.69314718055994531F;
        }
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
    const auto elements_of = [&](std::int32_t dim, std::int32_t padded_dim) {
      std::vector<std::int32_t> elements;
      for (std::int32_t d = 0; d < padded_dim; ++d) {
        elements.push_back(target_.element(kv_.dtype, dim, d));
      }
      return elements;
    };
    const auto elements = elements_of(kv_.k.dim, shape_.padded_head_dim);
    value_elements_ =
        elements_of(shape_.is_shared ? kv_.k.dim : kv_.v.dim, shape_.padded_value_dim);
    std::vector<float> row(static_cast<std::size_t>(shape_.padded_head_dim), 0);
    for (std::int32_t head = 0; head < kv_.kv_heads; ++head) {
      const float scale =
          params_.scale * 1.4426950408889634F * target_.factor(kv_.dtype) *
          (kv_.k.scale_H.empty() ? 1.0F : kv_.k.scale_H[static_cast<std::size_t>(head)]);
      for (const PagedPanel& panel : panels_) {
        float* to = q_.data() + index(head, panel.first) * row.size();
        for (std::int32_t r = panel.first;
             r < std::min(panel.first + panel.rows, shape_.rows_of_head); ++r) {
          read_row(q_NHD, request_.first_row + task_.first_row + r / group_,
                   head * group_ + r % group_,
                   std::span(row).first(static_cast<std::size_t>(q_NHD.dim)));
          const auto at = static_cast<std::size_t>(r - panel.first);
          const auto rows = static_cast<std::size_t>(panel.rows);
          const std::size_t wide = panel.keys == 1 ? 1 : static_cast<std::size_t>(target_.lanes);
          for (std::size_t begin = 0; begin < row.size(); begin += wide) {
            for (std::size_t d = 0; d < wide; ++d) {
              to[begin * rows + at * wide + d] =
                  row[static_cast<std::size_t>(elements[begin + d])] * scale;
            }
          }
        }
      }
    }
  }

  const PagedTarget& target_;
  const PagedParams& params_;
  const PagedKv& kv_;
  const PagedRequest& request_;
  const PagedTask& task_;
  std::int32_t group_ = 1;
  PagedShape shape_;
  std::vector<PagedPanel> panels_;
  std::vector<std::int32_t> value_elements_;  // of the positions of out_
  Floats q_;
  Floats scores_;
  Floats tile_;
  Floats out_;
  Floats top_;
  Floats sum_;
  Floats shrink_;
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
    add(paged_avx512(), cpu_features().avx512);
    add(paged_avx2(), cpu_features().avx2);
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
