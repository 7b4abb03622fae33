#include "plan/verify/messages.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

namespace contextile {
namespace {

// Walks one program after another and records launches, waits and message sides.
class SideCollector {
 public:
  SideCollector(const RoundFacts& facts, const PlanPlace& place, Findings& findings,
                MessagePlan& plan)
      : facts_(facts), place_(place), findings_(findings), plan_(plan) {}

  void collect(Rank rank, const Program& program) {
    rank_ = rank;
    launch_of_id_.clear();
    std::vector<LaunchEvent>& events = plan_.events.emplace_back();
    for (std::size_t n = 0; n < program.instructions.size(); ++n) {
      instruction_ = static_cast<std::int64_t>(n);
      if (const auto* launch = std::get_if<LaunchOp>(&program.instructions[n])) {
        events.push_back({false, add_launch(*launch), instruction_});
      } else if (const auto* wait = std::get_if<WaitOp>(&program.instructions[n])) {
        events.push_back({true, end_launch(*wait), instruction_});
      }
    }
    for (const auto& [id, open] : launch_of_id_) {
      if (open.waited) continue;
      findings_.violation(place_.at_rank(rank.value), "launch {} is never waited for", id);
    }
  }

 private:
  struct OpenLaunch {
    std::int32_t launch;
    bool waited = false;
  };

  PlanPlace here(std::string_view op) const {
    return place_.at_rank(rank_.value).at_instruction(instruction_, op);
  }

  std::int32_t add_launch(const LaunchOp& op) {
    const auto index = static_cast<std::int32_t>(plan_.launches.size());
    if (!launch_of_id_.try_emplace(op.id, OpenLaunch{index}).second) {
      findings_.violation(here("launch"), "launch id {} is used twice", op.id);
      return -1;
    }
    PlannedLaunch& launch = plan_.launches.emplace_back();
    launch.rank = rank_;
    launch.id = op.id;
    launch.instruction = instruction_;
    launch.first_side = static_cast<std::int32_t>(plan_.sides.size());
    add_sides(op.sends, index, true);
    add_sides(op.recvs, index, false);
    launch.last_side = static_cast<std::int32_t>(plan_.sides.size());
    return index;
  }

  std::int32_t end_launch(const WaitOp& op) {
    const auto open = launch_of_id_.find(op.id);
    if (open == launch_of_id_.end() || open->second.waited) {
      findings_.violation(here("wait"), "no launch {} is under way", op.id);
      return -1;
    }
    open->second.waited = true;
    return open->second.launch;
  }

  void add_sides(const std::vector<TransferEnd>& ends, std::int32_t launch, bool is_send) {
    const std::size_t first = plan_.units.size();
    for (const TransferEnd& end : ends) {
      if (end.peer == rank_) {
        findings_.violation(here("launch"), "peer {} is itself", end.peer.value);
      } else if (!end.peer.valid() || end.peer.value >= facts_.num_ranks()) {
        findings_.violation(here("launch"), "peer {} is no rank of {}", end.peer.value,
                            facts_.num_ranks());
      } else {
        plan_.units.push_back(&end);
      }
    }
    // All units for one peer are one message: sort them together, in the order of the launch.
    const auto peer_of = [](const TransferEnd* end) { return end->peer; };
    const auto units = std::span(plan_.units).subspan(first);
    if (!std::ranges::is_sorted(units, {}, peer_of)) std::ranges::stable_sort(units, {}, peer_of);
    for (std::size_t n = first; n < plan_.units.size(); ++n) {
      const Rank peer = plan_.units[n]->peer;
      if (n == first || plan_.units[n - 1]->peer != peer) {
        plan_.sides.push_back(
            {.launch = launch, .rank = rank_, .peer = peer, .is_send = is_send, .first = n});
      }
      ++plan_.sides.back().count;
    }
  }

