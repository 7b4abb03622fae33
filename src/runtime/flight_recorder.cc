#include "runtime/flight_recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <sstream>

#include "contextile/base.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

constexpr std::size_t kMostUnits = 8;  // listed of a message

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::int64_t unix_us(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// Microseconds since the Unix epoch; 0 if the system does not say.
std::int64_t process_began_us() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // "PID (NAME) STATE …": the time is the 22nd field, in ticks since the machine began.
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  std::int64_t ticks = 0;
  timespec since_boot{};
  if (!(fields >> ticks) || ::clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return 0;
  const double age_s = static_cast<double>(since_boot.tv_sec) -
                       static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::max<std::int64_t>(
      0, unix_us(std::chrono::system_clock::now()) - static_cast<std::int64_t>(1e6 * age_s));
}

// The part of a record that is known whatever has happened.
FlightRecord begun_record(const Plan* plan, const std::exception& error) {
  FlightRecord record;
  record.version = version();
  record.host = host_name();
  record.process = ::getpid();
  record.plan = plan == nullptr ? "" : digest_text(plan->digest);
  record.strategy = plan == nullptr ? "" : plan->strategy;
  record.error = error.what();
  record.started_us = process_began_us();
  return record;
}

// Adds the units of a message: those of its launch that go to its peer.
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
  if (!folder_.empty()) remove_flight_record(folder_, transport.rank());
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
  // An error that ranks find while they compare data with each other is no rank's own error.
  const bool in_exchange = num_steps_ > 0 && !newest().ended && newest().step.op == "exchange";
  const bool is_cause = !in_exchange && dynamic_cast<const TransportError*>(&error) == nullptr;
  const auto unix_now = std::chrono::system_clock::now();
  const Clock::time_point now = Clock::now();
  const auto us_of = [&](Clock::time_point time) {
    return unix_us(unix_now -
                   std::chrono::duration_cast<std::chrono::system_clock::duration>(now - time));
  };
  FlightRecord record = begun_record(plan, error);
  record.rank = transport_.rank();
  record.num_ranks = transport_.size();
  record.transport = transport_.name();
  record.is_cause = is_cause;
  record.failed_us = us_of(now);
  record.num_steps = num_steps_;
  record.transfers = transfers();
  record.silent = transport_.silent_ranks();
  const std::size_t oldest =
      entries_.size() < kCapacity ? 0 : static_cast<std::size_t>(num_steps_) % kCapacity;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[(oldest + i) % entries_.size()];
    const RecordedStep& step = entry.step;
    record.steps.push_back({std::string(step.op), step.call, step.direction,
                            static_cast<std::int32_t>(step.mask),
                            static_cast<std::int32_t>(step.round), step.instruction, step.ticket,
                            us_of(entry.began), entry.ended ? us_of(*entry.ended) : -1});
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

namespace {

// A record of a rank whose only step began at a time and has not ended.
FlightRecord waiting_record(const Plan* plan, std::string_view op,
                            std::chrono::system_clock::time_point began,
                            const std::exception& error) {
  FlightRecord record = begun_record(plan, error);
  record.failed_us = unix_us(std::chrono::system_clock::now());
  record.num_steps = 1;
  FlightStep& step = record.steps.emplace_back();
  step.op = op;
  step.began_us = unix_us(began);
  return record;
}

}  // namespace

FlightRecord rendezvous_record(Rank rank, std::string_view transport, const Plan& plan,
                               std::chrono::system_clock::time_point began,
                               const std::exception& error) {
  FlightRecord record = waiting_record(&plan, "rendezvous", began, error);
  record.rank = rank;
  record.num_ranks = plan.num_devices();
  record.transport = transport;
  return record;
}

FlightRecord exchange_record(const Transport& transport,
                             std::chrono::system_clock::time_point began,
                             const std::exception& error) {
  FlightRecord record = waiting_record(nullptr, "exchange", began, error);
  record.rank = transport.rank();
  record.num_ranks = transport.size();
  record.transport = transport.name();
  for (const OpenTransfer& open : transport.open_transfers()) {
    record.transfers.push_back({open.ticket, open.peer, open.is_send, open.size_bytes, {}, 0});
  }
  record.silent = transport.silent_ranks();
  return record;
}

}  // namespace contextile
