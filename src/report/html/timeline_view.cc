#include "report/html/timeline_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "contextile/plan.h"
#include "report/html/timeline_why.h"
#include "report/html/varint_text.h"

namespace contextile {
namespace {

// Two of the kinds of spans, which are numbered in the order of Instruction.
constexpr std::int64_t kReduce = 1;
constexpr std::int64_t kLaunch = 3;
static_assert(std::is_same_v<std::variant_alternative_t<kReduce, Instruction>, ReduceOp>);
static_assert(std::is_same_v<std::variant_alternative_t<kLaunch, Instruction>, LaunchOp>);

// The kind of a span and its numbers.
struct SpanFacts {
  std::int64_t what = 0;
  std::array<std::int64_t, 3> numbers{};
};

SpanFacts facts_of(const Instruction& instruction, Direction direction, const AttentionShape& shape,
                   const PlanRound& round) {
  SpanFacts facts{static_cast<std::int64_t>(instruction.index()), {}};
  if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
    facts.numbers[0] = static_cast<std::int64_t>(attention->tiles.size());
    for (const TileOp& tile : attention->tiles) facts.numbers[1] += tile.pairs;
    facts.numbers[2] = std::llround(attention_flops(*attention, direction, shape, round) * 1e-6);
  } else if (const auto* reduce = std::get_if<ReduceOp>(&instruction)) {
    facts.numbers = {reduce->block.value, reduce->group.value, static_cast<int>(reduce->kind)};
  } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
    facts.numbers = {copy->block.value, copy->group.value, static_cast<int>(copy->kind)};
  } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
    facts.numbers = {launch->id, static_cast<std::int64_t>(launch->sends.size()),
                     static_cast<std::int64_t>(launch->recvs.size())};
  } else {
    facts.numbers[0] = std::get<WaitOp>(instruction).id;
  }
  return facts;
}

// Cuts a direction's time on every device into equal parts and keeps the share of each activity in
// each part.
template <std::size_t N>
class Bins {
 public:
  Bins(std::int32_t devices, std::int64_t bins, double time_us)
      : bins_(bins),
        bin_us_(time_us / static_cast<double>(bins)),
        shares_(static_cast<std::size_t>(devices * bins)) {}

  void add(Rank device, std::size_t what, double start_us, double end_us) {
    if (bin_us_ <= 0) return;
    const auto first = static_cast<std::int64_t>(start_us / bin_us_);
    for (std::int64_t b = first; b < bins_; ++b) {
      const double from = std::max(start_us, static_cast<double>(b) * bin_us_);
      const double to = std::min(end_us, static_cast<double>(b + 1) * bin_us_);
      if (to <= from) break;
      shares_[static_cast<std::size_t>(device.value * bins_ + b)][what] += (to - from) / bin_us_;
    }
  }

  [[nodiscard]] VarintText packed() const {
    VarintText packed;
    for (std::size_t i = 0; i < shares_.size();) {
      const std::size_t begin = i;
      while (i < shares_.size() && rounded(i) == rounded(begin)) ++i;
      packed.add(static_cast<std::int64_t>(i - begin));
      for (const double share : rounded(begin)) packed.add_fraction(share);
    }
    return packed;
  }

 private:
  [[nodiscard]] std::array<double, N> rounded(std::size_t bin) const {
    std::array<double, N> shares = shares_[bin];
    for (double& share : shares) share = std::round(100 * std::min(share, 1.0)) / 100;
    return shares;
  }

  std::int64_t bins_;
  double bin_us_;
  std::vector<std::array<double, N>> shares_;  // by device, then time
};

// One direction: its programs one after another.
class DirectionTimeline {
 public:
  DirectionTimeline(const Plan& plan, const Cluster& cluster, Direction direction,
                    const SimulatedDirection& simulated)
      : plan_(plan), cluster_(cluster), direction_(direction), simulated_(simulated) {}

  [[nodiscard]] ReportJson head() const {
    ReportJson programs = ReportJson::array();
    for_each_program([&](const SimulatedProgram& program, double offset_us) {
      const PlanRound& round = plan_.rounds[static_cast<std::size_t>(program.round)];
      std::string name = round.masks[static_cast<std::size_t>(program.mask)].name;
      if (plan_.rounds.size() > 1) name += fmt::format(", round {}", program.round);
      programs.push_back({{"name", std::move(name)},
                          {"start_us", six_digits(offset_us)},
                          {"end_us", six_digits(offset_us + program.time_us)}});
    });
    return {{"direction", to_string(direction_)},
            {"time_us", simulated_.time_us},
            {"programs", std::move(programs)}};
  }

