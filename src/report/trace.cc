#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/plan.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "report/wait_text.h"

namespace contextile {
namespace {

constexpr std::int32_t kComputeRow = 0;
constexpr std::int32_t kSendRow = 1;
// Rows of received messages follow as many rows of sent messages as a viewer can show.
constexpr std::int32_t kReceiveRow = 1'000'000;

// Spans are placed on whole nanoseconds: spans that do not overlap before rounding do not after it.
std::int64_t to_ns(double us) { return std::llround(us * 1e3); }

// Nanoseconds as the microseconds of trace events.
std::string us_text(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

std::string json_text(std::string_view text) {
  return with_escaped_controls(
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

struct Span {
  std::int32_t process = 0;
  std::int32_t row = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

// Writes events one per line.
class TraceFile {
 public:
  explicit TraceFile(std::ostream& out) : out_(out) {
    out_ << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  }

  // `args` is a JSON object.
  void span(const Span& span, std::string_view category, std::string_view name,
            std::string_view args) {
    event(fmt::format(
        R"({{"ph": "X", "pid": {}, "tid": {}, "ts": {}, "dur": {}, "cat": "{}", "name": {}, "args": {}}})",
        span.process, span.row, us_text(span.start_ns), us_text(span.end_ns - span.start_ns),
        category, json_text(name), args));
  }

  // Draws an arrow from the start of one span to the start of another.
  void arrow(const Span& from, const Span& to) {
    const std::int64_t id = next_arrow_++;
    for (const auto& [phase, span] : {std::pair("s", from), std::pair("f", to)}) {
      event(fmt::format(
          R"({{"ph": "{}", "bp": "e", "id": {}, "pid": {}, "tid": {}, "ts": {}, "cat": "message", "name": "message"}})",
          phase, id, span.process, span.row, us_text(span.start_ns)));
    }
  }

  void name_process(std::int32_t process, std::string_view name, std::int32_t place) {
    metadata("process_name", process, 0, fmt::format(R"({{"name": {}}})", json_text(name)));
    metadata("process_sort_index", process, 0, fmt::format(R"({{"sort_index": {}}})", place));
  }

  void name_row(std::int32_t process, std::int32_t row, std::string_view name) {
    metadata("thread_name", process, row, fmt::format(R"({{"name": {}}})", json_text(name)));
    metadata("thread_sort_index", process, row, fmt::format(R"({{"sort_index": {}}})", row));
  }

  void finish() { out_ << "\n]}\n"; }

 private:
  void metadata(std::string_view name, std::int32_t process, std::int32_t row,
                std::string_view args) {
    event(fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "{}", "args": {}}})", process,
                      row, name, args));
  }

  void event(std::string_view text) {
    out_ << (is_first_ ? "\n" : ",\n") << text;
    is_first_ = false;
  }

  std::ostream& out_;
  bool is_first_ = true;
  std::int64_t next_arrow_ = 0;
};

// Rows of spans that may overlap: each goes to the first row that is free.
class Rows {
 public:
  std::int32_t place(std::int64_t start_ns, std::int64_t end_ns) {
    const auto row = std::ranges::find_if(ends_, [&](std::int64_t end) { return end <= start_ns; });
    if (row == ends_.end()) {
      ends_.push_back(end_ns);
      return static_cast<std::int32_t>(ends_.size()) - 1;
    }
    *row = end_ns;
    return static_cast<std::int32_t>(row - ends_.begin());
  }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()); }

 private:
  std::vector<std::int64_t> ends_;  // of each row's last span
};

// Units of the transfers with one peer, by kind.
using UnitCounts = std::array<std::int64_t, kNumKinds>;

std::string units_text(const UnitCounts& units) {
  std::string text;
  for (std::size_t k = 0; k < units.size(); ++k) {
    if (units[k] == 0) continue;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", units[k], to_string(static_cast<Kind>(k)));
  }
  return text;
}

std::int64_t num_pairs(const AttentionOp& op) {
  std::int64_t pairs = 0;
  for (const TileOp& tile : op.tiles) pairs += tile.pairs;
  return pairs;
}

