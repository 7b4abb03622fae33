#include <algorithm>

#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "serving/prefill/algorithm.h"

namespace contextile {
namespace {

// Source: arXiv 2411.01783, ring pass-Q. N - 1 steps of the ring, each while the one before is
// computed, and an all-to-all of results, in which every message leaves as soon as it is computed.
// Memory: two blocks of queries, results of all ranks' rows, and N - 1 times the rank's own
// results.
class PassQ : public PrefillAlgorithm {
 public:
  explicit PassQ(const PrefillContext& context)
      : context_(context),
        tiles_(context.kernel, context.params(context.shape.q_heads, context.shape.kv_heads),
               context.geometry, context.ranks(), std::vector{context.me()}) {
    const AttentionShape& shape = context.shape;
    const std::int32_t ranks = context.num_ranks();
    for (std::int32_t i = 0; ranks > 1 && i < 2; ++i) {
      queries_.emplace_back(shape.dtype, most_rows(), shape.q_heads, shape.head_dim);
    }
    for (std::int32_t step = 0; ranks > 1 && step < ranks; ++step) {
      computed_.emplace_back(rows_of_step(step), shape.q_heads, shape.value_dim, context.wire);
      // The part from the rank that is `step` further, which has this rank's queries at that step.
      received_.emplace_back(step == 0 ? 0 : rows_of_step(0), shape.q_heads, shape.value_dim,
                             context.wire);
    }
  }

  void attend(const TensorView& q_THD, const KvRows& kv, const PartialOutput& out) override {
    if (context_.num_ranks() == 1) {
      compute(0, q_THD, kv, out);
      return;
    }
    Transport& transport = context_.transport;
    const std::int32_t last = context_.num_ranks() - 1;
    const RowOps& row_ops = context_.kernel.row_ops();
    row_ops.convert(block(0, rows_of_step(0)), q_THD);
    std::vector<std::int64_t> results;
    for (std::int32_t step = 0; step <= last; ++step) {
      std::int64_t ring = -1;
      const TensorView queries = block(step, rows_of_step(step));
      if (step < last) {
        const Message send = {context_.rank_after(1), {segment_of(queries)}};
        const Message receive = {context_.rank_after(-1),
                                 {segment_of(block(step + 1, rows_of_step(step + 1)))}};
        ring = transport.launch({&send, 1}, {&receive, 1});
      }
      PartialBuffer& part = computed_[static_cast<std::size_t>(step)];
      compute(step, queries, kv, part.view());
      if (step > 0) results.push_back(exchange_results(step));
      if (step < last) transport.wait(ring);
    }
    for (const std::int64_t ticket : results) transport.wait(ticket);
    merge(out);
  }

 private:
  // Number of queries that this rank has at a step.
  [[nodiscard]] std::int64_t rows_of_step(std::int32_t step) const {
    return context_.geometry.num_q_rows(context_.rank_after(-step));
  }
  [[nodiscard]] std::int64_t most_rows() const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < context_.num_ranks(); ++r) {
      most = std::max(most, context_.geometry.num_q_rows(Rank(r)));
    }
    return most;
  }
  // The queries to compute with and send on, and those that arrive meanwhile, use two buffers
  // alternately.
  [[nodiscard]] TensorView block(std::int32_t step, std::int64_t rows) {
    return slice(queries_[static_cast<std::size_t>(step % 2)].view(), 0, rows, 0,
                 context_.shape.q_heads);
  }

  void compute(std::int32_t step, const TensorView& q_THD, const KvRows& kv,
               const PartialOutput& out) const {
    std::vector<ForwardTile> tiles;
    tiles_.append(context_.rank_after(-step), context_.me(), q_THD, kv, out, TileStart::kEmpty,
                  tiles);
    context_.kernel.forward(tiles_.params(), tiles);
  }

  [[nodiscard]] std::int64_t exchange_results(std::int32_t step) {
    const std::int32_t heads = context_.shape.q_heads;
    PartialBuffer& mine = computed_[static_cast<std::size_t>(step)];
    mine.pack(context_.kernel.row_ops());
    const Message send = mine.message(context_.rank_after(-step), 0, rows_of_step(step), 0, heads);
    const Message receive = received_[static_cast<std::size_t>(step)].message(
        context_.rank_after(step), 0, rows_of_step(0), 0, heads);
    return context_.transport.launch({&send, 1}, {&receive, 1});
  }

  void merge(const PartialOutput& out) {
    std::vector<PartialOutput> parts;
    for (std::int32_t r = 0; r < context_.num_ranks(); ++r) {
      const std::int32_t step = (r - context_.me().value + context_.num_ranks()) %
                                context_.num_ranks();  // at which rank r had this rank's queries
      PartialBuffer& part = step == 0 ? computed_[0] : received_[static_cast<std::size_t>(step)];
      if (step > 0) part.unpack(context_.kernel.row_ops());
      parts.push_back(part.view());
    }
    context_.kernel.row_ops().merge(out, parts);
  }

  PrefillContext context_;
  PrefillTiles tiles_;
  std::vector<HostTensor> queries_;
  std::vector<PartialBuffer> computed_;
  std::vector<PartialBuffer> received_;
};

}  // namespace

std::unique_ptr<PrefillAlgorithm> make_pass_q(const PrefillContext& context) {
  return std::make_unique<PassQ>(context);
}

}  // namespace contextile
