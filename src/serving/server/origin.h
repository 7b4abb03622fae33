// The web pages whose scripts may call the server.
#pragma once

#include <string_view>

namespace contextile {

// True if a request with these header fields may come from a page that the browser got from the
// server itself, under an address, "localhost" or the name the server listens on. Other names may
// be made to point here by a page of theirs (DNS rebinding).
[[nodiscard]] bool is_own_page(std::string_view origin, std::string_view host,
                               std::string_view own_name);

}  // namespace contextile