class TraceWriter {
 public:
  TraceWriter(const Plan& plan, const Cluster& cluster, std::ostream& out)
      : plan_(plan),
        cluster_(cluster),
        file_(out),
        sends_(static_cast<std::size_t>(plan.num_devices())),
        receives_(sends_.size()) {}

  void write(const Simulation& simulation) {
    for (const auto& [direction, simulated] : simulation.directions()) {
      const std::vector<PathStep> path = critical_path(*simulated);
      const double begin_us = offset_us_;
      for (std::size_t p = 0; p < simulated->programs.size(); ++p) {
        const SimulatedProgram& program = simulated->programs[p];
        find_critical(path, p, program);
        write_program(direction, program);
        write_path(direction, path, p, program, begin_us);
        offset_us_ += program.time_us;
      }
    }
    name_rows();
    file_.finish();
  }

 private:
  [[nodiscard]] const PlanRound& round_of(const SimulatedProgram& simulated) const {
    return plan_.rounds[static_cast<std::size_t>(simulated.round)];
  }

  [[nodiscard]] const Program& program_of(Direction direction, const SimulatedProgram& simulated,
                                          Rank rank) const {
    const DeviceProgram& device = round_of(simulated).devices[rank.index()];
    return *device.programs[static_cast<std::size_t>(simulated.mask)].of(direction);
  }

  [[nodiscard]] Span span_of(std::int32_t process, std::int32_t row, double start_us,
                             double end_us) const {
    return {process, row, to_ns(offset_us_ + start_us), to_ns(offset_us_ + end_us)};
  }

  void write_program(Direction direction, const SimulatedProgram& simulated) {
    const NamedMask& mask = round_of(simulated).masks[static_cast<std::size_t>(simulated.mask)];
    file_.span(span_of(plan_.num_devices(), kComputeRow, 0, simulated.time_us), "program",
               fmt::format("{}: {}, round {}", to_string(direction), mask.name, simulated.round),
               fmt::format(R"({{"layers": {}}})", mask.layers));
    const WaitTexts texts(plan_, cluster_, direction, simulated);
    const std::vector<WaitReason> reasons = wait_reasons(simulated, cluster_);
    std::size_t next_wait = 0;
    for (std::size_t a = 0; a < simulated.activities.size(); ++a) {
      const ActivitySpan& activity = simulated.activities[a];
      std::string more(critical_text(critical_activities_[a]));
      if (activity.activity == Activity::kExposed)
        more += waits_for(texts.of(reasons[next_wait++]));
      write_activity(program_of(direction, simulated, activity.device), activity, direction,
                     round_of(simulated), more);
    }
    write_messages(direction, simulated);
  }

  // Marks the parts of the program that the path goes through.
  void find_critical(const std::vector<PathStep>& path, std::size_t p,
                     const SimulatedProgram& program) {
    critical_activities_.assign(program.activities.size(), false);
    critical_messages_.clear();
    for (const PathStep& step : path) {
      if (static_cast<std::size_t>(step.program) != p) continue;
      if (step.activity >= 0) critical_activities_[static_cast<std::size_t>(step.activity)] = true;
      if (step.message >= 0) {
        critical_messages_.insert(&program.messages[static_cast<std::size_t>(step.message)]);
      }
    }
  }

  static std::string_view critical_text(bool is_critical) {
    return is_critical ? R"(, "critical": true)" : "";
  }

  static std::string waits_for(const WaitText& text) {
    return fmt::format(
        R"(, "waits_for": {{"message": {}, "link": {}, "peer": {}, "peer_was": {}}})",
        json_text(text.message), json_text(text.link), json_text(text.peer),
        json_text(text.peer_was));
  }

