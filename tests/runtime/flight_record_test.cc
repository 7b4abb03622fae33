// Flight records: the files that a failed group leaves, and the rank that they name.
#include "contextile/advanced/flight_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/executor.h"
#include "contextile/base.h"
#include "contextile/plan.h"
#include "runtime/check/layer_tensors.h"
#include "runtime/executor/call_check.h"
#include "runtime/executor/executor_testing.h"
#include "runtime/executor/plan_execution.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// A folder of a test's own, gone at its end.
class FlightRecords : public ::testing::Test {
 protected:
  FlightRecords()
      : folder_(::testing::TempDir() + "flight-" +
                ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }
  ~FlightRecords() override { std::filesystem::remove_all(folder_); }

  const std::string folder_;
};

FlightRecord record_of(std::int32_t rank, std::int32_t num_ranks, std::string op) {
  FlightRecord record;
  record.rank = Rank{rank};
  record.num_ranks = num_ranks;
  record.transport = "gloo";
  record.version = "0.1.0";
  record.host = "a host";
  record.process = 17;
  record.plan = "0123456789abcdef";
  record.strategy = "ring";
  record.error = "rank says \"no\"";
  record.failed_us = 5'000'000;
  record.num_steps = 1;
  record.steps.push_back({.op = std::move(op),
                          .call = 1,
                          .direction = Direction::kForward,
                          .instruction = 3,
                          .ticket = 7,
                          .began_us = 1'000'000});
  return record;
}

std::vector<std::int32_t> culprits_of(const std::vector<FlightRecord>& records) {
  std::vector<std::int32_t> ranks;
  for (const FlightVerdict::Culprit& culprit : judge_flight(records).culprits) {
    ranks.push_back(culprit.rank.value);
  }
  return ranks;
}

FlightRecord random_record(Rng& rng) {
  const auto text = [&] {
    std::string value;
    for (std::uint64_t i = rng.next() % 9; i > 0; --i) {
      value += static_cast<char>(1 + rng.next() % 126);
    }
    return value;
  };
  const auto number = [&](std::uint64_t most) {
    return static_cast<std::int64_t>(rng.next() % most);
  };
  FlightRecord record;
  record.num_ranks = static_cast<std::int32_t>(1 + number(9));
  record.rank =
      Rank{static_cast<std::int32_t>(number(static_cast<std::uint64_t>(record.num_ranks)))};
  record.transport = text();
  record.version = text();
  record.host = text();
  record.process = number(1 << 20);
  record.plan = text();
  record.strategy = text();
  record.error = text();
  record.is_cause = rng.next() % 2 == 0;
  record.started_us = number(INT64_MAX);
  record.failed_us = number(INT64_MAX);
  record.num_steps = number(INT64_MAX);
  for (std::int64_t i = number(4); i > 0; --i) {
    FlightStep step{text(), number(9),     std::nullopt,  static_cast<std::int32_t>(number(9)),
                    0,      number(9) - 1, number(9) - 1, number(1000),
                    -1};
    if (rng.next() % 2 == 0) step.direction = Direction::kBackward;
    if (rng.next() % 2 == 0) step.ended_us = step.began_us + number(9);
    record.steps.push_back(step);
  }
  for (std::int64_t i = number(4); i > 0; --i) {
    record.transfers.push_back(
        {number(9), Rank{0}, rng.next() % 2 == 0, number(INT64_MAX), {text(), text()}, number(99)});
  }
  for (std::int32_t r = 0; r < record.num_ranks; ++r) {
    if (Rank{r} != record.rank && rng.next() % 3 == 0) record.silent.emplace_back(r);
  }
  return record;
}

TEST_F(FlightRecords, ComeBackFromTheirFiles) {
  Rng rng(1);
  for (int i = 0; i < 200; ++i) {
    const FlightRecord record = random_record(rng);
    ASSERT_EQ(parse_flight_record(to_json(record), "record"), record) << to_json(record);
  }
  std::vector<FlightRecord> saved;
  for (const std::int32_t rank : {10, 2, 0}) {
    saved.insert(saved.begin(), record_of(rank, 11, "wait"));
    save_flight_record(saved.front(), folder_ + "/deep");
  }
  EXPECT_EQ(load_flight_records(folder_ + "/deep"), saved);
}

TEST_F(FlightRecords, OfAnEarlierRunOfAnotherSizeAreLeftOut) {
  FlightRecord old = record_of(7, 8, "wait");
  old.failed_us = 4'000'000;
  save_flight_record(old, folder_);
  const FlightRecord recent = record_of(0, 2, "wait");
  save_flight_record(recent, folder_);
  EXPECT_THAT(load_flight_records(folder_), ElementsAre(recent));
}

