#include "support/plan_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include "support/row_layout.h"
#include "support/toy_attention.h"

namespace contextile {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

// ------------------------------------------------------------------------------- memory

// All slots of one kind on one rank: owned ones apart, staging ones in one arena of real memory.
struct Memory {
  std::vector<std::vector<double>> owned;
  std::vector<bool> written;  // of owned
  std::vector<double> arena;
};

struct Message {
  std::vector<std::vector<double>> units;
};

// One direction of one mask in one round, on all ranks.
class Run {
 public:
  Run(const Plan& plan, const PlanRound& round, std::size_t mask, Direction direction,
      const std::vector<bool>& attended)
      : plan_(plan),
        round_(round),
        mask_(mask),
        direction_(direction),
        attended_(attended),
        layout_{plan.shape.q_heads / round.head_groups, plan.shape.kv_heads / round.head_groups,
                plan.shape.head_dim, plan.shape.value_dim},
        memory_(round.devices.size()),
        position_(round.devices.size()),
        launches_(round.devices.size()) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      for (int n = 0; n < kNumKinds; ++n) {
        const auto kind = static_cast<Kind>(n);
        Memory& memory = memory_[r][static_cast<std::size_t>(n)];
        memory.arena.assign(
            static_cast<std::size_t>(program(r).arena_tokens(kind) * layout_.width(kind)), kNan);
        for (const BlockId block : round.devices[r].local_blocks) {
          for (std::int32_t g = 0; g < round.head_groups; ++g) {
            const std::size_t values = g < groups_of(block) ? size(kind, block) : 0;
            memory.owned.emplace_back(values, kNan);
          }
        }
        memory.written.assign(memory.owned.size(), false);
      }
    }
  }

  // Tokens of a block, row by row.
  [[nodiscard]] std::vector<std::int64_t> tokens(BlockId block) const {
    std::vector<std::int64_t> out;
    for (const Range range : round_.blocks.ranges(block)) {
      for (std::int64_t t = range.begin; t < range.end; ++t) out.push_back(t);
    }
    return out;
  }

  // Calls visit(token, first head in the whole tensor, row, written) for every owned row of a kind.
  template <typename Visit>
  void each_owned_row(Kind kind, Visit visit) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const auto& local = round_.devices[r].local_blocks;
      Memory& memory = memory_[r][static_cast<std::size_t>(kind)];
      for (std::size_t s = 0; s < memory.owned.size(); ++s) {
        const auto group = static_cast<std::int32_t>(s) % round_.head_groups;
        double* data = memory.owned[s].data();
        const BlockId block = local[s / static_cast<std::size_t>(round_.head_groups)];
        const std::int32_t parts = round_.head_groups / groups_of(block);
        if (group >= groups_of(block)) continue;
        for (const std::int64_t token : tokens(block)) {
          for (std::int32_t part = 0; part < parts; ++part) {
            visit(token, (group * parts + part) * layout_.heads(kind), data, memory.written[s]);
            data += layout_.width(kind);
          }
        }
      }
    }
  }

  // Copies retained slots out of `forward`, whole capacity.
  void take_retained(Run& forward) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      for (const Retain& retain : forward.program(r).retain) {
        const auto [from, from_tokens] = forward.slot(r, retain.kind, retain.slot);
        const auto [to, to_tokens] = slot(r, retain.kind, retain.backward_slot);
        std::copy_n(from, std::min(from_tokens, to_tokens) * layout_.width(retain.kind), to);
      }
    }
  }

  // Throws if ranks wait for each other for ever.
  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t r = 0; r < memory_.size(); ++r) {
        const auto& instructions = program(r).instructions;
        while (position_[r] < instructions.size() && step(r, instructions[position_[r]])) {
          ++position_[r];
          moved = true;
        }
      }
    }
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      if (position_[r] < program(r).instructions.size()) {
        throw std::runtime_error(fmt::format("rank {} is stuck at {}", r, position_[r]));
      }
    }
  }

  // The layout of one of the round's head groups.
  [[nodiscard]] const RowLayout& layout() const { return layout_; }

 private:
  struct Sent {
    TransferEnd end;
    std::vector<double> data;  // as it left
  };
  struct Expected {
    TransferEnd end;
    std::size_t message;  // n-th from the peer
    std::size_t unit;     // inside it
  };
  struct Launched {
    std::vector<Sent> sends;
    std::vector<Expected> recvs;
  };

  [[nodiscard]] std::int32_t groups_of(BlockId block) const {
    return round_.block_head_groups.empty() ? round_.head_groups
                                            : round_.block_head_groups.at(block.index());
  }
  [[nodiscard]] RowLayout layout_of(BlockId block) const {
    const std::int32_t groups = groups_of(block);
    return {plan_.shape.q_heads / groups, plan_.shape.kv_heads / groups, plan_.shape.head_dim,
            plan_.shape.value_dim};
  }

  [[nodiscard]] const Program& program(std::size_t r) const {
    return round_.devices[r].programs.at(mask_).of(direction_).value();
  }

  // First value and capacity in tokens.
  std::pair<double*, std::int64_t> slot(std::size_t r, Kind kind, SlotId id) {
    Memory& memory = memory_[r].at(static_cast<std::size_t>(kind));
    const std::size_t index = id.index();
    if (index < memory.owned.size()) {
      return {memory.owned[index].data(),
              static_cast<std::int64_t>(memory.owned[index].size()) / layout_.width(kind)};
    }
    const StagingSlot& place =
        program(r).staging.at(static_cast<std::size_t>(kind)).at(index - memory.owned.size());
    return {memory.arena.data() + place.offset_tokens * layout_.width(kind), place.capacity_tokens};
  }

  // The rows of a unit in a slot, which must hold them.
  double* unit(std::size_t r, Kind kind, SlotId id, BlockId block) {
    const auto [data, capacity] = slot(r, kind, id);
    if (static_cast<std::size_t>(capacity * layout_.width(kind)) < size(kind, block)) {
      throw std::runtime_error("slot too small");
    }
    return data;
  }
  double* result(std::size_t r, Kind kind, SlotId id, BlockId block) {
    Memory& memory = memory_[r].at(static_cast<std::size_t>(kind));
    if (id.index() < memory.owned.size()) memory.written[id.index()] = true;
    return unit(r, kind, id, block);
  }
  std::size_t size(Kind kind, BlockId block) const {
    return static_cast<std::size_t>(round_.blocks.num_tokens(block) * layout_of(block).width(kind));
  }
  std::vector<double> load(std::size_t r, Kind kind, SlotId id, BlockId block) {
    const double* data = unit(r, kind, id, block);
    return {data, data + size(kind, block)};
  }

  // Puts `value` into a slot, or merges it into the slot's contents.
  void store(std::size_t r, Kind kind, SlotId id, BlockId block, const std::vector<double>& value,
             bool overwrite) {
    double* into = result(r, kind, id, block);
    if (overwrite) {
      std::ranges::copy(value, into);
    } else {
      merge(kind, into, value);
    }
  }

  void merge(Kind kind, double* into, const std::vector<double>& value) const {
    const std::int32_t width = layout_.head_width(kind);
    for (std::size_t at = 0; at < value.size(); at += static_cast<std::size_t>(width)) {
      double* a = into + at;
      const double* b = value.data() + at;
      if (kind != Kind::kO) {
        for (std::int32_t i = 0; i < width; ++i) a[i] += b[i];
        continue;
      }
      double& lse = a[width - 1];
      const double other = b[width - 1];
      if (other == kMinusInfinity) continue;
      const double most = std::max(lse, other);
      const double merged = most + std::log(std::exp(lse - most) + std::exp(other - most));
      for (std::int32_t i = 0; i + 1 < width; ++i) {
        const double mine = lse == kMinusInfinity ? 0 : std::exp(lse - merged) * a[i];
        a[i] = mine + std::exp(other - merged) * b[i];
      }
      lse = std::isnan(lse) ? kNan : merged;
    }
  }

  bool step(std::size_t r, const Instruction& instruction) {
    if (const auto* op = std::get_if<AttentionOp>(&instruction)) {
      for (const TileOp& tile : op->tiles) {
        if (direction_ == Direction::kForward) {
          forward_tile(r, tile);
        } else {
          backward_tile(r, tile);
        }
      }
    } else if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
      std::vector<double> sum = load(r, reduce->kind, reduce->srcs.at(0), reduce->block);
      for (std::size_t n = 1; n < reduce->srcs.size(); ++n) {
        merge(reduce->kind, sum.data(), load(r, reduce->kind, reduce->srcs[n], reduce->block));
      }
      store(r, reduce->kind, reduce->dst, reduce->block, sum, true);
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      store(r, copy->kind, copy->dst, copy->block, load(r, copy->kind, copy->src, copy->block),
            true);
    } else if (const auto* begin = std::get_if<LaunchOp>(&instruction)) {
      launch(r, *begin);
    } else {
      return wait(r, std::get<WaitOp>(instruction).id);
    }
    return true;
  }

  void launch(std::size_t r, const LaunchOp& op) {
    Launched& launched = launches_[r][op.id];
    std::map<std::size_t, Message> leaving;
    std::map<std::size_t, std::size_t> coming;
    for (const TransferEnd& end : op.sends) {
      launched.sends.push_back({end, load(r, end.kind, end.slot, end.block)});
      leaving[end.peer.index()].units.push_back(launched.sends.back().data);
    }
    for (auto& [peer, message] : leaving) sent_[{r, peer}].push_back(std::move(message));
    for (const TransferEnd& end : op.recvs) {
      const std::size_t peer = end.peer.index();
      launched.recvs.push_back({end, expected_[{peer, r}], coming[peer]++});
      std::fill_n(result(r, end.kind, end.slot, end.block), size(end.kind, end.block), kNan);
    }
    for (const auto& [peer, units] : coming) ++expected_[{peer, r}];
  }

  bool wait(std::size_t r, std::int32_t id) {
    const Launched& launched = launches_[r].at(id);
    for (const Expected& recv : launched.recvs) {
      if (sent_[{recv.end.peer.index(), r}].size() <= recv.message) return false;
    }
    for (const Expected& recv : launched.recvs) {
      const Message& message = sent_[{recv.end.peer.index(), r}][recv.message];
      const std::vector<double>& data = message.units.at(recv.unit);
      if (data.size() != size(recv.end.kind, recv.end.block)) {
        throw std::runtime_error("message of another size");
      }
      store(r, recv.end.kind, recv.end.slot, recv.end.block, data, true);
    }
    for (const Sent& send : launched.sends) {
      const std::vector<double> now = load(r, send.end.kind, send.end.slot, send.end.block);
      if (std::memcmp(now.data(), send.data.data(), now.size() * sizeof(double)) != 0) {
        throw std::runtime_error("a slot changed while it was sent");
      }
    }
    return true;
  }

  // Calls visit(query row, key row) for the attended pairs of a tile.
  template <typename Visit>
  void each_pair(const TileOp& tile, Visit visit) const {
    const std::vector<std::int64_t> queries = tokens(tile.q_block);
    const std::vector<std::int64_t> keys = tokens(tile.kv_block);
    for (std::size_t n = 0; n < queries.size(); ++n) {
      for (std::size_t m = 0; m < keys.size(); ++m) {
        if (attended_[static_cast<std::size_t>(queries[n] * plan_.num_tokens() + keys[m])]) {
          visit(static_cast<std::int64_t>(n), static_cast<std::int64_t>(m));
        }
      }
    }
  }

  void forward_tile(std::size_t r, const TileOp& tile) {
    if (tile.init_dkv || tile.d_o.valid() || tile.dkv.valid()) {
      throw std::runtime_error("a forward tile has parts of a backward one");
    }
    const RowLayout layout = layout_of(tile.q_block);
    const std::int32_t hq = layout.q_heads, hk = layout.kv_heads;
    const std::int32_t d = layout.head_dim, dv = layout.value_dim;
    const std::vector<double> q = load(r, Kind::kQ, tile.q, tile.q_block);
    const std::vector<double> kv = load(r, Kind::kKv, tile.kv, tile.kv_block);
    std::vector<double> o(size(Kind::kO, tile.q_block));
    for (std::int32_t h = 0; h < hq; ++h) {
      const std::int32_t g = h / (hq / hk);
      std::vector<double> sums(tokens(tile.q_block).size());
      each_pair(tile, [&](std::int64_t n, std::int64_t m) {
        const double* key = row(kv, m, hk, g, d + dv);
        const double e = std::exp(plan_.shape.effective_scale() * dot(row(q, n, hq, h, d), key, d));
        sums[static_cast<std::size_t>(n)] += e;
        add_scaled(row(o, n, hq, h, dv + 1), e, key + d, dv);
      });
      for (std::size_t n = 0; n < sums.size(); ++n) {
        double* out = row(o, static_cast<std::int64_t>(n), hq, h, dv + 1);
        out[dv] = sums[n] == 0 ? kMinusInfinity : std::log(sums[n]);
        for (std::int32_t i = 0; i < dv && sums[n] != 0; ++i) out[i] /= sums[n];
      }
    }
    store(r, Kind::kO, tile.result, tile.q_block, o, tile.init_result);
  }

  void backward_tile(std::size_t r, const TileOp& tile) {
    const RowLayout layout = layout_of(tile.q_block);
    const std::int32_t hq = layout.q_heads, hk = layout.kv_heads;
    const std::int32_t d = layout.head_dim, dv = layout.value_dim;
    const double scale = plan_.shape.effective_scale();
    const std::vector<double> q = load(r, Kind::kQ, tile.q, tile.q_block);
    const std::vector<double> kv = load(r, Kind::kKv, tile.kv, tile.kv_block);
    const std::vector<double> d_o = load(r, Kind::kDo, tile.d_o, tile.q_block);
    std::vector<double> dq(size(Kind::kDq, tile.q_block));
    std::vector<double> dkv(size(Kind::kDkv, tile.kv_block));
    for (std::int32_t h = 0; h < hq; ++h) {
      const std::int32_t g = h / (hq / hk);
      each_pair(tile, [&](std::int64_t n, std::int64_t m) {
        const double* query = row(q, n, hq, h, d);
        const double* key = row(kv, m, hk, g, d + dv);
        const double* grad = row(d_o, n, hq, h, dv + 2);  // dO, LSE, delta
        double* dkey = row(dkv, m, hk, g, d + dv);
        const double p = std::exp(scale * dot(query, key, d) - grad[dv]);
        const double ds = p * scale * (dot(grad, key + d, dv) - grad[dv + 1]);
        add_scaled(row(dq, n, hq, h, d), ds, key, d);
        add_scaled(dkey, ds, query, d);
        add_scaled(dkey + d, p, grad, dv);
      });
    }
    store(r, Kind::kDq, tile.result, tile.q_block, dq, tile.init_result);
    store(r, Kind::kDkv, tile.dkv, tile.kv_block, dkv, tile.init_dkv);
  }

  const Plan& plan_;
  const PlanRound& round_;
  const std::size_t mask_;
  const Direction direction_;
  const std::vector<bool>& attended_;
  const RowLayout layout_;
  std::vector<std::array<Memory, kNumKinds>> memory_;  // by rank
  std::vector<std::size_t> position_;
  std::vector<std::map<std::int32_t, Launched>> launches_;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<Message>> sent_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> expected_;
};

