#include "serving/server/http_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace contextile {
namespace {

// The bytes that a reader gives out, and those that it leaves.
struct Outcome {
  std::string out;
  std::string rest;
  bool is_done = false;
  bool is_malformed = false;
};

Outcome read(const std::string& bytes, std::size_t piece = std::string::npos) {
  ChunkReader reader;
  Outcome outcome;
  std::size_t at = 0;
  while (at < bytes.size()) {
    const std::string_view next = std::string_view(bytes).substr(at, piece);
    const std::size_t taken = reader.read(next, outcome.out);
    at += taken;
    if (taken < next.size()) break;
  }
  outcome.rest = bytes.substr(at);
  outcome.is_done = reader.is_done();
  outcome.is_malformed = reader.is_malformed();
  return outcome;
}

TEST(HttpChunks, KeepsTheBytesAndDropsExtensionsAndTrailers) {
  const Outcome outcome =
      read("3;a=\"b\"\r\nabc\r\n0A\r\n0123456789\r\n000\r\nX: y\r\nZ:\r\n\r\nGET /");
  EXPECT_TRUE(outcome.is_done);
  EXPECT_EQ(outcome.out, "3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n");
  EXPECT_EQ(outcome.rest, "GET /");
  EXPECT_EQ(read("0\r\n\r\n").out, "0\r\n\r\n");
}

TEST(HttpChunks, RefusesWhatTwoReadersCouldReadDifferently) {
  for (const char* text : {
           "\r\n",
           ";a\r\n",
           "-1\r\n",
           "+1\r\n",
           " 1\r\n",
           "1 \r\n",
           "0x1\r\n",
           "g\r\n",
           "1\n",
           "1\r1",
           "1;\n",
           "1;a\r\r\n",
           "1\r\naX",
           "1\r\na\n",
           "1\r\na\rX",
           "1\r\nab\r\n",
           "0\r\n\n",
           "0\r\nA: b\n",
           "0\r\nA: b\r\r\n",
           "0\r\n\rX",
           "0\r\n\x01",
           "1000000000000000\r\n",  // 2^60
       }) {
    EXPECT_TRUE(read(text).is_malformed) << text;
  }
}

TEST(HttpChunks, BoundsLinesAndTrailers) {
  EXPECT_TRUE(read(std::string(300, '0')).is_malformed);
  EXPECT_TRUE(read("1;" + std::string(300, 'a')).is_malformed);
  EXPECT_TRUE(read("0\r\n" + std::string(5000, 'a')).is_malformed);
  std::string lines = "0\r\n";
  for (int i = 0; i < 1000; ++i) lines += "a: b\r\n";
  EXPECT_TRUE(read(lines).is_malformed);
  // Many chunks are no long line.
  std::string chunks;
  for (int i = 0; i < 1000; ++i) chunks += "1;x\r\na\r\n";
  EXPECT_TRUE(read(chunks + "0\r\n" + std::string(300, 'a') + "\r\n\r\n").is_done);
}

TEST(HttpChunks, MeansTheSameHoweverItIsCut) {
  const std::string whole = "2\r\nab\r\n11;x\r\n0123456789abcdef.\r\n0\r\nA: b\r\n\r\nnext";
  std::mt19937 source(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = whole;
    for (int changes = static_cast<int>(source() % 3); changes > 0; --changes) {
      text[source() % text.size()] = "\r\n0a;fX \t1"[source() % 10];
    }
    const Outcome at_once = read(text);
    const Outcome in_pieces = read(text, 1 + source() % 5);
    EXPECT_EQ(at_once.is_done, in_pieces.is_done) << text;
    EXPECT_EQ(at_once.is_malformed, in_pieces.is_malformed) << text;
    EXPECT_EQ(at_once.rest, in_pieces.rest) << text;
    if (!at_once.is_done) continue;
    // The output is read as it stands.
    const Outcome again = read(at_once.out);
    EXPECT_TRUE(again.is_done);
    EXPECT_EQ(again.out, at_once.out);
  }
}

}  // namespace
}  // namespace contextile
