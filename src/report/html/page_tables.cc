#include "report/html/page_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "report/html/traffic_view.h"

namespace contextile {
namespace {

bool has_direction(ReportSubjects subjects, Direction direction) {
  return std::ranges::any_of(subjects, [&](const ReportSubject& subject) {
    return subject.stats_of(direction) && subject.simulated(direction);
  });
}

// ------------------------------------------------------------------------------- facts

std::string options_text(const Plan& plan) {
  std::string text;
  for (const auto& [key, value] : plan.options) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", key, value);
  }
  return text.empty() ? "none" : text;
}

std::string batch_text(const Plan& plan) {
  std::int64_t longest = 0;
  std::int64_t shortest = plan.num_tokens();
  for (const Range& sequence : plan.sequences) {
    longest = std::max(longest, sequence.size());
    shortest = std::min(shortest, sequence.size());
  }
  const auto documents = static_cast<std::int64_t>(plan.sequences.size());
  std::string text = counted(plan.num_tokens(), "token") + " in " + counted(documents, "document");
  if (documents > 1) {
    text += fmt::format(
        " of {} to {}, mean {}", grouped(shortest), grouped(longest),
        four_digits(static_cast<double>(plan.num_tokens()) / static_cast<double>(documents)));
  }
  return text;
}

std::string masks_text(const Plan& plan) {
  std::string text;
  for (std::size_t m = 0; m < plan.rounds.front().masks.size(); ++m) {
    const NamedMask& mask = plan.rounds.front().masks[m];
    std::int64_t bands = 0;
    for (const PlanRound& round : plan.rounds) {
      bands += static_cast<std::int64_t>(round.masks[m].mask.bands.size());
    }
    text += fmt::format("{}{} ({}, {})", text.empty() ? "" : "; ", mask.name,
                        counted(mask.layers, "layer"), counted(bands, "band"));
  }
  return text;
}

std::string shape_text(const Plan& plan) {
  const AttentionShape& shape = plan.shape;
  std::string text = fmt::format("{} query heads, {} KV heads of {}", shape.q_heads, shape.kv_heads,
                                 shape.head_dim);
  if (shape.value_dim != shape.head_dim) text += fmt::format(" (values {})", shape.value_dim);
  text += fmt::format(", {}, partial results as {}", to_string(shape.dtype),
                      to_string(plan.partial_wire));
  if (shape.softcap > 0) text += fmt::format(", softcap {}", shape.softcap);
  if (shape.sink) text += ", sink logits";
  return text;
}

std::string blocks_text(const Plan& plan) {
  std::int64_t blocks = 0;
  std::int32_t groups = 1;
  for (const PlanRound& round : plan.rounds) {
    blocks += round.blocks.num_blocks();
    groups = std::max(groups, round.head_groups);
  }
  return fmt::format("{}, {}, {}", counted(blocks, "block"), counted(groups, "head group"),
                     counted(static_cast<std::int64_t>(plan.rounds.size()), "round"));
}

std::string cluster_text(const ReportSubject& subject) {
  const Plan& plan = subject.reported.plan;
  const Cluster& cluster = subject.reported.cluster;
  std::string text =
      fmt::format("{}, {} of {} = {}", plan.cluster_name, counted(plan.nodes, "node"),
                  plan.devices_per_node, counted(plan.num_devices(), "device"));
  if (cluster.name != plan.cluster_name) text += fmt::format("; times are of {}", cluster.name);
  return text;
}

std::string ports_text(const ReportSubject& subject) {
  const Cluster& cluster = subject.reported.cluster;
  return fmt::format(
      "{} GB/s a device inside a node, {} GB/s a node outside, {} TFLOP/s of attention a device",
      four_digits(cluster.intra_gbytes_per_s), four_digits(cluster.inter_gbytes_per_s_per_node),
      four_digits(cluster.attention_tflops));
}

std::string tokens_text(const ReportSubject& subject) {
  const Plan& plan = subject.reported.plan;
  std::int64_t most = 0;
  std::int64_t least = plan.num_tokens();
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    std::int64_t owned = 0;
    for (const PlanRound& round : plan.rounds) owned += round.owned_tokens(Rank{r});
    most = std::max(most, owned);
    least = std::min(least, owned);
  }
  return fmt::format("{} to {} a device, imbalance {}", grouped(least), grouped(most),
                     percent_text(subject.stats.token_imbalance));
}

