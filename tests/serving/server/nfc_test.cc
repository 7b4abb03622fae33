#include "serving/server/nfc.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>

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

// Marks of two classes in turn, the later class first: inserting them one by one takes hours.
TEST(Nfc, OrdersLongRunsOfMarks) {
  constexpr std::size_t kCount = 500'000;
  std::string text = "b";
  std::string ordered = "b";
  for (std::size_t i = 0; i < kCount; ++i) text += "\u0315\u0323";
  for (std::size_t i = 0; i < kCount; ++i) ordered += "\u0323";
  for (std::size_t i = 0; i < kCount; ++i) ordered += "\u0315";
  const std::string found = to_nfc(text);
  ordered.replace(0, 3, "\u1e05");  // b and the first dot below
  EXPECT_TRUE(found == ordered);
}

TEST(Nfc, AgreesWithTheLibraryOnRandomTexts) {
  const std::string_view parts[] = {"a",      "e",      "\u0301", "\u0323",    "\u0315", "\u05ae",
                                    "\u0308", "\u0344", "\u1100", "\u1161",    "\u11a8", "\uac00",
                                    "\u0958", "\u212b", "\u1e69", "\U0001d15e"};
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t i = 0; i < 12; ++i) text += parts[random() % std::size(parts)];
    utf8proc_uint8_t* made = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                     static_cast<utf8proc_ssize_t>(text.size()), &made,
                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
    ASSERT_GE(size, 0);
    EXPECT_EQ(to_nfc(text),
              std::string(reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)));
  }
}

}  // namespace
}  // namespace contextile
