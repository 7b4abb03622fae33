#include "plan/file/byte_budget.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "contextile/base.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;

TEST(ByteBudget, EndsWhenAnObjectIsNamedOften) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(builder.CreateVector(Bytes(100)));
  const auto* vector =
      flatbuffers::GetRoot<flatbuffers::Vector<std::uint8_t>>(builder.GetBufferPointer());
  ByteBudget budget(builder.GetSize(), {.file = "memory"});
  EXPECT_EQ(budget.list(vector).size(), 100U);
  EXPECT_THROW(static_cast<void>(budget.list(vector)), InvalidPlan);
}

TEST(ByteBudget, RefusesAListWhoseElementsAreNotAligned) {
  // The number of elements, which is aligned, then one element, which is not.
  alignas(std::int64_t) const std::array<std::uint32_t, 4> words = {1, 7, 0, 0};
  const auto* vector = reinterpret_cast<const flatbuffers::Vector<std::int64_t>*>(words.data());
  ByteBudget budget(sizeof(words), {.file = "memory"});
  EXPECT_THROW(static_cast<void>(budget.list(vector)), InvalidPlan);
  const auto* aligned = reinterpret_cast<const flatbuffers::Vector<std::int32_t>*>(words.data());
  EXPECT_EQ(budget.list(aligned).Get(0), 7);
}

}  // namespace
}  // namespace contextile
