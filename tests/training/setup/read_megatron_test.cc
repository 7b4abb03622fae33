// Launch commands of Megatron-LM as people write them, and mistakes in them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/engine_setup.h"
#include "contextile/base.h"

namespace contextile {
namespace {

// Llama 3 8B in FP8 on two nodes.
constexpr std::string_view kLlamaCommand = R"(
CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes=2 \
    --node_rank $NODE_RANK --master_addr "$MASTER" --master_port 6000 pretrain_gpt.py \
    --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 \
    --kv-channels 128 --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 \
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --init-method-std 0.0134 \
    --attention-backend fused --apply-layernorm-1p --untie-embeddings-and-output-weights \
    --disable-bias-linear --micro-batch-size 1 --global-batch-size 128 \
    --train-samples 1953125000 --lr 0.00015 --min-lr 0.00001 --lr-decay-style cosine \
    --clip-grad 1.0 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --bf16 \
    --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss \
    --manual-gc --empty-unused-memory-level 1 \
    --fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max \
    --fp8-param-gather \
    --tensor-model-parallel-size 2 --context-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --data-path 0.7 ${DATA}/a 0.3 ${DATA}/b --tokenizer-type HuggingFaceTokenizer \
    --tokenizer-model "${TOKENIZER}" --vocab-size 128256 --split 99,1,0 --no-mmap-bin-files \
    --log-interval 1 --eval-iters 32 --eval-interval 100 --save-interval 1000 \
    --ckpt-format torch_dist --distributed-timeout-minutes 60 --save "$OUT" --load "$OUT" \
    --tensorboard-dir '/tmp/t b'  # the rest is default
)";

std::string error_of_arguments(std::string_view text) {
  try {
    (void)read_megatron_arguments(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

void expect_argument_error(std::string_view text, std::string_view part) {
  const std::string error = error_of_arguments(text);
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

bool has_key(const std::vector<SetupSetting>& settings, std::string_view key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const SetupSetting& setting) { return setting.key == key; });
}

TEST(ReadMegatron, ALaunchCommandWithFp8IsReadWhole) {
  const ReadSetup read = read_megatron_arguments(kLlamaCommand);
  TrainingSetup expected;
  expected.sizes = {.tp = 2, .cp = 2, .dp = 4, .pp = 1};
  expected.tokens = 8192;
  expected.step_tokens = 8192 * 128;
  EXPECT_EQ(read.setup, expected);
  EXPECT_EQ(read.num_gpus, 16);
  EXPECT_EQ(read.gradient_overlap, GradientOverlap::kOn);
  EXPECT_EQ(read.model.at("layers"), 32);
  EXPECT_EQ(read.model.at("hidden"), 4096);
  EXPECT_EQ(read.model.at("ffn"), 14336);
  EXPECT_EQ(read.model.at("q_heads"), 32);
  EXPECT_EQ(read.model.at("kv_heads"), 8);
  EXPECT_EQ(read.model.at("head_dim"), 128);
  EXPECT_EQ(read.model.at("vocabulary"), 128256);
  EXPECT_EQ(read.model.at("gated_ffn"), 1);
  EXPECT_EQ(read.model.at("untied"), 1);
  for (const std::string_view key : {"--fp8-format", "--fp8-param-gather", "--attention-backend",
                                     "CUDA_DEVICE_MAX_CONNECTIONS=1"}) {
    EXPECT_TRUE(has_key(read.approximated, key)) << key;
  }
  for (const std::string_view key : {"--lr", "--data-path", "--save", "--master_addr"}) {
    EXPECT_TRUE(has_key(read.without_effect, key)) << key;
  }
  for (const std::string_view field : {"tp", "cp", "dp", "tokens", "step_tokens", "optimizer"}) {
    EXPECT_TRUE(read.has(field)) << field;
  }
  EXPECT_FALSE(read.has("recompute"));
}

TEST(ReadMegatron, EverySettingIsInOneList) {
  const ReadSetup read = read_megatron_arguments("--seq-length 8 --lr 1 --fp8-format hybrid");
  ASSERT_EQ(read.understood.size(), 1U);
  EXPECT_EQ(read.understood[0], (SetupSetting{.key = "--seq-length", .value = "8", .note = ""}));
  ASSERT_EQ(read.approximated.size(), 1U);
  EXPECT_EQ(read.approximated[0].note, "matrix products are predicted in bf16");
  ASSERT_EQ(read.without_effect.size(), 1U);
  EXPECT_EQ(read.without_effect[0].value, "1");
}

TEST(ReadMegatron, ExpertsAndVirtualStagesAreSizes) {
  const ReadSetup read = read_megatron_arguments(
      "--num-layers 32 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 "
      "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size=14336 "
      "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1",
      64);
  EXPECT_EQ(read.setup.chunks, 2);
  EXPECT_EQ(read.setup.schedule, PipelineSchedule::kInterleaved);
  EXPECT_EQ(read.setup.sizes.dp, 16);
  EXPECT_EQ(read.setup.sizes.ep, 8);
  EXPECT_EQ(read.model.at("experts"), 8);
  EXPECT_EQ(read.model.at("active_experts"), 2);
  EXPECT_EQ(read.model.at("expert_ffn"), 14336);
}

TEST(ReadMegatron, ExpertsAreSplitLikeOtherWeightsByDefault) {
  const std::string_view moe = "--num-experts 8 --tensor-model-parallel-size 4 --sequence-parallel";
  EXPECT_EQ(read_megatron_arguments(moe).model.at("expert_tp"), 4);
  const std::string whole = std::string(moe) + " --expert-tensor-parallel-size 1";
  EXPECT_EQ(read_megatron_arguments(whole).model.at("expert_tp"), 1);
  EXPECT_FALSE(read_megatron_arguments("--num-experts 8").model.contains("expert_tp"));
  const std::string_view dense = "--tensor-model-parallel-size 4 --sequence-parallel";
  EXPECT_FALSE(read_megatron_arguments(dense).model.contains("expert_tp"));
}

TEST(ReadMegatron, AValueThatEndsLikeAScriptIsAValue) {
  const ReadSetup read = read_megatron_arguments(
      "--context-parallel-size 8 --tokenizer-model foo.py --seq-length 8192");
  EXPECT_EQ(read.setup.sizes.cp, 8);
}

TEST(ReadMegatron, SeveralSequencesAMicroBatchAreSaidToBeOne) {
  const ReadSetup read = read_megatron_arguments("--seq-length 2048 --micro-batch-size 4");
  ASSERT_EQ(read.approximated.size(), 1U);
  EXPECT_EQ(read.approximated.front().key, "--micro-batch-size");
}

TEST(ReadMegatron, WithoutGpusDataParallelismIsUnknown) {
  const ReadSetup read = read_megatron_arguments("--context-parallel-size 4");
  EXPECT_FALSE(read.has("dp"));
  EXPECT_FALSE(read.num_gpus.has_value());
  EXPECT_EQ(read.setup.sizes.cp, 4);
  EXPECT_EQ(read.setup.optimizer, OptimizerShards::kNone);
  EXPECT_EQ(read.gradient_overlap, GradientOverlap::kOff);
}

TEST(ReadMegatron, FieldsOfMegatronBridgeAreTheSameSettings) {
  const std::pair<std::string, std::string> flat[] = {
      {"model.tensor_model_parallel_size", "4"},
      {"model.context_parallel_size", "4"},
      {"model.sequence_parallel", "true"},
      {"model.cp_comm_type", "a2a+p2p"},
      {"model.hierarchical_context_parallel_sizes", "2 2"},
      {"model.virtual_pipeline_model_parallel_size", "null"},
      {"model.seq_length", "4096"},
      {"dataset.sequence_length", "4096"},
      {"model.num_moe_experts", "16"},
      {"model.num_query_groups", "8"},
      {"model.recompute_granularity", "full"},
      {"model.recompute_method", "uniform"},
      {"train.micro_batch_size", "2"},
      {"train.global_batch_size", "64"},
      {"optimizer.lr", "3e-4"},
      {"optimizer.use_distributed_optimizer", "true"},
      {"ddp.overlap_grad_reduce", "false"},
      {"logger.log_interval", "10"}};
  const ReadSetup read = read_engine_setup(TrainingEngine::kMegatron, flat, 32);
  EXPECT_EQ(read.setup.sizes, (ParallelSizes{.tp = 4, .cp = 4, .dp = 2, .pp = 1}));
  EXPECT_EQ(read.setup.exchange, CpExchange::kHybrid);
  EXPECT_EQ(read.setup.a2a_ranks, 2);
  EXPECT_EQ(read.setup.tokens, 8192);
  EXPECT_EQ(read.setup.step_tokens, 4096 * 64);
  EXPECT_EQ(read.setup.recompute, Recompute::kFull);
  EXPECT_EQ(read.setup.optimizer, OptimizerShards::kZero1);
  EXPECT_EQ(read.model.at("experts"), 16);
  EXPECT_EQ(read.model.at("kv_heads"), 8);
}

TEST(ReadMegatron, ASettingThatMayMatterIsRefusedByName) {
  expect_argument_error("--window-size 128,0", "megatron: --window-size: expected a setting that");
  expect_argument_error("--context-paralel-size 4", "did you mean 'context-parallel-size'?");
  expect_argument_error("--multi-latent-attention", "megatron: --multi-latent-attention: ");
  expect_argument_error("--tensor_model_parallel_size 4",
                        "did you mean 'tensor-model-parallel-size'?");
}

TEST(ReadMegatron, ValuesOutOfRangeAreNamed) {
  expect_argument_error("--seq-length abc",
                        "megatron: --seq-length: expected a whole number from 1 to 2147483647, "
                        "found 'abc'");
  expect_argument_error("--context-parallel-size 0", "found '0'");
  expect_argument_error("--context-parallel-size", "found ''");
  expect_argument_error("--seq-length 99999999999", "found '99999999999'");
  expect_argument_error("--swiglu maybe", "--swiglu: expected true or false, found 'maybe'");
  expect_argument_error("--seq-length 8 --seq-length 16", "expected one value, found '8' and '16'");
  expect_argument_error("--context-parallel-size 4 --cp-comm-type p2p a2a",
                        "expected one exchange for all layers");
  expect_argument_error("--context-parallel-size 4 --cp-comm-type a2a+p2p",
                        "expected two sizes whose product is CP 4, found none");
  expect_argument_error("--num-query-groups 8", "expected --group-query-attention with it");
  expect_argument_error("--hybrid-context-parallel", "--max-seqlen-per-dp-cp-rank with it");
  expect_argument_error("--use-megatron-fsdp --data-parallel-sharding-strategy optim",
                        "expected optim_grads_params, found 'optim'");
}

TEST(ReadMegatron, GpusThatDoNotFitAreNamed) {
  expect_argument_error("torchrun --nproc_per_node 6 a.py --context-parallel-size 4",
                        "expected a multiple of TP 1 x CP 4 x PP 1 GPUs, found 6");
  expect_argument_error("torchrun --nproc_per_node 8 a.py --seq-length 8 --global-batch-size 12",
                        "expected a multiple of 1 sequences a micro-batch x DP 8, found '12'");
  EXPECT_THROW((void)read_megatron_arguments("torchrun --nproc_per_node 8 a.py", 16),
               InvalidArgument);
  EXPECT_EQ(read_megatron_arguments("torchrun --nproc-per-node=gpu a.py", 16).setup.sizes.dp, 16);
}

TEST(ReadMegatron, AVariableIsRefusedByNameWhereItsValueMatters) {
  expect_argument_error("--seq-length ${SEQ_LENGTH}",
                        "--seq-length: expected a value, found the variable ${SEQ_LENGTH}");
  expect_argument_error("torchrun --nnodes $NODES a.py", "found the variable $NODES");
  expect_argument_error("${MODEL_ARGS[@]}",
                        "expected an option that begins with --, found '${MODEL_ARGS[@]}'");
  expect_argument_error("--swiglu ${MODEL_ARGS[@]}", "found the variable ${MODEL_ARGS[@]}");
  EXPECT_EQ(error_of_arguments("--save '$DIR' --load \"$DIR\""), "none");
  EXPECT_EQ(error_of_arguments("--seq-length '16'"), "none");
}

TEST(ReadMegatron, ShellTextThatIsNotOneCommandIsRefused) {
  expect_argument_error("--save 'a", "expected a closing quote of the text at byte 7");
  expect_argument_error("--save \"a", "expected a closing quote of the text at byte 7");
  expect_argument_error("--bf16 | tee log", "found '|' at byte 7");
  expect_argument_error("--save $(date)", "found a command substitution at byte 7");
  expect_argument_error("--save ${A", "expected a closing brace of the variable at byte 7");
  expect_argument_error("--seq-length 8\\\n --seq-length 9 \\", "found '8' and '9'");
}

TEST(ReadMegatron, AnyBytesAreReadOrRefused) {
  Rng rng(7);
  const std::string letters("-ab=\"'\\$ {}\n#_1|\0\xff", 18);
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 == 0 ? "" : std::string(kLlamaCommand);
    for (int i = 0; i < 24; ++i) {
      const char letter = letters[rng.next() % letters.size()];
      const auto at = rng.next() % (text.size() + 1);
      text.insert(text.begin() + static_cast<std::ptrdiff_t>(at), letter);
    }
    (void)error_of_arguments(text);
  }
}

TEST(ReadMegatron, TimeGrowsWithTheBytesAlone) {
  std::string text = "--data-path";
  for (int i = 0; i < 200000; ++i) text += " 0.1 a";
  for (int i = 0; i < 100000; ++i) text += " --log-interval 1";
  EXPECT_EQ(error_of_arguments(text), "none");
  expect_argument_error("--" + std::string(1000000, 'a'), "expected a setting that is understood");
}

TEST(ReadMegatron, SaysThatDocumentsArePredictedAsSeparate) {
  const auto assumed = [](const std::string& more) {
    return read_megatron_arguments("--context-parallel-size 2 --seq-length 4096 " + more, 8)
        .assumed;
  };
  ASSERT_EQ(assumed("").size(), 1U);
  EXPECT_NE(assumed("").front().find("as with --reset-attention-mask"), std::string::npos);
  EXPECT_TRUE(assumed("--reset-attention-mask").empty());
  EXPECT_TRUE(assumed("--sft").empty());
  EXPECT_TRUE(assumed("--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 2048").empty());
}

TEST(ReadMegatron, AStepIsOneMicroBatchOfEveryReplicaByDefault) {
  const std::string text = "--context-parallel-size 2 --seq-length 4096 --micro-batch-size 1 --sft";
  const ReadSetup read = read_megatron_arguments(text, 8);
  EXPECT_EQ(read.setup.step_tokens, 4 * 4096);
  EXPECT_FALSE(read.has("step_tokens"));
  EXPECT_EQ(read_megatron_arguments(text).setup.step_tokens, 0);
}

}  // namespace
}  // namespace contextile
