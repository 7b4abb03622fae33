#include "training/ping_pong.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace contextile {
namespace {

// Splits whole documents into two halves of about equal tokens: longest first, each to the half
// with fewer tokens. Each half keeps the order of the documents.
StageParts whole_document_halves(std::span<const std::int64_t> lengths) {
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return lengths[i] > lengths[j]; });
  std::vector<std::size_t> half_of(lengths.size());
  std::array<std::int64_t, 2> tokens{};
  for (const std::size_t i : order) {
    half_of[i] = tokens[1] < tokens[0] ? 1 : 0;
    tokens[half_of[i]] += lengths[i];
  }
  StageParts halves(2);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    halves[half_of[i]].push_back({static_cast<std::int32_t>(i), {0, lengths[i]}});
  }
  return halves;
}

// Makes the halves equal by moving half of the difference to the smaller one: the last rows of the
// shortest document whose first rows the masks let stand alone. The half that keeps the first rows
// runs first; the other one attends their keys.
StageParts equal_halves(StageParts halves, std::span<const MaskUse> masks) {
  if (computed_tokens(halves[0]) < computed_tokens(halves[1])) std::swap(halves[0], halves[1]);
  const std::int64_t rows = (computed_tokens(halves[0]) - computed_tokens(halves[1])) / 2;
  DocumentRows* cut = nullptr;
  for (DocumentRows& document : halves[0]) {
    const std::int64_t first_rows = document.rows.size() - rows;
    if (first_rows <= 0 || !std::ranges::all_of(masks, [&](const MaskUse& use) {
          return stands_alone(use.spec, first_rows);
        })) {
      continue;
    }
    if (cut == nullptr || document.rows.size() < cut->rows.size()) cut = &document;
  }
  if (rows == 0 || cut == nullptr) return halves;
  cut->rows.end -= rows;
  halves[1].push_back({cut->document, {cut->rows.end, cut->rows.end + rows}});
  std::ranges::sort(halves[1], {}, &DocumentRows::document);
  return halves;
}

}  // namespace

std::int64_t computed_tokens(const std::vector<DocumentRows>& documents) {
  std::int64_t tokens = 0;
  for (const DocumentRows& document : documents) tokens += document.rows.size();
  return tokens;
}

StageParts whole_documents(std::span<const std::int64_t> lengths) {
  StageParts parts(1);
  for (const std::int64_t length : lengths) {
    parts[0].push_back({static_cast<std::int32_t>(parts[0].size()), {0, length}});
  }
  return parts;
}

StageParts ping_pong_parts(std::span<const std::int64_t> lengths, PipelineSchedule schedule,
                           std::span<const MaskUse> masks) {
  StageParts halves = whole_document_halves(lengths);
  if (schedule == PipelineSchedule::kSamePhase) halves = equal_halves(std::move(halves), masks);
  if (halves[1].empty()) halves.pop_back();
  return halves;
}

}  // namespace contextile
