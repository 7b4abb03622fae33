#include "contextile/advanced/lookahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/interrupt.h"
#include "contextile/plan_file.h"
#include "store/redis_server.h"
#include "support/batches.h"
#include "support/in_child.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr std::int32_t kRanks = 2;
constexpr FeedOptions kPatient = {.timeout = seconds(300)};

// Small batches of few documents, planned in a millisecond or two.
PlanJob small_job(std::uint64_t seed = 0) {
  Rng rng(seed);
  std::vector<std::int64_t> documents(100);
  for (std::int64_t& length : documents) {
    length = 1 + static_cast<std::int64_t>(rng.next() % 900);
  }
  BatchSampler sampler(std::move(documents), {.tokens = 2048, .seed = seed});
  WorkloadInput input;
  input.shape = grouped_heads();
  return {.sampler = std::move(sampler),
          .input = std::move(input),
          .cluster = cluster_of(1, kRanks),
          .choice = {"zigzag"},
          .plan = {}};
}

// A job that is planned for minutes unless something stops it.
PlanJob slow_job() {
  PlanJob job = small_job();
  job.sampler = BatchSampler::of_dataset("prolong", 1000, {.tokens = 1 << 18});
  job.cluster = cluster_of(4, 8);
  job.choice = {"auto", {}};
  return job;
}

// The plans that all ranks must get.
std::uint64_t digest_of_step(const PlanJob& job, std::int64_t step) {
  return plan_batch(workload_of(job, step), job.cluster, job.choice, job.plan).plan->digest;
}

// One rank takes the steps of a range, with random pauses.
void take_steps(const std::shared_ptr<Store>& store, const PlanJob& job, Rank rank, Range steps,
                std::uint64_t seed) {
  FeedOptions options = kPatient;
  options.first_step = steps.begin;
  PlanFeed feed(store, job, rank, options);
  Rng rng(seed);
  for (std::int64_t step = steps.begin; step < steps.end; ++step) {
    const TakenStep taken = feed.take(step);
    EXPECT_EQ(taken.step, step);
    EXPECT_EQ(taken.plan->slice_of, rank);
    EXPECT_EQ(taken.plan->digest, digest_of_step(job, step)) << step;
    std::this_thread::sleep_for(std::chrono::microseconds(rng.next() % 4000));
    feed.acknowledge(step);
  }
  const FeedStatistics counted = feed.statistics();
  EXPECT_EQ(counted.steps, steps.size());
  EXPECT_GT(counted.bytes, 0);
  EXPECT_GE(counted.planning_s, counted.hidden_s());
}

