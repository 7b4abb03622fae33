#include "kernel/cpu/simd_kernel.h"

#include <tbb/enumerable_thread_specific.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "base/parallel_for.h"
#include "kernel/cpu/call_terms.h"
#include "kernel/cpu/cpu_features.h"
#include "kernel/cpu/panels.h"
#include "kernel/cpu/simd_row_ops.h"
#include "kernel/cpu/task.h"
#include "kernel/row_ops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace contextile {
namespace {

// Below this many multiply-adds a call runs on the calling thread.
constexpr double kSerialMultiplyAdds = 4e6;
// Backward cuts the keys of a KV head into shares if there are few KV heads: into at most this many
// tasks, none of fewer key blocks.
constexpr std::int64_t kMostBackwardTasks = 16;
constexpr std::int64_t kLeastShareBlocks = 4;
// Number of panels that one task packs before the shares read them.
constexpr std::int64_t kPackedPanels = 8;
// Number of forward tasks per thread, if there are enough panels: panels of one task share packed
// keys. The cut changes no bit.
constexpr std::int64_t kTasksPerThread = 3;
constexpr std::int64_t kLeastForwardPanels = 16;

// Makes results below 2^-126 zero while an object lives on a thread. Otherwise weights of far keys
// would run through the processor's slow path.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }
#else
  FlushSubnormals() = default;
#endif
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

#if defined(__x86_64__)

 private:
  unsigned saved_;
#endif
};

// 64-byte aligned bytes that grow on demand.
class Workspace {
 public:
  void* reserve(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};
using Workspaces = tbb::enumerable_thread_specific<Workspace>;

// Memory of one call, reused by all its parts.
struct CallMemory {
  Workspaces by_thread;
  Workspace packed;     // panels of all KV heads
  Workspace dq_shares;  // of all KV heads
};

// Classified bands of a tile for the panels of both targets of a mixed kernel.
class BandsOfTwo : public PreparedBands {
 public:
  BandsOfTwo(PanelBands first, PanelBands second)
      : first_(std::move(first)), second_(std::move(second)) {}
  [[nodiscard]] std::int64_t size_bytes() const override {
    return first_.size_bytes() + second_.size_bytes();
  }
  [[nodiscard]] const PanelBands* of(std::int32_t lanes) const {
    return first_.lanes() == lanes ? &first_ : &second_;
  }

 private:
  PanelBands first_;
  PanelBands second_;
};

const PanelBands* panel_bands(const PreparedBands* prepared, std::int32_t lanes) {
  const auto* two = dynamic_cast<const BandsOfTwo*>(prepared);
  return two != nullptr ? two->of(lanes) : dynamic_cast<const PanelBands*>(prepared);
}

// Classified bands of every tile of a call: those that came with the tiles, or ones made here.
template <typename Tile>
class CallBands {
 public:
  CallBands(const KernelParams& params, std::span<const Tile> tiles, std::int32_t lanes) {
    const std::int32_t heads = params.q_heads / params.kv_heads;
    for (const Tile& tile : tiles) {
      const PanelBands* given = panel_bands(tile.prepared, lanes);
      if (given == nullptr || given->heads_per_kv() != heads || given->lanes() != lanes) {
        made_.push_back(std::make_unique<PanelBands>(tile.bands, tile.q_NHD.tokens,
                                                     tile.k_MHD.tokens, heads, lanes));
        given = made_.back().get();
      }
      bands_.push_back(given);
    }
  }
  [[nodiscard]] const PanelBands* of(std::size_t tile) const { return bands_[tile]; }

