// Prompts whose rows the groups of a layout share: every term by hand, the modes against the
// simulation of even ranks, memory, refused layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "contextile/serving/helix.h"
#include "contextile/serving/prefill.h"
#include "serving/forecast/models.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

HelixLayout own_rows(std::int32_t kvp, std::int32_t tpa) {
  HelixLayout layout = {kvp, tpa, kvp * tpa};
  layout.prompts = HelixPrompts::kOwnRows;
  return layout;
}

HelixRows prompt(std::int64_t tokens, std::int64_t cached = 0) {
  const auto count = static_cast<double>(tokens);
  return {tokens, 1, cached + tokens,
          count * static_cast<double>(cached) + count * (count + 1) / 2};
}

TEST(HelixPrefill, AddsUpWhatTheFormulasSay) {
  const HelixModel model = dense_model();
  const HelixHardware hardware = test_hardware();
  const HelixPrefill found =
      helix_prefill(model, hardware, own_rows(4, 2), prompt(8000), PrefillMode::kPassKv);
  const HelixStep& step = found.step;
  const double flops_us = 1 / (1e6 * hardware.tflops);
  const double pairs = 8000.0 * 8001 / 2;
  EXPECT_NEAR(step.kv_us, 4 * 128 * 128 * pairs / 8 * flops_us, 1e-6 * step.kv_us);
  // Half of every matrix with a quarter of the rows.
  const double elements = 2 * 16384.0 * 16384 + 2 * 16384.0 * 8 * 128 + 3 * 16384.0 * 65536;
  EXPECT_NEAR(step.weights_us, 2 * elements / 2 * 2000 * flops_us, 1e-3 * step.weights_us);
  EXPECT_NEAR(step.all_reduce_us, 2 * (5 + 2.0 / 2 * 2000 * 16384 * 2 / 900e3), 1e-6);
  // Four of eight KV heads, half a byte an element.
  const double block_us = 5 + 2000 * 4 * 2 * 128 * 0.5 / 900e3;
  const double to_cache_us = 5 + 0.75 * 2000 * 4 * 2 * 128 * 0.5 / 900e3;
  EXPECT_NEAR(step.exchange_us, 3 * block_us + to_cache_us, 1e-6);
  EXPECT_LT(block_us, step.kv_us / 4);  // hidden by attention
  EXPECT_NEAR(step.exposed_us, to_cache_us, 1e-6);
  EXPECT_EQ(found.mode, PrefillMode::kPassKv);
}

// One layer, one sequence: the modes as prefill simulates them, dealt in zigzag.
TEST(HelixPrefill, TakesAsLongAsTheSimulationOfEvenRanks) {
  HelixModel model = dense_model();
  model.kv_bytes = model.activation_bytes = 2;
  HelixHardware hardware = test_hardware();
  hardware.latency_us = 0;
  for (const double gbytes_per_s : {900.0, 30.0, 3.0}) {
    hardware.network_gbytes_per_s = gbytes_per_s;
    for (const std::int64_t cached : {0, 64'000}) {
      const PrefillSequence sequence = {cached, 8000, {}};
      const PrefillWork work = prefill_work({{.num_ranks = 4}, {&sequence, 1}});
      const AttentionShape shape = {
          .q_heads = 64, .kv_heads = 4, .head_dim = 128, .value_dim = 128, .dtype = Dtype::kBf16};
      const PrefillRates rates = {1e12 * hardware.tflops, 1e9 * gbytes_per_s, 0};
      for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                     PrefillMode::kAllGather, PrefillMode::kUlysses}) {
        SCOPED_TRACE(testing::Message() << to_string(mode) << " " << gbytes_per_s << " " << cached);
        const HelixStep step =
            helix_prefill(model, hardware, own_rows(4, 2), prompt(8000, cached), mode).step;
        const double to_cache_us = 0.75 * 2000 * 4 * 2 * 128 * 2 / (1e3 * gbytes_per_s);
        const double ours = step.kv_us + step.exposed_us - to_cache_us;
        const double expected = 1e6 * simulate_prefill_s(mode, work, shape, rates, Dtype::kBf16);
        EXPECT_NEAR(ours, expected, 0.02 * expected);
      }
    }
  }
}