TEST_F(FlightRecords, OfAnEarlierRunOfTheSameSizeAreLeftOut) {
  FlightRecord old = record_of(1, 2, "wait");
  save_flight_record(old, folder_);
  FlightRecord recent = record_of(0, 2, "wait");
  recent.failed_us = 60'000'000;
  save_flight_record(recent, folder_);
  EXPECT_EQ(load_flight_records(folder_).size(), 2U);  // it does not say since when it ran
  recent.started_us = old.failed_us + 500'000;         // clocks may differ
  save_flight_record(recent, folder_);
  EXPECT_EQ(load_flight_records(folder_).size(), 2U);
  recent.started_us = old.failed_us + 2'000'000;
  save_flight_record(recent, folder_);
  EXPECT_THAT(load_flight_records(folder_), ElementsAre(recent));
  remove_flight_record(folder_, Rank{0});
  EXPECT_THAT(load_flight_records(folder_), ElementsAre(old));
}

TEST_F(FlightRecords, OfEarlierVersionsDoNotSaySinceWhenTheyRan) {
  std::string text = to_json(record_of(0, 2, "wait"));
  const std::string key = " \"started_us\": 0,\n";
  text.erase(text.find(key), key.size());
  EXPECT_EQ(parse_flight_record(text, "old"), record_of(0, 2, "wait"));
}

TEST_F(FlightRecords, SayThatTheRendezvousFailed) {
  const Plan plan = example_plan();
  const auto began = std::chrono::system_clock::now() - std::chrono::seconds(3);
  const FlightRecord record =
      rendezvous_record(Rank{1}, "gloo", plan, began, TransportError("rank 0 did not come"));
  EXPECT_EQ(parse_flight_record(to_json(record), "record"), record);
  EXPECT_EQ(record.num_ranks, 2);
  EXPECT_FALSE(record.is_cause);
  ASSERT_EQ(record.steps.size(), 1U);
  EXPECT_EQ(record.steps[0].op, "rendezvous");
  EXPECT_TRUE(record.steps[0].is_wait());
  EXPECT_GE(record.failed_us - record.steps[0].began_us, 3'000'000);
  EXPECT_GT(record.started_us, record.failed_us - 3'600'000'000);
  EXPECT_LE(record.started_us, record.failed_us);
  EXPECT_THAT(culprits_of({record}), ElementsAre(0));
}

TEST_F(FlightRecords, AnExchangeWithoutAPlanNamesItsOpenMessages) {
  const auto group = make_inproc_group(2, {.timeout = std::chrono::milliseconds(50)});
  std::array<std::byte, 8> bytes{};
  const Message message{Rank{1}, {Segment{bytes.data(), 8, 1, 8}}};
  const auto began = std::chrono::system_clock::now() - std::chrono::seconds(3);
  const std::int64_t ticket = group[0]->launch({}, {&message, 1});
  FlightRecord record;
  try {
    group[0]->wait(ticket);
    FAIL() << "rank 1 sent nothing";
  } catch (const TransportError& error) {
    record = exchange_record(*group[0], began, error);
  }
  EXPECT_EQ(parse_flight_record(to_json(record), "record"), record);
  EXPECT_EQ(record.num_ranks, 2);
  EXPECT_EQ(record.transport, "inproc");
  EXPECT_FALSE(record.is_cause);
  EXPECT_EQ(record.plan, "");
  ASSERT_EQ(record.steps.size(), 1U);
  EXPECT_TRUE(record.steps[0].is_wait());
  EXPECT_GE(record.failed_us - record.steps[0].began_us, 3'000'000);
  ASSERT_EQ(record.transfers.size(), 1U);
  EXPECT_EQ(record.transfers[0].peer, Rank{1});
  EXPECT_FALSE(record.transfers[0].is_send);
  EXPECT_THAT(culprits_of({record}), ElementsAre(1));
}

TEST_F(FlightRecords, ThatCannotBeAreRefusedWithTheirPlace) {
  const std::string good = to_json(record_of(0, 2, "wait"));
  const auto error_of = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      static_cast<void>(parse_flight_record(text, "x.json"));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return "nothing was thrown for " + to;
  };
  EXPECT_THAT(error_of("\"contextile_flight\": 1", "\"contextile_flight\": 2"),
              AllOf(HasSubstr("x.json, contextile_flight"), HasSubstr("'2'")));
  EXPECT_THAT(error_of("\"rank\": 0", "\"rank\": 2"), HasSubstr("from 0 to 1, found '2'"));
  EXPECT_THAT(error_of("\"rank\": 0", "\"rank\": 18446744073709551615"), HasSubstr("rank"));
  EXPECT_THAT(error_of("\"host\"", "\"hosts\""), HasSubstr("expected a key 'host'"));
  EXPECT_THAT(error_of("\"host\"", "\"more\": 1, \"host\""), HasSubstr("keys, found"));
  EXPECT_THAT(error_of("\"forward\"", "\"sideways\""), HasSubstr("steps[0], direction"));
  EXPECT_THAT(error_of("\"ended_us\": -1", "\"ended_us\": 3"), HasSubstr("expected an end after"));
  EXPECT_THAT(error_of("\"transfers\": []", "\"transfers\": {}"), HasSubstr("expected a list"));
  EXPECT_THAT(error_of("\"transfers\": []", "\"transfers\": [7]"), HasSubstr("transfers[0]"));
  EXPECT_THROW(static_cast<void>(load_flight_records(folder_)), IoError);
  std::filesystem::create_directories(folder_);
  EXPECT_THROW(static_cast<void>(load_flight_records(folder_)), IoError);
}

