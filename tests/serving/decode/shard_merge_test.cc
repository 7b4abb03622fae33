#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextile/serving/decode.h"
#include "serving/vectors.h"

namespace contextile {
namespace {

using nlohmann::json;

float number(const json& value) {
  if (!value.is_string()) return value.get<float>();
  const std::string text = value;
  const float infinity = std::numeric_limits<float>::infinity();
  return text == "nan" ? std::nanf("") : text == "inf" ? infinity : -infinity;
}

// [rows][heads] of LSE and [rows][heads][dim] of O as tensors.
struct Part {
  HostTensor o;
  HostTensor lse;
};

Part part_of(const json& out, const json& lse, Dtype dtype = Dtype::kF32) {
  const auto rows = static_cast<std::int64_t>(out.size());
  const auto heads = static_cast<std::int32_t>(out[0].size());
  const auto dim = static_cast<std::int32_t>(out[0][0].size());
  Part part = {HostTensor(dtype, rows, heads, dim), HostTensor(Dtype::kF32, rows, heads, 1)};
  std::size_t i = 0;
  std::size_t j = 0;
  for (const json& row : out) {
    for (const json& head : row) {
      for (const json& x : head) {
        if (dtype == Dtype::kBf16) {
          part.o.values<Bf16>()[i++] = Bf16(number(x));
        } else {
          part.o.values<float>()[i++] = number(x);
        }
      }
    }
  }
  for (const json& row : lse) {
    for (const json& x : row) part.lse.values<float>()[j++] = number(x);
  }
  return part;
}

// Rows of requests that have no tokens on the rank, and rows of no request, are empty.
void mask_rows(const json& one, std::size_t rank, Part& part) {
  if (!one.contains("query_start_loc")) return;
  const json& starts = one["query_start_loc"];
  for (std::int64_t row = 0; row < part.o.tokens(); ++row) {
    bool is_seen = false;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      const bool is_its =
          starts[i].get<std::int64_t>() <= row && row < starts[i + 1].get<std::int64_t>();
      is_seen = is_seen || (is_its && one["local_seq_lens"][rank][i].get<std::int64_t>() > 0);
    }
    if (is_seen) continue;
    for (std::int32_t h = 0; h < part.o.heads(); ++h) {
      part.lse.values<float>()[static_cast<std::size_t>(row * part.o.heads() + h)] =
          -std::numeric_limits<float>::infinity();
    }
  }
}

template <LseBase kBase>
Part merged(std::vector<Part>& parts, Dtype dtype) {
  Part result = {HostTensor(dtype, parts[0].o.tokens(), parts[0].o.heads(), parts[0].o.dim()),
                 HostTensor(Dtype::kF32, parts[0].o.tokens(), parts[0].o.heads(), 1)};
  std::vector<ShardResult<kBase>> shards;
  for (Part& part : parts) shards.push_back({part.o.view(), {part.lse.stats()}});
  merge_shards<kBase>({result.o.view(), {result.lse.stats()}}, shards);
  return result;
}

// Compares the rows in which the original is right: NaN that a rank which saw nothing left there
// must not come through.
void expect_equal(const json& expected, const Part& found, double bound, bool skips_nan) {
  double largest = 1e-3;
  for (const json& row : expected["out"]) {
    for (const json& head : row) {
      for (const json& x : head) {
        if (std::isfinite(number(x))) largest = std::max<double>(largest, std::abs(number(x)));
      }
    }
  }
  std::size_t i = 0;
  for (const json& row : expected["out"]) {
    for (const json& head : row) {
      for (const json& x : head) {
        const float value = found.o.dtype() == Dtype::kBf16
                                ? static_cast<float>(found.o.values<Bf16>()[i])
                                : found.o.values<float>()[i];
        ++i;
        if (skips_nan && std::isnan(number(x))) continue;
        EXPECT_NEAR(value, number(x), bound * largest);
      }
    }
  }
  if (!expected.contains("lse")) return;
  std::size_t j = 0;
  for (const json& row : expected["lse"]) {
    for (const json& x : row) {
      const float value = found.lse.values<float>()[j++];
      if (std::isinf(number(x))) {
        EXPECT_EQ(value, number(x));
      } else {
        EXPECT_NEAR(value, number(x), 2e-6 * std::max(1.0F, std::abs(number(x))));
      }
    }
  }
}

std::vector<Part> parts_of(const json& one, Dtype dtype) {
  std::vector<Part> parts;
  for (std::size_t r = 0; r < one["out"].size(); ++r) {
    parts.push_back(part_of(one["out"][r], one["lse"][r], dtype));
    mask_rows(one, r, parts.back());
  }
  return parts;
}

Part merged_in_base(const json& one, std::vector<Part>& parts, Dtype dtype) {
  return one["lse_base"] == "e" ? merged<LseBase::kE>(parts, dtype)
                                : merged<LseBase::kTwo>(parts, dtype);
}

// How far the original is from the truth: it takes exp(L_r - L) with L rounded to fp32. A weight is
// therefore off by half a unit in the last place of L, relative, and so is the sum of weights. The
// rest is the rounding of a few operations. (If all ranks are equal, it gives 1.9687556 for
// 1.96875.)
double rounding_of_lse(const json& one) {
  double largest = 0;
  for (const json& rank : one["lse"]) {
    for (const json& row : rank) {
      for (const json& x : row) {
        if (std::isfinite(number(x))) largest = std::max<double>(largest, std::abs(number(x)));
      }
    }
  }
  return 1e-6 + largest * 0x1p-23;
}

TEST(ShardMerge, IsThatOfVllm) {
  const json cases = vectors("vllm_merge");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  for (const json& one : cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const Dtype dtype = one["dtype"] == "bfloat16" ? Dtype::kBf16 : Dtype::kF32;
    std::vector<Part> parts = parts_of(one, dtype);
    const Part found = merged_in_base(one, parts, dtype);
    for (const char* mode : {"ag_rs", "a2a"}) {
      SCOPED_TRACE(mode);
      if (one.contains(mode)) {
        expect_equal(one[mode], found, dtype == Dtype::kBf16 ? 0x1p-7 : rounding_of_lse(one),
                     false);
      }
    }
  }
}

// In two of its three ways, SGLang lets a NaN through that weighs nothing. In the third, one rank's
// NaN LSE makes O = 0 on all ranks. Contextile follows vLLM there.
TEST(ShardMerge, IsThatOfSglangWhereNothingIsPoisoned) {
  const json cases = vectors("sglang_merge");
  if (cases.empty()) GTEST_SKIP() << "outputs of the original are missing";
  int num_compared = 0;
  for (const json& one : cases) {
    const std::string name = one["name"];
    SCOPED_TRACE(name);
    if (name.find("nan_inf") != std::string::npos) continue;
    std::vector<Part> parts = parts_of(one, Dtype::kF32);
    const Part found = merged_in_base(one, parts, Dtype::kF32);
    for (const float value : found.o.values<float>()) EXPECT_TRUE(std::isfinite(value));
    const bool is_poisoned = name.find("poison") != std::string::npos;
    for (const char* mode : {"ag_rs_mla", "ag_rs_mha", "a2a"}) {
      SCOPED_TRACE(mode);
      if (!one.contains(mode)) continue;
      expect_equal(one[mode], found, rounding_of_lse(one), is_poisoned);
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 20);
}

TEST(ShardMerge, OfNothingIsNothing) {
  const float none = -std::numeric_limits<float>::infinity();
  std::vector<Part> parts;
  for (int r = 0; r < 3; ++r) {
    parts.push_back({HostTensor(Dtype::kF32, 1, 1, 2), HostTensor(Dtype::kF32, 1, 1, 1)});
    parts.back().o.poison();
    parts.back().lse.values<float>()[0] = r == 1 ? std::nanf("") : none;
  }
  const Part empty = merged<LseBase::kE>(parts, Dtype::kF32);
  EXPECT_EQ(empty.o.values<float>()[0], 0);
  EXPECT_EQ(empty.lse.values<float>()[0], none);
  parts[2].lse.values<float>()[0] = 3;
  parts[2].o.values<float>()[0] = 5;
  parts[2].o.values<float>()[1] = 7;
  const Part one = merged<LseBase::kTwo>(parts, Dtype::kF32);
  EXPECT_EQ(one.o.values<float>()[0], 5);
  EXPECT_EQ(one.o.values<float>()[1], 7);
  EXPECT_EQ(one.lse.values<float>()[0], 3);
}

TEST(ShardMerge, BasesMeetThroughConversionsAlone) {
  EXPECT_FLOAT_EQ(to_natural(BinaryLse{2}).value, std::log(4.0F));
  EXPECT_FLOAT_EQ(to_binary(NaturalLse{1}).value, std::log2(std::exp(1.0F)));
  static_assert(!std::is_convertible_v<BinaryLse, NaturalLse>);
  static_assert(!std::is_convertible_v<ShardResult<LseBase::kE>, ShardResult<LseBase::kTwo>>);
}

TEST(ShardMerge, RefusesOtherShapes) {
  std::vector<Part> parts;
  parts.push_back({HostTensor(Dtype::kF32, 2, 1, 2), HostTensor(Dtype::kF32, 2, 1, 1)});
  parts.push_back({HostTensor(Dtype::kF32, 1, 1, 2), HostTensor(Dtype::kF32, 1, 1, 1)});
  EXPECT_THROW(merged<LseBase::kE>(parts, Dtype::kF32), InvalidArgument);
  EXPECT_THROW((merge_shards<LseBase::kE>({parts[0].o.view(), {parts[0].lse.stats()}}, {})),
               InvalidArgument);
}

}  // namespace
}  // namespace contextile
