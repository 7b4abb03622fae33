// The picture of a batch and its masks: which device computes which part.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "report/html/text.h"

namespace contextile {

struct TilePicture {
  // {"ranges", "bands": […], "planes": […]}: what page/tile_data.js reads.
  //
  // A *row* of the picture is a token range of a block, or several of one document merged; rows
  // are the columns, too. "ranges" lists for each: tokens, ranges merged, block (not when merged),
  // owner (of most of its tokens), round; block, owner and round as differences.
  //
  // A *plane* is a mask, direction and head group with, row by row, its runs of columns that one
  // device computes: columns skipped, columns, device (difference) and, when rows are merged, what
  // part of the pairs that device computes.
  //
  // "bands" has every mask's bands by first query: q begin (difference), q size, k begin - q begin,
  // k size, which of lo and hi are bounded (1, 2), those.
  ReportJson json;
  std::vector<std::string> notes;  // what the picture leaves out, as sentences
};

// All rounds on one picture. If it would take more than `budget_bytes`, ranges that follow each
// other in a document are merged, 2, 4, 8, … of them, and if need be documents. O(tiles + pieces),
// where a piece is the set of pairs that a range of queries attends in a range of keys.
[[nodiscard]] TilePicture tile_picture(const Plan& plan, std::size_t budget_bytes);

}  // namespace contextile
