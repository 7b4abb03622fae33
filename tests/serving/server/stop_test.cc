// The end of a server while it reads a request.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "contextile/serving/completion_server.h"

namespace contextile {
namespace {

using testing::HasSubstr;

// Never finishes a text; only its callback ends it.
class EndlessTokenizer final : public Tokenizer {
 public:
  explicit EndlessTokenizer(std::atomic<bool>& is_at_work) : is_at_work_(is_at_work) {}

  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 SpecialTokens special) const override {
    return bytes_->encode(text, special);
  }
  [[nodiscard]] std::vector<std::int32_t> encode_watched(
      std::string_view /*text*/, SpecialTokens /*special*/,
      const std::function<void()>& look) const override {
    is_at_work_ = true;
    while (true) {
      look();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] std::string_view bytes(std::int32_t token) const override {
    return bytes_->bytes(token);
  }
  [[nodiscard]] std::int32_t num_ids() const override { return bytes_->num_ids(); }
  [[nodiscard]] std::int64_t longest_token_bytes() const override { return 1; }
  [[nodiscard]] std::optional<std::int32_t> special_token(
      std::string_view /*text*/) const override {
    return std::nullopt;
  }

 private:
  std::atomic<bool>& is_at_work_;
  std::unique_ptr<Tokenizer> bytes_ = byte_tokenizer();
};

std::string answer_of(std::int32_t port, std::string_view request) {
  const int client = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(client, request.data(), request.size(), 0) == std::ssize(request)) {
    std::array<char, 4096> bytes{};
    ssize_t count = 0;
    while ((count = ::recv(client, bytes.data(), bytes.size(), 0)) > 0) {
      answer.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }
  ::close(client);
  return answer;
}

TEST(CompletionServer, EndsWhileATextIsMadeTokens) {
  for (const std::string_view path : {"/tokenize", "/v1/completions"}) {
    std::atomic<bool> is_at_work = false;
    ServeOptions options;
    options.port = 0;
    options.vocab_size = 256;
    options.max_length = 1000;
    options.log = ServeLog::kQuiet;
    auto server = make_completion_server(options, std::make_unique<EndlessTokenizer>(is_at_work));
    std::string answer;
    std::thread client([&, port = server->port()] {
      answer = answer_of(port, "POST " + std::string(path) +
                                   " HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n"
                                   R"({"prompt":"a"})");
    });
    while (!is_at_work) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server->stop("enough");
    server.reset();
    client.join();
    EXPECT_THAT(answer, HasSubstr("HTTP/1.1 503"));
    EXPECT_THAT(answer, HasSubstr("the server stops"));
  }
}

}  // namespace
}  // namespace contextile
