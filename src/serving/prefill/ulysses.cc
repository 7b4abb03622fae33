#include <algorithm>
#include <numeric>

#include "kernel/row_ops.h"
#include "kernel/tensor.h"
#include "serving/prefill/algorithm.h"

namespace contextile {
namespace {

// Source: DeepSpeed Ulysses, arXiv 2309.14509. An all-to-all of queries, keys and values from all
// heads of own tokens to own heads of all tokens, then attention, then an all-to-all of outputs
// back. Nothing is computed meanwhile. If there are more ranks than KV heads, several ranks are
// sent the same one. Memory: all rows and keys of a rank's heads.
class Ulysses : public PrefillAlgorithm {
 public:
  explicit Ulysses(const PrefillContext& context)
      : context_(context),
        q_heads_(context.shape.q_heads / context.num_ranks()),
        kv_heads_(std::max(1, context.shape.kv_heads / context.num_ranks())),
        first_q_row_(first_rows(&PrefillGeometry::num_q_rows)),
        first_kv_row_(first_rows(&PrefillGeometry::num_kv_rows)),
        tiles_(context.kernel, context.params(q_heads_, kv_heads_), context.geometry,
               context.ranks(), context.ranks()),
        own_q_(context.shape.dtype, num_rows(), context.shape.q_heads, context.shape.head_dim),
        all_q_(context.shape.dtype, first_q_row_.back(), q_heads_, context.shape.head_dim),
        all_kv_(context.shape, first_kv_row_.back(), kv_heads_, context.kv_wire),
        all_out_(first_q_row_.back(), q_heads_, context.shape.value_dim, context.wire),
        own_out_(num_rows(), context.shape.q_heads, context.shape.value_dim, context.wire) {}

