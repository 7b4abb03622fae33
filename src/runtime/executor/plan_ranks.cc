#include "runtime/executor/plan_ranks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/quote.h"
#include "contextile/advanced/executor.h"
#include "contextile/plan.h"
#include "kernel/tensor.h"
#include "runtime/executor/check_tensors.h"

namespace contextile {
namespace {

constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();

// A tensor in the memory of a rank's kernel, with a copy in host memory if that is elsewhere.
class RankTensor {
 public:
  // If the kernel's memory is elsewhere, the tensor is placed in `place`, which grows as needed.
  RankTensor(const RowMemory& memory, HostTensor tensor, RowBuffer* place)
      : host_(std::move(tensor)), memory_(memory), is_here_(place == nullptr) {
    if (is_here_) return;
    if (place->size_bytes() < std::ssize(host_.bytes())) {
      *place = RowBuffer(memory, std::ssize(host_.bytes()));
    }
    there_ = place->data();
    memory.write(there_, host_.bytes());
  }

  [[nodiscard]] TensorView view() {
    TensorView view = host_.view();
    if (!is_here_) view.data = there_;
    return view;
  }
  [[nodiscard]] RowStats stats() { return as_stats(view()); }
  [[nodiscard]] std::span<float> floats() {
    return {static_cast<float*>(view().data), host_.bytes().size() / sizeof(float)};
  }
  // Copies the tensor to host memory and returns it.
  HostTensor& fetched() {
    if (!is_here_) {
      const auto to = static_cast<std::byte*>(host_.view().data);
      memory_.read({to, host_.bytes().size()}, there_);
    }
    return host_;
  }

 private:
  HostTensor host_;
  const RowMemory& memory_;
  const bool is_here_;
  std::byte* there_ = nullptr;
};

// Makes and moves the tensors of one rank for a call. Repeated calls place them at the same
// addresses, so that devices may recognize the call.
class RankTensors {
 public:
  RankTensors(const Plan& plan, Rank rank, const AttentionKernel& kernel,
              std::deque<RowBuffer>& places)
      : plan_(plan),
        rank_(rank),
        memory_(kernel.memory()),
        tokens_(num_local_tokens(plan, rank)),
        places_(places) {}

  [[nodiscard]] RankTensor like(const TensorView& batch) {
    return placed(HostTensor(batch.dtype, tokens_, batch.heads, batch.dim));
  }
  [[nodiscard]] RankTensor scattered(const TensorView& batch) {
    HostTensor local(batch.dtype, tokens_, batch.heads, batch.dim);
    scatter(plan_, rank_, batch, local.view());
    return placed(std::move(local));
  }
  // The same on every rank.
  [[nodiscard]] RankTensor copied(std::span<const float> array) {
    HostTensor tensor(Dtype::kF32, std::ssize(array), 1, 1);
    std::ranges::copy(array, tensor.values<float>().begin());
    return placed(std::move(tensor));
  }

 private:
  RankTensor placed(HostTensor tensor) {
    if (&memory_ == &host_memory()) return {memory_, std::move(tensor), nullptr};
    if (num_placed_ == places_.size()) places_.emplace_back();
    return {memory_, std::move(tensor), &places_[num_placed_++]};
  }