  const RoundFacts& facts_;
  const PlanPlace& place_;
  Findings& findings_;
  MessagePlan& plan_;
  Rank rank_;
  std::int64_t instruction_ = 0;
  std::map<std::int32_t, OpenLaunch> launch_of_id_;
};

// (source, destination) of a side.
std::pair<Rank, Rank> route(const MessageSide& side) {
  return side.is_send ? std::pair(side.rank, side.peer) : std::pair(side.peer, side.rank);
}

// Returns the sides by source, then destination: the sends of a route, then its receives, each in
// program order. It sorts by counting, first by destination and then by source, because sides are
// many and ranks are few.
std::vector<std::int32_t> order_by_route(const MessagePlan& plan) {
  struct Item {
    std::int32_t side = 0;
    Rank src;
  };
  const std::size_t num_ranks = plan.events.size();
  const auto by_dst = [](const MessageSide& side) {
    return 2 * route(side).second.index() + (side.is_send ? 0 : 1);
  };
  std::vector<std::size_t> next_of_dst(2 * num_ranks + 1);
  std::vector<std::size_t> next_of_src(num_ranks + 1);
  for (const MessageSide& side : plan.sides) {
    ++next_of_dst[by_dst(side) + 1];
    ++next_of_src[route(side).first.index() + 1];
  }
  std::partial_sum(next_of_dst.begin(), next_of_dst.end(), next_of_dst.begin());
  std::partial_sum(next_of_src.begin(), next_of_src.end(), next_of_src.begin());
  std::vector<Item> items(plan.sides.size());
  for (std::size_t n = 0; n < plan.sides.size(); ++n) {
    const MessageSide& side = plan.sides[n];
    items[next_of_dst[by_dst(side)]++] = {static_cast<std::int32_t>(n), route(side).first};
  }
  std::vector<std::int32_t> order(items.size());
  for (const Item& item : items) order[next_of_src[item.src.index()]++] = item.side;
  return order;
}

// Pairs the n-th message sent with the n-th expected on every route.
void pair_sides(MessagePlan& plan) {
  const std::vector<std::int32_t> order = order_by_route(plan);
  const auto side = [&](std::int32_t n) -> MessageSide& {
    return plan.sides[static_cast<std::size_t>(n)];
  };
  for (std::size_t begin = 0; begin < order.size();) {
    const auto [src, dst] = route(side(order[begin]));
    std::size_t middle = begin;
    while (middle < order.size() && side(order[middle]).is_send &&
           route(side(order[middle])) == std::pair(src, dst)) {
      ++middle;
    }
    std::size_t end = middle;
    while (end < order.size() && !side(order[end]).is_send &&
           route(side(order[end])) == std::pair(src, dst)) {
      ++end;
    }
    // [begin, middle) are the sends, [middle, end) the receives; a surplus has no partner.
    for (std::size_t n = 0; n < std::max(middle - begin, end - middle); ++n) {
      const auto message = static_cast<std::int32_t>(plan.messages.size());
      plan.messages.push_back({.src = src, .dst = dst, .number = static_cast<std::int64_t>(n)});
      if (begin + n < middle) {
        plan.messages.back().sent = order[begin + n];
        side(order[begin + n]).message = message;
      }
      if (middle + n < end) {
        plan.messages.back().expected = order[middle + n];
        side(order[middle + n]).message = message;
      }
    }
    begin = end;
  }
}

std::string text_of(std::span<const TransferEnd* const> units, std::size_t n) {
  if (n >= units.size()) return "nothing";
  const TransferEnd& unit = *units[n];
  return fmt::format("{} of block {} group {} in {}", to_string(unit.kind), unit.block.value,
                     unit.group.value, to_string(unit.wire));
}

// Reports a message without a partner, or the first unit in which its two sides differ.
void compare_sides(const MessagePlan& plan, PlannedMessage& message, const PlanPlace& place,
                   Findings& findings) {
  if (message.sent < 0 || message.expected < 0) {
    const MessageSide& side =
        plan.sides[static_cast<std::size_t>(std::max(message.sent, message.expected))];
    const PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(side.launch)];
    findings.cause(place.at_rank(side.rank.value).at_instruction(launch.instruction, "launch"),
                   "message {} from {} to {} has no partner: it is never {}", message.number,
                   message.src.value, message.dst.value, side.is_send ? "expected" : "sent");
    return;
  }
  const MessageSide& to = plan.sides[static_cast<std::size_t>(message.expected)];
  const auto sent = plan.units_of(plan.sides[static_cast<std::size_t>(message.sent)]);
  const auto expected = plan.units_of(to);
  std::size_t n = 0;
  while (n < sent.size() && n < expected.size() && same_transfer(*sent[n], *expected[n])) ++n;
  message.agreed = n == sent.size() && n == expected.size();
  if (message.agreed) return;
  const PlannedLaunch& launch = plan.launches[static_cast<std::size_t>(to.launch)];
  findings.cause(place.at_rank(to.rank.value).at_instruction(launch.instruction, "launch"),
                 "message {} from {}: unit {} of {} is sent as {}, expected as {} of {}",
                 message.number, message.src.value, n, sent.size(), text_of(sent, n),
                 text_of(expected, n), expected.size());
}

// One device in the grouped model: launches run in the order they were issued, one at a time.
struct Lane {
  std::size_t next_event = 0;
  std::int32_t running = 0;  // first launch that has not ended
  std::int32_t issued = 0;   // launches before this one were issued
  bool started = false;      // `running` has begun
};

// Runs the launches of all devices in the grouped model until no device can move.
class GroupedRun {
 public:
  explicit GroupedRun(const MessagePlan& plan)
      : plan_(plan),
        lanes_(plan.events.size()),
        waiting_sides_(plan.launches.size()),
        half_started_(plan.messages.size()) {
    std::int32_t first = 0;
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      lanes_[r].running = lanes_[r].issued = first;
      for (const LaunchEvent& event : plan.events[r]) first += !event.is_wait && event.launch >= 0;
    }
    for (std::size_t n = 0; n < plan.launches.size(); ++n) {
      waiting_sides_[n] = plan.launches[n].last_side - plan.launches[n].first_side;
    }
  }

