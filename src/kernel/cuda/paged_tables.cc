#include "kernel/cuda/paged_tables.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernel/paged/paged_tasks.h"

namespace contextile::cuda {
namespace {

std::int32_t narrow(std::int64_t value) {
  CONTEXTILE_CHECK(value <= std::numeric_limits<std::int32_t>::max() - kPagedStepKeys,
                   "request: expected fewer than 2^31 rows and keys, found {}", value);
  return static_cast<std::int32_t>(value);
}

// Returns the keys that rows [begin, end) see, ascending. The number of rows that see a key changes
// where a range begins or ends.
std::vector<PagedPiece> pieces_of(const PagedRequest& request, std::int64_t begin,
                                  std::int64_t end) {
  std::vector<std::pair<std::int64_t, int>> edges;
  for (std::int64_t row = begin; row < end; ++row) {
    for (const Range& keys : keys_of_row(request, row)) {
      if (keys.empty()) continue;
      edges.emplace_back(keys.begin, 1);
      edges.emplace_back(keys.end, -1);
    }
  }
  std::sort(edges.begin(), edges.end());
  std::vector<PagedPiece> pieces;
  std::int64_t seeing = 0;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    seeing += edges[i].second;
    if (seeing == 0 || i + 1 == edges.size() || edges[i].first == edges[i + 1].first) continue;
    const PagedPiece piece = {narrow(edges[i].first), narrow(edges[i + 1].first),
                              seeing < end - begin};
    if (!pieces.empty() && pieces.back().end == piece.begin &&
        pieces.back().is_masked == piece.is_masked) {
      pieces.back().end = piece.end;
    } else {
      pieces.push_back(piece);
    }
  }
  return pieces;
}

class PagedTableBuilder {
 public:
  explicit PagedTableBuilder(std::int32_t heads) : heads_(heads) {}

  void add(const PagedRequest& request) {
    PagedWork work;
    work.first_row = narrow(request.first_row);
    work.first_page = narrow(std::ssize(table_.pages));
    work.first_split = narrow(std::ssize(table_.splits));
    for (const PageId page : request.table) table_.pages.push_back(page.value);
    for (std::int64_t row = 0; row < request.num_rows; ++row) {
      table_.splits.push_back(narrow(std::ssize(table_.ranges)));
      for (const Range& keys : keys_of_row(request, row)) {
        if (!keys.empty()) table_.ranges.push_back({narrow(keys.begin), narrow(keys.end)});
      }
    }
    table_.splits.push_back(narrow(std::ssize(table_.ranges)));
    const std::int64_t rows = request.num_rows * heads_;
    for (std::int64_t begin = 0; begin < rows; begin += kPagedRows) {
      work.begin = narrow(begin);
      work.end = narrow(std::min(begin + kPagedRows, rows));
      add_rows(work, pieces_of(request, begin / heads_, (work.end - 1) / heads_ + 1));
    }
  }

  PagedTable take() { return std::move(table_); }

 private:
  // Cuts the keys of the rows into runs of whole steps.
  void add_rows(PagedWork work, const std::vector<PagedPiece>& pieces) {
    std::int64_t total = 0;
    for (const PagedPiece& piece : pieces) total += piece.end - piece.begin;
    const std::int64_t runs = std::max<std::int64_t>(1, total / kPagedRunKeys);
    const std::int64_t most =
        ((total + runs - 1) / runs + kPagedStepKeys - 1) / kPagedStepKeys * kPagedStepKeys;
    const std::size_t first_work = table_.works.size();
    work.first_piece = narrow(std::ssize(table_.pieces));
    const auto close = [&] {
      work.num_pieces = narrow(std::ssize(table_.pieces)) - work.first_piece;
      table_.works.push_back(work);
      work.first_piece += work.num_pieces;
    };
    std::int64_t room = most;
    for (PagedPiece rest : pieces) {
      while (rest.begin < rest.end) {
        if (room == 0) {
          close();
          room = most;
        }
        const auto taken =
            static_cast<std::int32_t>(std::min<std::int64_t>(room, rest.end - rest.begin));
        table_.pieces.push_back({rest.begin, rest.begin + taken, rest.is_masked});
        rest.begin += taken;
        room -= taken;
      }
    }
    close();
    number_parts(first_work);
  }

  // Gives the works of rows with several runs their places among the parts, and adds the merge.
  void number_parts(std::size_t first_work) {
    const std::span<PagedWork> works = std::span(table_.works).subspan(first_work);
    if (works.size() == 1) return;
    const PagedWork& first = works.front();
    table_.merges.push_back({first.first_row, first.begin, first.end, table_.num_parts,
                             static_cast<std::int32_t>(works.size())});
    for (PagedWork& work : works) {
      work.part = table_.num_parts;
      table_.num_parts = narrow(std::int64_t{table_.num_parts} + work.end - work.begin);
    }
  }

  const std::int32_t heads_;
  PagedTable table_;
};

}  // namespace

PagedTable paged_table(std::span<const PagedRequest> requests, std::int32_t heads) {
  PagedTableBuilder builder(heads);
  for (const PagedRequest& request : requests) builder.add(request);
  return builder.take();
}

}  // namespace contextile::cuda
