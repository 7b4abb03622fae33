// Set-ups written as flags, and read again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/engine_setup.h"
#include "contextile/base.h"
#include "training/setup/flat_text.h"

namespace contextile {
namespace {

constexpr TrainingEngine kReadEngines[] = {TrainingEngine::kMegatron, TrainingEngine::kTorchtitan,
                                           TrainingEngine::kTrl, TrainingEngine::kDeepspeed};

// Every set-up of these sizes and methods; many of them are impossible somewhere.
std::vector<TrainingSetup> many_setups() {
  std::vector<TrainingSetup> setups;
  for (std::int32_t code = 0; code < 3 * 4 * 2 * 3 * 4 * 3 * 3 * 2 * 2; ++code) {
    std::int32_t rest = code;
    const auto next = [&](std::int32_t choices) {
      const std::int32_t choice = rest % choices;
      rest /= choices;
      return choice;
    };
    TrainingSetup setup;
    setup.sizes.tp = 1 << next(3);
    setup.sizes.cp = 1 << next(4);
    setup.sizes.dp = 1 + 2 * next(2);
    setup.sizes.pp = 1 << next(3);
    setup.exchange = static_cast<CpExchange>(next(4));
    if (setup.sizes.cp == 1) setup.exchange = CpExchange::kP2p;
    if (setup.exchange == CpExchange::kHybrid) setup.a2a_ranks = 2;
    setup.recompute = static_cast<Recompute>(next(3));
    setup.optimizer = static_cast<OptimizerShards>(next(3));
    if (next(2) == 1) {
      setup.schedule = PipelineSchedule::kInterleaved;
      setup.chunks = 2;
    }
    setup.packing = next(2) == 1 ? DocumentPacking::kDynamic : DocumentPacking::kSequential;
    setup.tokens = 65536;
    setup.step_tokens = setup.tokens * setup.sizes.dp * 4;
    setups.push_back(setup);
  }
  return setups;
}

ReadSetup read_again(const TrainingSetup& setup, TrainingEngine engine) {
  const EngineFlags flags = engine_flags(setup, engine);
  const std::int64_t gpus = setup.sizes.num_devices();
  if (engine == TrainingEngine::kMegatron) {
    return read_megatron_arguments(
        fmt::format("torchrun --nproc_per_node {} pretrain_gpt.py {} --bf16", gpus, flags.flags));
  }
  FlatText flat;
  if (engine == TrainingEngine::kTorchtitan) flat = flat_text(flags.flags, '=');
  if (engine == TrainingEngine::kTrl) flat = flat_text(flags.flags + flags.script, ':');
  if (engine == TrainingEngine::kDeepspeed) {
    flat = flatten_json(flags.flags);
    flat.emplace_back("seq_length", std::to_string(setup.tokens));
    const bool full = flags.script.find("gradient_checkpointing_enable") != std::string::npos;
    flat.emplace_back("gradient_checkpointing", full ? "true" : "false");
  }
  return read_engine_setup(engine, flat, gpus);
}

TrainingSetup setup_of(std::int32_t tp, std::int32_t cp, std::int32_t dp, std::int32_t pp) {
  TrainingSetup setup;
  setup.sizes = {.tp = tp, .cp = cp, .dp = dp, .pp = pp};
  return setup;
}

void expect_problem(const TrainingSetup& setup, TrainingEngine engine, std::string_view part) {
  const auto problem = engine_problem(setup, engine);
  ASSERT_TRUE(problem.has_value()) << setup_text(setup);
  EXPECT_NE(problem->find(part), std::string::npos) << *problem;
  EXPECT_THROW((void)engine_flags(setup, engine), InvalidArgument);
}

TEST(EngineFlags, EverySetupThatAnEngineCanRunIsReadAgainFromItsFlags) {
  for (const TrainingEngine engine : kReadEngines) {
    int read = 0;
    for (const TrainingSetup& setup : many_setups()) {
      if (engine_problem(setup, engine)) continue;
      const ReadSetup again = read_again(setup, engine);
      ASSERT_EQ(again.setup, setup) << to_string(engine) << "\n"
                                    << engine_flags(setup, engine).flags << setup_text(setup)
                                    << "\nread as " << setup_text(again.setup);
      ASSERT_EQ(again.num_gpus, setup.sizes.num_devices());
      ++read;
    }
    EXPECT_GE(read, 12) << to_string(engine);
  }
}

TEST(EngineFlags, MegatronArgumentsAreOneALine) {
  TrainingSetup setup = setup_of(8, 4, 2, 1);
  setup.exchange = CpExchange::kHybrid;
  setup.a2a_ranks = 2;
  setup.tokens = 8192;
  setup.step_tokens = 8192 * 16;
  EXPECT_EQ(engine_flags(setup, TrainingEngine::kMegatron).flags,
            "--tensor-model-parallel-size 8 \\\n"
            "--sequence-parallel \\\n"
            "--pipeline-model-parallel-size 1 \\\n"
            "--context-parallel-size 4 \\\n"
            "--cp-comm-type a2a+p2p \\\n"
            "--hierarchical-context-parallel-sizes 2 2 \\\n"
            "--seq-length 8192 \\\n"
            "--micro-batch-size 1 \\\n"
            "--global-batch-size 16 \\\n"
            "--use-distributed-optimizer \\\n"
            "--overlap-grad-reduce \\\n"
            "--overlap-param-gather\n");
}

TEST(EngineFlags, MegatronOverlapsGradientsIfThatIsPredicted) {
  const auto flags_of = [](const TrainingSetup& setup, GradientOverlap overlap) {
    return engine_flags(setup, TrainingEngine::kMegatron, {.gradient_overlap = overlap}).flags;
  };
  TrainingSetup setup = setup_of(2, 2, 2, 1);
  for (const GradientOverlap overlap : {GradientOverlap::kOff, GradientOverlap::kOn}) {
    EXPECT_EQ(read_megatron_arguments(flags_of(setup, overlap), 8).gradient_overlap, overlap);
  }
  // Megatron refuses to overlap the gathering of weights that every rank has.
  setup.optimizer = OptimizerShards::kNone;
  EXPECT_EQ(flags_of(setup, GradientOverlap::kOn).find("param-gather"), std::string::npos);
  // No other rank has the same weights.
  setup = setup_of(8, 1, 1, 1);
  EXPECT_EQ(flags_of(setup, GradientOverlap::kOn).find("overlap"), std::string::npos);
}

TEST(EngineFlags, NotesSayWhatNeedsARecentTransformerEngine) {
  TrainingSetup setup = setup_of(2, 2, 2, 1);
  EXPECT_EQ(engine_note(setup, TrainingEngine::kMegatron), std::nullopt);
  setup.exchange = CpExchange::kAllGather;
  const auto note = engine_note(setup, TrainingEngine::kMegatron);
  ASSERT_TRUE(note.has_value());
  EXPECT_NE(note->find("(THD) with --cp-comm-type all_gather"), std::string::npos) << *note;
  EXPECT_EQ(engine_note(setup, TrainingEngine::kTorchtitan), std::nullopt);
  setup.recompute = Recompute::kSelective;
  EXPECT_NE(engine_note(setup, TrainingEngine::kMegatron)->find("prediction leaves out\npacked"),
            std::string::npos);
}

TEST(EngineFlags, ModelsWithExpertsAskForWhatIsPredictedOfThem) {
  TrainingSetup setup = setup_of(4, 1, 2, 1);
  setup.recompute = Recompute::kSelective;
  const std::string dense = engine_flags(setup, TrainingEngine::kMegatron).flags;
  EXPECT_EQ(dense.find("expert"), std::string::npos);
  const std::string moe = engine_flags(setup, TrainingEngine::kMegatron, {.experts = true}).flags;
  for (const char* flag :
       {"--expert-tensor-parallel-size 1 ", "--moe-token-dispatcher-type alltoall ",
        "--recompute-modules layernorm mlp moe "}) {
    EXPECT_NE(moe.find(flag), std::string::npos) << flag << moe;
  }
  EXPECT_EQ(read_megatron_arguments(moe, 8).setup.recompute, Recompute::kSelective);
}

TEST(EngineFlags, DynamicContextParallelismNamesTheTokensOfARank) {
  TrainingSetup setup = setup_of(1, 4, 2, 1);
  setup.packing = DocumentPacking::kDynamic;
  setup.tokens = 8192;
  const std::string flags = engine_flags(setup, TrainingEngine::kMegatron).flags;
  EXPECT_NE(flags.find("--hybrid-context-parallel \\\n--max-seqlen-per-dp-cp-rank 2048"),
            std::string::npos);
  setup.tokens = 8191;
  expect_problem(setup, TrainingEngine::kMegatron,
                 "expected a multiple of CP 4 tokens, found 8191");
}

TEST(EngineFlags, ContextileTakesItsStrategiesAndPackingInPython) {
  TrainingSetup setup = setup_of(2, 4, 2, 1);
  setup.packing = DocumentPacking::kWlb;
  setup.strategy = "auto";
  setup.tokens = 1000;
  setup.step_tokens = 8000;
  EXPECT_EQ(engine_flags(setup, TrainingEngine::kContextile).flags,
            "# TP 2, CP 4 (auto), DP 2, PP 1, WLB packing; `cluster` has 4 ranks, `shape` the "
            "model's heads.\n"
            "loader = DataLoader(\n    dataset,\n    cluster=cluster,\n    rank=rank,\n"
            "    strategy=\"auto\",\n    data_parallel=2,\n    replica=replica,\n"
            "    micro_batches=4,\n    packing=\"wlb\",\n    tokens=1000,\n    **shape,\n)\n");
}

TEST(EngineProblems, MethodsOfThisLibraryAreNoEngines) {
  for (const TrainingEngine engine : kReadEngines) {
    TrainingSetup setup = setup_of(1, 4, 1, 1);
    setup.strategy = "fcp";
    expect_problem(setup, engine, "the strategy fcp runs with contextile only");
    setup.strategy.clear();
    setup.packing = DocumentPacking::kWlb;
    expect_problem(setup, engine, "has no WLB packing");
    setup.packing = DocumentPacking::kSequential;
    setup.schedule = PipelineSchedule::kSamePhase;
    expect_problem(setup, engine, "has no same-phase pipelines");
  }
}

TEST(EngineProblems, EveryEngineNamesTheExchangeThatItLacks) {
  TrainingSetup setup = setup_of(1, 4, 2, 1);
  setup.optimizer = OptimizerShards::kFsdp;
  expect_problem(setup, TrainingEngine::kDeepspeed, "by a2a only, found p2p");
  setup.exchange = CpExchange::kA2a;
  expect_problem(setup, TrainingEngine::kTorchtitan, "by p2p or all_gather, found a2a");
  setup.packing = DocumentPacking::kDynamic;
  for (const TrainingEngine engine :
       {TrainingEngine::kTorchtitan, TrainingEngine::kTrl, TrainingEngine::kDeepspeed}) {
    expect_problem(setup, engine, "has no dynamic context parallelism");
  }
  setup.optimizer = OptimizerShards::kZero1;
  expect_problem(setup, TrainingEngine::kMegatron, "with p2p only, found a2a");
}

TEST(EngineProblems, SizesThatDoNotFitEachOtherAreNamed) {
  TrainingSetup setup = setup_of(1, 6, 2, 1);
  setup.exchange = CpExchange::kHybrid;
  setup.a2a_ranks = 4;
  expect_problem(setup, TrainingEngine::kContextile, "between 2 and CP 6 that divide it, found 4");
  setup = setup_of(1, 0, 1, 1);
  expect_problem(setup, TrainingEngine::kMegatron, "sizes of at least 1, found TP 1, CP 0");
  setup = setup_of(1, 1, 3, 1);
  setup.tokens = 10;
  setup.step_tokens = 40;
  expect_problem(setup, TrainingEngine::kMegatron,
                 "for each of 3 replicas, found 40 tokens per step and 10");
  setup = setup_of(1, 1, 1, 2);
  setup.chunks = 2;
  expect_problem(setup, TrainingEngine::kMegatron, "1 chunk a stage with 1f1b, found 2");
}

TEST(TrainingSetupText, NamesEveryPartThatIsNotTheDefault) {
  TrainingSetup setup = setup_of(8, 4, 2, 1);
  EXPECT_EQ(setup_text(setup), "TP 8, CP 4 (p2p), DP 2, PP 1");
  setup.exchange = CpExchange::kHybrid;
  setup.a2a_ranks = 2;
  setup.packing = DocumentPacking::kWlb;
  setup.recompute = Recompute::kFull;
  EXPECT_EQ(setup_text(setup),
            "TP 8, CP 4 (a2a+p2p, 2 x 2), DP 2, PP 1, WLB packing, full recompute");
  setup = setup_of(1, 1, 1, 4);
  setup.schedule = PipelineSchedule::kInterleaved;
  setup.chunks = 2;
  setup.packing = DocumentPacking::kDynamic;
  setup.optimizer = OptimizerShards::kFsdp;
  EXPECT_EQ(setup_text(setup), "TP 1, CP 1, DP 1, PP 4, 2 chunks a stage, dynamic CP, FSDP");
}

TEST(TrainingSetupText, NamesAreParsedAgain) {
  for (const auto exchange :
       {CpExchange::kP2p, CpExchange::kA2a, CpExchange::kAllGather, CpExchange::kHybrid}) {
    EXPECT_EQ(parse_cp_exchange(to_string(exchange)), exchange);
  }
  for (const auto packing :
       {DocumentPacking::kSequential, DocumentPacking::kWlb, DocumentPacking::kDynamic}) {
    EXPECT_EQ(parse_document_packing(to_string(packing)), packing);
  }
  for (const TrainingEngine engine : kReadEngines)
    EXPECT_EQ(parse_training_engine(to_string(engine)), engine);
  EXPECT_THROW((void)parse_cp_exchange("ring"), InvalidArgument);
  EXPECT_THROW((void)parse_document_packing("bfd"), InvalidArgument);
  EXPECT_THROW((void)parse_training_engine("nemo"), InvalidArgument);
}

}  // namespace
}  // namespace contextile