 private:
  std::vector<std::unique_ptr<PanelBands>> made_;
  std::vector<const PanelBands*> bands_;
};

// Tiles of one query slot, in listed order.
template <typename Tile>
struct TileGroup {
  std::vector<Tile> tiles;
  std::vector<const PanelBands*> bands;
  PanelGrid grid{0, 1};
};

void* result_of(const ForwardTile& tile) { return tile.o_NHD.data; }
void* result_of(const BackwardTile& tile) { return tile.dq_NHD.data; }
bool starts_result(const ForwardTile& tile) { return tile.init; }
bool starts_result(const BackwardTile& tile) { return tile.init_dq; }

// Groups the tiles from `first` on, up to the first tile that must see its slots as earlier tiles
// left them. Such a tile starts a slot again that those wrote, pairs a slot with other queries, or
// adds to the dk of a tile of its own group (shares of a group's keys run at the same time). Sets
// `first` to that tile.
template <typename Tile>
std::vector<TileGroup<Tile>> take_groups(std::span<const Tile> tiles, const CallBands<Tile>& bands,
                                         const KernelParams& params, std::int32_t lanes,
                                         std::size_t& first) {
  std::vector<TileGroup<Tile>> groups;
  std::map<void*, std::size_t> group_of_result;
  std::set<void*> seen_gradients;                   // dk slots
  std::set<std::pair<void*, void*>> seen_in_group;  // with their group's dq slot
  for (; first < tiles.size(); ++first) {
    const Tile& tile = tiles[first];
    if constexpr (std::is_same_v<Tile, BackwardTile>) {
      void* const dk = tile.dk_MHD.data;
      if (tile.init_dkv && seen_gradients.contains(dk)) break;
      if (!seen_in_group.emplace(dk, result_of(tile)).second) break;
      seen_gradients.insert(dk);
    }
    const auto [at, is_new] = group_of_result.try_emplace(result_of(tile), groups.size());
    if (is_new) {
      groups.emplace_back();
      groups.back().grid = PanelGrid(tile.q_NHD.tokens * (params.q_heads / params.kv_heads), lanes);
    } else if (starts_result(tile) || groups[at->second].tiles[0].q_NHD.data != tile.q_NHD.data) {
      break;
    }
    groups[at->second].tiles.push_back(tile);
    groups[at->second].bands.push_back(bands.of(first));
  }
  return groups;
}

template <typename Tile>
bool is_small(const KernelParams& params, std::span<const Tile> tiles) {
  double pairs = 0;
  for (const Tile& tile : tiles) {
    for (const LocalBand& band : tile.bands) pairs += static_cast<double>(num_pairs(band));
  }
  return pairs * params.q_heads * (params.head_dim + params.value_dim) < kSerialMultiplyAdds;
}

// Runs work(i) for every i below `count`, in parallel unless `serial`.
template <typename Work>
void for_each_task(std::size_t count, bool serial, const Work& work) {
  const auto run = [&work](std::size_t i) {
    const FlushSubnormals flush;
    work(i);
  };
  if (serial || count == 1) {
    for (std::size_t i = 0; i < count; ++i) {
      check_interrupt();
      run(i);
    }
    return;
  }
  parallel_for(std::size_t{0}, count, run);
}

void clear_rows(const TensorView& slot) {
  for (std::int64_t n = 0; n < slot.tokens; ++n) {
    for (std::int32_t h = 0; h < slot.heads; ++h) {
      std::memset(static_cast<float*>(slot.data) + n * slot.token_stride + h * slot.head_stride, 0,
                  static_cast<std::size_t>(slot.dim) * sizeof(float));
    }
  }
}

class SimdKernel : public AttentionKernel {
 public:
  SimdKernel(const SimdTarget& target, const RowTarget& rows)
      : target_(target), rows_(rows), name_(std::string("simd:") + target.name) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::int32_t lanes() const { return target_.lanes; }
  [[nodiscard]] bool has_terms() const override { return true; }
  [[nodiscard]] const RowOps& row_ops() const override { return rows_; }

