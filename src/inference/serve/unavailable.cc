#include "base/check.h"
#include "contextile/completion_server.h"

namespace contextile {

class CompletionServer::State {};

std::string_view completion_server_missing() {
  return "built without cpp-httplib and PCRE2 (libcpp-httplib-dev, libpcre2-dev)";
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string&) {
  fail_argument("tokenizer: not in this build: {}", completion_server_missing());
}

CompletionServer::CompletionServer(const ServeOptions&, std::unique_ptr<Tokenizer>) {
  fail_argument("serve: not in this build: {}", completion_server_missing());
}
CompletionServer::~CompletionServer() = default;
std::int32_t CompletionServer::port() const { return 0; }
void CompletionServer::run(EngineRank&, const Engine&) {}
void CompletionServer::stop(const std::string&) {}

}  // namespace contextile