  std::vector<std::int32_t> run() {
    for (std::size_t r = 0; r < lanes_.size(); ++r) awake_.push_back(r);
    while (!awake_.empty()) {
      const std::size_t rank = awake_.back();
      awake_.pop_back();
      advance(rank);
    }
    std::vector<std::int32_t> stuck;
    for (const Lane& lane : lanes_) {
      if (lane.running < lane.issued) stuck.push_back(lane.running);
    }
    return stuck;
  }

 private:
  // Issues launches up to a wait for one that has not ended, and ends those whose messages have all
  // begun on both sides.
  void advance(std::size_t rank) {
    Lane& lane = lanes_[rank];
    const std::vector<LaunchEvent>& events = plan_.events[rank];
    while (true) {
      for (; lane.next_event < events.size(); ++lane.next_event) {
        const LaunchEvent& event = events[lane.next_event];
        if (event.launch < 0) continue;
        if (event.is_wait && event.launch >= lane.running) break;
        if (!event.is_wait) ++lane.issued;
      }
      if (lane.running == lane.issued) return;
      if (!lane.started) start(lane);
      if (waiting_sides_[static_cast<std::size_t>(lane.running)] > 0) return;
      ++lane.running;
      lane.started = false;
    }
  }

  void start(Lane& lane) {
    lane.started = true;
    for (const MessageSide& side :
         plan_.sides_of(plan_.launches[static_cast<std::size_t>(lane.running)])) {
      const auto message = static_cast<std::size_t>(side.message);
      if (!half_started_[message]) {
        half_started_[message] = true;
        continue;
      }
      // This is the second side to begin: the message no longer holds up either launch.
      const PlannedMessage& both = plan_.messages[message];
      const std::int32_t other =
          both.sent == &side - plan_.sides.data() ? both.expected : both.sent;
      const MessageSide& partner = plan_.sides[static_cast<std::size_t>(other)];
      --waiting_sides_[static_cast<std::size_t>(side.launch)];
      --waiting_sides_[static_cast<std::size_t>(partner.launch)];
      awake_.push_back(partner.rank.index());
    }
  }

  const MessagePlan& plan_;
  std::vector<Lane> lanes_;
  std::vector<std::int32_t> waiting_sides_;  // of each launch: sides whose partner has not started
  std::vector<bool> half_started_;           // of each message
  std::vector<std::size_t> awake_;           // ranks that may move
};

}  // namespace

bool same_transfer(const TransferEnd& a, const TransferEnd& b) {
  return a.kind == b.kind && a.block == b.block && a.group == b.group && a.wire == b.wire;
}

MessagePlan match_messages(const RoundFacts& facts, const DirectionPrograms& programs,
                           const PlanPlace& place, Findings& findings) {
  MessagePlan plan;
  SideCollector collector(facts, place, findings, plan);
  for (std::size_t r = 0; r < programs.size(); ++r) {
    collector.collect(Rank{static_cast<std::int32_t>(r)}, *programs[r]);
  }
  pair_sides(plan);
  for (PlannedMessage& message : plan.messages) {
    compare_sides(plan, message, place, findings);
  }
  return plan;
}

std::vector<std::int32_t> stuck_grouped_launches(const MessagePlan& plan) {
  return GroupedRun(plan).run();
}

}  // namespace contextile