  [[nodiscard]] VarintText spans() const {
    std::vector<std::vector<Placed>> of_device(static_cast<std::size_t>(plan_.num_devices()));
    for_each_program([&](const SimulatedProgram& program, double offset_us) {
      for (const ActivitySpan& span : program.activities) {
        if (timeline_ns(span.end_us - span.start_us) == 0) continue;
        of_device[span.device.index()].push_back({&program, &span, offset_us});
      }
    });
    VarintText packed;
    for (const std::vector<Placed>& spans : of_device) {
      packed.add(static_cast<std::int64_t>(spans.size()));
      std::int64_t last_ns = 0;
      for (const Placed& placed : spans) {
        const std::int64_t start_ns = timeline_ns(placed.offset_us + placed.span->start_us);
        const std::int64_t end_ns = timeline_ns(placed.offset_us + placed.span->end_us);
        const SpanFacts facts = facts_of_span(placed);
        packed.add_signed(start_ns - last_ns);
        packed.add(end_ns - start_ns);
        packed.add(facts.what);
        for (const std::int64_t number : facts.numbers) packed.add(number);
        last_ns = end_ns;
      }
    }
    return packed;
  }

  [[nodiscard]] VarintText messages() const {
    VarintText packed;
    std::int64_t last_ns = 0;
    for_each_program([&](const SimulatedProgram& program, double offset_us) {
      for (const MessageSpan& message : program.messages) {
        const std::int64_t start_ns = timeline_ns(offset_us + message.start_us);
        packed.add(message.src.value);
        packed.add(message.dst.value);
        packed.add(message.bytes);
        packed.add_signed(start_ns - last_ns);
        packed.add(timeline_ns(message.end_us - message.start_us));
        last_ns = start_ns;
      }
    });
    return packed;
  }

  [[nodiscard]] VarintText activity_bins(std::int64_t bins) const {
    Bins<4> shares(plan_.num_devices(), bins, simulated_.time_us);
    for_each_program([&](const SimulatedProgram& program, double offset_us) {
      for (const ActivitySpan& span : program.activities) {
        shares.add(span.device, static_cast<std::size_t>(span.activity), offset_us + span.start_us,
                   offset_us + span.end_us);
      }
    });
    return shares.packed();
  }

  // Messages that move at the same time on one device count once.
  [[nodiscard]] VarintText message_bins(std::int64_t bins) const {
    Bins<2> shares(plan_.num_devices(), bins, simulated_.time_us);
    for_each_program([&](const SimulatedProgram& program, double offset_us) {
      std::vector<const MessageSpan*> by_start;
      for (const MessageSpan& message : program.messages) by_start.push_back(&message);
      std::ranges::stable_sort(by_start, {}, &MessageSpan::start_us);
      std::vector<std::array<double, 2>> busy_until(static_cast<std::size_t>(plan_.num_devices()));
      for (const MessageSpan* message : by_start) {
        const std::array<Rank, 2> ends = {message->src, message->dst};
        for (std::size_t side = 0; side < ends.size(); ++side) {
          double& until = busy_until[ends[side].index()][side];
          const double start_us = std::max(until, message->start_us);
          if (message->end_us <= start_us) continue;
          shares.add(ends[side], side, offset_us + start_us, offset_us + message->end_us);
          until = message->end_us;
        }
      }
    });
    return shares.packed();
  }

  [[nodiscard]] VarintText path() const { return packed_path(simulated_); }
  [[nodiscard]] VarintText waits() const {
    return packed_waits(plan_, cluster_, direction_, simulated_);
  }

  [[nodiscard]] std::size_t num_spans() const {
    std::size_t spans = 0;
    for (const SimulatedProgram& program : simulated_.programs) spans += program.activities.size();
    return spans;
  }
  [[nodiscard]] std::size_t num_messages() const {
    std::size_t messages = 0;
    for (const SimulatedProgram& program : simulated_.programs) messages += program.messages.size();
    return messages;
  }

 private:
  struct Placed {
    const SimulatedProgram* program = nullptr;
    const ActivitySpan* span = nullptr;
    double offset_us = 0;
  };

  template <typename Visit>
  void for_each_program(const Visit& visit) const {
    double offset_us = 0;
    for (const SimulatedProgram& program : simulated_.programs) {
      visit(program, offset_us);
      offset_us += program.time_us;
    }
  }

  [[nodiscard]] const PlanRound& round_of(const Placed& placed) const {
    return plan_.rounds[static_cast<std::size_t>(placed.program->round)];
  }