// ----------------------------------------------------------------------- inputs and results

void fill_inputs(Run& run, const ToyInputs& in, const ToyResults& expected,
                 const AttentionShape& shape, Direction direction) {
  const RowLayout& rows = run.layout();
  const std::int32_t hq = rows.q_heads, hk = rows.kv_heads;
  const std::int32_t d = rows.head_dim, dv = rows.value_dim;
  run.each_owned_row(Kind::kQ, [&](std::int64_t t, std::int32_t head, double* to, bool) {
    std::copy_n(row(in.q, t, shape.q_heads, head, d), hq * d, to);
  });
  run.each_owned_row(Kind::kKv, [&](std::int64_t t, std::int32_t head, double* to, bool) {
    for (std::int32_t h = 0; h < hk; ++h, to += d + dv) {
      std::copy_n(row(in.k, t, shape.kv_heads, head + h, d), d, to);
      std::copy_n(row(in.v, t, shape.kv_heads, head + h, dv), dv, to + d);
    }
  });
  if (direction == Direction::kForward) return;
  run.each_owned_row(Kind::kDo, [&](std::int64_t t, std::int32_t head, double* to, bool) {
    for (std::int32_t h = 0; h < hq; ++h, to += dv + 2) {
      const double* dout = row(in.dout, t, shape.q_heads, head + h, dv);
      std::copy_n(dout, dv, to);
      to[dv] = *row(expected.lse, t, shape.q_heads, head + h, 1);
      to[dv + 1] = dot(dout, row(expected.out, t, shape.q_heads, head + h, dv), dv);
    }
  });
}

