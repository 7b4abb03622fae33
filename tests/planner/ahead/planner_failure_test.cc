// Planners that the store fails, and the errors of the ranks that wait for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contextile/advanced/lookahead.h"
#include "store/redis_server.h"
#include "support/batches.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A store of this process that fails as the test wants.
class FailingStore : public Store {
 public:
  // fails(operation, key): true if the call fails.
  using Fails = std::function<bool(std::string_view operation, std::string_view key)>;

  FailingStore(std::shared_ptr<Store> behind, Fails fails)
      : behind_(std::move(behind)), fails_(std::move(fails)) {}

  [[nodiscard]] std::string_view name() const override { return "failing:"; }

 protected:
  [[nodiscard]] bool do_put(Key key, Bytes value, Milliseconds expiry) override {
    check("put", key);
    const bool stored = behind_->put(key, value, expiry);
    check("answer of put", key);
    return stored;
  }
  void do_replace(Key key, Bytes value, Milliseconds expiry) override {
    check("replace", key);
    behind_->replace(key, value, expiry);
  }
  [[nodiscard]] std::optional<StoreValue> do_get(Key key) override {
    check("get", key);
    return behind_->get(key);
  }
  [[nodiscard]] std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) override {
    check("pull", key);
    return behind_->pull(key, timeout);
  }
  [[nodiscard]] bool do_erase(Key key) override {
    check("erase", key);
    return behind_->erase(key);
  }
  [[nodiscard]] bool do_renew(Key key, Bytes value, Milliseconds expiry) override {
    check("renew", key);
    return behind_->renew(key, value, expiry);
  }

 private:
  void check(std::string_view operation, Key key) const {
    if (fails_(operation, key)) {
      throw IoError("store failing: " + std::string(operation) + " " + std::string(key) +
                    ": the cable is \x1b[31mcut");
    }
  }

  const std::shared_ptr<Store> behind_;
  const Fails fails_;
};

// Lines that a planner's threads log.
class Lines {
 public:
  [[nodiscard]] std::function<void(std::string_view)> log() {
    return [this](std::string_view line) {
      const std::scoped_lock lock(mutex_);
      lines_.emplace_back(line);
    };
  }
  [[nodiscard]] std::vector<std::string> get() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

void pause_briefly() { std::this_thread::sleep_for(milliseconds(5)); }

constexpr FeedOptions kPatientFeed = {.timeout = seconds(300)};

PlanJob job_of_ranks(std::int32_t num_ranks) {
  BatchSampler sampler(std::vector<std::int64_t>{700, 300, 500, 90}, {.tokens = 1024});
  WorkloadInput input;
  input.shape = grouped_heads();
  return {.sampler = std::move(sampler),
          .input = std::move(input),
          .cluster = cluster_of(1, num_ranks),
          .choice = {"zigzag"},
          .plan = {}};
}

void take_steps(PlanFeed& feed, std::int64_t first, std::int64_t end) {
  for (std::int64_t step = first; step < end; ++step) {
    EXPECT_EQ(feed.take(step).step, step);
    feed.acknowledge(step);
  }
}

TEST(PlannerFailure, AnOutageIsWaitedOut) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> ranks_store = open_store("memory:");
  std::atomic<bool> down = false;
  std::atomic<int> failures = 0;
  const auto planners_store = std::make_shared<FailingStore>(
      ranks_store, [&](std::string_view, std::string_view) { return down && ++failures > 0; });
  Lines lines;
  LookaheadPlanner planner(
      job, {.end_step = 12, .steps_ahead = 2, .threads = 2, .log = lines.log()}, planners_store);
  PlanFeed feed(ranks_store, job, Rank{0}, kPatientFeed);
  take_steps(feed, 0, 3);
  down = true;
  while (failures < 12) pause_briefly();  // every thread has tried more than once
  down = false;
  take_steps(feed, 3, 12);
  EXPECT_TRUE(planner.wait_for(seconds(300)));
  // The rank may be faster than the planner counts, and than a thread that pauses.
  while (planner.statistics().planned_steps < 12 || lines.get().size() < 2) pause_briefly();
  EXPECT_EQ(planner.statistics().planned_steps, 12) << "what was planned is not planned again";
  EXPECT_THAT(
      lines.get(),
      ElementsAre(AllOf(HasSubstr("planner: the store fails, trying again: store failing: "),
                        HasSubstr("the cable is"), Not(HasSubstr("\x1b"))),
                  HasSubstr("planner: the store answers again after ")));
}

