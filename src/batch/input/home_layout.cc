#include <algorithm>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/data.h"

namespace contextile {
namespace {

using nlohmann::json;

// Appends a range; neighbours of one owner become one range.
void append(std::vector<HomeRange>& home, Range tokens, Rank owner) {
  if (tokens.empty()) return;
  if (!home.empty() && home.back().owner == owner && home.back().tokens.end == tokens.begin) {
    home.back().tokens.end = tokens.end;
  } else {
    home.push_back({tokens, owner});
  }
}

std::vector<HomeRange> contiguous(std::int64_t num_tokens, std::int32_t num_ranks) {
  std::vector<HomeRange> home;
  for (std::int32_t r = 0; r < num_ranks; ++r) {
    append(home, {num_tokens * r / num_ranks, num_tokens * (r + 1) / num_ranks}, Rank{r});
  }
  return home;
}

std::vector<HomeRange> zigzag(std::span<const Range> sequences, std::int32_t num_ranks) {
  const std::int32_t num_chunks = 2 * num_ranks;
  std::vector<HomeRange> home;
  for (const Range& sequence : sequences) {
    const std::int64_t chunk_tokens = (sequence.size() + num_chunks - 1) / num_chunks;
    for (std::int32_t c = 0; c < num_chunks; ++c) {
      const Range chunk{sequence.begin + c * chunk_tokens, sequence.begin + (c + 1) * chunk_tokens};
      append(home, intersect(chunk, sequence), Rank{std::min(c, num_chunks - 1 - c)});
    }
  }
  return home;
}

HomeRange parse_range(const json& entry, std::size_t index, std::int32_t num_ranks,
                      std::string_view where) {
  const auto whole = [](const json& value) { return json_integer(value).has_value(); };
  if (!entry.is_array() || entry.size() != 3 || !std::all_of(entry.begin(), entry.end(), whole)) {
    fail_argument("{}: home[{}]: expected [begin, end, rank] as whole numbers, found {}", where,
                  index, quote(entry.dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  const auto rank = entry[2].get<std::int64_t>();
  if (rank < 0 || rank >= num_ranks) {
    fail_argument("{}: home[{}]: expected a rank from 0 to {}, found {}", where, index,
                  num_ranks - 1, rank);
  }
  return {{entry[0].get<std::int64_t>(), entry[1].get<std::int64_t>()},
          Rank{static_cast<std::int32_t>(rank)}};
}

}  // namespace

std::vector<HomeRange> load_layout(const std::string& text, std::span<const Range> sequences,
                                   std::int32_t num_ranks) {
  if (text == "contiguous") {
    return contiguous(sequences.empty() ? 0 : sequences.back().end, num_ranks);
  }
  if (text == "zigzag") return zigzag(sequences, num_ranks);
  try {
    const FileBytes file(text, expect_text("a layout as JSON"));
    return parse_layout_json(file.text(), num_ranks, file.name());
  } catch (const IoError& error) {
    fail_io("--layout: expected contiguous, zigzag or a file; {}", error.what());
  }
}

std::vector<HomeRange> parse_layout_json(std::string_view text, std::int32_t num_ranks,
                                         std::string_view where) {
  const json document = parse_json(text, where);
  if (!document.is_object() || document.size() != 1 || !document.contains("home") ||
      !document["home"].is_array() || document["home"].empty()) {
    fail_argument("{}: expected a JSON object {{\"home\": [[begin, end, rank], ...]}}, found {}",
                  where, quote(document.dump(-1, ' ', false, json::error_handler_t::replace)));
  }
  std::vector<HomeRange> home;
  for (const json& entry : document["home"]) {
    home.push_back(parse_range(entry, home.size(), num_ranks, where));
  }
  return home;
}

}  // namespace contextile
