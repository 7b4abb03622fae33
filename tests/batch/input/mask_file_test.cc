#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "contextile/data.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string message_of(std::string_view json, std::int64_t num_tokens = 8) {
  try {
    static_cast<void>(parse_mask_json(json, num_tokens, "m.json"));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

std::string with_band(const std::string& band) {
  return fmt::format("{{\"bands\": [[0, 4, 0, 4, null, 0], {}]}}", band);
}

TEST(MaskFile, ReadsBandsWithNullForInfinite) {
  const Mask mask = parse_mask_json(
      R"({"bands": [[0, 4, 0, 4, null, 0], [4, 8, 0, 8, -3, null], [0, 4, 4, 8, null, null]]})", 8,
      "m.json");
  ASSERT_EQ(mask.bands.size(), 3U);
  EXPECT_EQ(mask.bands[0], (Band{.q = {0, 4}, .k = {0, 4}, .lo = -kUnbounded, .hi = 0}));
  EXPECT_EQ(mask.bands[1], (Band{.q = {4, 8}, .k = {0, 8}, .lo = -3, .hi = kUnbounded}));
  EXPECT_EQ(mask.bands[2], (Band{.q = {0, 4}, .k = {4, 8}, .lo = -kUnbounded, .hi = kUnbounded}));
}

TEST(MaskFile, CutsBoundsBeyondInfinity) {
  const Mask mask = parse_mask_json(
      R"({"bands": [[0, 8, 0, 8, -9223372036854775808, 9223372036854775807]]})", 8, "m.json");
  EXPECT_EQ(mask.bands[0].lo, -kUnbounded);
  EXPECT_EQ(mask.bands[0].hi, kUnbounded);
}

TEST(MaskFile, NamesTheBandAndEntryThatIsWrong) {
  EXPECT_THAT(message_of(with_band("[4, 8, 0, 4, null]")),
              HasSubstr("m.json: bands[1]: expected [q0, q1, k0, k1, lo, hi]"));
  EXPECT_THAT(message_of(with_band("7")), HasSubstr("m.json: bands[1]: expected ["));
  EXPECT_THAT(message_of(with_band("[4, 8, 0, 4.0, null, null]")),
              HasSubstr("m.json: bands[1][3]: expected a 64-bit integer, found '4.0'"));
  EXPECT_THAT(message_of(with_band("[4, null, 0, 4, null, null]")), HasSubstr("bands[1][1]"));
  EXPECT_THAT(message_of(with_band("[4, 8, 0, 4, \"x\", null]")),
              HasSubstr("bands[1][4]: expected a 64-bit integer or null"));
  EXPECT_THAT(message_of(with_band("[4, 8, 0, 4, 0, 9223372036854775808]")),
              HasSubstr("bands[1][5]"));
  EXPECT_THAT(message_of(with_band("[8, 4, 0, 4, null, null]")), HasSubstr("expected q0 < q1"));
  EXPECT_THAT(message_of(with_band("[4, 8, 0, 4, 1, 0]")), HasSubstr("lo <= hi"));
}

TEST(MaskFile, RefusesBandsOutsideTheBatch) {
  EXPECT_THAT(message_of(with_band("[4, 9, 0, 4, null, null]")), HasSubstr("m.json: "));
  EXPECT_THAT(message_of(with_band("[4, 8, -1, 4, null, null]")), HasSubstr("m.json: "));
  EXPECT_EQ(message_of(with_band("[4, 8, 0, 8, null, null]")), "no error");
}

TEST(MaskFile, RefusesBandsThatShareAPair) {
  EXPECT_THAT(message_of(with_band("[3, 8, 0, 1, null, null]")), HasSubstr("m.json: "));
  EXPECT_EQ(message_of(with_band("[3, 8, 4, 8, null, null]")), "no error");
}

TEST(MaskFile, RefusesAnotherDocument) {
  for (const char* json :
       {"[]", "{}", "{\"bands\": {}}", "{\"bands\": [], \"x\": 1}", "7", "null"}) {
    SCOPED_TRACE(json);
    EXPECT_THAT(message_of(json), HasSubstr("m.json: expected {\"bands\": [["));
  }
  EXPECT_THAT(message_of("{\"bands\": ["), HasSubstr("m.json: expected JSON"));
  EXPECT_THAT(message_of(""), HasSubstr("m.json: expected JSON"));
  EXPECT_THAT(message_of("{\"bands\": " + std::string(100'000, '[')), HasSubstr("levels"));
}

TEST(MaskFile, IsReadFromDisk) {
  const std::string path =
      testing::TempDir() + "contextile_mask_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << with_band("[4, 8, 0, 8, null, 0]");
  EXPECT_EQ(read_mask_file(path, 8).bands.size(), 2U);
  EXPECT_THROW(static_cast<void>(read_mask_file(path, 7)), InvalidArgument);
  ::unlink(path.c_str());
  EXPECT_THROW(static_cast<void>(read_mask_file(path, 8)), IoError);
}

}  // namespace
}  // namespace contextile
