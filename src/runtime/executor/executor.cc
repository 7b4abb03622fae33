#include "contextile/advanced/executor.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/base.h"
#include "contextile/plan_file.h"
#include "kernel/row_memory.h"
#include "runtime/executor/call_check.h"
#include "runtime/executor/call_replay.h"
#include "runtime/executor/check_terms.h"
#include "runtime/executor/executor_call.h"
#include "runtime/executor/executor_testing.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/flight_recorder.h"

namespace contextile {

std::size_t find_mask(const Plan& plan, std::string_view name) {
  std::vector<std::string> names;
  if (!plan.rounds.empty()) {
    for (const NamedMask& mask : plan.rounds[0].masks) names.push_back(mask.name);
  }
  if (name.empty() && names.size() == 1) return 0;
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + printable(other);
  fail_argument("mask: expected one of the plan's ({}), found {}{}", known, quote(name),
                did_you_mean(name, names));
}

// ------------------------------------------------------------------------------------ saved

Saved::Saved() = default;
Saved::~Saved() = default;
Saved::Saved(Saved&&) noexcept = default;
Saved& Saved::operator=(Saved&&) noexcept = default;

std::int64_t Saved::size_bytes() const { return buffers_ ? buffers_->size_bytes : 0; }

// ----------------------------------------------------------------------------------- handle

Executor::Handle::Handle(std::unique_ptr<Call> call) : call_(std::move(call)) {}
Executor::Handle::Handle(Handle&&) noexcept = default;
Executor::Handle& Executor::Handle::operator=(Handle&&) noexcept = default;
Executor::Handle::~Handle() = default;

// ---------------------------------------------------------------------------------- executor

namespace {

// Sinks in a GPU's memory are not read, because that would wait for the GPU.
CallTag tag_of(SharedCall call, const Plan& plan, const AttentionKernel& kernel) {
  if (&kernel.memory() != &host_memory()) call.sink_H = {};
  return call_tag(call, plan);
}

}  // namespace

struct Executor::State {
  Transport& transport;
  const AttentionKernel& kernel;
  std::shared_ptr<const PreparedPlan> plan;
  std::vector<std::unique_ptr<CallBuffer>> idle;
  std::size_t num_buffers = 0;  // idle and in flight
  std::size_t next_begin = 0;   // ticket of the next handle
  std::size_t next_finish = 0;  // ticket of the oldest handle in flight
  bool poison = false;
  ExecutionStats last_stats;
  FlightRecorder recorder;
  CallReplay replay;

  [[nodiscard]] const Plan* current_plan() const {
    return plan == nullptr ? nullptr : plan->plan.get();
  }

  // Runs work that peers take part in: if it fails, they are notified and do not wait.
  template <typename Work>
  auto collectively(const Work& work) {
    return recorded(current_plan(), [&] {
      try {
        return work();
      } catch (const std::exception& error) {
        transport.abort(error.what());
        throw;
      }
    });
  }
  template <typename Work>
  auto recorded(const Plan* current, const Work& work) {
    try {
      return work();
    } catch (const std::exception& error) {
      recorder.write(current, error);
      throw;
    }
  }

  void reserve(CallBuffer& buffer) const {
    const std::int32_t heads = plan->plan->shape.q_heads;
    buffer.reserve(plan->buffer_bytes, plan->local_rows * heads, heads);
  }

  void add_buffer() {
    idle.push_back(std::make_unique<CallBuffer>(kernel.memory()));
    ++num_buffers;
  }

  std::unique_ptr<CallBuffer> take_buffer() {
    if (idle.empty()) add_buffer();
    std::unique_ptr<CallBuffer> buffer = std::move(idle.back());
    idle.pop_back();
    reserve(*buffer);
    return buffer;
  }

  void check_prepared() const {
    CONTEXTILE_CHECK(plan != nullptr, "rank {}: expected prepare before a call, found no plan",
                     transport.rank().value);
  }

  void check_kernel(Direction direction, const ScoreTerms& terms) const {
    check_has_terms(fmt::format("rank {}, {}", transport.rank().value, to_string(direction)),
                    kernel, terms);
  }

  void begin(Handle::Call& call, const SharedCall& shared, std::optional<std::int64_t> number) {
    std::unique_ptr<CallBuffer> buffer = take_buffer();
    if (number) {
      call.check_with(
          std::make_unique<CallCheck>(transport.control(), tag_of(shared, *plan->plan, kernel)));
    }
    call.begin(std::move(buffer), {transport, kernel, recorder}, next_begin, poison);
    ++next_begin;
  }