std::string verified_text(const VerifyReport& verified) {
  std::string text =
      fmt::format("{}, {}", verified.ok() ? "valid" : "BROKEN",
                  counted(static_cast<std::int64_t>(verified.warnings.size()), "warning"));
  for (const Direction direction : kDirections) {
    const DataMovement& movement = verified.movement[static_cast<std::size_t>(direction)];
    if (movement.redundant_transfers == 0) continue;
    text +=
        fmt::format("; {}: {} of {} carry data that nothing reads ({})", to_string(direction),
                    grouped(movement.redundant_transfers), counted(movement.transfers, "transfer"),
                    bytes_text(static_cast<double>(movement.redundant_bytes)));
  }
  if (!verified.grouped_launches_ok) text += "; grouped launches would deadlock";
  return text;
}

// -------------------------------------------------------------------- quantities by direction

// A number of a plan's direction: its exact value and how it reads.
struct Quantity {
  double value = 0;
  std::string html;
};
using QuantityOf = std::function<Quantity(const ReportSubject&, Direction)>;

Quantity whole(std::int64_t value) {
  return {static_cast<double>(value), data_html(value, grouped(value))};
}
Quantity in_bytes(std::int64_t value) {
  const auto bytes = static_cast<double>(value);
  return {bytes, data_html(value, bytes_text(bytes))};
}
Quantity in_us(double us) { return {us, data_html(us, time_text(us))}; }
Quantity in_percent(double share) { return {share, data_html(share, percent_text(share))}; }
Quantity in_words(std::string_view words) { return {0, html_text(words)}; }

// A table with a column for every direction and plan.
class QuantityTable {
 public:
  QuantityTable(ReportSubjects subjects, std::string_view caption) : subjects_(subjects) {
    html_ = fmt::format(
        "<div class=\"scroll\"><table class=\"numbers\"><caption>{}</caption><thead>", caption);
    for (const Direction direction : kDirections) {
      if (has_direction(subjects, direction)) directions_.push_back(direction);
    }
    const bool two = subjects.size() == 2;
    html_ += fmt::format("<tr><td{}></td>", two ? " rowspan=\"2\"" : "");
    for (const Direction direction : directions_) {
      html_ += fmt::format("<th scope=\"colgroup\"{}>{}</th>", two ? " colspan=\"3\"" : "",
                           to_string(direction));
    }
    html_ += "</tr>";
    if (two) {
      html_ += "<tr>";
      for (std::size_t d = 0; d < directions_.size(); ++d) {
        html_ += fmt::format(
            "<th scope=\"col\">{}</th><th scope=\"col\">{}</th>"
            "<th scope=\"col\" class=\"ratio\">B / A</th>",
            html_text(short_name(subjects, 0)), html_text(short_name(subjects, 1)));
      }
      html_ += "</tr>";
    }
    html_ += "</thead><tbody>";
  }

  void row(std::string_view name, const QuantityOf& quantity_of) {
    html_ += fmt::format("<tr><th scope=\"row\">{}</th>", name);
    for (const Direction direction : directions_) {
      std::vector<Quantity> quantities;
      for (const ReportSubject& subject : subjects_) {
        const bool there = subject.stats_of(direction) && subject.simulated(direction);
        quantities.push_back(there ? quantity_of(subject, direction) : Quantity{0, "–"});
        html_ += fmt::format("<td>{}</td>", quantities.back().html);
      }
      if (quantities.size() < 2) continue;
      const bool comparable = quantities[0].value > 0 && quantities[1].value > 0;
      html_ += fmt::format(
          "<td class=\"ratio\">{}</td>",
          comparable ? fmt::format("{:.2f}", quantities[1].value / quantities[0].value) : "");
    }
    html_ += "</tr>";
  }

  [[nodiscard]] std::string finish() { return std::move(html_) + "</tbody></table></div>\n"; }

 private:
  ReportSubjects subjects_;
  std::vector<Direction> directions_;
  std::string html_;
};

// A quantity of the statistics.
template <typename Value>
QuantityOf stat(Quantity (*shown)(Value), Value DirectionStats::*member) {
  return [=](const ReportSubject& s, Direction d) { return shown((*s.stats_of(d)).*member); };
}

