#include "contextile/serving/decode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/quote.h"
#include "kernel/tensor.h"
#include "serving/decode/even_runs.h"
#include "serving/decode/shard_weights.h"

namespace contextile {
namespace {

constexpr std::array<std::pair<DecodeMode, std::string_view>, 3> kModes = {
    {{DecodeMode::kAgRs, "ag_rs"},
     {DecodeMode::kA2a, "a2a"},
     {DecodeMode::kQReplicated, "q_replicated"}}};

// Every rank has a run of the group's heads, in the order of KV heads; runs differ by at most one
// head.
struct HeadSplit {
  std::int32_t ranks = 1;
  std::int32_t all = 1;

  [[nodiscard]] std::int32_t first(std::int32_t rank) const {
    return static_cast<std::int32_t>(std::int64_t{all} * rank / ranks);
  }
  [[nodiscard]] std::int32_t count(std::int32_t rank) const {
    return first(rank + 1) - first(rank);
  }
};

// Sends a buffer to every rank and receives one from every rank; this rank's own goes to itself.
class Exchange {
 public:
  // bytes_to(peer): the number of bytes that the peer is sent. Every rank sends this one as much as
  // it sends itself.
  template <typename BytesTo>
  Exchange(Transport& transport, const BytesTo& bytes_to) : transport_(transport) {
    const std::int32_t me = transport.rank().value;
    for (std::int32_t peer = 0; peer < transport.size(); ++peer) {
      sent_.emplace_back(static_cast<std::size_t>(bytes_to(peer)));
      received_.emplace_back(static_cast<std::size_t>(bytes_to(me)));
    }
  }
  // Peers may still read and write the buffers of one that was not waited for.
  ~Exchange() {
    if (!is_open_) return;
    const InterruptLoan none(nullptr);
    try {
      wait();
    } catch (const Error&) {  // the group has failed, which its next call says
    }
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] std::vector<std::byte>& sent(std::int32_t peer) {
    return sent_[static_cast<std::size_t>(peer)];
  }
  // The exchange must have been waited for.
  [[nodiscard]] std::vector<std::byte>& received(std::int32_t peer) {
    return received_[static_cast<std::size_t>(peer)];
  }

  void launch() {
    const auto message = [](std::int32_t peer, std::vector<std::byte>& bytes) {
      const auto size = static_cast<std::int64_t>(bytes.size());
      return Message{Rank(peer), {{bytes.data(), size, 1, size}}};
    };
    const std::int32_t me = transport_.rank().value;
    std::vector<Message> sends;
    std::vector<Message> receives;
    for (std::int32_t peer = 0; peer < transport_.size(); ++peer) {
      if (peer == me) continue;
      sends.push_back(message(peer, sent(peer)));
      receives.push_back(message(peer, received(peer)));
    }
    ticket_ = transport_.launch(sends, receives);
    is_open_ = true;
    received(me).swap(sent(me));
  }
  void wait() {
    is_open_ = false;
    transport_.wait(ticket_);
  }

