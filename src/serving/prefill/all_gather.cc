#include "kernel/row_ops.h"
#include "serving/prefill/algorithm.h"

namespace contextile {
namespace {

// Source: Llama 3, arXiv 2407.21783, section 3.3.2. Every rank sends its block to all others at
// once and meanwhile computes with its own keys, then with all others in one call. Memory: the
// blocks of all ranks.
class AllGather : public PrefillAlgorithm {
 public:
  explicit AllGather(const PrefillContext& context)
      : context_(context),
        tiles_(context.kernel, context.params(context.shape.q_heads, context.shape.kv_heads),
               context.geometry, std::vector{context.me()}, context.ranks()) {
    for (std::int32_t r = 0; r < context.num_ranks(); ++r) {
      const std::int64_t rows = Rank(r) == context.me() ? 0 : context.geometry.num_kv_rows(Rank(r));
      blocks_.emplace_back(context.shape, rows, context.shape.kv_heads, context.kv_wire);
    }
  }

  void attend(const TensorView& q_THD, const KvRows& kv, const PartialOutput& out) override {
    std::vector<Message> sends;
    std::vector<Message> receives;
    const RowOps& row_ops = context_.kernel.row_ops();
    const KvRows sent = context_.num_ranks() > 1 ? packed(row_ops, kv, context_.kv_wire, own_) : kv;
    for (std::int32_t step = 1; step < context_.num_ranks(); ++step) {
      const Rank from = context_.rank_after(-step);
      sends.push_back(message_of(context_.rank_after(step), sent));
      receives.push_back(message_of(from, blocks_[from.index()].travelling(0, rows_of(from))));
    }
    const std::int64_t ticket = context_.transport.launch(sends, receives);
    std::vector<ForwardTile> tiles;
    tiles_.append(context_.me(), context_.me(), q_THD, kv, out, TileStart::kEmpty, tiles);
    context_.kernel.forward(tiles_.params(), tiles);
    context_.transport.wait(ticket);
    tiles.clear();
    for (std::int32_t r = 0; r < context_.num_ranks(); ++r) {
      if (Rank(r) == context_.me()) continue;
      blocks_[Rank(r).index()].unpack(row_ops, 0, rows_of(Rank(r)));
      tiles_.append(context_.me(), Rank(r), q_THD, block(Rank(r)), out, TileStart::kPartial, tiles);
    }
    context_.kernel.forward(tiles_.params(), tiles);
  }

 private:
  [[nodiscard]] KvRows block(Rank rank) { return blocks_[rank.index()].rows(0, rows_of(rank)); }
  [[nodiscard]] std::int64_t rows_of(Rank rank) const {
    return context_.geometry.num_kv_rows(rank);
  }

  PrefillContext context_;
  PrefillTiles tiles_;
  std::optional<KvBuffer> own_;       // as it travels
  std::vector<TravellingKv> blocks_;  // by rank; this rank's own is the caller's
};

}  // namespace

std::unique_ptr<PrefillAlgorithm> make_all_gather(const PrefillContext& context) {
  return std::make_unique<AllGather>(context);
}

}  // namespace contextile