// The store is there for the rank and not for the planner, which says so in the process alone.
TEST(PlannerFailure, AnOutageThatLastsIsNamedByTheRank) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> ranks_store = open_store("memory:");
  const auto planners_store = std::make_shared<FailingStore>(
      ranks_store, [](std::string_view, std::string_view) { return true; });
  LookaheadPlanner planner(job, {}, planners_store);
  PlanFeed feed(ranks_store, job, Rank{0}, {.timeout = milliseconds(1500)});
  feed.watch(planner.health());
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(0); }),
              AllOf(HasSubstr("rank 0: step 0: expected its plan in memory: within 1500 ms, found "
                              "none: to the planner of this process, the store has failed for "),
                    HasSubstr("the cable is")));
}

TEST(PlannerFailure, TheEndOfPatienceEndsTheRanksWaiting) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> ranks_store = open_store("memory:");
  const auto planners_store = std::make_shared<FailingStore>(
      ranks_store, [](std::string_view, std::string_view) { return true; });
  Lines lines;
  LookaheadPlanner planner(job, {.store_patience = milliseconds(200), .log = lines.log()},
                           planners_store);
  PlanFeed feed(ranks_store, job, Rank{0}, kPatientFeed);
  feed.watch(planner.health());
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(0); }),
              AllOf(HasSubstr("step 0: expected its plan in memory:, found none: the planner of "
                              "this process has ended: the store has failed for "),
                    HasSubstr("the cable is")));
  EXPECT_THAT(message_of<IoError>([&] { return planner.wait_for(seconds(300)); }),
              HasSubstr("the store has failed for "));
  EXPECT_THAT(lines.get().back(), HasSubstr("planner: planning has ended: the store has failed"));
}

// Another process: nothing but the store tells of it.
TEST(PlannerFailure, ReachesRanksOfOtherProcesses) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  const auto planners_store =
      std::make_shared<FailingStore>(store, [](std::string_view operation, std::string_view key) {
        return operation == "put" && key == "run/0/0";
      });
  PlanFeed feed(store, job, Rank{0}, kPatientFeed);
  LookaheadPlanner planner(job,
                           {.claim_expiry = milliseconds(300), .store_patience = milliseconds(100)},
                           planners_store);
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(0); }),
              AllOf(HasSubstr("found none: the last planner of this run has ended: planner-"),
                    HasSubstr("put run/0/0: the cable is"), Not(HasSubstr("\x1b"))));
}

TEST(PlannerFailure, OfOneOfTwoPlannersIsNotTheRuns) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  const auto broken =
      std::make_shared<FailingStore>(store, [](std::string_view operation, std::string_view key) {
        return operation == "put" && key.ends_with("/claim");
      });
  LookaheadPlanner failing(job, {.store_patience = milliseconds(0)}, broken);
  EXPECT_THROW(static_cast<void>(failing.wait_for(seconds(300))), IoError);
  PlanFeed feed(store, job, Rank{0}, kPatientFeed);
  feed.watch(failing.health());
  LookaheadPlanner planner(job, {.end_step = 20, .claim_expiry = hours(1)}, store);
  take_steps(feed, 0, 20);
  EXPECT_TRUE(planner.wait_for(seconds(300)));
}

TEST(PlannerFailure, IsToldAgainToAStoreThatForgot) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  store->replace("run/next/0", StoreValue{'x'}, hours(1));
  LookaheadPlanner planner(job, {.claim_expiry = milliseconds(30)}, store);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(store->pull("run/planner/failed", seconds(300)).has_value());
    store->erase("run/planner/failed");
  }
}