  void attend(const TensorView& q_THD, const KvRows& kv, const PartialOutput& out) override {
    exchange_inputs(q_THD, kv);
    std::vector<ForwardTile> tiles;
    for (std::int32_t b = 0; b < context_.num_ranks(); ++b) {
      for (std::int32_t a = 0; a < context_.num_ranks(); ++a) {
        tiles_.append(Rank(a), Rank(b), queries_of(Rank(a)), keys_of(Rank(b)),
                      rows_of(all_out_.view(), first_q_row_[Rank(a).index()], rows_of_rank(a)),
                      b == 0 ? TileStart::kEmpty : TileStart::kPartial, tiles);
      }
    }
    context_.kernel.forward(tiles_.params(), tiles);
    exchange_outputs();
    const RowOps& row_ops = context_.kernel.row_ops();
    row_ops.convert(out.o_NHD, own_out_.view().o_NHD);
    row_ops.convert(as_tensor(out.lse_NH, num_rows(), context_.shape.q_heads),
                    as_tensor(own_out_.view().lse_NH, num_rows(), context_.shape.q_heads));
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> first_rows(std::int64_t (PrefillGeometry::*rows)(Rank)
                                                         const) const {
    std::vector<std::int64_t> first = {0};
    for (std::int32_t r = 0; r < context_.num_ranks(); ++r) {
      first.push_back(first.back() + (context_.geometry.*rows)(Rank(r)));
    }
    return first;
  }
  [[nodiscard]] std::int64_t rows_of_rank(std::int32_t rank) const {
    return context_.geometry.num_q_rows(Rank(rank));
  }
  [[nodiscard]] std::int64_t num_rows() const { return rows_of_rank(context_.me().value); }

  [[nodiscard]] TensorView queries_of(Rank rank) {
    return slice(all_q_.view(), first_q_row_[rank.index()], rows_of_rank(rank.value), 0, q_heads_);
  }
  [[nodiscard]] KvRows keys_of(Rank rank) {
    return all_kv_.rows(first_kv_row_[rank.index()], context_.geometry.num_kv_rows(rank));
  }
  // The heads that a rank computes for this rank's tokens.
  [[nodiscard]] TensorView heads_for(Rank rank, const TensorView& q_THD) const {
    return slice(q_THD, 0, q_THD.tokens, rank.value * q_heads_, q_heads_);
  }
  [[nodiscard]] KvRows heads_for(Rank rank, const KvRows& kv) const {
    const std::int32_t group = context_.shape.q_heads / context_.shape.kv_heads;
    const std::int32_t first = rank.value * q_heads_ / group;
    return {slice(kv.k_MHD, 0, kv.k_MHD.tokens, first, kv_heads_),
            slice(kv.v_MHD, 0, kv.v_MHD.tokens, first, kv_heads_)};
  }

  void exchange_inputs(const TensorView& q_THD, const KvRows& kv) {
    const RowOps& row_ops = context_.kernel.row_ops();
    const Rank me = context_.me();
    row_ops.convert(own_q_.view(), q_THD);
    std::vector<Message> sends;
    std::vector<Message> receives;
    const auto message = [](Rank peer, const TensorView& q, const KvRows& rows) {
      Message message = message_of(peer, rows);
      message.segments.push_back(segment_of(q));
      return message;
    };
    const KvRows sent =
        context_.num_ranks() > 1 ? packed(row_ops, kv, context_.kv_wire, own_kv_) : kv;
    for (std::int32_t step = 1; step < context_.num_ranks(); ++step) {
      const Rank to = context_.rank_after(step);
      const Rank from = context_.rank_after(-step);
      sends.push_back(message(to, heads_for(to, own_q_.view()), heads_for(to, sent)));
      receives.push_back(message(
          from, queries_of(from),
          all_kv_.travelling(first_kv_row_[from.index()], context_.geometry.num_kv_rows(from))));
    }
    const std::int64_t ticket = context_.transport.launch(sends, receives);
    row_ops.convert(queries_of(me), heads_for(me, q_THD));
    row_ops.convert(keys_of(me).k_MHD, heads_for(me, kv).k_MHD);
    row_ops.convert(keys_of(me).v_MHD, heads_for(me, kv).v_MHD);
    context_.transport.wait(ticket);
    for (std::int32_t step = 1; step < context_.num_ranks(); ++step) {
      const Rank from = context_.rank_after(-step);
      all_kv_.unpack(row_ops, first_kv_row_[from.index()], context_.geometry.num_kv_rows(from));
    }
  }

  void exchange_outputs() {
    const RowOps& row_ops = context_.kernel.row_ops();
    const std::int32_t me = context_.me().value;
    all_out_.pack(row_ops);
    std::vector<Message> sends;
    std::vector<Message> receives;
    for (std::int32_t step = 1; step < context_.num_ranks(); ++step) {
      const Rank to = context_.rank_after(step);
      const Rank from = context_.rank_after(-step);
      sends.push_back(
          all_out_.message(to, first_q_row_[to.index()], rows_of_rank(to.value), 0, q_heads_));
      receives.push_back(own_out_.message(from, 0, num_rows(), from.value * q_heads_, q_heads_));
    }
    context_.transport.wait(context_.transport.launch(sends, receives));
    own_out_.unpack(row_ops);
    const PartialOutput mine =
        rows_of(all_out_.view(), first_q_row_[context_.me().index()], num_rows());
    const TensorView own_lse =
        as_tensor(own_out_.view().lse_NH, num_rows(), context_.shape.q_heads);
    row_ops.convert(slice(own_out_.view().o_NHD, 0, num_rows(), me * q_heads_, q_heads_),
                    mine.o_NHD);
    row_ops.convert(slice(own_lse, 0, num_rows(), me * q_heads_, q_heads_),
                    as_tensor(mine.lse_NH, num_rows(), q_heads_));
  }

  PrefillContext context_;
  std::int32_t q_heads_;                   // of every rank
  std::int32_t kv_heads_;                  // that a rank reads
  std::vector<std::int64_t> first_q_row_;  // of every rank among all, and the end
  std::vector<std::int64_t> first_kv_row_;
  PrefillTiles tiles_;
  HostTensor own_q_;
  HostTensor all_q_;
  TravellingKv all_kv_;
  std::optional<KvBuffer> own_kv_;  // as it travels
  PartialBuffer all_out_;
  PartialBuffer own_out_;
};

}  // namespace

std::unique_ptr<PrefillAlgorithm> make_ulysses(const PrefillContext& context) {
  return std::make_unique<Ulysses>(context);
}

}  // namespace contextile