  const Plan& plan_;
  const Rank rank_;
  const RowMemory& memory_;
  const std::int64_t tokens_;
  std::deque<RowBuffer>& places_;
  std::size_t num_placed_ = 0;
};

TensorView as_tensor_of(const Plan& plan, const std::vector<float>& lse_TH) {
  return view_of(lse_TH, plan.num_tokens(), plan.shape.q_heads, 1);
}

void check_output(const Plan& plan, const AttentionOutput& output) {
  const AttentionShape& shape = plan.shape;
  const std::int64_t tokens = plan.num_tokens();
  check_tensor("backward", "out", output.out_THD.view(), tokens, shape.q_heads, shape.value_dim,
               shape.dtype);
  CONTEXTILE_CHECK(std::ssize(output.lse_TH) == tokens * shape.q_heads,
                   "backward: expected lse of [{}, {}], found {} values", tokens, shape.q_heads,
                   output.lse_TH.size());
  CONTEXTILE_CHECK(output.saved.empty() || std::ssize(output.saved) == plan.num_devices(),
                   "backward: expected what forward saved on {} ranks, found {}",
                   plan.num_devices(), output.saved.size());
}

// Moves rows of a tensor of the batch from other processes to the tensor of rank 0; `local` are the
// rows of this rank.
void collect_rows(Transport& transport, const Plan& plan, const TensorView& batch,
                  const HostTensor& local) {
  const auto message = [](Rank peer, const HostTensor& rows) {
    const std::int64_t bytes = std::ssize(rows.bytes());
    return Message{peer, {Segment{static_cast<std::byte*>(rows.view().data), bytes, 1, bytes}}};
  };
  if (transport.rank() != Rank{0}) {
    const Message send = message(Rank{0}, local);
    transport.wait(transport.launch({&send, 1}, {}));
    return;
  }
  std::vector<HostTensor> rows;
  std::vector<Message> recvs;
  for (std::int32_t r = 1; r < plan.num_devices(); ++r) {
    rows.emplace_back(batch.dtype, num_local_tokens(plan, Rank{r}), batch.heads, batch.dim);
    recvs.push_back(message(Rank{r}, rows.back()));
  }
  transport.wait(transport.launch({}, recvs));
  for (std::int32_t r = 1; r < plan.num_devices(); ++r) {
    gather(plan, Rank{r}, rows[static_cast<std::size_t>(r) - 1].view(), batch);
  }
}

// The sum over ranks, in their order.
std::vector<float> sum_of(const std::vector<std::vector<float>>& shares) {
  std::vector<float> total(shares[0].size());
  for (std::size_t h = 0; h < total.size(); ++h) {
    double sum = 0;
    for (const std::vector<float>& share : shares) sum += share[h];
    total[h] = static_cast<float>(sum);
  }
  return total;
}

}  // namespace

PlanRanks::PlanRanks(std::shared_ptr<const Plan> plan, const RunOn& run_on,
                     const ExecutorOptions& executor_options)
    : plan_(std::move(plan)),
      run_on_(run_on),
      executor_options_(executor_options),
      mine_(run_on.rank),
      calls_(static_cast<std::size_t>(plan_->num_devices())),
      memory_(calls_.size()),
      places_(calls_.size()) {
  if (mine_ == nullptr) {
    start();
    return;
  }
  CONTEXTILE_CHECK(mine_->size() == plan_->num_devices(),
                   "{}: expected {} ranks, one for each device of the plan, found {}",
                   mine_->name(), plan_->num_devices(), mine_->size());
  executors_.push_back(
      std::make_unique<Executor>(*mine_, kernel(mine_->rank()), executor_options_));
  prepare();
}

const AttentionKernel& PlanRanks::kernel(Rank rank) const {
  return run_on_.host == nullptr ? run_on_.kernel : run_on_.host->kernel(rank);
}

void PlanRanks::start() {
  group_ = run_on_.host == nullptr ? make_inproc_group(plan_->num_devices(), run_on_.transport)
                                   : run_on_.host->make_group(plan_->num_devices());
  for (const std::unique_ptr<Transport>& transport : group_) {
    executors_.push_back(
        std::make_unique<Executor>(*transport, kernel(transport->rank()), executor_options_));
  }
  prepare();
}

void PlanRanks::prepare() {
  run([&](Transport& transport, Executor& executor) {
    executor.prepare(plan_);
    executor.record_exchange([&] { share(transport.control(), executor.memory(), memory_); });
  });
}

void PlanRanks::stop() noexcept {
  for (TensorPlaces& places : places_) places = {};
  executors_.clear();
  group_.clear();
}

// Runs the body on every rank of this process. A failure aborts the group and writes a record.
void PlanRanks::run(const Body& body) {
  const auto run_rank = [&](Transport& transport, Executor& executor) {
    try {
      body(transport, executor);
    } catch (const std::exception& error) {
      transport.abort(error.what());
      executor.write_flight_record(error);
      throw;
    }
  };
  if (mine_ != nullptr) return run_rank(*mine_, *executors_.front());
  if (group_.empty()) start();
  try {
    run_inproc(group_, [&](Transport& transport) {
      run_rank(transport, *executors_[transport.rank().index()]);
    });
  } catch (...) {
    stop();  // the next call begins with a new group
    throw;
  }
}

template <typename Call>
void PlanRanks::measure(Transport& transport, Executor& executor, const Call& call) {
  const RowMemory& memory = kernel(transport.rank()).memory();
  memory.wait();
  executor.record_exchange([&] { barrier(transport.control()); });
  // The time starts after a barrier, so that it contains no waiting for ranks that come late.
  const std::int64_t before = transport.sent_bytes();
  const auto start = Clock::now();
  call();
  memory.wait();
  RankCall measured{executor.last_stats(), transport.sent_bytes() - before};
  // The executor's own time ends when the last of the work has been submitted.
  measured.stats.total_s = seconds_since(start);
  executor.record_exchange([&] { share(transport.control(), measured, calls_); });
}

template <typename Item>
void PlanRanks::share(Transport& transport, const Item& mine, std::vector<Item>& by_rank) const {
  static_assert(std::is_trivially_copyable_v<Item>);
  by_rank[transport.rank().index()] = mine;
  if (mine_ == nullptr) return;
  const auto all = all_gather(transport, std::as_bytes(std::span(&mine, 1)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::memcpy(&by_rank[r], all[r].data(), sizeof(Item));
  }
}

// Copies a rank's rows of a result into the batch's tensor.
void PlanRanks::deliver(Transport& transport, const TensorView& batch,
                        const HostTensor& local) const {
  gather(*plan_, transport.rank(), local.view(), batch);
  if (mine_ != nullptr) collect_rows(transport, *plan_, batch, local);
}

void PlanRanks::share_sink(Transport& transport, std::vector<std::vector<float>>& by_rank) const {
  const std::vector<float>& mine = by_rank[transport.rank().index()];
  if (mine_ == nullptr || mine.empty()) return;
  const auto all = all_gather(transport, std::as_bytes(std::span(mine)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    std::memcpy(by_rank[r].data(), all[r].data(), all[r].size());
  }
}

void PlanRanks::check_direction(std::size_t mask, Direction direction) const {
  for (const PlanRound& round : plan_->rounds) {
    CONTEXTILE_CHECK(round.has_direction(mask, direction),
                     "{}: expected a plan with a {} of mask {}, found none", to_string(direction),
                     to_string(direction), quote(round.masks[mask].name));
  }
}

AttentionOutput PlanRanks::forward(std::size_t mask, const AttentionInputs& inputs) {
  const AttentionShape& shape = plan_->shape;
  const std::int64_t tokens = plan_->num_tokens();
  check_direction(mask, Direction::kForward);
  check_inputs("forward", shape, tokens, inputs.q_THD, inputs.k_THD, inputs.v_THD, inputs.sink_H);
  AttentionOutput output{
      plan_->rounds[0].masks[mask].name,
      HostTensor(shape.dtype, tokens, shape.q_heads, shape.value_dim),
      std::vector<float>(static_cast<std::size_t>(tokens * shape.q_heads), kUnwritten),
      std::vector<Saved>(static_cast<std::size_t>(plan_->num_devices()))};
  const TensorView out_THD = output.out_THD.view();
  const TensorView lse_TH = as_tensor_of(*plan_, output.lse_TH);
  run([&](Transport& transport, Executor& executor) {
    const Rank rank = transport.rank();
    RankTensors tensors(*plan_, rank, kernel(rank), places_[rank.index()].forward);
    RankTensor q = tensors.scattered(inputs.q_THD);
    RankTensor k = tensors.scattered(inputs.k_THD);
    RankTensor v = tensors.scattered(inputs.v_THD);
    RankTensor sink = tensors.copied(inputs.sink_H);
    RankTensor out = tensors.like(out_THD);
    RankTensor lse = tensors.like(lse_TH);
    measure(transport, executor, [&] {
      output.saved[rank.index()] = executor.forward(
          mask, {q.view(), k.view(), v.view(), sink.floats(), out.view(), lse.stats()});
    });
    executor.record_exchange([&] {
      deliver(transport.control(), out_THD, out.fetched());
      deliver(transport.control(), lse_TH, lse.fetched());
    });
  });
  return output;
}

AttentionGradients PlanRanks::backward(std::size_t mask, const AttentionInputs& inputs,
                                       const AttentionOutput& output, const TensorView& dout_THD) {
  const AttentionShape& shape = plan_->shape;
  const std::int64_t tokens = plan_->num_tokens();
  check_direction(mask, Direction::kBackward);
  check_inputs("backward", shape, tokens, inputs.q_THD, inputs.k_THD, inputs.v_THD, inputs.sink_H);
  check_output(*plan_, output);
  check_tensor("backward", "dout", dout_THD, tokens, shape.q_heads, shape.value_dim, shape.dtype);
  AttentionGradients gradients{HostTensor(shape.dtype, tokens, shape.q_heads, shape.head_dim),
                               HostTensor(shape.dtype, tokens, shape.kv_heads, shape.head_dim),
                               HostTensor(shape.dtype, tokens, shape.kv_heads, shape.value_dim),
                               {}};
  const TensorView dq_THD = gradients.dq_THD.view();
  const TensorView dk_THD = gradients.dk_THD.view();
  const TensorView dv_THD = gradients.dv_THD.view();
  const Saved nothing;
  std::vector<std::vector<float>> dsink(static_cast<std::size_t>(plan_->num_devices()),
                                        std::vector<float>(inputs.sink_H.size(), kUnwritten));
  run([&](Transport& transport, Executor& executor) {
    const std::size_t r = transport.rank().index();
    RankTensors tensors(*plan_, transport.rank(), kernel(transport.rank()), places_[r].backward);
    RankTensor q = tensors.scattered(inputs.q_THD);
    RankTensor k = tensors.scattered(inputs.k_THD);
    RankTensor v = tensors.scattered(inputs.v_THD);
    RankTensor sink = tensors.copied(inputs.sink_H);
    RankTensor out = tensors.scattered(output.out_THD.view());
    RankTensor lse = tensors.scattered(as_tensor_of(*plan_, output.lse_TH));
    RankTensor dout = tensors.scattered(dout_THD);
    RankTensor dq = tensors.like(dq_THD);
    RankTensor dk = tensors.like(dk_THD);
    RankTensor dv = tensors.like(dv_THD);
    RankTensor sink_gradient = tensors.copied(dsink[r]);
    measure(transport, executor, [&] {
      executor.backward(mask,
                        {q.view(), k.view(), v.view(), out.view(), lse.stats(), dout.view(),
                         sink.floats(), dq.view(), dk.view(), dv.view(), sink_gradient.floats()},
                        output.saved.empty() ? nothing : output.saved[r]);
    });
    executor.record_exchange([&] {
      deliver(transport.control(), dq_THD, dq.fetched());
      deliver(transport.control(), dk_THD, dk.fetched());
      deliver(transport.control(), dv_THD, dv.fetched());
      std::ranges::copy(sink_gradient.fetched().values<float>(), dsink[r].begin());
      share_sink(transport.control(), dsink);
    });
  });
  gradients.dsink_H = sum_of(dsink);
  return gradients;
}

}  // namespace contextile