void add_time_rows(QuantityTable& table) {
  table.row("simulated time",
            [](const ReportSubject& s, Direction d) { return in_us(s.simulated(d)->time_us); });
  table.row("MFU",
            [](const ReportSubject& s, Direction d) { return in_percent(s.simulated(d)->mfu); });
  table.row("attention of the time", [](const ReportSubject& s, Direction d) {
    const SimulatedDirection& simulated = *s.simulated(d);
    return in_percent(simulated.time_us > 0 ? simulated.attention_us / simulated.time_us : 0);
  });
  table.row("exposed transfers of the time", [](const ReportSubject& s, Direction d) {
    const SimulatedDirection& simulated = *s.simulated(d);
    return in_percent(simulated.time_us > 0 ? simulated.exposed_us / simulated.time_us : 0);
  });
  for (const StepKind kind : {StepKind::kAttention, StepKind::kMerge, StepKind::kLaunch,
                              StepKind::kLatency, StepKind::kTransfer}) {
    table.row(fmt::format("critical path, {}", to_string(kind)), [kind](const ReportSubject& s,
                                                                        Direction d) {
      return in_us(s.path_us[static_cast<std::size_t>(d)][static_cast<std::size_t>(kind)]);
    });
  }
}

// ----------------------------------------------------------------------------- headline

struct Card {
  std::string name;
  std::string html;
  std::string beside;  // the subject of the number
};

std::vector<Card> cards_of(const ReportSubject& subject) {
  const Simulation& simulation = subject.reported.simulation;
  double bound_us = 0;
  double flops = 0;
  double at_peak = 0;
  std::int64_t inter_bytes = 0;
  std::int64_t intra_bytes = 0;
  std::int64_t peak_bytes = 0;
  double imbalance = 0;
  std::string times;
  for (const Direction d : kDirections) {
    if (!subject.stats_of(d) || !subject.simulated(d)) continue;
    const DirectionStats& stats = *subject.stats_of(d);
    const SimulatedDirection& simulated = *subject.simulated(d);
    if (subject.bound_of(d)) bound_us += subject.bound_of(d)->time_us;
    flops += simulated.flops;
    at_peak += simulated.mfu * simulated.time_us;
    inter_bytes += stats.inter_bytes;
    intra_bytes += stats.intra_bytes;
    peak_bytes = std::max(peak_bytes, stats.peak_memory_bytes);
    imbalance = std::max(imbalance, stats.compute_imbalance);
    times += fmt::format("{}{} {}", times.empty() ? "" : ", ", to_string(d),
                         time_text(simulated.time_us));
  }
  const double time_us = simulation.time_us();
  std::vector<Card> cards;
  cards.push_back({"simulated time", data_html(time_us, time_text(time_us)), times});
  if (bound_us > 0) {
    cards.push_back({"time / lower bound",
                     data_html(time_us / bound_us, fmt::format("{:.2f} ×", time_us / bound_us)),
                     "bound " + time_text(bound_us)});
  }
  const double mfu = time_us > 0 ? at_peak / time_us : 0;
  cards.push_back({"MFU", data_html(mfu, percent_text(mfu)), flops_text(flops)});
  cards.push_back({"between nodes",
                   data_html(inter_bytes, bytes_text(static_cast<double>(inter_bytes))),
                   bytes_text(static_cast<double>(intra_bytes)) + " inside nodes"});
  cards.push_back({"compute imbalance", data_html(imbalance, percent_text(imbalance)),
                   "(max - mean) / max of FLOPs"});
  cards.push_back({"peak memory",
                   data_html(peak_bytes, bytes_text(static_cast<double>(peak_bytes))),
                   "of the fullest device"});
  return cards;
}

}  // namespace

std::string short_name(ReportSubjects subjects, std::size_t i) {
  const std::string& strategy = subjects[i].reported.plan.strategy;
  return subjects.size() == 1 ? strategy : fmt::format("{}: {}", i == 0 ? 'A' : 'B', strategy);
}

std::string headline_html(ReportSubjects subjects) {
  std::string html;
  for (std::size_t i = 0; i < subjects.size(); ++i) {
    if (subjects.size() > 1) {
      html += fmt::format("<h3>{}</h3>", html_text(short_name(subjects, i)));
    }
    html += "<ul class=\"cards\">";
    for (const Card& card : cards_of(subjects[i])) {
      html += fmt::format("<li><span>{}</span><strong>{}</strong><small>{}</small></li>",
                          html_text(card.name), card.html, html_text(card.beside));
    }
    html += "</ul>\n";
  }
  return html;
}

