#include "transport/gloo/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "transport/gloo/rendezvous_place.h"

namespace contextile {
namespace {

constexpr std::string_view kHeading = "contextile gloo 2";

// Takes the text up to the next line break off `text` and returns it.
std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::optional<std::int32_t> number_of(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string Introduction::text() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n", kHeading, rank.value, size, address.host,
                     address.port);
}

std::optional<Introduction> Introduction::parse(std::string_view text) {
  if (next_line(text) != kHeading) return std::nullopt;
  const std::optional<std::int32_t> rank = number_of(next_line(text));
  const std::optional<std::int32_t> size = number_of(next_line(text));
  const std::string_view host = next_line(text);
  const std::string_view port = next_line(text);
  if (!rank || !size || *rank < 0 || *rank >= *size || host.empty() || !number_of(port) ||
      !text.empty()) {
    return std::nullopt;
  }
  return Introduction{Rank{*rank}, *size, {std::string(host), std::string(port)}};
}

void check_fits(const Introduction& mine, const Introduction& other) {
  if (other.size != mine.size) {
    throw TransportError(
        fmt::format("rank {}, rendezvous: expected a group of one size, found rank {} with {} "
                    "ranks, rank {} with {}",
                    mine.rank.value, mine.rank.value, mine.size, other.rank.value, other.size));
  }
}

std::string list_of_ranks(const std::vector<std::int32_t>& ranks, std::int32_t size) {
  return fmt::format("rank{} {} of {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), size);
}

Member member_of(const GlooOptions& options, std::string secret) {
  return {options.rank, options.size, options.run_id, std::move(secret)};
}

std::unique_ptr<Rendezvous> open_rendezvous(const std::string& url, const Member& member,
                                            std::chrono::milliseconds timeout) {
  const RendezvousPlace place = parse_rendezvous(url);
  return place.port.empty() ? open_folder(place.folder, member, timeout)
                            : open_address({place.host, place.port}, member, timeout);
}

}  // namespace contextile
