// The attention of a training run whose plans are made ahead: planner and ranks as processes that
// share a store, or all of them as threads of this one.
//
//   train_ahead                                                     everything in one process
//   train_ahead --planner --store redis://HOST --steps 50           one or more of these,
//   train_ahead --rank R --ranks 4 --rendezvous tcp://HOST:PORT --store redis://HOST --steps 50
//                                                                   and one of these for each rank
//
// run_local starts all of it on this machine and kills the planner once; head is its part without
// ranks, for other machines.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

#include "attend.h"
#include "contextile/contextile.h"
#include "contextile/extend/transport.h"
#include "options.h"

using namespace contextile;

namespace {

constexpr double kLargestError = 2e-5;  // fp32 tensors and partial results

// One rank's account of the run.
struct RankReport {
  FeedStatistics feed;
  double attention_s = 0;
  double max_error = 0;
  std::int64_t checked_steps = 0;
};

RankReport run_rank(const Options& options, const PlanJob& job, std::shared_ptr<Store> store,
                    Transport& transport) {
  FeedOptions feed_options;
  feed_options.run_id = options.run_id;
  feed_options.first_step = options.first_step;
  PlanFeed feed(std::move(store), job, transport.rank(), feed_options);
  Executor executor(transport, preferred_kernel(job.input.shape.dtype));
  RankReport report;
  for (std::int64_t step = options.first_step; step < options.steps; ++step) {
    const TakenStep taken = feed.take(step);
    executor.prepare(taken.plan);
    const bool check = options.check_every > 0 && step % options.check_every == 0;
    const Attended attended =
        attend(executor, *taken.plan, transport.rank(), workload_of(job, step),
               static_cast<std::uint64_t>(step), check);
    feed.acknowledge(step);
    report.attention_s += attended.seconds;
    report.max_error = std::max(report.max_error, attended.max_error);
    report.checked_steps += check ? 1 : 0;
  }
  report.feed = feed.statistics();
  return report;
}

// Every rank's report on every rank.
std::vector<RankReport> share(Transport& transport, const RankReport& mine) {
  std::vector<RankReport> all;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&mine, 1)))) {
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof(RankReport));
  }
  return all;
}

// Returns true if all results were right.
bool print_reports(const Options& options, const std::vector<RankReport>& reports) {
  std::printf(
      "rank  steps  tokens   planning s  hidden s  exposed s  attention s  KB a step  error\n");
  double max_error = 0;
  double total_bytes = 0;
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const RankReport& report = reports[r];
    const auto steps = static_cast<double>(std::max<std::int64_t>(report.feed.steps, 1));
    std::printf("%4zu  %5lld  %7lld  %10.2f  %8.2f  %9.2f  %11.2f  %9.2f  %.1e\n", r,
                static_cast<long long>(report.feed.steps),
                static_cast<long long>(report.feed.steps * options.tokens), report.feed.planning_s,
                report.feed.hidden_s(), report.feed.exposed_s, report.attention_s,
                1e-3 * static_cast<double>(report.feed.bytes) / steps, report.max_error);
    max_error = std::max(max_error, report.max_error);
    total_bytes += static_cast<double>(report.feed.bytes) / steps;
  }
  const bool ok = max_error <= kLargestError;
  std::printf(
      "through the store: %.1f KB a step to all ranks; %lld steps checked, largest error %.1e "
      "(bound %.0e): %s\n",
      1e-3 * total_bytes, static_cast<long long>(reports[0].checked_steps), max_error,
      kLargestError, ok ? "exact" : "WRONG");
  return ok;
}

LookaheadOptions lookahead_options(const Options& options) {
  LookaheadOptions lookahead;
  lookahead.run_id = options.run_id;
  lookahead.first_step = options.first_step;
  lookahead.end_step = options.steps;
  lookahead.steps_ahead = options.ahead;
  lookahead.threads = options.threads;
  lookahead.claim_expiry = std::chrono::milliseconds(options.claim_ms);
  return lookahead;
}

void print_planner(const LookaheadStatistics& counted) {
  std::printf(
      "planner: %lld steps planned, %lld failed, %.2f s of planning, %.2f s idle, %.1f KB "
      "put into the store\n",
      static_cast<long long>(counted.planned_steps), static_cast<long long>(counted.failed_steps),
      counted.planning_s, counted.idle_s, 1e-3 * static_cast<double>(counted.published_bytes));
}

int run_planner(const Options& options, const PlanJob& job) {
  LookaheadPlanner planner(job, lookahead_options(options), open_store(options.store));
  while (!planner.wait_for(std::chrono::hours(1))) {
  }
  print_planner(planner.statistics());
  return 0;
}

int run_process(const Options& options, const PlanJob& job) {
  GlooOptions gloo;
  gloo.rank = Rank{options.rank};
  gloo.size = options.ranks;
  gloo.rendezvous = options.rendezvous;
  gloo.run_id = options.run_id;
  gloo.interface_name = options.interface;
  const std::unique_ptr<Transport> transport = make_gloo_transport(gloo);
  const RankReport mine = run_rank(options, job, open_store(options.store), *transport);
  const std::vector<RankReport> reports = share(*transport, mine);
  if (options.rank != 0) return mine.max_error <= kLargestError ? 0 : 1;
  return print_reports(options, reports) ? 0 : 1;
}

int run_alone(const Options& options, const PlanJob& job) {
  std::shared_ptr<Store> store = options.store.empty() ? nullptr : open_store(options.store);
  LookaheadPlanner planner(job, lookahead_options(options), store);
  std::vector<RankReport> reports(static_cast<std::size_t>(options.ranks));
  run_inproc(options.ranks, [&](Transport& transport) {
    reports[transport.rank().index()] = run_rank(options, job, planner.store(), transport);
  });
  static_cast<void>(planner.wait_for(std::chrono::seconds(10)));
  print_planner(planner.statistics());
  return print_reports(options, reports) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse_options(argc, argv);
    if (options.is_help) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    const PlanJob job = job_of(options);
    if (options.is_planner) return run_planner(options, job);
    return options.rank >= 0 ? run_process(options, job) : run_alone(options, job);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "train_ahead: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train_ahead: %s\n", error.what());
    return 3;
  }
}
