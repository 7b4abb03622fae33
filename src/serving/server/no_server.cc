#include "base/check.h"
#include "contextile/serving/completion_server.h"

namespace contextile {

std::string_view completion_server_missing() {
  return "built without cpp-httplib, PCRE2 and utf8proc (libcpp-httplib-dev, libpcre2-dev, "
         "libutf8proc-dev)";
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string&) {
  fail_argument("tokenizer: not in this build: {}", completion_server_missing());
}

std::unique_ptr<CompletionServer> make_completion_server(const ServeOptions&,
                                                         std::unique_ptr<Tokenizer>) {
  fail_argument("serve: not in this build: {}", completion_server_missing());
}

}  // namespace contextile
