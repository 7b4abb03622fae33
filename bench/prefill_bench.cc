// The modes of prefill compared with each other and with the mode that is chosen.
//
//   prefill_bench [--context 8192] [--ranks 4] [--repeats 5] [--dtype f32] [--heads 8]
//                 [--interleave 16] [--strategy dcp]
//
// One sequence, of which 1%, 2.5%, 10% and all tokens are new and the others cached, 4 query heads
// per KV head, dim 128, pages of 16 tokens. Every mode, and a plan of a strategy, is checked first:
// a tenth of the context against fp64, the whole context against each other (exit 1 if they
// differ). Then they run in turn, with a thread per rank. Numbers are medians of the slowest rank:
// wall time, CPU time of its thread, bytes it sent. Rates are measured on the same ranks.
// --published prints the published table and its predictions instead.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "contextile/serving/prefill.h"
#include "kernel_peaks.h"
#include "serving/prefill/prefill_batch.h"
#include "serving/prefill/published_table.h"

namespace contextile {
namespace {

constexpr PrefillMode kModes[] = {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                  PrefillMode::kAllGather, PrefillMode::kUlysses};

struct Options {
  std::int64_t context = 8192;
  std::int32_t ranks = 4;
  int repeats = 5;
  Dtype dtype = Dtype::kF32;
  std::int32_t heads = 8;
  std::int32_t interleave = 16;
  std::string strategy = "dcp";

  [[nodiscard]] AttentionShape shape() const {
    return {.q_heads = heads, .kv_heads = heads / 4, .dtype = dtype};
  }
  [[nodiscard]] TestBatch batch(std::int64_t tokens, double fraction) const {
    const auto fresh = static_cast<std::int64_t>(fraction * static_cast<double>(tokens) + 0.5);
    return {{ranks, interleave, 16}, shape(), {{tokens - fresh, fresh}}};
  }
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double wall_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// All repeats of one way, the slowest rank's.
struct Measured {
  std::vector<double> wall_s;
  std::vector<double> cpu_s;
  std::int64_t sent_bytes = 0;
  TestBatch::Result result;
};

// All ways on one group, run in turn.
class Contest {
 public:
  Contest(const Options& options, const TestBatch& test) : options_(options), test_(test) {
    const Cluster cluster = load_cluster(fmt::format("dgx-h200:1x{}", options.ranks));
    planned_ = plan_batch(prefill_workload(test.batch(), test.shape()), cluster, {options.strategy},
                          {.backward = false});
    for (const std::string& name : ways()) {
      found_[name].result = empty_result(test);
      found_[name].wall_s.resize(static_cast<std::size_t>(options.repeats));
      found_[name].cpu_s.resize(static_cast<std::size_t>(options.repeats));
    }
  }

  void run() {
    run_inproc(options_.ranks, [&](Transport& transport) {
      const RankInputs in = test_.inputs(transport.rank());
      PrefillRates rates =
          measure_prefill_rates(transport, preferred_kernel(options_.dtype), test_.shape());
      if (transport.rank() == Rank(0)) rates_ = rates;
      for (int i = -1; i < options_.repeats; ++i) {  // the first is not counted
        for (const std::string& name : ways()) run_once(transport, name, i, in);
      }
    });
  }

  [[nodiscard]] static std::vector<std::string> ways() {
    std::vector<std::string> names;
    for (const PrefillMode mode : kModes) names.emplace_back(to_string(mode));
    names.emplace_back("plan");
    return names;
  }
  [[nodiscard]] bool plan_verifies() const { return planned_.verified.ok(); }
  [[nodiscard]] const Measured& found(const std::string& name) const { return found_.at(name); }
  [[nodiscard]] const PrefillRates& rates() const { return rates_; }

 private:
  // Each call prepares its way, so that only one way's memory exists at a time.
  void run_once(Transport& transport, const std::string& name, int repeat, const RankInputs& in) {
    const AttentionShape& shape = test_.shape();
    HostTensor out(Dtype::kF32, in.q.tokens(), shape.q_heads, shape.value_dim);
    HostTensor lse(Dtype::kF32, in.q.tokens(), shape.q_heads, 1);
    const PartialOutput result = {out.view(), lse.stats()};
    const AttentionKernel& kernel = preferred_kernel(options_.dtype);
    PrefillGroup group(transport, kernel);
    PlannedPrefill planned(transport, kernel);
    const bool is_plan = name == "plan";
    if (is_plan) {
      planned.prepare(planned_.plan, test_.batch());
    } else {
      group.prepare(test_.batch(), shape, {.mode = parse_prefill_mode(name)});
    }
    barrier(transport);
    const std::int64_t sent = transport.sent_bytes();
    const double wall = wall_s();
    const double cpu = thread_cpu_s();
    if (is_plan) {
      planned.attend(in.q.view(), in.k.view(), in.v.view(), in.pages.kv(), result);
    } else {
      group.attend(in.q.view(), in.k.view(), in.v.view(), in.pages.kv(), result);
    }
    const double cpu_s = thread_cpu_s() - cpu;
    const double taken_s = wall_s() - wall;
    const std::int64_t bytes = transport.sent_bytes() - sent;
    take_turns(transport, [&] {
      Measured& found = found_[name];
      found.sent_bytes = std::max(found.sent_bytes, bytes);
      put_result(test_, transport.rank(), out, lse, found.result);
      if (repeat < 0) return;
      auto& slowest = found.wall_s[static_cast<std::size_t>(repeat)];
      auto& busiest = found.cpu_s[static_cast<std::size_t>(repeat)];
      slowest = std::max(slowest, taken_s);
      busiest = std::max(busiest, cpu_s);
    });
  }

