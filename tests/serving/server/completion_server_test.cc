#include "contextile/serving/completion_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "serving/engine/small_decoder.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

// The whole answer to GET /health.
std::string health(std::int32_t port) {
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string asked = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  if (::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      ::send(connection, asked.data(), asked.size(), 0) == static_cast<ssize_t>(asked.size())) {
    char bytes[4096];
    for (ssize_t size = 0; (size = ::recv(connection, bytes, sizeof bytes, 0)) > 0;) {
      answer.append(bytes, static_cast<std::size_t>(size));
    }
  }
  ::close(connection);
  return answer;
}

TEST(CompletionServer, SaysThatItIsReadyWhenHealthDoes) {
  std::unique_ptr<CompletionServer> server;
  std::string before;
  std::string when_ready;
  const auto on_ready = [&] {
    when_ready = health(server->port());
    server->stop("the test ends");
  };
  ServeOptions serve;
  serve.port = 0;
  serve.vocab_size = 256;
  serve.on_ready = on_ready;
  server = make_completion_server(serve, byte_tokenizer());
  before = health(server->port());
  run_inproc(1, [&](Transport& transport) {
    const DecoderConfig config = small_decoder();
    EngineOptions options;
    options.cache.num_pages = 4;
    DecoderOptions decoder;
    decoder.layout = options.cache.layout;
    decoder.num_pages = options.cache.num_pages;
    DecoderRank model(transport, config, random_weights(config, {}, 7), decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    server->run(rank, engine);
  });
  EXPECT_THAT(before, HasSubstr("\r\n\r\nstarting\n"));
  EXPECT_THAT(when_ready, HasSubstr("\r\n\r\nok\n"));
}

}  // namespace
}  // namespace contextile
