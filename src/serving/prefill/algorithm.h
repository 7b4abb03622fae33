// The ways in which ranks bring queries and keys together, with a file for each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "contextile/serving/prefill.h"
#include "kernel/row_ops.h"
#include "serving/prefill/prefill_tiles.h"

namespace contextile {

// The inputs of all algorithms. References outlive the algorithm.
struct PrefillContext {
  Transport& transport;
  const AttentionKernel& kernel;
  const PrefillGeometry& geometry;
  AttentionShape shape;
  Dtype wire = Dtype::kF32;
  Dtype kv_wire = Dtype::kF32;

  [[nodiscard]] std::int32_t num_ranks() const { return transport.size(); }
  [[nodiscard]] Rank me() const { return transport.rank(); }
  // The rank `steps` further round the ring; -N to N steps.
  [[nodiscard]] Rank rank_after(std::int32_t steps) const {
    return Rank((me().value + steps + num_ranks()) % num_ranks());
  }
  [[nodiscard]] std::vector<Rank> ranks() const;
  [[nodiscard]] KernelParams params(std::int32_t q_heads, std::int32_t kv_heads) const;
};

class PrefillAlgorithm {
 public:
  virtual ~PrefillAlgorithm() = default;
  // q: this rank's queries, kv: its block of keys and values, contiguous. out: its rows, fp32.
  virtual void attend(const TensorView& q_THD, const KvRows& kv, const PartialOutput& out) = 0;
};

[[nodiscard]] std::unique_ptr<PrefillAlgorithm> make_pass_kv(const PrefillContext& context);
[[nodiscard]] std::unique_ptr<PrefillAlgorithm> make_pass_q(const PrefillContext& context);
[[nodiscard]] std::unique_ptr<PrefillAlgorithm> make_all_gather(const PrefillContext& context);
[[nodiscard]] std::unique_ptr<PrefillAlgorithm> make_ulysses(const PrefillContext& context);

// Memory for keys and values.
class KvBuffer {
 public:
  KvBuffer(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads);
  // The same with elements of another dtype.
  KvBuffer(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads, Dtype dtype);
  [[nodiscard]] KvRows rows(std::int64_t first, std::int64_t count);

 private:
  HostTensor k_;
  HostTensor v_;
};

// Keys and values that travel as `wire` and are computed with as the shape's dtype.
class TravellingKv {
 public:
  TravellingKv(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads, Dtype wire);

  [[nodiscard]] KvRows rows(std::int64_t first, std::int64_t count);
  [[nodiscard]] KvRows travelling(std::int64_t first, std::int64_t count);
  // Converts rows that have arrived.
  void unpack(const RowOps& row_ops, std::int64_t first, std::int64_t count);

 private:
  KvBuffer rows_;
  std::optional<KvBuffer> travelling_;  // if the dtypes differ
};

// Returns a rank's block as it travels: itself, or its copy in `memory` if the dtypes differ.
[[nodiscard]] KvRows packed(const RowOps& row_ops, const KvRows& block, Dtype wire,
                            std::optional<KvBuffer>& memory);

// Results that travel, with O as `wire`.
class PartialBuffer {
 public:
  PartialBuffer(std::int64_t rows, std::int32_t heads, std::int32_t value_dim, Dtype wire);

  [[nodiscard]] PartialOutput view() { return {o_.view(), lse_.stats()}; }
  // Some rows of some heads, in the form in which they travel.
  [[nodiscard]] Message message(Rank peer, std::int64_t first, std::int64_t rows,
                                std::int32_t first_head, std::int32_t heads);
  // Convert computed rows to travelling ones, and arrived rows to fp32.
  void pack(const RowOps& row_ops);
  void unpack(const RowOps& row_ops);

 private:
  HostTensor o_;
  HostTensor lse_;
  HostTensor travelling_;  // if the elements differ from those of o_; else empty
};

// Rows in the form in which a message takes them. The heads of a row are adjacent.
[[nodiscard]] Segment segment_of(const TensorView& view);
[[nodiscard]] Message message_of(Rank peer, const KvRows& rows);

}  // namespace contextile