// ---------------------------------------------------------------------------------- verdicts

TEST(FlightVerdicts, NameARankWithAnErrorOfItsOwn) {
  std::vector<FlightRecord> records = {record_of(0, 3, "wait"), record_of(1, 3, "attention")};
  records[1].is_cause = true;
  EXPECT_THAT(culprits_of(records), ElementsAre(1));
  EXPECT_THAT(judge_flight(records).summary,
              HasSubstr("Rank 1 failed by itself: rank says \"no\""));
}

TEST(FlightVerdicts, NameRanksWithoutARecord) {
  EXPECT_THAT(culprits_of({record_of(0, 4, "wait"), record_of(2, 4, "attention")}),
              ElementsAre(1, 3));
}

TEST(FlightVerdicts, NameTheRankThatWasAtWorkWhileOthersWaited) {
  std::vector<FlightRecord> records = {record_of(0, 3, "wait"), record_of(1, 3, "attention"),
                                       record_of(2, 3, "exchange")};
  records[1].failed_us = 9'000'000;  // it heard of it when it was done
  EXPECT_THAT(culprits_of(records), ElementsAre(1));
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("was in attention for 4 s"));
  records[1].steps[0].ended_us = 1'500'000;
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("was outside of any call"));
  records[1].transfers.push_back({0, Rank{0}, false, 8, {}, 0});  // waits by itself
  EXPECT_THAT(culprits_of(records), Not(ElementsAre(1)));
}

TEST(FlightVerdicts, NameOtherPlansAndVersionsFirst) {
  std::vector<FlightRecord> records = {record_of(0, 4, "exchange"), record_of(1, 4, "exchange"),
                                       record_of(2, 4, "exchange")};
  for (FlightRecord& record : records) record.is_cause = true;
  records[1].plan = "fedcba9876543210";
  EXPECT_THAT(culprits_of(records), ElementsAre(1));
  records[2].version = "0.0.9";
  EXPECT_THAT(culprits_of(records), ElementsAre(2));
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("has version 0.0.9, most have 0.1.0"));
}

TEST(FlightVerdicts, NameTheRankThatMostFoundSilent) {
  std::vector<FlightRecord> records;
  for (std::int32_t r = 0; r < 4; ++r) records.push_back(record_of(r, 4, "wait"));
  records[2].silent = {Rank{0}, Rank{1}, Rank{3}};
  for (const std::size_t other : {0U, 1U, 3U}) records[other].silent = {Rank{2}};
  EXPECT_THAT(culprits_of(records), ElementsAre(2));
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("no sign of life to 3 of 3 others"));
}

TEST(FlightVerdicts, NameTheRankWhoseConnectionsAreCut) {
  std::vector<FlightRecord> records;
  for (std::int32_t r = 0; r < 3; ++r) records.push_back(record_of(r, 3, "wait"));
  for (const std::int32_t peer : {0, 2}) {
    records[1].transfers.push_back({7, Rank{peer}, true, 8, {}, 0});
    records[static_cast<std::size_t>(peer)].transfers.push_back({7, Rank{1}, false, 8, {}, 0});
  }
  EXPECT_THAT(culprits_of(records), ElementsAre(1));
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("the connection"));
}

