// The properties of every Chrome trace, whatever it shows.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace contextile {

// A span of a row, in nanoseconds.
struct TraceSpan {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  nlohmann::json event;
};
using TraceRow = std::pair<std::int64_t, std::int64_t>;  // process, thread

struct Trace {
  std::map<TraceRow, std::vector<TraceSpan>> rows;
  std::vector<nlohmann::json> arrows;                 // their starts and ends
  std::map<std::int64_t, std::string> process_names;  // by process
  std::map<TraceRow, std::string> row_names;

  [[nodiscard]] std::vector<TraceSpan> of_category(std::string_view category) const {
    std::vector<TraceSpan> found;
    for (const auto& [row, spans] : rows) {
      for (const TraceSpan& span : spans) {
        if (span.event.at("cat") == category) found.push_back(span);
      }
    }
    return found;
  }
};

inline std::int64_t trace_ns(const nlohmann::json& us) {
  return std::llround(us.get<double>() * 1e3);
}

// Throws if the text is no trace.
inline Trace parse_trace(std::string_view text) {
  Trace trace;
  const nlohmann::json document = nlohmann::json::parse(text);
  for (const nlohmann::json& event : document.at("traceEvents")) {
    const std::string phase = event.at("ph");
    const TraceRow row{event.at("pid"), event.at("tid")};
    if (phase == "X") {
      const std::int64_t start_ns = trace_ns(event.at("ts"));
      trace.rows[row].push_back({start_ns, start_ns + trace_ns(event.at("dur")), event});
    } else if (phase == "M") {
      const nlohmann::json& arguments = event.at("args");
      if (event.at("name") == "process_name") trace.process_names[row.first] = arguments.at("name");
      if (event.at("name") == "thread_name") trace.row_names[row] = arguments.at("name");
    } else {
      trace.arrows.push_back(event);
    }
  }
  return trace;
}

// Spans of a row do not overlap, every row and process has a name, and every arrow goes from the
// start of a span to the start of another.
inline void expect_well_formed(const Trace& trace) {
  std::set<std::pair<TraceRow, std::int64_t>> starts;
  for (const auto& [row, spans] : trace.rows) {
    SCOPED_TRACE(testing::Message() << "process " << row.first << " row " << row.second);
    EXPECT_TRUE(trace.process_names.contains(row.first));
    EXPECT_TRUE(trace.row_names.contains(row));
    std::vector<std::pair<std::int64_t, std::int64_t>> sorted;
    for (const TraceSpan& span : spans) {
      EXPECT_GE(span.start_ns, 0);
      EXPECT_GE(span.end_ns, span.start_ns);
      sorted.emplace_back(span.start_ns, span.end_ns);
      starts.insert({row, span.start_ns});
    }
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t i = 1; i < sorted.size(); ++i) {
      ASSERT_GE(sorted[i].first, sorted[i - 1].second) << "spans overlap";
    }
  }
  std::map<std::int64_t, std::string> ends;  // of each arrow, in order
  for (const nlohmann::json& arrow : trace.arrows) {
    ends[arrow.at("id")] += arrow.at("ph").get<std::string>();
    EXPECT_TRUE(starts.contains({{arrow.at("pid"), arrow.at("tid")}, trace_ns(arrow.at("ts"))}))
        << arrow;
  }
  for (const auto& [id, phases] : ends) EXPECT_EQ(phases, "sf") << "arrow " << id;
  EXPECT_EQ(ends.size(), trace.of_category("send").size());
  EXPECT_EQ(ends.size(), trace.of_category("receive").size());
}

}  // namespace contextile