std::string facts_html(ReportSubjects subjects) {
  std::string html = "<div class=\"scroll\"><table class=\"facts\">";
  if (subjects.size() == 2) {
    html += "<thead><tr><td></td><th scope=\"col\">A</th><th scope=\"col\">B</th></tr></thead>";
  }
  html += "<tbody>";
  const auto row = [&](std::string_view name, const auto& text_of) {
    html += fmt::format("<tr><th scope=\"row\">{}</th>", name);
    for (const ReportSubject& subject : subjects) {
      html += fmt::format("<td>{}</td>", html_text(text_of(subject)));
    }
    html += "</tr>";
  };
  row("file", [](const ReportSubject& s) { return s.reported.name; });
  row("strategy", [](const ReportSubject& s) { return s.reported.plan.strategy; });
  row("options", [](const ReportSubject& s) { return options_text(s.reported.plan); });
  row("cluster", cluster_text);
  row("speed", ports_text);
  row("batch", [](const ReportSubject& s) { return batch_text(s.reported.plan); });
  row("masks", [](const ReportSubject& s) { return masks_text(s.reported.plan); });
  row("attention", [](const ReportSubject& s) { return shape_text(s.reported.plan); });
  row("blocks", [](const ReportSubject& s) { return blocks_text(s.reported.plan); });
  row("tokens owned", tokens_text);
  row("verified", [](const ReportSubject& s) { return verified_text(s.reported.verified); });
  row("digest", [](const ReportSubject& s) { return digest_text(s.reported.plan.digest); });
  return html + "</tbody></table></div>\n";
}

std::string statistics_html(ReportSubjects subjects) {
  QuantityTable table(subjects,
                      "One layer of every mask. Bytes count once, at the sender, LSE and delta "
                      "included. Hover a number for its exact value.");
  add_time_rows(table);
  table.row("tiles", stat(whole, &DirectionStats::tiles));
  table.row("attended pairs", stat(whole, &DirectionStats::pairs));
  table.row("FLOPs", [](const ReportSubject& s, Direction d) {
    const double flops = s.stats_of(d)->flops;
    return Quantity{flops, data_html(flops, flops_text(flops))};
  });
  table.row("between nodes", stat(in_bytes, &DirectionStats::inter_bytes));
  table.row("inside nodes", stat(in_bytes, &DirectionStats::intra_bytes));
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    const auto moves = [&](const ReportSubject& s, Direction d) {
      return s.stats_of(d) ? s.stats_of(d)->bytes_by_kind[static_cast<std::size_t>(k)] : 0;
    };
    if (std::ranges::all_of(subjects, [&](const ReportSubject& s) {
          return moves(s, Direction::kForward) + moves(s, Direction::kBackward) == 0;
        })) {
      continue;
    }
    table.row(fmt::format("moved as {}", to_string(kind)),
              [&](const ReportSubject& s, Direction d) { return in_bytes(moves(s, d)); });
  }
  table.row("busiest device", stat(in_bytes, &DirectionStats::max_device_bytes));
  table.row("busiest node uplink", stat(in_bytes, &DirectionStats::max_node_uplink_bytes));
  table.row("transfers", stat(whole, &DirectionStats::transfers));
  table.row("messages", stat(whole, &DirectionStats::messages));
  table.row("launches", stat(whole, &DirectionStats::launches));
  table.row("compute imbalance", stat(in_percent, &DirectionStats::compute_imbalance));
  table.row("compute overload", stat(in_percent, &DirectionStats::compute_overload));
  table.row("peak memory", stat(in_bytes, &DirectionStats::peak_memory_bytes));
  table.row("retained for backward", stat(in_bytes, &DirectionStats::retained_bytes));
  return table.finish();
}

std::string bounds_html(ReportSubjects subjects) {
  QuantityTable table(subjects,
                      "No plan of this batch that owns about as many tokens a device takes less "
                      "time than the bound, whatever its strategy.");
  const auto part = [](double TimeBound::*member) -> QuantityOf {
    return [=](const ReportSubject& s, Direction d) { return in_us((*s.bound_of(d)).*member); };
  };
  table.row("simulated time",
            [](const ReportSubject& s, Direction d) { return in_us(s.simulated(d)->time_us); });
  table.row("lower bound", part(&TimeBound::time_us));
  table.row("time / bound", [](const ReportSubject& s, Direction d) {
    const double bound_us = s.bound_of(d)->time_us;
    const double ratio = bound_us > 0 ? s.simulated(d)->time_us / bound_us : 0;
    return Quantity{ratio, data_html(ratio, fmt::format("{:.2f} ×", ratio))};
  });
  table.row("what binds",
            [](const ReportSubject& s, Direction d) { return in_words(s.bound_of(d)->binding); });
  table.row("compute at least", part(&TimeBound::compute_us));
  table.row("through device ports at least", part(&TimeBound::device_ports_us));
  table.row("through node uplinks at least", part(&TimeBound::node_uplinks_us));
  table.row("latency at least", part(&TimeBound::latency_us));
  table.row("compute and latency at least", part(&TimeBound::joint_us));
  return table.finish();
}