// Other bytes than a step under a rank's key end planning at once: no time mends them.
TEST(PlannerFailure, OfOtherKindsReachesTheRank) {
  const PlanJob job = job_of_ranks(2);
  const std::shared_ptr<Store> store = open_store("memory:");
  store->replace("run/next/1", StoreValue{'-', '7'}, hours(1));
  LookaheadPlanner planner(job, {.claim_expiry = milliseconds(300)}, store);
  PlanFeed feed(store, job, Rank{0}, kPatientFeed);
  feed.watch(planner.health());
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(0); }),
              HasSubstr("has ended: memory: run/next/1: expected the step that a rank needs next, "
                        "found '-7'"));
}

// The reason in the store is untrusted.
TEST(PlannerFailure, IsBoundedAndPrintable) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  PlanFeed feed(store, job, Rank{0}, kPatientFeed);
  StoreValue text(100'000, 'x');
  text[10] = 0x1b;
  text[11] = '\n';
  text[12] = 0xff;
  store->replace("run/planner/failed", text, hours(1));
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(0); }),
              AllOf(HasSubstr("has ended: xxxxxxxxxx\\x1b\\x0a\\xffxx"), Not(HasSubstr("\x1b")),
                    Not(HasSubstr("\n")), SizeIs(::testing::Lt(1000U))));
}

// A run that continues after one that failed has its own planners.
TEST(PlannerFailure, OfAnEarlierStartIsNotThisOnes) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  const std::string old = "planner-1: of yesterday";
  store->replace("run/planner/failed", StoreValue(old.begin(), old.end()), hours(1));
  PlanFeed feed(store, job, Rank{0}, {.timeout = milliseconds(1200)});
  EXPECT_THAT(
      message_of<TransportError>([&] { return feed.take(0); }),
      HasSubstr("within 1200 ms, found none: no planner lives; the last one ended before this "
                "rank began: " +
                old));
  LookaheadPlanner planner(job, {}, store);
  take_steps(feed, 0, 3);
  while (store->get("run/planner/failed")) pause_briefly();  // a planner lives
}

TEST(PlannerFailure, AClaimWhoseAnswerWasLostHoldsNothingUp) {
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> store = open_store("memory:");
  std::atomic<int> lost = 0;
  const auto planners_store =
      std::make_shared<FailingStore>(store, [&](std::string_view operation, std::string_view key) {
        return operation == "answer of put" && key.ends_with("/claim") && ++lost <= 3;
      });
  LookaheadPlanner planner(job, {.claim_expiry = hours(1)}, planners_store);
  PlanFeed feed(store, job, Rank{0}, kPatientFeed);
  take_steps(feed, 0, 5);
  EXPECT_GT(lost, 3);
}

TEST(PlannerFailure, EndsWhileTheStoreFails) {
  const auto planners_store = std::make_shared<FailingStore>(
      open_store("memory:"), [](std::string_view, std::string_view) { return true; });
  for (int i = 0; i < 3; ++i) {
    const LookaheadPlanner planner(job_of_ranks(1), {.threads = 2}, planners_store);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// A server that is away for longer than a call tries, while the rank computes.
TEST(PlannerFailure, ARestartedServerIsFoundAgain) {
  if (!RedisServer::available()) GTEST_SKIP() << "no redis-server on this machine";
  if (!store_kinds()[2].missing.empty()) GTEST_SKIP() << store_kinds()[2].missing;
  RedisServer server;
  static_cast<void>(open_store(server.address(), {.timeout = seconds(120)}));
  const PlanJob job = job_of_ranks(1);
  const std::shared_ptr<Store> ranks_store =
      open_store(server.address(), {.timeout = seconds(120)});
  Lines lines;
  LookaheadPlanner planner(job, {.end_step = 8, .steps_ahead = 1, .log = lines.log()},
                           open_store(server.address(), {.timeout = milliseconds(100)}));
  PlanFeed feed(ranks_store, job, Rank{0}, kPatientFeed);
  take_steps(feed, 0, 2);
  server.kill();
  while (lines.get().empty()) pause_briefly();
  server.start();
  take_steps(feed, 2, 8);
  EXPECT_TRUE(planner.wait_for(seconds(300)));
  EXPECT_THAT(lines.get().front(), HasSubstr("expected a Redis server, found none in "));
}

}  // namespace
}  // namespace contextile