  // Writes the critical path in a row of its own.
  void write_path(Direction direction, const std::vector<PathStep>& path, std::size_t p,
                  const SimulatedProgram& program, double begin_us) {
    for (const PathStep& step : path) {
      if (static_cast<std::size_t>(step.program) != p || step.kind == StepKind::kBarrier) continue;
      std::string name = fmt::format("{}, device {}", to_string(step.kind), step.device.value);
      std::string args = fmt::format(R"({{"direction": "{}", "device": {})", to_string(direction),
                                     step.device.value);
      if (step.message >= 0) {
        const MessageSpan& message = program.messages[static_cast<std::size_t>(step.message)];
        name =
            fmt::format("{}, {} to {}", to_string(step.kind), message.src.value, message.dst.value);
        args += fmt::format(R"(, "sender": {}, "bytes": {}, "link": {})", message.src.value,
                            message.bytes, json_text(port_text(cluster_, message.bound_by)));
      } else {
        const ActivitySpan& activity = program.activities[static_cast<std::size_t>(step.activity)];
        args += fmt::format(R"(, "instruction": {})", activity.instruction);
      }
      file_.span({path_process(), kComputeRow, to_ns(begin_us + step.start_us),
                  to_ns(begin_us + step.end_us)},
                 "critical_path", name, args + "}");
    }
  }

  [[nodiscard]] std::int32_t path_process() const { return plan_.num_devices() + 1; }