TEST(FlightVerdicts, NameTheEndOfAChainOfRanksThatWait) {
  std::vector<FlightRecord> records;
  for (std::int32_t r = 0; r < 3; ++r) records.push_back(record_of(r, 3, "wait"));
  records[0].transfers.push_back({7, Rank{1}, false, 8, {}, 0});
  records[1].transfers.push_back({7, Rank{2}, false, 8, {}, 0});
  EXPECT_THAT(culprits_of(records), ElementsAre(2));
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("never sent what rank 1 waited for"));
}

TEST(FlightVerdicts, SayWhenRecordsDoNotTell) {
  const std::vector<FlightRecord> records = {record_of(0, 2, "wait"), record_of(1, 2, "wait")};
  EXPECT_THAT(culprits_of(records), IsEmpty());
  EXPECT_THAT(judge_flight(records).summary, HasSubstr("do not tell"));
  EXPECT_THROW(static_cast<void>(judge_flight({})), InvalidArgument);
}

// ------------------------------------------------------------------------------- of executors

// Runs one forward of the plan on every rank; rank 1 calls `observer` before each step.
void run_with(const std::shared_ptr<const Plan>& plan, const std::string& folder,
              const std::function<void(const RecordedStep&)>& observer) {
  const BatchTensors batch = inputs_of(*plan, 1);
  run_inproc(plan->num_devices(), [&](Transport& transport) {
    Executor executor(transport, *kernels().front(), {.flight_folder = folder});
    if (transport.rank() == Rank{1}) ExecutorTesting::before_step(executor, observer);
    executor.prepare(plan);
    LayerTensors layer(batch, plan->shape, local_tokens(*plan, transport.rank()));
    static_cast<void>(executor.forward(0, layer.forward()));
  });
}

TEST_F(FlightRecords, AreWrittenByEveryRankOfAGroupThatFails) {
  const auto plan = std::make_shared<const Plan>(example_plan());
  const auto fail_in_attention = [](const RecordedStep& step) {
    if (step.op == "attention") throw std::runtime_error("the roof fell in");
  };
  EXPECT_THROW(run_with(plan, folder_, fail_in_attention), std::runtime_error);
  const std::vector<FlightRecord> records = load_flight_records(folder_);
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1].steps.back().op, "attention");
  EXPECT_EQ(records[1].steps.back().ended_us, -1);
  EXPECT_EQ(records[0].version, version());
  EXPECT_THAT(records[0].error, HasSubstr("the roof fell in"));
  EXPECT_FALSE(records[0].is_cause);
  EXPECT_THAT(culprits_of(records), ElementsAre(1));
  for (const FlightTransfer& open : records[0].transfers) {
    EXPECT_EQ(open.peer, Rank{1});
    EXPECT_THAT(open.units, Not(IsEmpty()));
  }
}

TEST_F(FlightRecords, OfAnEarlierRunGoAndNoneComeWithoutAFailure) {
  save_flight_record(record_of(1, 2, "wait"), folder_);
  run_with(std::make_shared<const Plan>(example_plan()), folder_, [](const RecordedStep&) {});
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(FlightRecords, ThatCannotBeWrittenLeaveTheErrorAsItIs) {
  std::ofstream(folder_) << "in the way";
  const auto fail = [](const RecordedStep& step) {
    if (step.op == "rows") throw std::runtime_error("the roof fell in");
  };
  EXPECT_THROW(run_with(std::make_shared<const Plan>(example_plan()), folder_, fail),
               std::runtime_error);
}

// A rank of another version, with its own prepare: the beginning stays the same in all versions.
TEST(Executor, OtherVersionsAreNamed) {
  struct OldIdentity {
    std::uint64_t digest;
    std::int32_t num_devices = 2;
    std::int32_t slice_of = -1;
    std::array<char, 16> version{"0.0.9"};
  };
  const auto plan = std::make_shared<const Plan>(example_plan());
  std::string message;
  run_inproc(2, [&](Transport& transport) {
    const OldIdentity old{plan->digest};
    if (transport.rank() == Rank{1}) {
      CallCheck(transport, {.plan = plan->digest, .direction = CallTag::kPrepare}).wait();
      static_cast<void>(all_gather(transport, std::as_bytes(std::span(&old, 1))));
      return;
    }
    Executor executor(transport, *kernels().front());
    try {
      executor.prepare(plan);
    } catch (const InvalidPlan& error) {
      message = error.what();
    }
  });
  EXPECT_THAT(message, AllOf(HasSubstr("one version of contextile"), HasSubstr("0.0.9 on rank 1")));
}

}  // namespace
}  // namespace contextile