// Every rank is a thread and takes steps [first, end), with random pauses.
void take_all(const std::shared_ptr<Store>& store, const PlanJob& job, std::int64_t first,
              std::int64_t end, std::uint64_t seed) {
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < job.cluster.num_devices(); ++r) {
    threads.emplace_back([&, r] {
      try {
        take_steps(store, job, Rank{r}, {first, end}, seed + static_cast<std::uint64_t>(r));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Lookahead, GivesTheSamePlansOnAnyNumberOfThreads) {
  const PlanJob job = small_job();
  for (std::int32_t threads = 1; threads <= 4; ++threads) {
    SCOPED_TRACE(threads);
    LookaheadPlanner planner(job, {.end_step = 12, .threads = threads});
    take_all(planner.store(), job, 0, 12, static_cast<std::uint64_t>(threads));
    EXPECT_TRUE(planner.wait_for(seconds(300)));
    const LookaheadStatistics counted = planner.statistics();
    EXPECT_EQ(counted.planned_steps, 12);
    EXPECT_EQ(counted.failed_steps, 0);
    EXPECT_EQ(counted.slowest_rank_step, 12);
    EXPECT_GT(counted.planning_s, 0);
    EXPECT_GT(counted.published_bytes, 0);
    EXPECT_FALSE(planner.store()->get("run/11/0").has_value()) << "acknowledging deletes";
  }
}

TEST(Lookahead, GivesTheSamePlansByAuto) {
  PlanJob job = small_job();
  job.choice = {"auto", {{"steps", "20000"}}};
  LookaheadPlanner planner(job, {.end_step = 4, .threads = 2});
  take_all(planner.store(), job, 0, 4, 1);
}

TEST(Lookahead, IsNeverFurtherAheadThanAsked) {
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.steps_ahead = 3, .threads = 2});
  PlanFeed first(planner.store(), job, Rank{0}, kPatient);
  PlanFeed second(planner.store(), job, Rank{1}, kPatient);
  const auto planned_up_to = [&](std::int64_t step) {
    return planner.store()->pull("run/" + std::to_string(step) + "/0", milliseconds(0)).has_value();
  };
  for (std::int64_t step = 0; step < 4; ++step) {
    static_cast<void>(second.take(step + 2));
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(planned_up_to(step + 2));
    EXPECT_FALSE(planned_up_to(step + 3));
    first.acknowledge(step);  // the other is the slowest: nothing new
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_FALSE(planned_up_to(step + 3));
    second.acknowledge(step);
  }
  EXPECT_FALSE(planner.wait_for(milliseconds(0)));
}

TEST(Lookahead, SharesStepsAmongPlanners) {
  const PlanJob job = small_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  LookaheadPlanner one(job, {.end_step = 20, .threads = 1}, store);
  LookaheadPlanner other(job, {.end_step = 20, .threads = 2}, store);
  take_all(store, job, 0, 20, 3);
  EXPECT_TRUE(one.wait_for(seconds(300)) && other.wait_for(seconds(300)));
  EXPECT_EQ(one.statistics().planned_steps + other.statistics().planned_steps, 20)
      << "none is planned twice";
}

TEST(Lookahead, TakesOverWhatADeadPlannerHasClaimed) {
  const PlanJob job = small_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  ASSERT_TRUE(store->put("run/1/claim", {}, milliseconds(200)));  // it will say nothing more
  LookaheadPlanner planner(job, {.end_step = 3}, store);
  take_all(store, job, 0, 3, 4);
}

TEST(Lookahead, KeepsAClaimForAsLongAsItPlans) {
  const PlanJob job = slow_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  {
    LookaheadPlanner planner(job, {.steps_ahead = 1, .claim_expiry = seconds(1)}, store);
    const auto claim = store->pull("run/0/claim", seconds(300));
    ASSERT_TRUE(claim.has_value());
    // This takes far longer than the claim lives: the same planner renews it.
    std::this_thread::sleep_for(milliseconds(2500));
    EXPECT_EQ(store->pull("run/0/claim", seconds(300)), claim);
  }
  EXPECT_FALSE(store->get("run/0/claim").has_value()) << "given back at the end";
}

TEST(Lookahead, EndsWhilePlanning) {
  const PlanJob job = slow_job();
  for (int i = 0; i < 3; ++i) {
    LookaheadPlanner planner(job, {.threads = 2});
    ASSERT_TRUE(planner.store()->pull("run/1/claim", seconds(300)).has_value());
  }
}

TEST(Lookahead, IsDroppedByAChildMadeByFork) {
  auto planner = std::make_unique<LookaheadPlanner>(small_job(), LookaheadOptions{});
  EXPECT_EQ(ChildProcess([&] {
              EXPECT_THROW(static_cast<void>(planner->statistics()), InvalidArgument);
              planner.reset();
              return testing::Test::HasFailure() ? 1 : 0;
            }).status(),
            0);
}

TEST(Lookahead, StopsAndKeepsItsStatistics) {
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.end_step = 4, .steps_ahead = 4, .threads = 2});
  take_steps(planner.store(), job, Rank{0}, {0, 1}, 1);
  std::thread waiting([&] { EXPECT_FALSE(planner.wait_for(hours(1))); });
  planner.stop();
  planner.stop();
  waiting.join();
  EXPECT_GE(planner.statistics().planned_steps, 1);
}

// A planner that is stopped leaves no claim behind, which another one would wait for.
TEST(Lookahead, GivesItsClaimsBackWhenItIsStopped) {
  PlanJob job = slow_job();
  job.choice = {"dcp", {{"effort", "1000"}}};  // without reports of progress
  std::atomic<bool> called = false;
  job.workload = [&called, plain = slow_job()](std::int64_t step) {
    called = true;
    return workload_of(plain, step);
  };
  LookaheadPlanner planner(job, {.claim_expiry = hours(1)});
  while (!called) std::this_thread::yield();
  planner.stop();
  EXPECT_FALSE(planner.store()->get("run/0/claim"));
}