  // Runs a whole call, or has it replayed by the ranks that kept it; returns whether it ran.
  template <typename Tensors, typename Run>
  bool run_or_replay(std::size_t mask, const Tensors& tensors, const Run& run) {
    // A call with terms is not kept: their arrays are read when it is issued.
    if (plan == nullptr || !replay.is_possible() || tensors.terms.has_any()) {
      run();
      return true;
    }
    return collectively([&] {
      CallKey key = key_of(mask, tensors);
      key.add(std::uint64_t{poison ? 1U : 0U});
      for (const auto& buffer : idle) key.add(static_cast<const void*>(buffer->data()));
      // A call is kept only if forward keeps nothing for backward, or in memory of the caller's.
      const bool keeps_memory = tensors.saved.empty() && has_retained(mask);
      const CallReplay::Outcome outcome = replay.call(
          key, keeps_memory ? CallReplay::Keep::kNever : CallReplay::Keep::kIfAllDo, recorder, [&] {
            run();
            return last_stats;
          });
      last_stats = outcome.stats;
      return outcome.was_run;
    });
  }
  [[nodiscard]] bool has_retained(std::size_t mask) const {
    if (plan->rounds.empty() || mask >= plan->rounds[0].masks.size()) return true;
    return forward_retained_bytes(*plan, mask) > 0;
  }
};

Executor::Executor(Transport& transport, const AttentionKernel& kernel,
                   const ExecutorOptions& options)
    : state_(new State{.transport = transport,
                       .kernel = kernel,
                       .plan = nullptr,
                       .idle = {},
                       .last_stats = {},
                       .recorder = {transport, options.flight_folder},
                       .replay = CallReplay(transport)}) {}
Executor::~Executor() = default;
Executor::Executor(Executor&&) noexcept = default;
Executor& Executor::operator=(Executor&&) noexcept = default;

void Executor::prepare(std::shared_ptr<const Plan> plan) {
  State& state = *state_;
  CONTEXTILE_CHECK(plan != nullptr, "prepare: expected a plan, found none");
  const TransportUse use(state.transport, "prepare");
  FlightRecorder& recorder = state.recorder;
  recorder.forget_plan();
  state.recorded(plan.get(), [&] {
    const bool any_slice = recorder.step(
        {"exchange"}, [&] { return agree_on_plan(state.transport.control(), *plan); });
    state.collectively([&] {
      PreparedPlan prepared = recorder.step(
          {"prepare"}, [&] { return prepare_plan(plan, state.transport.rank(), state.kernel); });
      if (any_slice && !prepared.rounds.empty()) {
        recorder.step({"exchange"}, [&] {
          prepared.begin_cuts =
              exchange_begin_cuts(*prepared.rounds[0].round, state.transport.control());
        });
      }
      recorder.step({"prepare"}, [&] {
        state.replay.forget_all();
        state.plan = std::make_shared<const PreparedPlan>(std::move(prepared));
        if (state.num_buffers == 0) state.add_buffer();
        for (const auto& buffer : state.idle) state.reserve(*buffer);
      });
    });
  });
}

void Executor::check_same_call(const SharedCall& call) {
  State& state = *state_;
  const TransportUse use(state.transport, to_string(call.direction));
  state.collectively([&] {
    state.check_prepared();
    state.recorder.step({"exchange"}, [&] {
      CallCheck check(state.transport.control(), tag_of(call, *state.plan->plan, state.kernel));
      check.wait();
    });
  });
}

namespace {

SharedCall shared_call(Direction direction, std::size_t mask, std::int64_t number,
                       const auto& tensors) {
  return {direction, mask, number, tensors.terms, tensors.sink_H};
}

}  // namespace

Executor::Handle Executor::begin_forward(std::size_t mask, const ForwardTensors& tensors,
                                         std::optional<std::int64_t> number) {
  const TransportUse use(state_->transport, "begin_forward");
  return state_->collectively([&] {
    state_->check_prepared();
    state_->check_kernel(Direction::kForward, tensors.terms);
    auto call = std::make_unique<Handle::Call>(state_->plan, mask, tensors);
    state_->begin(*call, shared_call(Direction::kForward, mask, number.value_or(0), tensors),
                  number);
    return Handle(std::move(call));
  });
}

Executor::Handle Executor::begin_backward(std::size_t mask, const BackwardTensors& tensors,
                                          const Saved& saved, std::optional<std::int64_t> number) {
  const TransportUse use(state_->transport, "begin_backward");
  return state_->collectively([&] {
    state_->check_prepared();
    state_->check_kernel(Direction::kBackward, tensors.terms);
    auto call = std::make_unique<Handle::Call>(state_->plan, mask, tensors, saved.buffers_.get());
    state_->begin(*call, shared_call(Direction::kBackward, mask, number.value_or(0), tensors),
                  number);
    return Handle(std::move(call));
  });
}

void Executor::advance(Handle& handle) {
  State& state = *state_;
  const TransportUse use(state.transport, "advance");
  state.collectively([&] {
    CONTEXTILE_CHECK(handle.call_ != nullptr, "rank {}, advance: expected a handle, found none",
                     state.transport.rank().value);
    handle.call_->advance();
  });
}

Saved Executor::finish(Handle handle) {
  State& state = *state_;
  const TransportUse use(state.transport, "finish");
  return state.collectively([&] {
    CONTEXTILE_CHECK(handle.call_ != nullptr, "rank {}, finish: expected a handle, found none",
                     state.transport.rank().value);
    Handle::Call& call = *handle.call_;
    CONTEXTILE_CHECK(call.begin_ticket() == state.next_finish,
                     "rank {}, finish: expected the handle begun as number {}, found number {}",
                     state.transport.rank().value, state.next_finish, call.begin_ticket());
    Saved saved;
    saved.buffers_ = call.finish();
    ++state.next_finish;
    state.last_stats = call.stats();
    state.idle.push_back(call.release_buffer());
    return saved;
  });
}

Saved Executor::forward(std::size_t mask, const ForwardTensors& tensors) {
  const TransportUse use(state_->transport, "forward");
  Saved saved;
  const bool was_run =
      state_->run_or_replay(mask, tensors, [&] { saved = finish(begin_forward(mask, tensors)); });
  if (!was_run) saved.buffers_ = nothing_saved(*state_->plan, mask);
  return saved;
}

std::int64_t Executor::saved_bytes(std::size_t mask) const {
  state_->check_prepared();
  const PreparedPlan& plan = *state_->plan;
  const std::size_t num_masks = plan.rounds.empty() ? mask + 1 : plan.rounds[0].masks.size();
  CONTEXTILE_CHECK(mask < num_masks, "rank {}, saved_bytes: expected a mask below {}, found {}",
                   state_->transport.rank().value, num_masks, mask);
  return forward_retained_bytes(plan, mask);
}

void Executor::backward(std::size_t mask, const BackwardTensors& tensors, const Saved& saved) {
  const TransportUse use(state_->transport, "backward");
  state_->run_or_replay(mask, tensors,
                        [&] { static_cast<void>(finish(begin_backward(mask, tensors, saved))); });
}

ExecutionStats Executor::last_stats() const { return state_->last_stats; }

ExecutorMemory Executor::memory() const {
  ExecutorMemory memory;
  if (state_->plan == nullptr) return memory;
  const PreparedPlan& plan = *state_->plan;
  const auto buffers = static_cast<std::int64_t>(state_->num_buffers);
  memory.staging_bytes = plan.largest.staging_bytes * buffers;
  memory.accumulator_bytes = plan.largest.accumulator_bytes * buffers;
  memory.conversion_bytes = plan.largest.conversion_bytes * buffers;
  memory.workspace_bytes = plan.band_bytes;
  for (const std::unique_ptr<CallBuffer>& buffer : state_->idle) {
    memory.workspace_bytes +=
        buffer->delta_bytes() + buffer->size_bytes() - plan.largest.total_bytes();
  }
  return memory;
}

FlightRecord Executor::flight_record(const std::exception& error) const {
  return state_->recorder.record(state_->current_plan(), error);
}

void Executor::write_flight_record(const std::exception& error) const noexcept {
  state_->recorder.write(state_->current_plan(), error);
}

void Executor::record_exchange(const std::function<void()>& messages) {
  state_->recorder.step({"exchange"}, messages);
}

void ExecutorTesting::before_step(Executor& executor,
                                  std::function<void(const RecordedStep&)> observer) {
  executor.state_->recorder.before_step = std::move(observer);
}

void ExecutorTesting::poison_buffers(Executor& executor) { executor.state_->poison = true; }

}  // namespace contextile
