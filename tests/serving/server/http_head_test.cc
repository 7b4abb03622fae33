#include "serving/server/http_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace contextile {
namespace {

using testing::HasSubstr;

const std::string kHost = "Host: x\r\n";

std::string with(const std::string& fields) { return "POST /p HTTP/1.1\r\n" + fields + "\r\n"; }

int status_of(const std::string& head, const HeadLimits& limits = {}) {
  const auto parsed = parse_head(head, limits);
  const auto* problem = std::get_if<HeadProblem>(&parsed);
  return problem == nullptr ? 200 : problem->status;
}

TEST(HttpHead, EndsWithAnEmptyLine) {
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\nHost: x\r\n"), std::nullopt);
  EXPECT_EQ(head_size("GET / HTTP/1.1\r\n\r\nbody"), 18U);
  EXPECT_EQ(head_size("\n\n"), std::nullopt);
}

TEST(HttpHead, GivesMethodPathAndLength) {
  const auto parsed = parse_head(
      "POST /v1/completions?a=b HTTP/1.1\r\nhost: x\r\nContent-LENGTH:\t 12 \r\n\r\n", {});
  const RequestHead& head = std::get<RequestHead>(parsed);
  EXPECT_EQ(head.method, "POST");
  EXPECT_EQ(head.path, "/v1/completions");
  EXPECT_EQ(head.content_length, 12U);
  EXPECT_FALSE(head.is_chunked);
  EXPECT_FALSE(head.closes);
  for (const char* fields : {"Connection: close\r\n", "connection: TE , Close\r\n"}) {
    EXPECT_TRUE(std::get<RequestHead>(parse_head(with(kHost + fields), {})).closes) << fields;
  }
  const auto chunked = parse_head(with(kHost + "Transfer-Encoding: Chunked\r\n"), {});
  EXPECT_TRUE(std::get<RequestHead>(chunked).is_chunked);
}

TEST(HttpHead, RefusesWhatTwoServersCouldReadDifferently) {
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 5\r\nContent-Length: 5\r\n")), 200);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 5\r\nContent-Length: 6\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 5, 5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: +5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 0x5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: \r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "Transfer-Encoding: gzip, chunked\r\n")), 501);
  EXPECT_EQ(status_of(with(kHost + "Content-Length : 5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "A: b\r\n c\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + "A: b\nContent-Length: 5\r\n")), 400);
  EXPECT_EQ(status_of(with(kHost + std::string("A: \0\r\n", 6))), 400);
  EXPECT_EQ(status_of(with("")), 400);
  EXPECT_EQ(status_of(with(kHost + kHost)), 400);
  EXPECT_EQ(status_of("POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(status_of("POST /p HTTP/1.0\r\n\r\n"), 200);
}

TEST(HttpHead, RefusesFirstLinesThatAreNone) {
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\nHost: x\r\n\r\n"), 505);
  EXPECT_EQ(status_of("GET /\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / a HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("G(T / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET x HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /" + std::string(5000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"), 414);
  EXPECT_EQ(status_of(with(kHost + "Expect: more\r\n")), 417);
}

TEST(HttpHead, KeepsToTheLimitsOfFieldsAndBodies) {
  std::string fields = kHost;
  for (int i = 0; i < 99; ++i) fields += "A: b\r\n";
  EXPECT_EQ(status_of(with(fields)), 200);
  EXPECT_EQ(status_of(with(fields + "A: b\r\n")), 431);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 100\r\n"), {.max_body_bytes = 100}), 200);
  EXPECT_EQ(status_of(with(kHost + "Content-Length: 101\r\n"), {.max_body_bytes = 100}), 413);
  const std::string huge(40, '9');
  EXPECT_EQ(status_of(with(kHost + "Content-Length: " + huge + "\r\n")), 413);
}

// Heads made of critical pieces are either refused with a status or have one meaning.
TEST(HttpHead, TakesAnyBytes) {
  const std::vector<std::string> pieces = {"GET ",
                                           "POST ",
                                           "/",
                                           "/health",
                                           " HTTP/1.1",
                                           "\r\n",
                                           "\n",
                                           "\r",
                                           ":",
                                           " ",
                                           "Host: x",
                                           "Content-Length: 5",
                                           "Content-Length: 99999999999999999999",
                                           "Transfer-Encoding: chunked",
                                           std::string(1, '\0'),
                                           "\xff",
                                           "a",
                                           ";",
                                           "\t"};
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    std::string head;
    const std::size_t count = random() % 12;
    for (std::size_t k = 0; k < count; ++k) head += pieces[random() % pieces.size()];
    const auto parsed = parse_head(head + "\r\n\r\n", {});
    if (const auto* taken = std::get_if<RequestHead>(&parsed)) {
      EXPECT_FALSE(taken->is_chunked && taken->content_length > 0) << head;
      EXPECT_LE(taken->content_length, HeadLimits{}.max_body_bytes) << head;
    } else {
      EXPECT_GE(std::get<HeadProblem>(parsed).status, 400);
    }
  }
}

}  // namespace
}  // namespace contextile
