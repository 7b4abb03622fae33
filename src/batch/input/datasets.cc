#include "batch/input/datasets.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/portable_math.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/data.h"

namespace contextile {

// Lengths have either these quantiles or, if there are none, a log-normal distribution. In a
// mixture, some documents are long: their logarithm is uniform from `long_least` to `max_length`,
// and the others are shorter than `long_least`.
struct LengthDistribution {
  std::span<const std::int32_t> quantiles;  // tokens at kProbabilities
  double median = 0;                        // tokens
  double sigma = 0;                         // of the natural logarithm
  std::int64_t max_length = 0;              // tokens; longer samples are cut
  double long_share = 0;                    // of the documents; 0: no mixture
  std::int64_t long_least = 0;              // tokens
};

namespace {

constexpr std::size_t kNumQuantiles = 40;
// Dense at the top: a hundredth of the documents holds a tenth to a fifth of the tokens.
constexpr std::array<double, kNumQuantiles> kProbabilities = {
    0,   .002, .005,  .01, .02,   .035, .05,   .1,   .15,   .2,    .25,   .3,  .35, .4,
    .45, .5,   .55,   .6,  .65,   .7,   .75,   .8,   .85,   .9,    .95,   .96, .97, .975,
    .98, .985, .9875, .99, .9925, .995, .9975, .999, .9995, .9998, .9999, 1};

// Quantiles of the document lengths in the DistCA artifact (github.com/hao-ai-lab/distca,
// distca/simulator/data): 99,519 documents of "Pretrain", which follows WLB-LLM's lengths, and
// 77,932 of ProLong. Sampling with linear interpolation of the logarithm keeps the mean length
// within 0.5% and the share of tokens in documents of at least 2^10, 2^11 … 2^17 tokens within 0.5
// percentage points.
constexpr std::array<std::int32_t, kNumQuantiles> kPretrainQuantiles = {
    1,     13,    32,    63,    129,   225,    324,    646,    961,    1283,
    1606,  1932,  2257,  2582,  2909,  3227,   3543,   3861,   4181,   4514,
    4832,  5156,  5470,  5784,  6110,  6173,   6236,   7482,   10080,  13208,
    17760, 26070, 42183, 69084, 95083, 119754, 122602, 123740, 124235, 124913};
constexpr std::array<std::int32_t, kNumQuantiles> kProlongQuantiles = {
    575,   631,   654,   678,   715,   763,   801,   919,    1025,   1130,
    1237,  1347,  1464,  1594,  1742,  1914,  2116,  2362,   2656,   3018,
    3467,  4050,  4834,  6051,  8378,  9208,  10430, 11166,  12308,  13806,
    14744, 16273, 18048, 21339, 29792, 47390, 74664, 138974, 239494, 340149};

// LongAlign-10k in tokens of GPT-2, whose tokenizer DCP's artifact (github.com/chenyu-jiang/dcp)
// uses. The lengths are published in tokens of Qwen3, of a sample of 240 documents
// (github.com/aarti-cerebras/verl, docs/qwen3_4b_msa): median 11490, 29.6% from 16384 on, 12.1%
// from 32768 on, the ninth decile 37719, the longest 53176. The shortest, 6811, is the 8K of the
// data's card, which counts tokens of ChatGLM3, at the rate of the longest (63954 of them). 26.1%
// of the documents are mostly Chinese: GPT-2 needs 2.65 tokens for one of Qwen's in Chinese and
// 1.05 in English, measured on manual pages and papers. Both languages are taken to have the same
// quantiles.
constexpr std::array<std::int32_t, kNumQuantiles> kLongAlignQuantiles = {
    7152,   7172,   7202,   7253,   7357,   7515,   7676,   8239,   8843,   9491,
    10187,  10934,  11736,  12962,  14581,  16402,  18930,  21230,  23809,  26701,
    29944,  34616,  41259,  48546,  65660,  76420,  90432,  101413, 108309, 115675,
    119544, 123542, 127674, 131943, 136356, 139074, 139992, 140546, 140731, 140916};
constexpr LengthDistribution kLongAlign = {.quantiles = kLongAlignQuantiles,
                                           .max_length = kLongAlignQuantiles.back()};
// LongDataCollections: no statistics are published. DCP says that it is skewed, with more short
// documents and a smaller mean than LongAlign; median and sigma are guessed.
constexpr LengthDistribution kLongDataCollections = {
    .quantiles = {}, .median = 2'500, .sigma = 1.4, .max_length = 1'048'576};
// FCP describes it as about log-normal with a long tail to 512K, and half of vanilla context
// parallelism's communication is in sequences under 4K. Vanilla moves every token's keys and values
// the same number of times, so half of all tokens lie in sequences under 4096. Weighted by tokens,
// a log-normal's median is median · exp(sigma²), which is 4096 for 317 and 1.6. This sigma leaves
// 0.5% of the tokens to sequences over 256K and 0.1% to those that 512K cuts.
constexpr LengthDistribution kLognormal512k = {
    .quantiles = {}, .median = 317, .sigma = 1.6, .max_length = 524'288};
// The other reading of FCP: half of the tokens are in documents under 4K, and documents of 512K are
// common enough to matter. Short documents are about log-normal (921 tokens on average). Long ones
// have as many tokens in any range of lengths as in another of the same width (107212 on average):
// 0.008517 / 0.991483 = 921 / 107212 makes them half of the tokens.
constexpr LengthDistribution kMixture512k = {.quantiles = {},
                                             .median = 700,
                                             .sigma = 0.9,
                                             .max_length = 524'288,
                                             .long_share = 0.008517,
                                             .long_least = 4096};
constexpr LengthDistribution kProlong = {.quantiles = kProlongQuantiles,
                                         .max_length = kProlongQuantiles.back()};
constexpr LengthDistribution kPretrain = {.quantiles = kPretrainQuantiles,
                                          .max_length = kPretrainQuantiles.back()};

constexpr std::array<Dataset, 6> kDatasets = {{
    {"longalign",
     "LongAlign-like: quantiles of a published sample of its lengths, in tokens of GPT-2, 7152 to "
     "140916"},
    {"longdatacollections",
     "LongDataCollections-like: log-normal, median 2.5K, sigma 1.4, at most 1M (guessed from the "
     "DCP paper's description)"},
    {"prolong", "ProLong-like: 40 quantiles of the DistCA artifact's lengths, 575 to 340149"},
    {"pretrain",
     "Pretrain-like (WLB-LLM's lengths): 40 quantiles of the DistCA artifact's lengths, 1 to "
     "124913"},
    {"lognormal512k",
     "FCP-like: log-normal, median 317, sigma 1.6, at most 512K; half of the tokens in sequences "
     "under 4K, as the FCP paper describes its pre-training data"},
    {"mixture512k",
     "FCP-like, with a heavier tail: half of the tokens in documents under 4K (log-normal, median "
     "700, sigma 0.9), half in documents of 4K to 512K (uniform in the logarithm)"},
}};
constexpr std::array<const LengthDistribution*, kDatasets.size()> kDistributions = {
    &kLongAlign, &kLongDataCollections, &kProlong, &kPretrain, &kLognormal512k, &kMixture512k};

double quantile(std::span<const std::int32_t> quantiles, double probability) {
  const auto above =
      std::upper_bound(kProbabilities.begin() + 1, kProbabilities.end() - 1, probability);
  const auto i = static_cast<std::size_t>(above - kProbabilities.begin());
  const double step = kProbabilities[i] - kProbabilities[i - 1];
  const double share = (probability - kProbabilities[i - 1]) / step;
  const double ratio = static_cast<double>(quantiles[i]) / quantiles[i - 1];
  return quantiles[i - 1] * portable_exp(share * portable_log(ratio));
}

const LengthDistribution& find_distribution(std::string_view name) {
  const auto* const found = std::ranges::find(kDatasets, name, &Dataset::name);
  if (found != kDatasets.end()) {
    return *kDistributions[static_cast<std::size_t>(found - kDatasets.begin())];
  }
  std::vector<std::string> names;
  std::ranges::transform(kDatasets, std::back_inserter(names),
                         [](const Dataset& dataset) { return std::string(dataset.name); });
  fail_argument("dataset: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace

std::span<const Dataset> datasets() { return kDatasets; }

LengthSampler::LengthSampler(std::string_view dataset, std::uint64_t seed)
    : distribution_(&find_distribution(dataset)), rng_(seed) {}

std::int64_t LengthSampler::next() {
  const LengthDistribution& distribution = *distribution_;
  const auto most = static_cast<double>(distribution.max_length);
  const auto log_normal = [&] {
    return distribution.median * portable_exp(distribution.sigma * rng_.normal());
  };
  double tokens = 0;
  if (!distribution.quantiles.empty()) {
    tokens = quantile(distribution.quantiles, rng_.uniform());
  } else if (distribution.long_share == 0) {
    tokens = log_normal();
  } else if (const auto least = static_cast<double>(distribution.long_least);
             rng_.uniform() < distribution.long_share) {
    tokens = least * portable_exp(rng_.uniform() * portable_log(most / least));
  } else {
    do {
      tokens = log_normal();
    } while (std::floor(tokens + 0.5) >= least);
  }
  return static_cast<std::int64_t>(std::clamp(std::floor(tokens + 0.5), 1.0, most));
}

}  // namespace contextile