  [[nodiscard]] std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const override {
    return std::make_unique<PanelBands>(bands, num_rows, num_keys, params.q_heads / params.kv_heads,
                                        target_.lanes);
  }

  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    const CallBands<ForwardTile> bands(params, tiles, target_.lanes);
    const CallTerms terms(params);
    const bool serial = is_small(params, tiles);
    Workspaces workspaces;
    for (std::size_t next = 0; next < tiles.size();) {
      const auto groups = take_groups(tiles, bands, params, target_.lanes, next);
      std::vector<ForwardTask> tasks;
      for (const TileGroup<ForwardTile>& group : groups) {
        add_tasks(params, terms, group, serial, tasks);
      }
      for_each_task(tasks.size(), serial, [&](std::size_t i) {
        target_.forward(tasks[i], workspaces.local().reserve(target_.forward_bytes(tasks[i])));
      });
    }
  }

  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    const CallBands<BackwardTile> bands(params, tiles, target_.lanes);
    const CallTerms terms(params);
    const bool serial = is_small(params, tiles);
    CallMemory memory;
    for (std::size_t next = 0; next < tiles.size();) {
      const std::size_t first = next;
      const auto groups = take_groups(tiles, bands, params, target_.lanes, next);
      // Shares only add to dK and dV, so slots that start here are cleared first.
      for (const BackwardTile& tile : tiles.subspan(first, next - first)) {
        if (!tile.init_dkv) continue;
        clear_rows(tile.dk_MHD);
        clear_rows(tile.dv_MHD);
      }
      for (const TileGroup<BackwardTile>& group : groups) {
        for (std::int64_t panel = 0; panel < group.grid.num_panels();
             panel += target_.backward_panels) {
          run_panels(params, terms, group, panel, serial, memory);
        }
      }
    }
  }

 private:
  // Cuts the panels of a group into tasks for all threads.
  void add_tasks(const KernelParams& params, const CallTerms& terms,
                 const TileGroup<ForwardTile>& group, bool serial,
                 std::vector<ForwardTask>& tasks) const {
    const std::int64_t num_panels = group.grid.num_panels();
    const std::int64_t threads = serial ? 1 : tbb::this_task_arena::max_concurrency();
    const std::int64_t wanted =
        threads == 1 ? num_panels : num_panels * params.kv_heads / (kTasksPerThread * threads);
    const std::int64_t most = std::clamp(wanted, kLeastForwardPanels, target_.forward_panels);
    const std::int64_t chunks = (num_panels + most - 1) / most;
    const std::int64_t panels = chunks == 0 ? 1 : (num_panels + chunks - 1) / chunks;
    for (std::int32_t kv_head = 0; kv_head < params.kv_heads; ++kv_head) {
      for (std::int64_t panel = 0; panel < num_panels; panel += panels) {
        tasks.push_back({&params, group.tiles, group.bands, &group.grid, panel,
                         std::min(panels, num_panels - panel), kv_head, terms.get()});
      }
    }
  }

  [[nodiscard]] std::int64_t num_key_blocks(const TileGroup<BackwardTile>& group) const {
    std::int64_t blocks = 0;
    for (const BackwardTile& tile : group.tiles) {
      blocks += (tile.k_MHD.tokens + target_.backward_keys - 1) / target_.backward_keys;
    }
    return blocks;
  }

  // Runs some panels of all KV heads, with the keys cut into shares.
  void run_panels(const KernelParams& params, const CallTerms& terms,
                  const TileGroup<BackwardTile>& group, std::int64_t panel, bool serial,
                  CallMemory& memory) const {
    BackwardTask common{&params, group.tiles, group.bands, &group.grid, panel};
    common.num_panels = std::min(target_.backward_panels, group.grid.num_panels() - panel);
    common.init_dq = group.tiles[0].init_dq;
    common.terms = terms.get();
    // Decides on the number of shares.
    const std::int64_t blocks = num_key_blocks(group);
    const std::int64_t num_shares =
        std::clamp<std::int64_t>(blocks / kLeastShareBlocks, 1,
                                 std::max<std::int64_t>(1, kMostBackwardTasks / params.kv_heads));
    // Packs the queries and dO of the panels, which all shares read.
    const std::int64_t elements = num_shares == 1 ? 0 : target_.dq_share_elements(common);
    const std::size_t packed_bytes = target_.packed_bytes(common);
    auto* const packed_heads = static_cast<std::byte*>(
        memory.packed.reserve(packed_bytes * static_cast<std::size_t>(params.kv_heads)));
    const auto task_of = [&](std::size_t kv_head) {
      BackwardTask task = common;
      task.kv_head = static_cast<std::int32_t>(kv_head);
      task.packed = packed_heads + kv_head * packed_bytes;
      return task;
    };
    const std::size_t slices =
        static_cast<std::size_t>((common.num_panels + kPackedPanels - 1) / kPackedPanels);
    for_each_task(static_cast<std::size_t>(params.kv_heads) * slices, serial, [&](std::size_t i) {
      const auto first = static_cast<std::int64_t>(i % slices) * kPackedPanels;
      target_.pack_backward(task_of(i / slices), first,
                            std::min(kPackedPanels, common.num_panels - first));
    });
    // Runs the shares. Each of several shares writes a dQ of its own.
    auto* const shares = static_cast<float*>(memory.dq_shares.reserve(
        static_cast<std::size_t>(elements * num_shares * params.kv_heads) * sizeof(float)));
    const auto share_of = [&](std::size_t task) {
      return num_shares == 1 ? nullptr : shares + static_cast<std::int64_t>(task) * elements;
    };
    const auto num_tasks = static_cast<std::size_t>(num_shares * params.kv_heads);
    OffsetShares table_shares(params, num_tasks);
    for_each_task(num_tasks, serial, [&](std::size_t i) {
      const auto share = static_cast<std::int64_t>(i) % num_shares;
      BackwardTask task = task_of(i / static_cast<std::size_t>(num_shares));
      task.first_block = blocks * share / num_shares;
      task.num_blocks = blocks * (share + 1) / num_shares - task.first_block;
      task.dq_share = share_of(i);
      task.offset_gradients = table_shares.of(i);
      target_.backward(task, memory.by_thread.local().reserve(target_.backward_bytes(task)));
    });
    // Adds the dQ of the shares, in order, and the gradients of a table.
    table_shares.add_to_table(group.tiles[0].places.first_head,
                              static_cast<std::size_t>(num_shares));
    if (num_shares == 1) return;
    for_each_task(static_cast<std::size_t>(params.kv_heads), serial, [&](std::size_t kv_head) {
      std::vector<const float*> rows;
      for (std::int64_t share = 0; share < num_shares; ++share) {
        rows.push_back(share_of(kv_head * static_cast<std::size_t>(num_shares) +
                                static_cast<std::size_t>(share)));
      }
      target_.add_dq_shares(task_of(kv_head), rows);
    });
  }

  const SimdTarget& target_;
  const SimdRowOps rows_;
  const std::string name_;
};