TEST(Lookahead, AnInterruptEndsAWaitForAPlan) {
  struct Enough {};
  const PlanJob job = small_job();
  PlanFeed feed(open_store("memory:"), job, Rank{0},
                {.run_id = "nobody-plans", .timeout = hours(1)});
  const InterruptScope scope([] { throw Enough(); });
  EXPECT_THROW(static_cast<void>(feed.take(0)), Enough);
}

TEST(Lookahead, GoesOnWhenItsPlannerIsReplacedAgainAndAgain) {
  const PlanJob job = small_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  std::atomic<bool> done = false;
  std::thread planners([&] {
    Rng rng(9);
    while (!done) {
      LookaheadPlanner planner(job, {.threads = 2}, store);
      std::this_thread::sleep_for(std::chrono::microseconds(rng.next() % 20'000));
    }
  });
  take_all(store, job, 0, 30, 5);
  done = true;
  planners.join();
}

TEST(Lookahead, ResumesFromAStepInTheMiddle) {
  const PlanJob job = small_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  {
    LookaheadPlanner planner(job, {}, store);
    take_all(store, job, 0, 10, 6);
  }
  LookaheadPlanner planner(job, {.end_step = 12}, store);
  take_all(store, job, 5, 12, 7);  // ranks go back to their last checkpoint
  EXPECT_TRUE(planner.wait_for(seconds(300)));
}

TEST(Lookahead, BeginsAtAStepInTheMiddleOfAnEmptyStore) {
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.first_step = 1000, .end_step = 1004});
  take_all(planner.store(), job, 1000, 1004, 8);
  EXPECT_TRUE(planner.wait_for(seconds(300)));
  EXPECT_EQ(planner.statistics().planned_steps, 4);
}

// The store forgets everything once, in the middle of a run, like a server that is started again.
TEST(Lookahead, GoesOnWithAStoreThatLostItsMemory) {
  if (!RedisServer::available()) GTEST_SKIP() << "no redis-server on this machine";
  const auto kinds = store_kinds();
  if (!kinds[2].missing.empty()) GTEST_SKIP() << kinds[2].missing;
  RedisServer server;
  const std::shared_ptr<Store> store = open_store(server.address(), {.timeout = seconds(120)});
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.threads = 2}, store);
  std::thread restart([&] {
    std::this_thread::sleep_for(milliseconds(50));
    server.kill();
    server.start();
  });
  take_all(store, job, 0, 20, 10);
  restart.join();
}

TEST(Lookahead, WorksOverFiles) {
  const TemporaryFolder folder;
  const std::shared_ptr<Store> store = open_store("file://" + folder.path());
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.threads = 2}, store);
  take_all(store, job, 0, 10, 11);
}

TEST(Lookahead, TellsEveryRankWhyAStepHasNoPlan) {
  PlanJob job = small_job();
  job.plan.limits.memory_bytes = 1;  // no plan verifies
  LookaheadPlanner planner(job, {.end_step = 2});
  std::vector<std::unique_ptr<PlanFeed>> feeds;
  for (std::int32_t r = 0; r < kRanks; ++r) {
    feeds.push_back(std::make_unique<PlanFeed>(planner.store(), job, Rank{r}, kPatient));
  }
  for (std::int64_t step = 0; step < 2; ++step) {
    for (const auto& feed : feeds) {
      EXPECT_THAT(
          message_of<PlanningFailed>([&] { return feed->take(step); }),
          ::testing::AllOf(HasSubstr("step " + std::to_string(step) + ": planning failed: "),
                           HasSubstr("the limit is 1")));
      feed->acknowledge(step);
    }
  }
  EXPECT_TRUE(planner.wait_for(seconds(300)));
  EXPECT_EQ(planner.statistics().failed_steps, 2);
}

TEST(Lookahead, RefusesThePlanOfAnotherJob) {
  LookaheadPlanner planner(small_job(1), {});
  PlanFeed feed(planner.store(), small_job(2), Rank{0}, kPatient);
  EXPECT_THAT(message_of<InvalidPlan>([&] { return feed.take(0); }),
              ::testing::AllOf(HasSubstr("memory: run/0/0: expected the batch of this job"),
                               HasSubstr("its planner has another job")));
}

