// Options of an HTTP server: where it listens, what it accepts, what it logs.
#pragma once

#include "cli/app.h"
#include "contextile/serving/completion_server.h"

namespace contextile {

void add_http_options(CLI::App& app, ServeOptions& serve);

}  // namespace contextile