 private:
  Transport& transport_;
  std::int64_t ticket_ = 0;
  bool is_open_ = false;
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::vector<std::byte>> received_;
};

void copy_rows(const TensorView& dst, std::int32_t dst_head, const TensorView& src,
               std::int32_t src_head) {
  std::vector<float> row(static_cast<std::size_t>(src.dim));
  for (std::int64_t n = 0; n < src.tokens; ++n) {
    read_row(src, n, src_head, std::span(row));
    write_row(dst, n, dst_head, row);
  }
}

// Queries of all ranks' heads. A rank's own queries take the same way as the others', so that all
// ranks compute with the same ones.
HostTensor gather_queries(Transport& transport, const DecodeOptions& options,
                          const HeadSplit& heads, const TensorView& q_NHD) {
  std::vector<std::byte> mine(static_cast<std::size_t>(q_NHD.tokens * q_NHD.heads * q_NHD.dim *
                                                       bytes_per_element(options.wire)));
  const auto queries = [&](std::vector<std::byte>& bytes) {
    return contiguous(bytes.data(), options.wire, q_NHD.tokens, q_NHD.heads, q_NHD.dim);
  };
  for (std::int32_t h = 0; h < q_NHD.heads; ++h) copy_rows(queries(mine), h, q_NHD, h);
  std::vector<std::vector<std::byte>> everyone = all_gather(transport, mine);
  HostTensor all(q_NHD.dtype, q_NHD.tokens, heads.all, q_NHD.dim);
  for (std::int32_t peer = 0; peer < heads.ranks; ++peer) {
    const TensorView its = queries(everyone[static_cast<std::size_t>(peer)]);
    for (std::int32_t h = 0; h < q_NHD.heads; ++h) {
      copy_rows(all.view(), heads.first(peer) + h, its, h);
    }
  }
  return all;
}

// Some rows of a call on one rank. Its requests count rows from the first of them.
struct RowGroup {
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  std::vector<PagedRequest> requests;
};

// At most `num_groups` groups of neighbouring requests, with about as many rows each; at least one.
std::vector<RowGroup> row_groups(std::span<const PagedRequest> requests, std::int64_t num_rows,
                                 std::int32_t num_groups) {
  std::vector<std::int64_t> sizes;
  std::int64_t end = 0;
  for (const PagedRequest& request : requests) {
    CONTEXTILE_CHECK(num_groups == 1 || request.first_row == end,
                     "hop_b_groups: expected requests in the order of their rows, found row {} "
                     "behind row {}",
                     request.first_row, end - 1);
    sizes.push_back(request.num_rows);
    end += request.num_rows;
  }
  std::vector<RowGroup> groups;
  end = 0;
  for (const Range& run : even_runs(sizes, num_rows, num_groups)) {
    RowGroup& group = groups.emplace_back(RowGroup{end, 0, {}});
    for (std::int64_t i = run.begin; i < run.end; ++i) {
      group.requests.push_back(requests[static_cast<std::size_t>(i)]);
      group.requests.back().first_row -= group.first_row;
      group.num_rows += group.requests.back().num_rows;
    }
    end += group.num_rows;
  }
  if (groups.empty()) groups.emplace_back();
  return groups;
}

// One group's step on one rank.
class Step {
 public:
  Step(Transport& transport, const DecodeOptions& options, const HeadSplit& heads,
       const PartialOutput& out)
      : transport_(transport),
        options_(options),
        heads_(heads),
        rows_(out.o_NHD.tokens),
        out_(out),
        me_(transport.rank().value),
        all_o_(Dtype::kF32, rows_, heads.all, out.o_NHD.dim),
        all_lse_(Dtype::kF32, rows_, heads.all, 1) {}

  // Computes attention of all heads to this rank's tokens, and sends its outputs.
  void start(const PagedKernel& kernel, const PagedKv& kv, const TensorView& all_q_NHD,
             std::span<const PagedRequest> requests) {
    kernel.run(options_.params, kv, all_q_NHD, requests, {all_o_.view(), all_lse_.stats()});
    if (options_.mode == DecodeMode::kAgRs) {
      weigh_by_all();
      exchange_.emplace(transport_, [&](std::int32_t peer) { return o_bytes(peer); });
      fill_outputs();
    } else {
      exchange_.emplace(transport_, [&](std::int32_t peer) {
        return o_bytes(peer) + bytes_of(heads_.count(peer), 1, Dtype::kF32);
      });
      fill_outputs();
      fill_lse();
    }
    exchange_->launch();
  }
  void finish() {
    exchange_->wait();
    if (options_.mode == DecodeMode::kAgRs) {
      sum_scattered();
    } else {
      merge_scattered();
    }
  }

 private:
  [[nodiscard]] std::int32_t mine() const { return heads_.count(me_); }  // heads
  [[nodiscard]] std::int64_t bytes_of(std::int32_t heads, std::int32_t dim, Dtype dtype) const {
    return rows_ * heads * dim * bytes_per_element(dtype);
  }
  // Bytes of a rank's outputs. The LSE follows them, where floats may lie.
  [[nodiscard]] std::int64_t o_bytes(std::int32_t rank) const {
    return bytes_of(heads_.count(rank), out_.o_NHD.dim, options_.wire);
  }

