#include "runtime/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "contextile/plan_file.h"
#include "contextile/version.h"

namespace contextile {
namespace {

constexpr std::size_t kMostUnits = 8;  // named of a message

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// The units of a message are those of its launch that go to its peer.
void name_units(const LaunchOp& launch, FlightTransfer& transfer) {
  for (const TransferEnd& end : transfer.is_send ? launch.sends : launch.recvs) {
    if (end.peer != transfer.peer) continue;
    ++transfer.num_units;
    if (transfer.units.size() == kMostUnits) continue;
    transfer.units.push_back(fmt::format("{} of block {}, group {}", to_string(end.kind),
                                         end.block.value, end.group.value));
  }
}

}  // namespace

FlightRecorder::FlightRecorder(const Transport& transport, std::string folder)
    : transport_(transport), folder_(std::move(folder)) {
  entries_.reserve(kCapacity);
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove(flight_path(folder_, transport.rank()), ignored);
}

void FlightRecorder::begin(const RecordedStep& what) {
  if (entries_.size() < kCapacity) entries_.emplace_back();
  ++num_steps_;
  newest() = {what, Clock::now(), std::nullopt};
  if (before_step) before_step(what);
}

void FlightRecorder::forget_plan() {
  for (Entry& entry : entries_) entry.step.launch = nullptr;
  written_ = false;
}

std::vector<FlightTransfer> FlightRecorder::transfers() const {
  std::vector<FlightTransfer> transfers;
  for (const OpenTransfer& open : transport_.open_transfers()) {
    FlightTransfer transfer{open.ticket, open.peer, open.is_send, open.size_bytes, {}, 0};
    const auto launch = std::ranges::find_if(entries_, [&](const Entry& entry) {
      return entry.step.launch != nullptr && entry.step.ticket == open.ticket;
    });
    if (launch != entries_.end()) name_units(*launch->step.launch, transfer);
    transfers.push_back(std::move(transfer));
  }
  return transfers;
}

FlightRecord FlightRecorder::record(const Plan* plan, const std::exception& error) const {
  // What ranks find out about each other is nobody's own error.
  const bool in_exchange = num_steps_ > 0 && !newest().ended && newest().step.op == "exchange";
  const bool is_cause = !in_exchange && dynamic_cast<const TransportError*>(&error) == nullptr;
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const Clock::time_point now = Clock::now();
  const auto unix_us = [&](Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(unix_now - (now - time)).count();
  };
  FlightRecord record{.rank = transport_.rank(),
                      .num_ranks = transport_.size(),
                      .transport = std::string(transport_.name()),
                      .version = std::string(version()),
                      .host = host_name(),
                      .process = ::getpid(),
                      .plan = plan == nullptr ? "" : digest_text(plan->digest),
                      .strategy = plan == nullptr ? "" : plan->strategy,
                      .error = error.what(),
                      .is_cause = is_cause,
                      .failed_us = unix_us(now),
                      .num_steps = num_steps_,
                      .steps = {},
                      .transfers = transfers(),
                      .silent = transport_.silent_ranks()};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::size_t oldest =
        entries_.size() < kCapacity ? 0 : static_cast<std::size_t>(num_steps_) % kCapacity;
    const Entry& entry = entries_[(oldest + i) % entries_.size()];
    const RecordedStep& step = entry.step;
    record.steps.push_back({std::string(step.op), step.call, step.direction,
                            static_cast<std::int32_t>(step.mask),
                            static_cast<std::int32_t>(step.round), step.instruction, step.ticket,
                            unix_us(entry.began), entry.ended ? unix_us(*entry.ended) : -1});
  }
  return record;
}

void FlightRecorder::write(const Plan* plan, const std::exception& error) noexcept {
  if (folder_.empty() || std::exchange(written_, true)) return;
  try {
    save_flight_record(record(plan, error), folder_);
  } catch (const std::exception&) {  // a full disk must not hide why the group failed
  }
}

}  // namespace contextile