namespace {

void add_device_cells(const ReportSubject& subject, std::size_t device, std::string& html) {
  for (const Direction d : kDirections) {
    if (!subject.stats_of(d) || !subject.simulated(d)) continue;
    const DeviceStats& stats = subject.stats_of(d)->devices[device];
    const DeviceTimes& times = subject.simulated(d)->devices[device];
    html += fmt::format(
        "<td>{:.4g}</td><td>{:.4g}</td><td>{:.4g}</td><td>{:.4g}</td><td>{:.4g}</td>"
        "<td>{:.4g}</td><td>{:.4g}</td>",
        stats.flops * 1e-12, static_cast<double>(stats.sent_bytes) * 1e-6,
        static_cast<double>(stats.received_bytes) * 1e-6,
        static_cast<double>(stats.memory_bytes) * 1e-6, times.busy_us() * 1e-3,
        times.of(Activity::kExposed) * 1e-3, times.idle_us * 1e-3);
  }
}

}  // namespace

std::string devices_html(const ReportSubject& subject) {
  constexpr std::int32_t kMostRows = 1024;
  const Plan& plan = subject.reported.plan;
  std::string html =
      "<div class=\"scroll tall\"><table class=\"numbers\"><caption>TFLOP, MB (1e6 bytes) and ms, "
      "one layer of every mask.</caption><thead><tr><td rowspan=\"2\"></td>"
      "<th rowspan=\"2\" scope=\"col\">tokens owned</th>";
  std::string columns;
  for (const Direction d : kDirections) {
    if (!subject.stats_of(d) || !subject.simulated(d)) continue;
    html += fmt::format("<th colspan=\"7\" scope=\"colgroup\">{}</th>", to_string(d));
    for (const char* name :
         {"TFLOP", "sent MB", "received MB", "memory MB", "busy ms", "exposed ms", "idle ms"}) {
      columns += fmt::format("<th scope=\"col\">{}</th>", name);
    }
  }
  html += fmt::format("</tr><tr>{}</tr></thead><tbody>\n", columns);
  for (std::int32_t r = 0; r < std::min(plan.num_devices(), kMostRows); ++r) {
    std::int64_t owned = 0;
    for (const PlanRound& round : plan.rounds) owned += round.owned_tokens(Rank{r});
    html += fmt::format("<tr><th scope=\"row\">device {}</th><td>{}</td>", r, grouped(owned));
    add_device_cells(subject, Rank{r}.index(), html);
    html += "</tr>\n";
  }
  html += "</tbody></table></div>\n";
  if (plan.num_devices() > kMostRows) {
    html += fmt::format("<p class=\"note\">The first {} of {} devices.</p>\n", kMostRows,
                        plan.num_devices());
  }
  return html;
}

std::string node_traffic_html(const Plan& plan) {
  constexpr std::int32_t kMostNodes = 16;
  if (plan.nodes > kMostNodes) return "";
  const TrafficMatrix forward(plan, Direction::kForward, plan.devices_per_node);
  const TrafficMatrix backward(plan, Direction::kBackward, plan.devices_per_node);
  std::string html =
      "<div class=\"scroll\"><table class=\"numbers\"><caption>From the devices of a node (row) to "
      "those of a node (column), forward and backward together.</caption><thead><tr><td></td>";
  for (std::int32_t n = 0; n < plan.nodes; ++n) {
    html += fmt::format("<th scope=\"col\">to node {}</th>", n);
  }
  html += "</tr></thead><tbody>";
  for (std::int32_t from = 0; from < plan.nodes; ++from) {
    html += fmt::format("<tr><th scope=\"row\">node {}</th>", from);
    for (std::int32_t to = 0; to < plan.nodes; ++to) {
      const std::int64_t bytes = forward.bytes(from, to) + backward.bytes(from, to);
      html += fmt::format("<td>{}</td>", in_bytes(bytes).html);
    }
    html += "</tr>";
  }
  return html + "</tbody></table></div>\n";
}

}  // namespace contextile