  // Multiplies this rank's outputs of all heads by the weight of its keys among those of all ranks.
  void weigh_by_all() {
    std::vector<std::vector<std::byte>> everyone = all_gather(transport_, all_lse_.bytes());
    std::vector<TensorView> lse;
    lse.reserve(everyone.size());
    for (std::vector<std::byte>& bytes : everyone) {
      lse.push_back(contiguous(bytes.data(), Dtype::kF32, rows_, heads_.all, 1));
    }
    std::vector<float> weights(lse.size());
    std::vector<float> row(static_cast<std::size_t>(out_.o_NHD.dim));
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int32_t head = 0; head < heads_.all; ++head) {
        for (std::size_t r = 0; r < lse.size(); ++r) weights[r] = *row_at<float>(lse[r], n, head);
        stat_at(all_lse_.stats(), n, head) = find_weights<LseBase::kE>(weights);
        read_row(all_o_.view(), n, head, std::span(row));
        const float weight = weights[static_cast<std::size_t>(me_)];
        for (float& x : row) x = weight == 0 ? 0 : x * weight;
        write_row(all_o_.view(), n, head, row);
      }
    }
  }

  void fill_outputs() {
    for (std::int32_t peer = 0; peer < heads_.ranks; ++peer) {
      const TensorView sent = contiguous(exchange_->sent(peer).data(), options_.wire, rows_,
                                         heads_.count(peer), out_.o_NHD.dim);
      for (std::int32_t h = 0; h < heads_.count(peer); ++h) {
        copy_rows(sent, h, all_o_.view(), heads_.first(peer) + h);
      }
    }
  }
  void fill_lse() {
    for (std::int32_t peer = 0; peer < heads_.ranks; ++peer) {
      std::byte* at = exchange_->sent(peer).data() + o_bytes(peer);
      for (std::int64_t n = 0; n < rows_; ++n) {
        for (std::int32_t h = 0; h < heads_.count(peer); ++h, at += 4) {
          std::memcpy(at, &stat_at(all_lse_.stats(), n, heads_.first(peer) + h), 4);
        }
      }
    }
  }
  [[nodiscard]] TensorView outputs_of(std::int32_t peer) {
    return contiguous(exchange_->received(peer).data(), options_.wire, rows_, mine(),
                      out_.o_NHD.dim);
  }

  void sum_scattered() {
    std::vector<float> part(static_cast<std::size_t>(out_.o_NHD.dim));
    std::vector<float> sum(part.size());
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int32_t h = 0; h < mine(); ++h) {
        std::fill(sum.begin(), sum.end(), 0.0F);
        for (std::int32_t r = 0; r < heads_.ranks; ++r) {
          read_row(outputs_of(r), n, h, std::span(part));
          for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += part[d];
        }
        write_row(out_.o_NHD, n, h, sum);
        stat_at(out_.lse_NH, n, h) = stat_at(all_lse_.stats(), n, heads_.first(me_) + h);
      }
    }
  }

  void merge_scattered() {
    std::vector<HostTensor> lse;
    for (std::int32_t peer = 0; peer < heads_.ranks; ++peer) {
      lse.emplace_back(Dtype::kF32, rows_, mine(), 1);
      if (lse.back().bytes().empty()) continue;
      std::memcpy(lse.back().values<float>().data(),
                  exchange_->received(peer).data() + o_bytes(me_), lse.back().bytes().size());
    }
    std::vector<ShardResult<LseBase::kE>> shards;
    shards.reserve(lse.size());
    for (std::int32_t peer = 0; peer < heads_.ranks; ++peer) {
      shards.push_back({outputs_of(peer), {lse[static_cast<std::size_t>(peer)].stats()}});
    }
    merge_shards<LseBase::kE>({out_.o_NHD, {out_.lse_NH}}, shards);
  }

  Transport& transport_;
  const DecodeOptions options_;
  const HeadSplit heads_;
  const std::int64_t rows_;
  const PartialOutput out_;
  std::int32_t me_;
  HostTensor all_o_;  // of all heads, over this rank's tokens
  HostTensor all_lse_;
  std::optional<Exchange> exchange_;
};

}  // namespace

std::string_view to_string(DecodeMode mode) {
  return std::find_if(kModes.begin(), kModes.end(),
                      [&](const auto& entry) { return entry.first == mode; })
      ->second;
}

DecodeMode parse_decode_mode(std::string_view text) {
  for (const auto& [mode, name] : kModes) {
    if (name == text) return mode;
  }
  fail_argument("decode mode: expected one of ag_rs, a2a, q_replicated; found {}", quote(text));
}