  void write_activity(const Program& program, const ActivitySpan& activity, Direction direction,
                      const PlanRound& round, std::string_view more_args) {
    const Instruction& instruction =
        program.instructions[static_cast<std::size_t>(activity.instruction)];
    const bool waits_for_host =
        activity.activity == Activity::kLaunch && !std::holds_alternative<LaunchOp>(instruction);
    const bool merges =
        activity.activity == Activity::kMerge && std::holds_alternative<AttentionOp>(instruction);
    if (waits_for_host || merges) {
      file_.span(span_of(activity.device.value, kComputeRow, activity.start_us, activity.end_us),
                 to_string(activity.activity), merges ? "merge" : "host",
                 fmt::format(R"({{"instruction": {}{}}})", activity.instruction, more_args));
      return;
    }
    std::string name(op_name(instruction));
    std::string args = fmt::format(R"({{"instruction": {})", activity.instruction);
    const double seconds = (activity.end_us - activity.start_us) * 1e-6;
    if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
      const std::int64_t pairs = num_pairs(*attention);
      const double flops = attention_flops(*attention, direction, plan_.shape, round);
      args += fmt::format(R"(, "tiles": {}, "pairs": {}, "gflops": {:.6g}, "tflops_per_s": {:.6g})",
                          attention->tiles.size(), pairs, flops * 1e-9, flops / seconds * 1e-12);
    } else if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
      name += fmt::format(" {}", to_string(reduce->kind));
      args += fmt::format(R"(, "block": {}, "group": {}, "sources": {})", reduce->block.value,
                          reduce->group.value, reduce->srcs.size());
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      name += fmt::format(" {}", to_string(copy->kind));
      args += fmt::format(R"(, "block": {}, "group": {})", copy->block.value, copy->group.value);
    } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      name += fmt::format(" {}", launch->id);
      args += fmt::format(R"(, "sent_units": {}, "received_units": {})", launch->sends.size(),
                          launch->recvs.size());
    } else {
      name += fmt::format(" {}", std::get<WaitOp>(instruction).id);
    }
    file_.span(span_of(activity.device.value, kComputeRow, activity.start_us, activity.end_us),
               to_string(activity.activity), name, args + std::string(more_args) + "}");
  }

  void write_messages(Direction direction, const SimulatedProgram& simulated) {
    // Places the messages in the order of their start, so that a new row is needed only if all are
    // busy.
    std::vector<const MessageSpan*> messages;
    for (const MessageSpan& message : simulated.messages) messages.push_back(&message);
    std::stable_sort(
        messages.begin(), messages.end(),
        [](const MessageSpan* a, const MessageSpan* b) { return a->start_us < b->start_us; });
    std::unordered_map<std::int64_t, UnitCounts> units = sent_units(direction, simulated);
    for (const MessageSpan* message : messages) {
      write_message(*message, units[key_of(message->src, message->dst, message->src_launch)]);
    }
  }

  void write_message(const MessageSpan& message, const UnitCounts& units) {
    Span send = span_of(message.src.value, 0, message.start_us, message.end_us);
    Span receive = send;
    receive.process = message.dst.value;
    send.row = kSendRow + sends_[message.src.index()].place(send.start_ns, send.end_ns);
    receive.row =
        kReceiveRow + receives_[message.dst.index()].place(receive.start_ns, receive.end_ns);
    const std::string what = units_text(units);
    const double us = message.end_us - message.start_us;
    const std::string args = fmt::format(
        R"("bytes": {}, "gbytes_per_s": {:.6g}, "link": "{}", "units": {}, "sender_launch": {}, "receiver_launch": {}{}}})",
        message.bytes, us > 0 ? static_cast<double>(message.bytes) / us * 1e-3 : 0,
        plan_.node_of(message.src) == plan_.node_of(message.dst) ? "intra" : "inter",
        json_text(what), message.src_launch, message.dst_launch,
        critical_text(critical_messages_.contains(&message)));
    file_.span(send, "send", fmt::format("{} to {}", what, message.dst.value),
               fmt::format(R"({{"receiver": {}, {})", message.dst.value, args));
    file_.span(receive, "receive", fmt::format("{} from {}", what, message.src.value),
               fmt::format(R"({{"sender": {}, {})", message.src.value, args));
    file_.arrow(send, receive);
  }

  // The key of a launch's message: sender, receiver and the sender's launch.
  [[nodiscard]] std::int64_t key_of(Rank src, Rank dst, std::int32_t launch) const {
    const std::int64_t devices = plan_.num_devices();
    return (std::int64_t{launch} * devices + src.value) * devices + dst.value;
  }

  [[nodiscard]] std::unordered_map<std::int64_t, UnitCounts> sent_units(
      Direction direction, const SimulatedProgram& simulated) const {
    std::unordered_map<std::int64_t, UnitCounts> units;
    for (std::int32_t r = 0; r < plan_.num_devices(); ++r) {
      for (const Instruction& instruction :
           program_of(direction, simulated, Rank{r}).instructions) {
        const auto* launch = std::get_if<LaunchOp>(&instruction);
        if (launch == nullptr) continue;
        for (const TransferEnd& send : launch->sends) {
          ++units[key_of(Rank{r}, send.peer, launch->id)][static_cast<std::size_t>(send.kind)];
        }
      }
    }
    return units;
  }

  void name_rows() {
    file_.name_process(plan_.num_devices(), "plan: " + plan_.strategy, -1);
    file_.name_row(plan_.num_devices(), kComputeRow, "programs");
    file_.name_process(path_process(), "critical path", -1);
    file_.name_row(path_process(), kComputeRow, "critical path");
    for (std::int32_t r = 0; r < plan_.num_devices(); ++r) {
      file_.name_process(r, fmt::format("device {} (node {})", r, plan_.node_of(Rank{r})), r);
      file_.name_row(r, kComputeRow, "compute");
      name_message_rows(r, kSendRow, sends_[Rank{r}.index()].size(), "send");
      name_message_rows(r, kReceiveRow, receives_[Rank{r}.index()].size(), "receive");
    }
  }

  void name_message_rows(std::int32_t process, std::int32_t first, std::int32_t rows,
                         std::string_view name) {
    for (std::int32_t i = 0; i < rows; ++i) {
      file_.name_row(process, first + i,
                     i == 0 ? std::string(name) : fmt::format("{} {}", name, i + 1));
    }
  }

  const Plan& plan_;
  const Cluster& cluster_;
  TraceFile file_;
  double offset_us_ = 0;     // of the program at hand
  std::vector<Rows> sends_;  // by device
  std::vector<Rows> receives_;
  std::vector<bool> critical_activities_;  // of the program at hand, as its activities
  std::unordered_set<const MessageSpan*> critical_messages_;
};

void check_timeline(const Plan& plan, const SimulatedDirection& simulated) {
  const auto devices = static_cast<std::size_t>(plan.num_devices());
  CONTEXTILE_CHECK(simulated.devices.size() == devices,
                   "trace: expected a simulation of {} devices, as the plan's, found one of {}",
                   devices, simulated.devices.size());
  for (const SimulatedProgram& program : simulated.programs) {
    CONTEXTILE_CHECK(program.time_us == 0 || !program.activities.empty(),
                     "trace: expected a simulation with a timeline (SimulateOptions::timeline), "
                     "found none");
  }
}

}  // namespace

void write_trace(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
                 std::ostream& out) {
  for (const auto& [direction, simulated] : simulation.directions()) {
    check_timeline(plan, *simulated);
  }
  TraceWriter(plan, cluster, out).write(simulation);
}

}  // namespace contextile
