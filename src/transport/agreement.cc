#include "transport/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

constexpr std::int64_t kMostBytes = 1 << 16;  // of one rank's settings

using Pairs = GatheredSettings::Pairs;

std::string text_of(std::span<const Setting> settings) {
  std::string text;
  for (const Setting& setting : settings) {
    text.append(setting.name).push_back('\0');
    text.append(setting.value).push_back('\0');
  }
  return text;
}

// Returns the settings in such a text. Any other text that a peer may have sent gives some
// settings, too.
Pairs pairs_of(std::string_view text) {
  const auto next = [&] {
    const std::size_t end = std::min(text.find('\0'), text.size());
    std::string word(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    return word;
  };
  Pairs pairs;
  while (!text.empty()) {
    std::string name = next();
    pairs.emplace_back(std::move(name), next());
  }
  return pairs;
}

// Returns the texts of all ranks, which may differ in length.
std::vector<std::string> gather_texts(Transport& transport, const std::string& mine) {
  const auto size = static_cast<std::int64_t>(mine.size());
  std::int64_t longest = 0;
  std::vector<std::int64_t> sizes;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(&size, 1)))) {
    std::memcpy(&sizes.emplace_back(), bytes.data(), sizeof size);
    longest = std::max(longest, sizes.back());
    if (sizes.back() >= 0 && sizes.back() <= kMostBytes) continue;
    throw TransportError(fmt::format("rank {}: expected settings of at most {} bytes, found {}",
                                     transport.rank().value, kMostBytes, sizes.back()));
  }
  std::string padded = mine;
  padded.resize(static_cast<std::size_t>(longest));
  std::vector<std::string> texts;
  for (const auto& bytes : all_gather(transport, std::as_bytes(std::span(padded)))) {
    const auto used = static_cast<std::size_t>(sizes[texts.size()]);
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), used);
  }
  return texts;
}

// Describes the first setting in which a rank differs from rank 0; nothing if there is none.
std::optional<std::string> difference_of(std::string_view who,
                                         const std::vector<GatheredSettings>& ranks) {
  const Pairs& first = ranks[0].pairs();
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const Pairs& other = ranks[r].pairs();
    const auto [a, b] = std::ranges::mismatch(first, other);
    if (a == first.end() && b == other.end()) continue;
    const std::string& name = a == first.end() ? b->first : a->first;
    const auto value_of = [&](const auto& at, const Pairs& all) {
      return at == all.end() || at->first != name ? "none" : printable(at->second);
    };
    return fmt::format(
        "{}: expected the same {} on all ranks, found {} on rank 0 and {} on rank {}", who,
        printable(name), value_of(a, first), value_of(b, other), r);
  }
  return std::nullopt;
}

}  // namespace

std::string GatheredSettings::value(std::string_view name) const {
  const auto found = std::ranges::find(pairs_, name, &Pairs::value_type::first);
  return found == pairs_.end() ? "" : found->second;
}

std::vector<GatheredSettings> gather_settings(Transport& transport,
                                              std::span<const Setting> settings) {
  std::vector<GatheredSettings> ranks;
  for (const std::string& text : gather_texts(transport, text_of(settings))) {
    ranks.emplace_back(pairs_of(text));
  }
  return ranks;
}

void let_all_look(Transport& transport) {
  try {
    barrier(transport);
  } catch (const TransportError&) {  // the difference matters more than ranks lost meanwhile
  }
}

void check_same_settings(Transport& transport, std::string_view who,
                         std::span<const Setting> settings) {
  const std::optional<std::string> difference =
      difference_of(who, gather_settings(transport, settings));
  if (!difference) return;
  let_all_look(transport);
  throw InvalidArgument(*difference);
}

}  // namespace contextile