std::int64_t decode_bytes(DecodeMode mode, std::int32_t num_ranks, std::int64_t num_rows,
                          std::int32_t heads, std::int32_t head_dim, std::int32_t value_dim,
                          Dtype wire) {
  const std::int64_t of_peer = num_rows * heads;
  const std::int64_t element = bytes_per_element(wire);
  const std::int64_t queries = of_peer * head_dim * element;
  const std::int64_t outputs = of_peer * value_dim * element;
  const std::int64_t peers = num_ranks - 1;
  if (mode == DecodeMode::kAgRs) return peers * (queries + of_peer * num_ranks * 4 + outputs);
  return peers * ((mode == DecodeMode::kA2a ? queries : 0) + outputs + of_peer * 4);
}

std::vector<Range> local_keys(const KvLayout& layout, Rank rank, std::span<const Range> tokens) {
  std::vector<Range> keys;
  for (const Range& range : tokens) {
    const Range mine = {layout.local_length(rank, range.begin),
                        layout.local_length(rank, range.end)};
    if (mine.empty()) continue;
    if (!keys.empty() && keys.back().end == mine.begin) {
      keys.back().end = mine.end;
    } else {
      keys.push_back(mine);
    }
  }
  return keys;
}

DecodeGroup::DecodeGroup(Transport& transport, const PagedKernel& kernel)
    : transport_(transport), kernel_(kernel) {}

// The step of the last group.
struct PendingAttention::State : Step {
  using Step::Step;
};

PendingAttention::PendingAttention(std::unique_ptr<State> state) : state_(std::move(state)) {}
PendingAttention::~PendingAttention() = default;
PendingAttention::PendingAttention(PendingAttention&&) noexcept = default;
PendingAttention& PendingAttention::operator=(PendingAttention&&) noexcept = default;

void PendingAttention::finish() {
  state_->finish();
  state_.reset();
}

void DecodeGroup::attend(const DecodeOptions& options, const PagedKv& kv, const TensorView& q_NHD,
                         std::span<const PagedRequest> requests, const PartialOutput& out) {
  begin(options, kv, q_NHD, requests, out).finish();
}

PendingAttention DecodeGroup::begin(const DecodeOptions& options, const PagedKv& kv,
                                    const TensorView& q_NHD, std::span<const PagedRequest> requests,
                                    const PartialOutput& out) {
  const std::int32_t ranks = transport_.size();
  const bool has_all = options.mode == DecodeMode::kQReplicated;
  const HeadSplit heads = {ranks, has_all ? q_NHD.heads : q_NHD.heads * ranks};
  const std::int32_t mine = heads.count(transport_.rank().value);
  CONTEXTILE_CHECK(kv.kv_heads >= 1 && heads.all >= 1 && heads.all % kv.kv_heads == 0,
                   "q: expected a multiple of {} KV heads on all ranks, found {}", kv.kv_heads,
                   heads.all);
  CONTEXTILE_CHECK(out.o_NHD.tokens == q_NHD.tokens && out.o_NHD.heads == mine &&
                       out.o_NHD.dim == kv.v.dim && out.o_NHD.dtype == Dtype::kF32,
                   "out: expected f32 [{}, {}, {}], found {} [{}, {}, {}]", q_NHD.tokens, mine,
                   kv.v.dim, to_string(out.o_NHD.dtype), out.o_NHD.tokens, out.o_NHD.heads,
                   out.o_NHD.dim);
  CONTEXTILE_CHECK(options.hop_b_groups >= 1, "hop_b_groups: expected at least 1, found {}",
                   options.hop_b_groups);
  HostTensor gathered;
  if (!has_all) gathered = gather_queries(transport_, options, heads, q_NHD);
  const TensorView all_q = has_all ? q_NHD : gathered.view();
  std::unique_ptr<PendingAttention::State> last;
  for (const RowGroup& group : row_groups(requests, q_NHD.tokens, options.hop_b_groups)) {
    const TensorView o = slice(out.o_NHD, group.first_row, group.num_rows, 0, mine);
    const RowStats lse = {out.lse_NH.data + group.first_row * out.lse_NH.token_stride,
                          out.lse_NH.token_stride, out.lse_NH.head_stride};
    auto next = std::make_unique<PendingAttention::State>(transport_, options, heads,
                                                          PartialOutput{o, lse});
    next->start(kernel_, kv, slice(all_q, group.first_row, group.num_rows, 0, heads.all),
                group.requests);
    if (last != nullptr) last->finish();
    last = std::move(next);
  }
  return PendingAttention(std::move(last));
}

}  // namespace contextile