  static void take_turns(Transport& transport, const auto& body) {
    for (std::int32_t r = 0; r < transport.size(); ++r) {
      if (transport.rank() == Rank(r)) body();
      barrier(transport);
    }
  }

  const Options& options_;
  const TestBatch& test_;
  PlannedBatch planned_;
  PrefillRates rates_;
  std::map<std::string, Measured> found_;
};

double bound_of(Dtype dtype) {
  return 4e-6 + 4 * weight_rounding(preferred_kernel(dtype).weight_dtype(dtype)) +
         (dtype == Dtype::kF32 ? 0 : 0x1p-7);
}

bool is_exact(const Options& options, double fraction) {
  const TestBatch test = options.batch(options.context / 10, fraction);
  Options once = options;
  once.repeats = 1;
  Contest contest(once, test);
  contest.run();
  const TestBatch::Result expected = test.expected();
  for (const std::string& name : Contest::ways()) {
    const double error = difference(contest.found(name).result, expected);
    if (error <= bound_of(options.dtype)) continue;
    fmt::print("{}: error {:.1e}\n", name, error);
    return false;
  }
  return contest.plan_verifies();
}

bool print_fraction(const Options& options, double fraction) {
  const TestBatch test = options.batch(options.context, fraction);
  Contest contest(options, test);
  contest.run();
  const PrefillWork work = prefill_work(test.batch());
  const PrefillRates& rates = contest.rates();
  const PrefillSequence& sequence = test.batch().sequences[0];
  fmt::print("\n{} new, {} cached; {:.1f} GFLOP/s and {:.2f} GB/s a rank\n", sequence.new_tokens,
             sequence.cached_tokens, rates.flops_per_s / 1e9, rates.bytes_per_s / 1e9);
  fmt::print("{:12}{:>12}{:>12}{:>12}{:>14}\n", "", "wall ms", "CPU ms", "sent MB", "simulated ms");
  const TestBatch::Result& first = contest.found("pass_kv").result;
  bool is_right = contest.plan_verifies();
  for (const std::string& name : Contest::ways()) {
    const Measured& found = contest.found(name);
    is_right = is_right && difference(found.result, first) <= bound_of(options.dtype);
    const std::string simulated =
        name == "plan" ? "–"
                       : fmt::format("{:.1f}", 1e3 * simulate_prefill_s(parse_prefill_mode(name),
                                                                        work, test.shape(), rates));
    fmt::print("{:12}{:>12.1f}{:>12.1f}{:>12.2f}{:>14}\n", name, 1e3 * median(found.wall_s),
               1e3 * median(found.cpu_s), 1e-6 * static_cast<double>(found.sent_bytes), simulated);
  }
  fmt::print("chosen: {} by the rule, {} by simulation (of all modes {})\n",
             to_string(choose_prefill_mode(sequence.new_tokens, sequence.cached_tokens,
                                           options.ranks, test.shape(), rates)),
             to_string(simulated_prefill_mode(kRingModes, work, test.shape(), rates)),
             to_string(simulated_prefill_mode(kModes, work, test.shape(), rates)));
  return is_right;
}

void print_published() {
  for (const PrefillRates& rates : {kPublishedRates, kNominalRates}) {
    fmt::print(
        "C {:.0f} TFLOP/s, BW {:.1f} GB/s; ours: results leave when they are there\n"
        "{:>8}{:>20}{:>20}{:>20}{:>20}{:>10}{:>10}\n",
        rates.flops_per_s / 1e12, rates.bytes_per_s / 1e9, "new", "published ms", "predicted ms",
        "attention ms", "ours, attention", "rule", "faster");
    for (const PublishedPrefill& row : kPublishedPrefills) {
      const auto both = [&](const auto& of) {
        return fmt::format("{:.0f} / {:.0f}", of(PrefillMode::kPassKv), of(PrefillMode::kPassQ));
      };
      fmt::print("{:>8}{:>20}{:>20}{:>20}{:>20}{:>10}{:>10}\n", row.new_tokens,
                 both([&](PrefillMode mode) { return row.ms(mode); }),
                 both([&](PrefillMode mode) { return predicted_ms(row, mode, rates); }),
                 both([&](PrefillMode mode) { return scheduled_ms(row, mode, rates); }),
                 both([&](PrefillMode mode) { return simulated_ms(row, mode, rates); }),
                 to_string(choose_prefill_mode(row.new_tokens, row.cached_tokens, kPublishedRanks,
                                               kPublishedShape, rates)),
                 to_string(row.faster()));
    }
  }
}

int main_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--published") {
      print_published();
      return 0;
    }
    if (i + 1 == argc) break;
    if (word == "--context") options.context = std::atoll(argv[i + 1]);
    if (word == "--ranks") options.ranks = std::atoi(argv[i + 1]);
    if (word == "--repeats") options.repeats = std::atoi(argv[i + 1]);
    if (word == "--dtype") options.dtype = parse_dtype(argv[i + 1]);
    if (word == "--heads") options.heads = std::atoi(argv[i + 1]);
    if (word == "--interleave") options.interleave = std::atoi(argv[i + 1]);
    if (word == "--strategy") options.strategy = argv[i + 1];
  }
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  fmt::print("kernel {}, {} ranks, {} heads, {} KV heads of 128, {}, interleave {}\n",
             preferred_kernel(options.dtype).name(), options.ranks, options.heads,
             options.heads / 4, to_string(options.dtype), options.interleave);
  bool is_right = true;
  for (const double fraction : {0.01, 0.025, 0.1, 1.0}) {
    is_right = is_exact(options, fraction) && print_fraction(options, fraction) && is_right;
  }
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }
