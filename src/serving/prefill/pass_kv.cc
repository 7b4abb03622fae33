#include <algorithm>
#include <array>

#include "kernel/row_ops.h"
#include "serving/prefill/algorithm.h"

namespace contextile {
namespace {

// Source: arXiv 2411.01783, ring pass-KV. In each of N - 1 steps, a rank hands on the block that it
// has and receives the next one while it computes. Memory: two blocks in addition to its own.
class PassKv : public PrefillAlgorithm {
 public:
  explicit PassKv(const PrefillContext& context)
      : context_(context),
        tiles_(context.kernel, context.params(context.shape.q_heads, context.shape.kv_heads),
               context.geometry, std::vector{context.me()}, context.ranks()) {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < context.num_ranks(); ++r) {
      most = std::max(most, context.geometry.num_kv_rows(Rank(r)));
    }
    for (std::int32_t i = 0; i < std::min(context.num_ranks() - 1, 2); ++i) {
      visiting_.emplace_back(context.shape, most, context.shape.kv_heads, context.kv_wire);
    }
  }

  void attend(const TensorView& q_THD, const KvRows& kv, const PartialOutput& out) override {
    Transport& transport = context_.transport;
    const std::int32_t last = context_.num_ranks() - 1;
    const RowOps& row_ops = context_.kernel.row_ops();
    KvRows block = kv;
    KvRows sent = last > 0 ? packed(row_ops, kv, context_.kv_wire, own_) : kv;
    for (std::int32_t step = 0; step < last; ++step) {
      TravellingKv& visitor = visiting_[static_cast<std::size_t>(step % 2)];
      const std::int64_t rows = context_.geometry.num_kv_rows(context_.rank_after(-step - 1));
      const KvRows next = visitor.travelling(0, rows);
      const Message send = message_of(context_.rank_after(1), sent);
      const Message receive = message_of(context_.rank_after(-1), next);
      const std::int64_t ticket = transport.launch({&send, 1}, {&receive, 1});
      compute(step, q_THD, block, out);
      transport.wait(ticket);
      visitor.unpack(row_ops, 0, rows);
      block = visitor.rows(0, rows);
      sent = next;
    }
    compute(last, q_THD, block, out);
  }

 private:
  void compute(std::int32_t step, const TensorView& q_THD, const KvRows& block,
               const PartialOutput& out) const {
    std::vector<ForwardTile> tiles;
    tiles_.append(context_.me(), context_.rank_after(-step), q_THD, block, out,
                  step == 0 ? TileStart::kEmpty : TileStart::kPartial, tiles);
    context_.kernel.forward(tiles_.params(), tiles);
  }

  PrefillContext context_;
  PrefillTiles tiles_;
  std::optional<KvBuffer> own_;  // as it travels
  std::vector<TravellingKv> visiting_;
};

}  // namespace

std::unique_ptr<PrefillAlgorithm> make_pass_kv(const PrefillContext& context) {
  return std::make_unique<PassKv>(context);
}

}  // namespace contextile
