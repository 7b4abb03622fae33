// The set-ups that advise finds in its time, held against a sweep over all set-ups.
//
//   advise_bench [--job N] [--seconds 15]
//
// Five jobs as people run them: 8B, 70B and a model of experts; sequences of 128K and 512K; today's
// set-up as arguments of Megatron-LM or keys of torchtitan's TOML. A row has today's step, the best
// set-up of the search and the time it took, and the best of a sweep. The sweep predicts every
// set-up that fits the memory, whatever its bound, once for every kind of recompute; it takes
// minutes to an hour for a job. The last column, the search's tokens/s over the sweep's, is 1 if
// both found the same. All times of steps are predicted.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/advise.h"
#include "contextile/advanced/engine_setup.h"
#include "contextile/advanced/model.h"
#include "contextile/data.h"
#include "read_options.h"

namespace contextile {
namespace {

constexpr std::int64_t kDatasetTokens = std::int64_t{1} << 26;
constexpr double kUsPerSecond = 1e6;

struct Job {
  std::string_view name;
  std::string_view model;
  std::string_view gpus;
  std::string_view dataset;
  TrainingEngine engine = TrainingEngine::kMegatron;
  std::string_view arguments;                                  // Megatron-LM
  std::vector<std::pair<std::string, std::string>> keys = {};  // torchtitan
};

std::vector<Job> jobs() {
  return {
      {"8B, 128K, 32 H100, Megatron-LM", "llama-3-8b", "32xh100", "prolong",
       TrainingEngine::kMegatron,
       "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 2 "
       "--sequence-parallel --context-parallel-size 16 --seq-length 131072 --micro-batch-size 1 "
       "--global-batch-size 16 --use-distributed-optimizer --bf16 --use-flash-attn "
       "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"},
      {"8B, 512K, 64 H100, torchtitan",
       "llama-3-8b",
       "64xh100",
       "mixture512k",
       TrainingEngine::kTorchtitan,
       "",
       {{"training.seq_len", "524288"},
        {"training.local_batch_size", "1"},
        {"training.global_batch_size", "4"},
        {"parallelism.data_parallel_shard_degree", "2"},
        {"parallelism.tensor_parallel_degree", "2"},
        {"parallelism.context_parallel_degree", "16"},
        {"activation_checkpoint.mode", "full"}}},
      {"70B, 128K, 128 H100, Megatron-LM", "llama-3-70b", "128xh100", "prolong",
       TrainingEngine::kMegatron,
       "torchrun --nproc_per_node 8 --nnodes 16 pretrain_gpt.py --tensor-model-parallel-size 8 "
       "--sequence-parallel --pipeline-model-parallel-size 4 --context-parallel-size 4 "
       "--seq-length 131072 --micro-batch-size 1 --global-batch-size 16 "
       "--use-distributed-optimizer --bf16 --recompute-granularity full --recompute-method uniform "
       "--recompute-num-layers 1"},
      {"70B, 512K, 256 H200, torchtitan",
       "llama-3-70b",
       "256xh200",
       "mixture512k",
       TrainingEngine::kTorchtitan,
       "",
       {{"training.seq_len", "524288"},
        {"training.local_batch_size", "1"},
        {"training.global_batch_size", "8"},
        {"parallelism.data_parallel_shard_degree", "1"},
        {"parallelism.tensor_parallel_degree", "8"},
        {"parallelism.context_parallel_degree", "32"},
        {"activation_checkpoint.mode", "full"}}},
      {"30B of 128 experts, 128K, 64 H100, Megatron-LM", "qwen3-30b-a3b", "64xh100", "prolong",
       TrainingEngine::kMegatron,
       "torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --tensor-model-parallel-size 1 "
       "--context-parallel-size 8 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 "
       "--moe-token-dispatcher-type alltoall --num-experts 128 --moe-router-topk 8 "
       "--seq-length 131072 --micro-batch-size 1 --global-batch-size 16 "
       "--use-distributed-optimizer --bf16 --recompute-granularity full --recompute-method uniform "
       "--recompute-num-layers 1"},
  };
}

double process_seconds() {
  return static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  double wall_s = 0;
  double cpu_s = 0;
};

template <typename Call>
Times timed(const Call& call) {
  const double wall = wall_seconds();
  const double cpu = process_seconds();
  call();
  return {wall_seconds() - wall, process_seconds() - cpu};
}

AdvisedSetup best_of(const Advice& advice) {
  const bool engines = !advice.engines.empty();
  const bool own = !advice.own.empty();
  if (!engines && !own) {
    fmt::print(stderr, "no set-up fits the memory\n");
    std::exit(1);
  }
  if (!own) return advice.engines.front();
  if (!engines) return advice.own.front();
  return advice.own.front().tokens_per_s > advice.engines.front().tokens_per_s
             ? advice.own.front()
             : advice.engines.front();
}

struct Sweep {
  std::vector<AdvisedSetup> engines;  // the best of each kind of recompute that has any
  std::vector<AdvisedSetup> own;
  std::int64_t predicted = 0;
};

double best_rate(const std::vector<AdvisedSetup>& setups) {
  double best = 0;
  for (const AdvisedSetup& one : setups) best = std::max(best, one.tokens_per_s);
  return best;
}

Sweep sweep(const AdviseJob& job) {
  Sweep all;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    AdviseOptions options;
    options.recomputes = {recompute};
    options.prune = false;
    options.seconds = 0;
    options.best = 1;
    const Advice advice = advise(job, options);
    all.predicted += advice.predicted;
    if (!advice.engines.empty()) all.engines.push_back(advice.engines.front());
    if (!advice.own.empty()) all.own.push_back(advice.own.front());
  }
  return all;
}

void bench_job(const Job& described, double seconds) {
  AdviseJob job;
  job.model = load_model(std::string(described.model));
  job.cluster = load_gpus(std::string(described.gpus));
  job.lengths =
      batches_from_dataset(described.dataset, {.tokens = kDatasetTokens, .seed = 0}).front();
  const std::int32_t gpus = job.cluster.num_devices();
  const ReadSetup read = described.keys.empty()
                             ? read_megatron_arguments(described.arguments, gpus)
                             : read_engine_setup(described.engine, described.keys, gpus);
  const AdvisedSetup now = predict_read_setup(job, read);
  Advice advice;
  AdviseOptions options;
  options.seconds = seconds;
  const Times search = timed([&] { advice = advise(job, options); });
  const AdvisedSetup found = best_of(advice);
  fmt::print("{}\n  now     {}: {:.2f} s a step, {:.0f} tokens/s, {:.0f} GB\n", described.name,
             setup_text(now.setup), now.step_us / kUsPerSecond, now.tokens_per_s,
             static_cast<double>(now.memory_bytes) / 1e9);
  for (const auto* list : {&advice.engines, &advice.own}) {
    if (list->empty()) continue;
    fmt::print("  {} {}: {:.0f} tokens/s, {:.3f} x now\n",
               list == &advice.engines ? "engines" : "own    ", setup_text(list->front().setup),
               list->front().tokens_per_s, list->front().tokens_per_s / now.tokens_per_s);
  }
  fmt::print(
      "  search  {:.1f} s, {:.1f} CPU s, {} of {} set-ups predicted, {} left, rest gains at "
      "most {:.3f}\n",
      search.wall_s, search.cpu_s, advice.predicted, advice.considered, advice.left,
      advice.possible_gain);
  std::fflush(stdout);
  Sweep all;
  const Times swept = timed([&] { all = sweep(job); });
  std::vector<AdvisedSetup> any = all.engines;
  any.insert(any.end(), all.own.begin(), all.own.end());
  const auto best = std::ranges::max_element(any, {}, &AdvisedSetup::tokens_per_s);
  fmt::print("  sweep   {:.0f} CPU s, {} predictions; best {}: {:.0f} tokens/s\n", swept.cpu_s,
             all.predicted, setup_text(best->setup), best->tokens_per_s);
  const double engines = advice.engines.empty() ? 0 : advice.engines.front().tokens_per_s;
  fmt::print("  search over sweep: {:.4f} of all, {:.4f} of the engines'\n",
             found.tokens_per_s / best->tokens_per_s, engines / best_rate(all.engines));
  std::fflush(stdout);
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  int only = 0;
  double seconds = contextile::AdviseOptions{}.seconds;
  contextile::bench::read_options(
      argc, argv,
      {{"--job", [&](const char* text) { only = std::atoi(text); }},
       {"--seconds", [&](const char* text) { seconds = std::atof(text); }}});
  int number = 0;
  for (const contextile::Job& job : contextile::jobs()) {
    if (++number == only || only == 0) contextile::bench_job(job, seconds);
  }
  return 0;
}