TEST(HelixPrefill, ChoosesTheFastestModeThatDivides) {
  HelixHardware hardware = test_hardware();
  hardware.network_gbytes_per_s = 2;
  for (const HelixLayout& layout : {own_rows(8, 1), own_rows(4, 2)}) {
    const HelixRows rows = prompt(512, 100'000);
    const HelixPrefill best = helix_prefill(dense_model(), hardware, layout, rows);
    for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                   PrefillMode::kAllGather, PrefillMode::kUlysses}) {
      if (!takes_prefill_mode(dense_model(), layout, mode)) continue;
      EXPECT_LE(best.step.total_us(),
                helix_prefill(dense_model(), hardware, layout, rows, mode).step.total_us());
    }
  }
  EXPECT_FALSE(takes_prefill_mode(dense_model(), own_rows(64, 4), PrefillMode::kUlysses));
  EXPECT_THAT(message_of([&] {
                static_cast<void>(helix_prefill(dense_model(), test_hardware(), own_rows(64, 2),
                                                prompt(10), PrefillMode::kUlysses));
              }),
              HasSubstr("expected at most 72 devices"));
}

// Work falls with the number of devices, all-reduces are those of the tensor-parallel ranks alone,
// and no device computes what another does.
TEST(HelixPrefill, SharingRowsTakesLessThanSharingHeads) {
  HelixModel model = load_helix_model("llama-3-70b");
  model.weight_bytes = model.kv_bytes = 2;
  const HelixHardware hardware = load_helix_hardware("h200");
  const HelixRows rows = prompt(100'000);
  const double tensor = helix_mixed_step(model, hardware, {1, 8, 8}, rows).total_us();
  const double mixed = helix_prefill(model, hardware, own_rows(4, 2), rows).step.total_us();
  const double context = helix_prefill(model, hardware, own_rows(8, 1), rows).step.total_us();
  EXPECT_LT(context, mixed);
  EXPECT_LT(mixed, tensor);
  EXPECT_LT(tensor, helix_mixed_step(model, hardware, {8, 1, 8}, rows).total_us());
  EXPECT_EQ(helix_prefill(model, hardware, own_rows(8, 1), rows).step.all_reduce_us, 0);
}

TEST(HelixPrefill, DevicesHoldTheMatricesOfTheirTensorParallelPlace) {
  const HelixModel model = load_helix_model("llama-3-8b");
  const HelixLoad load = {1, 1000};
  EXPECT_NEAR(helix_memory(model, own_rows(4, 2), load).weights,
              helix_memory(model, {1, 2, 2}, load).weights, 1);
  EXPECT_DOUBLE_EQ(helix_memory(model, own_rows(4, 2), load).kv,
                   helix_memory(model, {4, 2, 8}, load).kv);
  // Decoding is that of the layout.
  EXPECT_EQ(helix_step(model, test_hardware(), own_rows(4, 2), load).total_us(),
            helix_step(model, test_hardware(), {4, 2, 8}, load).total_us());
}

TEST(HelixPrefill, ALayersLaunchesAreAddedToEveryStep) {
  HelixHardware hardware = test_hardware();
  const HelixModel model = load_helix_model("llama-3-8b");
  const double without =
      helix_prefill(model, hardware, own_rows(2, 2), prompt(100)).step.total_us();
  const double decoding = helix_step(model, hardware, {2, 2, 4}, {1, 100}).total_us();
  hardware.launch_us = 10;
  EXPECT_NEAR(helix_prefill(model, hardware, own_rows(2, 2), prompt(100)).step.total_us(),
              without + 32 * 10, 1e-6);
  EXPECT_NEAR(helix_step(model, hardware, {2, 2, 4}, {1, 100}).total_us(), decoding + 32 * 10,
              1e-6);
  hardware.launch_us = -1;
  EXPECT_THAT(message_of([&] { check_helix_hardware(hardware); }),
              HasSubstr("launches of a layer in microseconds: expected at least 0, found -1"));
}

TEST(HelixPrefill, RefusesOtherLayouts) {
  EXPECT_THAT(
      message_of([] {
        static_cast<void>(helix_prefill(dense_model(), test_hardware(), {4, 2, 8}, prompt(10)));
      }),
      HasSubstr("expected groups that compute their own rows of prompts, found all rows"));
  EXPECT_THAT(message_of([] { check_helix_layout(dense_model(), own_rows(1, 8)); }),
              HasSubstr("expected KVP above 1"));
  EXPECT_EQ(to_string(own_rows(4, 2)), "KVP 4 x TPA 2, TPF 8, own rows");
}

}  // namespace
}  // namespace contextile