// Splits each head of a result row into two arrays; a row that was never written is empty.
void collect(Run& run, Kind kind, std::vector<double>& first, std::int32_t first_dim,
             std::vector<double>* second, std::int32_t second_dim, std::int32_t all_heads) {
  const std::int32_t heads = run.layout().heads(kind);
  run.each_owned_row(kind,
                     [&](std::int64_t t, std::int32_t head, const double* from, bool written) {
                       for (std::int32_t h = 0; h < heads; ++h, from += first_dim + second_dim) {
                         double* a = row(first, t, all_heads, head + h, first_dim);
                         for (std::int32_t i = 0; i < first_dim; ++i) a[i] = written ? from[i] : 0;
                         if (second == nullptr) continue;
                         double* b = row(*second, t, all_heads, head + h, second_dim);
                         const double empty = kind == Kind::kO ? kMinusInfinity : 0;
                         for (std::int32_t i = 0; i < second_dim; ++i)
                           b[i] = written ? from[first_dim + i] : empty;
                       }
                     });
}

std::optional<std::string> compare(const char* name, const std::vector<double>& got,
                                   const std::vector<double>& expected) {
  for (std::size_t n = 0; n < expected.size(); ++n) {
    if (got[n] == expected[n] || std::abs(got[n] - expected[n]) < kTolerance) continue;
    return fmt::format("{}[{}] is {}, expected {}", name, n, got[n], expected[n]);
  }
  return std::nullopt;
}

}  // namespace

