#include "runtime/executor/call_replay.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/clock.h"

namespace contextile {

void CallKey::add(const TensorView& view) {
  add(static_cast<const void*>(view.data));
  for (const std::int64_t number :
       {static_cast<std::int64_t>(view.dtype), view.tokens, std::int64_t{view.heads},
        std::int64_t{view.dim}, view.token_stride, view.head_stride}) {
    add(static_cast<std::uint64_t>(number));
  }
}

void CallKey::add(const RowStats& stats) {
  add(static_cast<const void*>(stats.data));
  add(static_cast<std::uint64_t>(stats.token_stride));
  add(static_cast<std::uint64_t>(stats.head_stride));
}

CallKey key_of(std::size_t mask, const ForwardTensors& tensors) {
  CallKey key(mask);
  key.add(std::uint64_t{0});
  for (const TensorView& view : {tensors.q_THD, tensors.k_THD, tensors.v_THD, tensors.out_THD}) {
    key.add(view);
  }
  key.add(tensors.lse_TH);
  key.add(tensors.sink_H);
  key.add(tensors.saved);
  return key;
}

CallKey key_of(std::size_t mask, const BackwardTensors& tensors) {
  CallKey key(mask);
  key.add(std::uint64_t{1});
  for (const TensorView& view : {tensors.q_THD, tensors.k_THD, tensors.v_THD, tensors.out_THD,
                                 tensors.dout_THD, tensors.dq_THD, tensors.dk_THD, tensors.dv_THD})
    key.add(view);
  key.add(tensors.lse_TH);
  key.add(tensors.sink_H);
  key.add(tensors.dsink_H);
  key.add(tensors.saved);
  return key;
}

bool CallReplay::find(const CallKey& key) {
  const auto at = std::ranges::find(calls_, key, &Known::key);
  if (at != calls_.end()) {
    calls_.splice(calls_.begin(), calls_, at);
    return false;
  }
  if (calls_.size() == kMostCalls) {
    forget(calls_.back());
    calls_.pop_back();
  }
  calls_.push_front({key, 0, {}});
  return true;
}

CallReplay::Outcome CallReplay::call(const CallKey& key, Keep keep, FlightRecorder& recorder,
                                     const std::function<ExecutionStats()>& run) {
  const bool comes_again = !find(key) || graphs_->keeps_first_calls();
  Known& mine = calls_.front();
  const Said said{mine.number, keep == Keep::kIfAllDo && comes_again ? 1 : 0};
  const auto all = recorder.step(
      {"exchange"}, [&] { return all_gather(control_, std::as_bytes(std::span(&said, 1))); });
  bool all_know = said.number > 0;
  bool all_are_willing = true;
  for (const std::vector<std::byte>& bytes : all) {
    Said other;
    std::memcpy(&other, bytes.data(), sizeof(Said));
    all_know = all_know && other.number == said.number;
    all_are_willing = all_are_willing && other.is_willing == 1;
  }
  if (all_know) {
    const auto start = Clock::now();
    recorder.step({"exchange"}, [&] { graphs_->replay(mine.number); });
    ExecutionStats stats = mine.stats;
    stats.total_s = seconds_since(start);
    stats.attention_s = stats.exposed_s = 0;
    return {stats, false};
  }
  if (!all_are_willing) return {run(), true};
  forget(mine);
  recorder.step({"exchange"}, [&] { graphs_->begin_capture(); });
  mine.stats = run();
  mine.number = recorder.step({"exchange"}, [&] { return graphs_->end_capture(); });
  return {mine.stats, true};
}

void CallReplay::forget(Known& known) {
  if (known.number > 0) graphs_->forget(known.number);
  known.number = 0;
}

void CallReplay::forget_all() {
  for (Known& known : calls_) forget(known);
  calls_.clear();
}

}  // namespace contextile