// Runs bf16 inputs on one target, all others on another.
class MixedKernel : public AttentionKernel {
 public:
  MixedKernel(const SimdTarget& bf16, const SimdTarget& wide, const RowTarget& rows)
      : bf16_(bf16, rows), wide_(wide, rows) {}

  [[nodiscard]] std::string_view name() const override { return bf16_.name(); }
  [[nodiscard]] Dtype weight_dtype(Dtype inputs) const override {
    return inputs == Dtype::kBf16 ? Dtype::kBf16 : Dtype::kF32;
  }
  [[nodiscard]] const RowOps& row_ops() const override { return wide_.row_ops(); }
  [[nodiscard]] bool has_terms() const override { return true; }
  [[nodiscard]] std::unique_ptr<const PreparedBands> prepare_bands(
      const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
      std::span<const LocalBand> bands) const override {
    if (bf16_.lanes() == wide_.lanes()) {
      return wide_.prepare_bands(params, num_rows, num_keys, bands);
    }
    const std::int32_t heads = params.q_heads / params.kv_heads;
    return std::make_unique<BandsOfTwo>(
        PanelBands(bands, num_rows, num_keys, heads, bf16_.lanes()),
        PanelBands(bands, num_rows, num_keys, heads, wide_.lanes()));
  }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    if (!tiles.empty()) target_of(tiles[0].q_NHD.dtype).forward(params, tiles);
  }
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    if (!tiles.empty()) target_of(tiles[0].q_NHD.dtype).backward(params, tiles);
  }

 private:
  [[nodiscard]] const SimdKernel& target_of(Dtype dtype) const {
    return dtype == Dtype::kBf16 ? bf16_ : wide_;
  }

  const SimdKernel bf16_;
  const SimdKernel wide_;
};

// All kernels that can run, and the one for bf16 inputs. For other inputs the first is the fastest:
// kernels of bf16 products take the target of simd:avx512 then.
class SimdKernels {
 public:
  SimdKernels() {
    const CpuFeatures& cpu = cpu_features();
    add(simd_avx512(), row_target_avx512(), cpu.avx512);
    if (add_mixed(simd_avx512_bf16(), cpu.avx512_bf16) && cpu.fast_bf16) for_bf16_ = list_.back();
    if (add_mixed(simd_amx_bf16(), cpu.amx_bf16)) for_bf16_ = list_.back();
    add(simd_avx2(), row_target_avx2(), cpu.avx2);
    add(simd_portable(), row_target_portable(), true);
  }

  [[nodiscard]] std::span<const AttentionKernel* const> list() const { return list_; }
  [[nodiscard]] const AttentionKernel& preferred(Dtype inputs) const {
    return inputs == Dtype::kBf16 && for_bf16_ != nullptr ? *for_bf16_ : *list_.front();
  }

 private:
  void add(std::unique_ptr<const AttentionKernel> kernel) {
    owned_.push_back(std::move(kernel));
    list_.push_back(owned_.back().get());
  }
  void add(const SimdTarget* target, const RowTarget* rows, bool cpu_has_it) {
    if (target == nullptr || !cpu_has_it) return;
    add(std::make_unique<SimdKernel>(*target, *rows));
  }
  bool add_mixed(const SimdTarget* bf16, bool cpu_has_it) {
    if (bf16 == nullptr || simd_avx512() == nullptr || !cpu_has_it) return false;
    add(make_mixed_kernel(*bf16, *simd_avx512(), *row_target_avx512()));
    return true;
  }

  std::vector<std::unique_ptr<const AttentionKernel>> owned_;
  std::vector<const AttentionKernel*> list_;
  const AttentionKernel* for_bf16_ = nullptr;
};

const SimdKernels& all_simd_kernels() {
  static const SimdKernels kAll;
  return kAll;
}

}  // namespace

std::unique_ptr<const AttentionKernel> make_mixed_kernel(const SimdTarget& bf16,
                                                         const SimdTarget& wide,
                                                         const RowTarget& rows) {
  return std::make_unique<MixedKernel>(bf16, wide, rows);
}

std::span<const AttentionKernel* const> simd_kernels() { return all_simd_kernels().list(); }

const AttentionKernel& preferred_simd_kernel(Dtype inputs) {
  return all_simd_kernels().preferred(inputs);
}

}  // namespace contextile