  [[nodiscard]] SpanFacts facts_of_span(const Placed& placed) const {
    const Instruction& instruction = instruction_of(placed);
    // A merge apart from attention has no block of its own.
    if (placed.span->activity == Activity::kMerge &&
        std::holds_alternative<AttentionOp>(instruction)) {
      return {.what = kReduce};
    }
    // A device that waits for its host is shown as if it launched nothing.
    if (placed.span->activity == Activity::kLaunch &&
        !std::holds_alternative<LaunchOp>(instruction)) {
      return {.what = kLaunch};
    }
    return facts_of(instruction, direction_, plan_.shape, round_of(placed));
  }
  [[nodiscard]] const Instruction& instruction_of(const Placed& placed) const {
    const DeviceProgram& device = round_of(placed).devices[placed.span->device.index()];
    const ProgramPair& programs = device.programs[static_cast<std::size_t>(placed.program->mask)];
    return programs.of(direction_)
        ->instructions[static_cast<std::size_t>(placed.span->instruction)];
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const Direction direction_;
  const SimulatedDirection& simulated_;
};

constexpr std::int64_t kMostBins = 512;
constexpr std::int64_t kFewestBins = 16;
constexpr std::size_t kBytesOfSpan = 12;  // roughly; the same for a message

// The bins of every direction, as many as the budget allows.
struct PackedBins {
  std::int64_t bins = 0;
  std::vector<VarintText> directions;
};
template <typename PackBins>
PackedBins pack_bins(const std::vector<DirectionTimeline>& timelines, std::size_t budget_bytes,
                     const PackBins& pack) {
  PackedBins packed;
  for (packed.bins = kMostBins;; packed.bins /= 2) {
    std::size_t size = 0;
    packed.directions.clear();
    for (const DirectionTimeline& timeline : timelines) {
      packed.directions.push_back(pack(timeline, packed.bins));
      size += packed.directions.back().size();
    }
    if (size <= budget_bytes || packed.bins <= kFewestBins) return packed;
  }
}

std::string bins_note(std::size_t count, std::string_view what, std::string_view shown,
                      std::int64_t bins) {
  return fmt::format(
      "To keep the page small, {} {} are drawn as {} in {} equal parts of each direction's time.",
      grouped(static_cast<std::int64_t>(count)), what, shown, bins);
}

// Adds the text of every direction under a name, or a note if all take more than the budget.
template <typename Pack>
void add_if_small(const std::vector<DirectionTimeline>& timelines, std::string_view name,
                  std::string_view words, std::size_t budget_bytes, const Pack& pack,
                  TimelinePicture& picture) {
  std::vector<VarintText> packed;
  std::size_t size = 0;
  for (const DirectionTimeline& timeline : timelines) {
    packed.push_back(pack(timeline));
    size += packed.back().size();
  }
  if (size > budget_bytes) {
    picture.notes.push_back(
        fmt::format("To keep the page small, {} is left out; simulate --trace has it.", words));
    return;
  }
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    picture.json[i][std::string(name)] = packed[i].base64();
  }
}

}  // namespace

TimelinePicture timeline_picture(const Plan& plan, const Cluster& cluster,
                                 const Simulation& simulation, std::size_t budget_bytes) {
  std::vector<DirectionTimeline> timelines;
  for (const auto& [direction, simulated] : simulation.directions()) {
    timelines.emplace_back(plan, cluster, direction, *simulated);
  }
  TimelinePicture picture{ReportJson::array(), {}};
  std::size_t spans = 0;
  std::size_t messages = 0;
  for (const DirectionTimeline& timeline : timelines) {
    spans += timeline.num_spans();
    messages += timeline.num_messages();
    picture.json.push_back(timeline.head());
  }
  const auto add_bins = [&](const char* name, const PackedBins& packed) {
    for (std::size_t i = 0; i < timelines.size(); ++i) {
      picture.json[i][name] = {{"bins", packed.bins}, {"runs", packed.directions[i].base64()}};
    }
  };
  if (spans * kBytesOfSpan > budget_bytes) {
    const PackedBins packed = pack_bins(
        timelines, budget_bytes,
        [](const DirectionTimeline& t, std::int64_t bins) { return t.activity_bins(bins); });
    add_bins("activity_bins", packed);
    picture.notes.push_back(bins_note(spans, "spans", "shares of activities", packed.bins));
  }
  if (messages * kBytesOfSpan > budget_bytes) {
    const PackedBins packed = pack_bins(
        timelines, budget_bytes,
        [](const DirectionTimeline& t, std::int64_t bins) { return t.message_bins(bins); });
    add_bins("message_bins", packed);
    picture.notes.push_back(bins_note(
        messages, "messages", "the share of time that anything is sent or received", packed.bins));
  }
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    ReportJson& json = picture.json[i];
    if (!json.contains("activity_bins")) json["spans"] = timelines[i].spans().base64();
    if (!json.contains("message_bins")) json["messages"] = timelines[i].messages().base64();
  }
  add_if_small(
      timelines, "path", "the critical path", budget_bytes,
      [](const DirectionTimeline& timeline) { return timeline.path(); }, picture);
  if (spans * kBytesOfSpan <= budget_bytes) {
    add_if_small(
        timelines, "waits", "what every wait waits for", budget_bytes,
        [](const DirectionTimeline& timeline) { return timeline.waits(); }, picture);
  }
  return picture;
}

}  // namespace contextile
