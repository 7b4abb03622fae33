#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/report.h"
#include "contextile/verify.h"
#include "report/html/palette.h"
#include "report/html/text.h"
#include "report/report_support.h"
#include "report/waiting.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Text that breaks pages: ends of scripts and comments, quotes, references, bytes that are no
// UTF-8, line separators, control characters.
const std::string kHostile =
    "</script><script>window.hacked = 1</script><!-- \"q\" 'a' &amp; <b id=\"evil\"> \xff\x01 "
    "\xe2\x80\xa8 \\u003c]]> </title></style>";

PlanChoice one_document() {
  return {.lengths = {4096}, .masks = {"causal"}, .strategy = "zigzag", .nodes = 2, .devices = 4};
}
PlanChoice many_documents() {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 1000; ++i) lengths.push_back(1 + i * 7919 % 97);
  return {.lengths = lengths,
          .masks = {"local=sliding_window:40@3", "causal"},
          .strategy = "magi",
          .nodes = 2,
          .devices = 4};
}

// ---------------------------------------------------------------------------- the whole page

TEST(Report, IsOneWellFormedDocumentWithoutReferencesElsewhere) {
  for (const PlanChoice& choice : {one_document(), many_documents()}) {
    const Reported reported(choice);
    const std::string page = page_of({&reported});
    EXPECT_EQ(unbalanced_tags(page), "");
    EXPECT_EQ(page.rfind("<!DOCTYPE html>\n<html lang=\"en\">", 0), 0U);
    EXPECT_THAT(page, HasSubstr("default-src 'none'"));
    const std::regex reference(R"re(<[a-z]+[^<>]*\b(?:src|href|action|data)="([^"]*)")re");
    for (auto it = std::sregex_iterator(page.begin(), page.end(), reference);
         it != std::sregex_iterator(); ++it) {
      EXPECT_TRUE((*it)[1].str() == "data:," || (*it)[1].str().front() == '#') << (*it).str();
    }
    EXPECT_THAT(page, Not(HasSubstr("://")));
    EXPECT_THAT(page, Not(HasSubstr("@import")));
    EXPECT_THAT(page, Not(HasSubstr("url(")));
  }
}

TEST(Report, TheTagCheckerFindsWhatIsNotClosed) {
  EXPECT_EQ(unbalanced_tags("<p>a<br>b</p><script>if (a < b) '<p>'</script>"), "");
  EXPECT_NE(unbalanced_tags("<p><b>a</p></b>"), "");
  EXPECT_NE(unbalanced_tags("<div>"), "");
  EXPECT_NE(unbalanced_tags("<p title=\"a\" title=b\"c\">x</p>"), "");
}

TEST(Report, ItsHeadlineSaysWhichPlanIsFasterAndForWhatTheOtherWaits) {
  const Reported zigzag(one_document());
  PlanChoice choice = one_document();
  choice.strategy = "ring";
  const Reported ring(choice);
  const double ratio = ring.simulation.time_us() / zigzag.simulation.time_us();
  const bool ring_is_slow = ratio >= 1;
  const Reported& slow = ring_is_slow ? ring : zigzag;
  const Waiting waiting = waiting_of(slow.cluster, slow.simulation);
  double exposed_us = 0;
  for (const auto& [direction, simulated] : slow.simulation.directions()) {
    exposed_us += simulated->exposed_us;
  }
  EXPECT_DOUBLE_EQ(waiting.share, exposed_us / slow.simulation.time_us());
  EXPECT_THAT(page_of({&zigzag, &ring}),
              HasSubstr(fmt::format(
                  "<p class=\"headline\">{} is predicted {:.3g} times as fast as "
                  "{}, which {}.</p>",
                  ring_is_slow ? "A: zigzag" : "B: ring", ring_is_slow ? ratio : 1 / ratio,
                  ring_is_slow ? "B: ring" : "A: zigzag", waiting_text(waiting))));
  EXPECT_THAT(page_of({&zigzag}), HasSubstr("<p class=\"headline\">zigzag "));
}

TEST(Waiting, NamesTheLinkThatMostOfTheWaitIsSpentOn) {
  const Reported reported(one_document());
  Cluster slow = reported.cluster;
  slow.inter_gbytes_per_s_per_node = 0.01;
  slow.nics_per_node = 1;
  const Waiting nodes = waiting_of(slow, simulate(reported.plan, slow, {.timeline = true}));
  EXPECT_GT(nodes.share, 0.5);
  EXPECT_EQ(nodes.mostly, "one NIC per node");
  EXPECT_THAT(waiting_text(nodes), HasSubstr("of its attention time, mostly for one NIC per node"));
  EXPECT_EQ(waiting_text({}), "hardly waits");
}

TEST(Report, IsTheSameEveryTime) {
  const Reported reported(many_documents());
  EXPECT_EQ(page_of({&reported}), page_of({&reported}));
}

TEST(Report, KeepsHostileNamesText) {
  PlanChoice choice = one_document();
  choice.name = kHostile;
  Reported reported(choice);
  reported.plan.strategy = kHostile;
  reported.plan.cluster_name = kHostile;
  reported.plan.options = {{kHostile, kHostile}};
  for (NamedMask& mask : reported.plan.rounds[0].masks) mask.name = kHostile;
  for (const std::string& page : {page_of({&reported}), page_of({&reported, &reported})}) {
    EXPECT_EQ(unbalanced_tags(page), "");
    EXPECT_THAT(page, Not(HasSubstr("<script>window.hacked")));
    EXPECT_THAT(page, Not(HasSubstr("<b id=")));
    EXPECT_THAT(page, Not(HasSubstr("<!-- ")));
    EXPECT_EQ(page.find('\xff'), std::string::npos);
    EXPECT_EQ(page.find('\x01'), std::string::npos);
    EXPECT_EQ(count_of(page, "<script"), 2U);
    EXPECT_EQ(count_of(page, "</script>"), 2U);
    EXPECT_EQ(count_of(page, "</title>"), 1U);
    // The names arrive whole, except the byte that is no UTF-8.
    std::string expected = kHostile;
    expected.replace(expected.find('\xff'), 1, "\xef\xbf\xbd");
    EXPECT_EQ(data_of(page)["plans"][0]["strategy"], expected);
    EXPECT_EQ(data_of(page)["plans"][0]["masks"][0], expected);
    EXPECT_EQ(data_of(page)["plans"][0]["name"], expected);
  }
}

TEST(Report, NumbersInTablesAreThoseOfStatisticsSimulationAndBounds) {
  const Reported reported(many_documents());
  const std::string page = page_of({&reported});
  const PlanStats stats = statistics(reported.plan);
  const auto expect = [&](const std::string& section, const std::string& row, double forward,
                          double backward) {
    EXPECT_EQ(row_values(page, section, row), (std::vector<double>{forward, backward})) << row;
  };
  const auto expect_stat = [&](const std::string& row, auto DirectionStats::*member) {
    expect("statistics", row, static_cast<double>((*stats.forward).*member),
           static_cast<double>((*stats.backward).*member));
  };
  expect("statistics", "simulated time", reported.simulation.forward->time_us,
         reported.simulation.backward->time_us);
  expect("statistics", "MFU", reported.simulation.forward->mfu, reported.simulation.backward->mfu);
  expect_stat("tiles", &DirectionStats::tiles);
  expect_stat("attended pairs", &DirectionStats::pairs);
  expect_stat("FLOPs", &DirectionStats::flops);
  expect_stat("between nodes", &DirectionStats::inter_bytes);
  expect_stat("inside nodes", &DirectionStats::intra_bytes);
  expect_stat("busiest device", &DirectionStats::max_device_bytes);
  expect_stat("busiest node uplink", &DirectionStats::max_node_uplink_bytes);
  expect_stat("transfers", &DirectionStats::transfers);
  expect_stat("messages", &DirectionStats::messages);
  expect_stat("launches", &DirectionStats::launches);
  expect_stat("compute imbalance", &DirectionStats::compute_imbalance);
  expect_stat("peak memory", &DirectionStats::peak_memory_bytes);
  const auto kv = static_cast<std::size_t>(Kind::kKv);
  expect("statistics", "moved as kv", static_cast<double>(stats.forward->bytes_by_kind[kv]),
         static_cast<double>(stats.backward->bytes_by_kind[kv]));
  const std::vector<double> bounds = row_values(page, "bounds", "lower bound");
  ASSERT_EQ(bounds.size(), 2U);
  EXPECT_GT(bounds[0], 0);
  EXPECT_LE(bounds[0], reported.simulation.forward->time_us);
  EXPECT_LE(bounds[1], reported.simulation.backward->time_us);
}

TEST(Report, PutsTwoPlansBesideEachOther) {
  const Reported a(one_document());
  PlanChoice choice = one_document();
  choice.strategy = "ring";
  const Reported b(choice);
  const std::string page = page_of({&a, &b});
  EXPECT_EQ(unbalanced_tags(page), "");
  EXPECT_THAT(page, HasSubstr("A: zigzag and B: ring"));
  EXPECT_EQ(data_of(page)["plans"].size(), 2U);
  EXPECT_EQ(row_values(page, "statistics", "simulated time"),
            (std::vector<double>{a.simulation.forward->time_us, b.simulation.forward->time_us,
                                 a.simulation.backward->time_us, b.simulation.backward->time_us}));
}

TEST(Report, ShowsAPlanWithoutBackward) {
  PlanChoice choice = one_document();
  choice.forward_only = true;
  const Reported reported(choice);
  const std::string page = page_of({&reported});
  EXPECT_EQ(unbalanced_tags(page), "");
  EXPECT_EQ(row_values(page, "statistics", "simulated time").size(), 1U);
  EXPECT_EQ(data_of(page)["plans"][0]["timeline"].size(), 1U);
  EXPECT_FALSE(data_of(page)["plans"][0]["traffic"].contains("backward"));
}

TEST(Report, StaysBelowItsSizeAndSaysWhatItLeavesOut) {
  PlanChoice choice = many_documents();
  choice.lengths.resize(400);
  choice.strategy = "zigzag";
  const Reported reported(choice);
  const std::string whole = page_of({&reported});
  EXPECT_THAT(whole, Not(HasSubstr("To keep the page small")));
  const json data = data_of(whole)["plans"][0];
  std::size_t fixed = whole.size();  // tables, scripts, numbers of devices
  for (const char* part : {"tiles", "timeline", "traffic"}) fixed -= data[part].dump().size();
  for (const std::int64_t max_bytes : {100'000, 30'000, 8'000}) {
    SCOPED_TRACE(max_bytes);
    const std::string page = page_of({&reported}, {.max_bytes = max_bytes});
    EXPECT_LT(static_cast<std::int64_t>(page.size() - fixed), max_bytes + max_bytes / 2);
    EXPECT_LT(page.size(), whole.size());
    EXPECT_THAT(page, HasSubstr("To keep the page small"));
    EXPECT_EQ(unbalanced_tags(page), "");
    // Tables do not change.
    EXPECT_EQ(row_values(page, "statistics", "tiles"), row_values(whole, "statistics", "tiles"));
  }
}

TEST(Report, RefusesWhatItCannotShow) {
  const Reported reported(one_document());
  std::ostringstream out;
  const auto refuse = [&](const std::vector<ReportedPlan>& plans, const std::string& words) {
    try {
      write_report(plans, out);
      FAIL() << "expected InvalidArgument: " << words;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(words));
    }
  };
  refuse({}, "expected one plan or two, found 0");
  refuse({reported.reported(), reported.reported(), reported.reported()}, "found 3");
  VerifyReport broken;
  broken.num_violations = 2;
  refuse({{"x", reported.plan, reported.cluster, reported.simulation, broken}},
         "found 2 violations");
  const Simulation bare = simulate(reported.plan, reported.cluster);
  refuse({{"x", reported.plan, reported.cluster, bare, reported.verified}}, "timeline");
  PlanChoice other = one_document();
  other.devices = 2;
  const Reported smaller(other);
  refuse({{"x", reported.plan, reported.cluster, smaller.simulation, reported.verified}},
         "expected a simulation of 8 devices");
  out.setstate(std::ios::failbit);
  EXPECT_THROW(write_report(std::vector{reported.reported()}, out), IoError);
}

// ---------------------------------------------------------------------------- words, colours

TEST(ReportText, EscapesMarkup) {
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("\xff\x02"), "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(html_text("µ é 漢"), "µ é 漢");
  EXPECT_EQ(script_json({{"a", "</script>&\xe2\x80\xa9"}}),
            R"({"a":"\u003c/script\u003e\u0026\u2029"})");
}

TEST(ReportText, WritesNumbersForReaders) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(four_digits(0.012345), "0.01235");
  EXPECT_EQ(four_digits(12.3456), "12.35");
  EXPECT_EQ(four_digits(999.96), "1,000");
  EXPECT_EQ(bytes_text(999), "999.0 B");
  EXPECT_EQ(bytes_text(1'500'000), "1.500 MB");
  EXPECT_EQ(time_text(1234), "1.234 ms");
  EXPECT_EQ(time_text(0), "0 µs");
  EXPECT_EQ(percent_text(0.1234), "12.3 %");
  EXPECT_EQ(counted(1, "batch"), "1 batch");
  EXPECT_EQ(counted(2000, "batch"), "2,000 batches");
}

double distance(Colour a, Colour b) {
  return std::hypot(a.red - b.red, a.green - b.green, a.blue - b.blue);
}

TEST(ReportPalette, ColoursOf512DevicesDiffer) {
  const std::vector<Colour> colours = device_colours(64, 8);
  ASSERT_EQ(colours.size(), 512U);
  std::set<std::string> different;
  for (const Colour colour : colours) different.insert(hex_text(colour));
  EXPECT_EQ(different.size(), 512U);
  // Neighbours in a node, and the same device of the next node, are easy to distinguish.
  for (std::size_t d = 0; d + 8 < colours.size(); ++d) {
    if (d % 8 != 7) {
      EXPECT_GT(distance(colours[d], colours[d + 1]), 12) << d;
    }
    EXPECT_GT(distance(colours[d], colours[d + 8]), 40) << d;
  }
}

TEST(ReportPalette, ColoursOfFewDevicesAreFarApart) {
  for (const auto& [nodes, devices] : {std::pair{1, 8}, {4, 8}, {8, 1}, {2, 4}, {1, 1}}) {
    const std::vector<Colour> colours = device_colours(nodes, devices);
    for (std::size_t a = 0; a < colours.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        EXPECT_GT(distance(colours[a], colours[b]), 18)
            << nodes << " x " << devices << ": " << a << ", " << b;
      }
    }
  }
}

TEST(ReportPalette, ColoursShowOnWhiteAndOnNearBlack) {
  for (const std::int32_t nodes : {1, 4, 64}) {
    for (const Colour colour : device_colours(nodes, 8)) {
      EXPECT_GT(distance(colour, {255, 255, 255}), 60);
      EXPECT_GT(distance(colour, {20, 23, 27}), 60);
    }
  }
}

}  // namespace
}  // namespace contextile
