#include "report/document_batches.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') + 1 - first);
}

std::vector<std::string_view> parts_between(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// "8*8192" or "8192".
DocumentRun parse_run(std::string_view text, std::string_view where) {
  const std::size_t star = text.find('*');
  if (star == std::string_view::npos) return {.tokens = parse_size(where, text, 1)};
  return {.count = parse_size(where, trimmed(text.substr(0, star)), 1),
          .tokens = parse_size(where, trimmed(text.substr(star + 1)), 1)};
}

}  // namespace

std::vector<DocumentBatch> parse_document_batches(std::string_view text, std::string_view where) {
  std::vector<DocumentBatch> batches;
  for (const std::string_view batch_text : parts_between(text, '|')) {
    DocumentBatch& batch = batches.emplace_back();
    std::int64_t documents = 0;
    std::int64_t tokens = 0;
    for (const std::string_view run_text : parts_between(batch_text, '+')) {
      const DocumentRun run = parse_run(run_text, where);
      // Each factor is checked before the product, which then fits.
      CONTEXTILE_CHECK(run.count <= kMaxRowDocuments - documents,
                       "{}: expected at most {} documents in a batch, found more: {}", where,
                       kMaxRowDocuments, quote(batch_text));
      CONTEXTILE_CHECK(run.tokens <= kMaxTokens && run.count * run.tokens <= kMaxTokens - tokens,
                       "{}: expected at most {} tokens in a batch, found more: {}", where,
                       kMaxTokens, quote(batch_text));
      documents += run.count;
      tokens += run.count * run.tokens;
      batch.push_back(run);
    }
  }
  return batches;
}

std::vector<std::int64_t> lengths_of(const DocumentBatch& batch) {
  std::vector<std::int64_t> lengths;
  for (const DocumentRun& run : batch) {
    lengths.insert(lengths.end(), static_cast<std::size_t>(run.count), run.tokens);
  }
  return lengths;
}

}  // namespace contextile
