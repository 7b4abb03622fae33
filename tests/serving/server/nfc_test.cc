#include "serving/server/nfc.h"

#include <gtest/gtest.h>

namespace contextile {
namespace {

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_EQ(to_nfc("plain\x7f"), "plain\x7f");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(to_nfc("\u00e9"), "\u00e9");
  EXPECT_EQ(to_nfc("\u212b"), "\u00c5");        // the sign of the unit is the letter
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(to_nfc("\u0344"), "\u0308\u0301");
  // Marks of other classes are put in order, and do not keep the others from composing.
  EXPECT_EQ(to_nfc("a\u0301\u0323"), "\u1ea1\u0301");
  EXPECT_EQ(to_nfc("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");
  // A mark behind another one of its class is blocked.
  EXPECT_EQ(to_nfc("a\u0302\u0308"), "\u00e2\u0308");
  EXPECT_EQ(to_nfc("\u0301e"), "\u0301e");
}

TEST(Nfc, ComposesHangul) {
  EXPECT_EQ(to_nfc("\u1100\u1161"), "\uac00");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(to_nfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(to_nfc("\uac01\u11a8"), "\uac01\u11a8");
}

}  // namespace
}  // namespace contextile