ToyBatch::ToyBatch(const Plan& plan, std::uint64_t seed)
    : shape_(plan.shape),
      num_tokens_(plan.num_tokens()),
      inputs_(random_toy_inputs(shape_, num_tokens_, seed)) {
  for (std::size_t m = 0; m < plan.rounds.front().masks.size(); ++m) {
    expected_.push_back(dense_attention(inputs_, dense_mask(plan, m), shape_, num_tokens_));
    has_backward_.push_back(
        plan.rounds.front().devices.front().programs.at(m).backward.has_value());
  }
}

std::optional<std::string> ToyBatch::difference(const Plan& plan) const try {
  if (plan.num_tokens() != num_tokens_) return "another number of tokens";
  if (plan.shape.q_heads != shape_.q_heads || plan.shape.kv_heads != shape_.kv_heads ||
      plan.shape.head_dim != shape_.head_dim || plan.shape.value_dim != shape_.value_dim) {
    return "another shape";
  }
  for (std::size_t m = 0; m < expected_.size(); ++m) {
    const ToyResults& expected = expected_[m];
    const std::vector<bool> attended = dense_mask(plan, m);
    const auto unknown = [](const std::vector<double>& like) {
      return std::vector<double>(like.size(), kNan);
    };
    ToyResults got{unknown(expected.out), unknown(expected.lse), unknown(expected.dq),
                   unknown(expected.dk), unknown(expected.dv)};
    for (const PlanRound& round : plan.rounds) {
      Run forward(plan, round, m, Direction::kForward, attended);
      fill_inputs(forward, inputs_, expected, shape_, Direction::kForward);
      forward.run();
      collect(forward, Kind::kO, got.out, shape_.value_dim, &got.lse, 1, shape_.q_heads);
      if (!round.devices.front().programs.at(m).backward) continue;
      Run backward(plan, round, m, Direction::kBackward, attended);
      fill_inputs(backward, inputs_, expected, shape_, Direction::kBackward);
      backward.take_retained(forward);
      backward.run();
      collect(backward, Kind::kDq, got.dq, shape_.head_dim, nullptr, 0, shape_.q_heads);
      collect(backward, Kind::kDkv, got.dk, shape_.head_dim, &got.dv, shape_.value_dim,
              shape_.kv_heads);
    }
    if (auto gap = compare("out", got.out, expected.out)) return gap;
    if (auto gap = compare("lse", got.lse, expected.lse)) return gap;
    if (!has_backward_[m]) continue;
    if (auto gap = compare("dq", got.dq, expected.dq)) return gap;
    if (auto gap = compare("dk", got.dk, expected.dk)) return gap;
    if (auto gap = compare("dv", got.dv, expected.dv)) return gap;
  }
  return std::nullopt;
} catch (const std::exception& error) {
  return error.what();
}

}  // namespace contextile
