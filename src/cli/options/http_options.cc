#include "cli/options/http_options.h"

#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "cli/options/types.h"

namespace contextile {
namespace {

ServeLog parse_log(const std::string& text) {
  if (text == "quiet") return ServeLog::kQuiet;
  if (text == "events") return ServeLog::kEvents;
  if (text == "requests") return ServeLog::kRequests;
  fail_argument("--log: expected quiet, events or requests, found {}", quote(text));
}

}  // namespace

void add_http_options(CLI::App& app, ServeOptions& serve) {
  add_text(app, "--host", serve.host, {"ADDRESS", "where to listen", ""});
  add_size<std::int32_t>(app, "--port", serve.port, 0, {"N", "0: a free one", ""});
  add_size<std::int32_t>(app, "--max-connections", serve.max_connections, 1,
                         {"N", "clients served at a time; others wait to be accepted", ""});
  add_size<std::int64_t>(app, "--max-body-bytes", serve.max_body_bytes, 1,
                         {"N", "of a request; larger ones are answered 413", ""});
  add_value(
      app, "--allow-origin",
      {"ORIGIN", "pages of this origin may call the server from scripts (CORS); *: all", "none"},
      [&serve](const std::string& text) { serve.allow_origin = text; });
  add_value(app, "--log",
            {"quiet|events|requests",
             "lines on standard error: none; of refusals, preemptions and lost ranks; of every "
             "request, too",
             "events"},
            [&serve](const std::string& text) { serve.log = parse_log(text); });
}

}  // namespace contextile
