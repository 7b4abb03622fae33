#include "transport/gloo/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "transport/gloo/rendezvous_place.h"

namespace contextile {
namespace {

constexpr std::string_view kHeading = "contextile gloo 1";

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> bytes_of(std::string_view hex) {
  if (hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(&hex[i], &hex[i] + 2, value, 16);
    if (error != std::errc() || end != &hex[i] + 2) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

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
  std::string text = fmt::format("{}\n{}\n{}\n{}\n", kHeading, hex_of(run_id), rank.value, size);
  for (const std::string& address : addresses) text += hex_of(address) + "\n";
  return text;
}

std::optional<Introduction> Introduction::parse(std::string_view text) {
  if (next_line(text) != kHeading) return std::nullopt;
  const std::optional<std::string> run_id = bytes_of(next_line(text));
  const std::optional<std::int32_t> rank = number_of(next_line(text));
  const std::optional<std::int32_t> size = number_of(next_line(text));
  if (!run_id || !rank || !size || *rank < 0 || *rank >= *size) return std::nullopt;
  Introduction found{Rank{*rank}, *size, *run_id, {}};
  while (!text.empty()) {
    const std::optional<std::string> address = bytes_of(next_line(text));
    if (!address) return std::nullopt;
    found.addresses.push_back(*address);
  }
  if (found.addresses.size() != static_cast<std::size_t>(*size)) return std::nullopt;
  return found;
}

void check_fits(const Introduction& mine, const Introduction& other) {
  if (other.run_id != mine.run_id) {
    throw TransportError(
        fmt::format("rank {}, rendezvous: expected run '{}', found '{}' of rank {}",
                    mine.rank.value, mine.run_id, printable(other.run_id), other.rank.value));
  }
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

std::unique_ptr<Rendezvous> open_rendezvous(const GlooOptions& options) {
  const RendezvousPlace place = parse_rendezvous(options.rendezvous);
  return place.port.empty() ? open_folder(options, place.folder)
                            : open_address(options, place.host, place.port);
}

}  // namespace contextile
