// Views of arrays, and tensors that own their arrays.

#include "contextile/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TensorView, OfAnArrayIsTokenMajorInItsOwnMemory) {
  std::vector<float> floats(3 * 2 * 5);
  const TensorView view = view_of(floats, 3, 2, 5);
  EXPECT_EQ(view.data, floats.data());
  EXPECT_EQ(view.dtype, Dtype::kF32);
  EXPECT_EQ(view.tokens, 3);
  EXPECT_EQ(view.heads, 2);
  EXPECT_EQ(view.dim, 5);
  EXPECT_EQ(view.token_stride, 10);
  EXPECT_EQ(view.head_stride, 5);
  EXPECT_EQ(view_of(std::vector<Bf16>(30), 3, 2, 5).dtype, Dtype::kBf16);
  EXPECT_EQ(view_of(std::vector<F16>(30), 3, 2, 5).dtype, Dtype::kF16);
  EXPECT_EQ(view_of({floats.data(), 10}, 1, 2, 5).tokens, 1);
  std::vector<std::uint16_t> bits(30);  // bf16 of another library
  const TensorView of_bits = view_of(std::as_bytes(std::span(bits)), Dtype::kBf16, 3, 2, 5);
  EXPECT_EQ(of_bits.data, bits.data());
  EXPECT_EQ(of_bits.token_stride, 10);
  EXPECT_EQ(view_of(std::vector<float>(), 0, 2, 5).tokens, 0);
}

TEST(TensorView, RefusesAnArrayOfAnotherSize) {
  const std::vector<float> floats(30);
  for (const std::int64_t tokens : {0, 2, 4}) {
    EXPECT_THAT(message_of([&] { return view_of(floats, tokens, 2, 5); }),
                AllOf(HasSubstr("expected the elements of [" + std::to_string(tokens) + ", 2, 5]"),
                      HasSubstr("as f32, found 120 bytes, 30 elements")));
  }
  // There are as many elements, but the extents are invalid, or their product wraps to 0.
  EXPECT_THAT(message_of([&] { return view_of(floats, -3, -2, 5); }),
              HasSubstr("found [-3, -2, 5]"));
  EXPECT_THAT(message_of([&] { return view_of(floats, 30, 1, 0); }), HasSubstr("found [30, 1, 0]"));
  EXPECT_THAT(message_of([] { return view_of(std::vector<float>(), std::int64_t{1} << 62, 2, 2); }),
              HasSubstr("expected the elements of [4611686018427387904, 2, 2]"));
  EXPECT_THAT(message_of([] { return view_of(std::span<const float>(), 1, 1, 1); }),
              HasSubstr("found 0 bytes"));
}

TEST(TensorView, RefusesBytesThatAreNoElements) {
  alignas(8) std::byte bytes[16] = {};
  const std::span<const std::byte> all = bytes;
  EXPECT_EQ(view_of(all.subspan(2, 4), Dtype::kF16, 2, 1, 1).data, bytes + 2);
  EXPECT_THAT(message_of([&] { return view_of(all.subspan(2, 4), Dtype::kF32, 1, 1, 1); }),
              HasSubstr("aligned to the 4 bytes of f32"));
  EXPECT_THAT(message_of([&] { return view_of(all.first(7), Dtype::kF16, 3, 1, 1); }),
              HasSubstr("found 7 bytes, 3 elements"));
}

TEST(Bf16, RoundsToNearestEvenAndComesBackExactly) {
  EXPECT_EQ(Bf16(1.0F).bits, 0x3f80);
  EXPECT_EQ(Bf16(1.00390625F).bits, 0x3f80);  // half a unit above 1: to even
  EXPECT_EQ(Bf16(1.01171875F).bits, 0x3f82);  // half a unit above an odd number: to even, too
  EXPECT_EQ(static_cast<float>(Bf16(-2.5F)), -2.5F);
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(F16, RoundsToNearestEvenAndComesBackExactly) {
  EXPECT_EQ(F16(1.0F).bits, 0x3c00);
  EXPECT_EQ(F16(1.00048828125F).bits, 0x3c00);
  EXPECT_EQ(static_cast<float>(F16(0x1p-24F)), 0x1p-24F);
  EXPECT_TRUE(std::isinf(static_cast<float>(F16(70'000.0F))));
}

template <typename T>
class HostTensorOf : public ::testing::Test {};
using Elements = ::testing::Types<float, Bf16, F16>;
TYPED_TEST_SUITE(HostTensorOf, Elements);

TYPED_TEST(HostTensorOf, HoldsNaNUntilItsValuesAreWritten) {
  HostTensor tensor(dtype_of<TypeParam>(), 3, 2, 5);
  ASSERT_EQ(tensor.template values<TypeParam>().size(), 30);
  for (const TypeParam value : tensor.template values<TypeParam>()) {
    EXPECT_TRUE(std::isnan(static_cast<float>(value)));
  }
  tensor.template values<TypeParam>()[7] = TypeParam(2.5F);
  const HostTensor& constant = tensor;
  EXPECT_EQ(static_cast<float>(constant.template values<TypeParam>()[7]), 2.5F);
  EXPECT_EQ(static_cast<const TypeParam*>(constant.view().data) + 7,
            &constant.template values<TypeParam>()[7]);
  tensor.poison();
  EXPECT_TRUE(std::isnan(static_cast<float>(constant.template values<TypeParam>()[7])));
}

TEST(HostTensor, RefusesExtentsThatAreNone) {
  EXPECT_EQ(HostTensor(Dtype::kF32, 0, 2, 5).values<float>().size(), 0);
  EXPECT_THAT(message_of([] { return HostTensor(Dtype::kF32, -1, 2, 5).tokens(); }),
              HasSubstr("found [-1, 2, 5]"));
  EXPECT_THAT(message_of([] { return HostTensor(Dtype::kF32, 1, -2, -5).tokens(); }),
              HasSubstr("found [1, -2, -5]"));
  const std::int64_t wraps = std::int64_t{1} << 60;  // times 16 elements of 4 bytes: 0 bytes
  EXPECT_THAT(message_of([&] { return HostTensor(Dtype::kF32, wraps, 4, 4).tokens(); }),
              HasSubstr("found [1152921504606846976, 4, 4]"));
}

TEST(HostTensor, GivesItsValuesAsWhatTheyAreOnly) {
  const HostTensor tensor(Dtype::kBf16, 1, 1, 2);
  EXPECT_THAT(message_of([&] { return tensor.values<F16>().size(); }),
              HasSubstr("values of bf16, found f16"));
  EXPECT_THAT(message_of([&] { return tensor.values<float>().size(); }), HasSubstr("found f32"));
}

}  // namespace
}  // namespace contextile
