// The tasks that the SIMD kernel hands to code compiled for one instruction set, and the table of
// that code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/dropout.h"
#include "kernel/cpu/panels.h"

namespace contextile {

// The terms of a call as tasks read them, for all heads of the layer.
struct TaskTerms {
  const float* slopes_log2 = nullptr;     // by head, in units of log2; null: none
  const float* by_offset_log2 = nullptr;  // the table by head and offset; null: none
  std::int32_t first_offset = 0;
  std::int32_t num_offsets = 0;
  bool has_bias = false;
  bool has_dropout = false;
  Dropout dropout;
};

// The heads and places of the rows in a panel's lanes, [width] each; null without terms.
struct LaneTerms {
  std::int32_t* heads = nullptr;      // of the layer
  std::int32_t* tokens = nullptr;     // of the batch
  std::int32_t* positions = nullptr;  // of the tokens
  std::int32_t* cells = nullptr;      // of offset 0 of the head in TaskTerms::by_offset_log2
  std::int32_t* own_cells = nullptr;  // the same in a table of the KV head's query heads
  float* slopes = nullptr;            // in units of log2
};

// Some panels of one KV head of the tiles that share a query slot.
struct ForwardTask {
  const KernelParams* params = nullptr;
  std::span<const ForwardTile> tiles;        // of one q and o slot; only the first may have init
  std::span<const PanelBands* const> bands;  // of every tile
  const PanelGrid* grid = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;  // at most SimdTarget::forward_panels
  std::int32_t kv_head = 0;
  const TaskTerms* terms = nullptr;  // null: none
};

// The same with the keys cut. The key blocks of all tiles are numbered one after another, and a
// task has those of one share. dk and dv of a block are touched only by its share. dq of several
// shares would collide, so each share then fills `dq_share` (dq_share_elements floats), and the
// shares are added afterwards.
struct BackwardTask {
  const KernelParams* params = nullptr;
  std::span<const BackwardTile> tiles;  // of one q and dq slot; dk and dv are added to
  std::span<const PanelBands* const> bands;
  const PanelGrid* grid = nullptr;
  std::int64_t first_panel = 0;
  std::int64_t num_panels = 0;  // at most SimdTarget::backward_panels
  std::int32_t kv_head = 0;
  std::int64_t first_block = 0;
  std::int64_t num_blocks = 0;
  void* packed = nullptr;     // queries and dO of the panels, for all shares: pack_backward
  float* dq_share = nullptr;  // null: dq is written to its slot
  bool init_dq = false;
  const TaskTerms* terms = nullptr;    // null: none
  double* offset_gradients = nullptr;  // of the share, [heads of the KV head][offsets]; null: none
};

// One instruction set. Workspaces are 64-byte aligned and not cleared.
struct SimdTarget {
  const char* name = nullptr;  // "avx512"
  std::int32_t lanes = 0;      // of a vector of the panel grid
  std::int64_t forward_panels = 0;
  std::int64_t backward_panels = 0;
  std::int64_t backward_keys = 0;  // keys of one key block
  std::size_t (*forward_bytes)(const ForwardTask&) = nullptr;
  void (*forward)(const ForwardTask&, void* workspace) = nullptr;
  std::size_t (*packed_bytes)(const BackwardTask&) = nullptr;  // size of task.packed
  // Fills the parts of panels [first, first + count) of the task in task.packed.
  void (*pack_backward)(const BackwardTask&, std::int64_t first, std::int64_t count) = nullptr;
  std::size_t (*backward_bytes)(const BackwardTask&) = nullptr;
  void (*backward)(const BackwardTask&, void* workspace) = nullptr;
  std::int64_t (*dq_share_elements)(const BackwardTask&) = nullptr;
  // Adds the shares of a task's panels in order and writes dq to its slot.
  void (*add_dq_shares)(const BackwardTask&, std::span<const float* const> shares) = nullptr;
};

// Null if the compiler or the processor's family has no such instructions. The caller must check
// whether this CPU has them.
[[nodiscard]] const SimdTarget* simd_avx512();
[[nodiscard]] const SimdTarget* simd_avx512_bf16();  // bf16 inputs only
[[nodiscard]] const SimdTarget* simd_amx_bf16();     // bf16 inputs only
[[nodiscard]] const SimdTarget* simd_avx2();
[[nodiscard]] const SimdTarget* simd_portable();

}  // namespace contextile