TEST(Lookahead, PlansBatchesOfItsOwnLengths) {
  PlanJob job = small_job();
  job.lengths_tokens = [](std::int64_t step) { return std::vector<std::int64_t>{100 + step, 50}; };
  LookaheadPlanner planner(job, {.end_step = 3});
  take_all(planner.store(), job, 0, 3, 9);
  EXPECT_TRUE(planner.wait_for(seconds(300)));
  LookaheadPlanner longer(job, {.run_id = "other"});
  PlanFeed other(longer.store(), small_job(), Rank{0},
                 {.run_id = "other", .timeout = kPatient.timeout});
  EXPECT_THAT(message_of<InvalidPlan>([&] { return other.take(0); }),
              HasSubstr("its planner has another job"));
}

TEST(Lookahead, RefusesWhatWasChangedInTheStore) {
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {});
  const std::shared_ptr<Store>& store = planner.store();
  StoreValue value = store->pull("run/1/0", seconds(300)).value();
  PlanFeed feed(store, job, Rank{0}, kPatient);
  store->replace("run/0/0", value, hours(1));
  EXPECT_THAT(message_of<InvalidPlan>([&] { return feed.take(0); }), HasSubstr("of step 1"));
  value[value.size() / 2] ^= 4;
  store->replace("run/1/0", value, hours(1));
  EXPECT_THAT(message_of<InvalidPlan>([&] { return feed.take(1); }), HasSubstr("corrupt"));
}

TEST(Lookahead, NamesAPlanThatDoesNotCome) {
  const PlanJob job = small_job();
  const std::shared_ptr<Store> store = open_store("memory:");
  PlanFeed feed(store, job, Rank{1}, {.timeout = milliseconds(20)});
  EXPECT_THAT(message_of<TransportError>([&] { return feed.take(3); }),
              HasSubstr("rank 1: step 3: expected its plan in memory: within 20 ms, found none"));
}

TEST(Lookahead, NamesAStoreThatIsGone) {
  if (!RedisServer::available()) GTEST_SKIP() << "no redis-server on this machine";
  if (!store_kinds()[2].missing.empty()) GTEST_SKIP() << store_kinds()[2].missing;
  RedisServer server;
  static_cast<void>(open_store(server.address(), {.timeout = seconds(120)}));
  const std::shared_ptr<Store> store = open_store(server.address(), {.timeout = milliseconds(500)});
  const PlanJob job = small_job();
  LookaheadPlanner planner(job, {.store_patience = milliseconds(500)}, store);
  PlanFeed feed(store, job, Rank{0}, kPatient);
  server.kill();
  EXPECT_THROW(static_cast<void>(planner.wait_for(seconds(300))), IoError);
  EXPECT_THROW(static_cast<void>(feed.take(10)), IoError);
}

TEST(Lookahead, RefusesWhatCannotBe) {
  const PlanJob job = small_job();
  const auto message_with = [&](const LookaheadOptions& options) {
    return message_of([&] { return LookaheadPlanner(job, options).statistics(); });
  };
  EXPECT_THAT(message_with({.run_id = "a/b"}), HasSubstr("run id: expected"));
  EXPECT_THAT(message_with({.first_step = 3, .end_step = 2}), HasSubstr("expected steps"));
  EXPECT_THAT(message_with({.steps_ahead = 0}), HasSubstr("steps ahead"));
  EXPECT_THAT(message_with({.threads = 0}), HasSubstr("threads"));
  EXPECT_THAT(message_with({.claim_expiry = milliseconds(0)}), HasSubstr("claims"));
  PlanJob timed = job;
  timed.choice = {"auto", {{"budget_ms", "100"}}};
  EXPECT_THAT(message_of([&] { return LookaheadPlanner(timed, {}).statistics(); }),
              HasSubstr("found budget_ms=100"));
  const std::shared_ptr<Store> store = open_store("memory:");
  EXPECT_THROW(PlanFeed(store, job, Rank{kRanks}), InvalidArgument);
  EXPECT_THROW(PlanFeed(nullptr, job, Rank{0}), InvalidArgument);
  PlanFeed feed(store, job, Rank{0}, {.first_step = 4});
  EXPECT_THROW(static_cast<void>(feed.take(3)), InvalidArgument);
  EXPECT_THROW(feed.acknowledge(3), InvalidArgument);
}

}  // namespace
}  // namespace contextile
