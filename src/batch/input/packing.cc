#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "contextile/data.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

void check_options(const WlbPackingOptions& options) {
  constexpr std::int32_t kMaxMicroBatches = 1 << 20;
  CONTEXTILE_CHECK(options.micro_batches >= 1 && options.micro_batches <= kMaxMicroBatches,
                   "packing: expected 1 to {} micro-batches in a step, found {}", kMaxMicroBatches,
                   options.micro_batches);
  CONTEXTILE_CHECK(options.max_tokens >= 1 && options.max_tokens <= kMaxTokens,
                   "packing: expected 1 to {} tokens in a micro-batch, found {}", kMaxTokens,
                   options.max_tokens);
  CONTEXTILE_CHECK(options.balance_tokens >= 1,
                   "packing: expected a balance length of at least 1 token, found {}",
                   options.balance_tokens);
  std::int64_t lower = 0;
  for (const std::int64_t level :
       options.outlier_levels_tokens.value_or(std::vector<std::int64_t>{})) {
    CONTEXTILE_CHECK(level > lower,
                     "packing: expected ascending outlier levels of at least 1 token, found {} "
                     "after {}",
                     level, lower);
    lower = level;
  }
}

std::vector<std::int64_t> levels_of(const WlbPackingOptions& options) {
  if (options.outlier_levels_tokens) return *options.outlier_levels_tokens;
  return {std::max<std::int64_t>(options.max_tokens / 4, 1)};
}

void check_documents(std::span<const Document> documents, std::int64_t max_tokens) {
  for (const Document& document : documents) {
    CONTEXTILE_CHECK(document.length_tokens >= 1 && document.length_tokens <= max_tokens,
                     "packing: expected documents of 1 to {} tokens (what a micro-batch may hold), "
                     "found document {} of {} tokens",
                     max_tokens, document.id, document.length_tokens);
  }
}

void check_state(const WlbPackingState& state, std::size_t num_levels,
                 const WlbPackingOptions& options) {
  CONTEXTILE_CHECK(state.queues.empty() || state.queues.size() == num_levels,
                   "packing: expected a state with {} outlier queues, found {}", num_levels,
                   state.queues.size());
  for (const std::vector<Document>& queue : state.queues) {
    check_documents(queue, options.max_tokens);
  }
  check_documents(state.remained, options.max_tokens);
}

void sort_by_length(std::vector<Document>& documents) {
  std::stable_sort(documents.begin(), documents.end(), [](const Document& a, const Document& b) {
    return a.length_tokens > b.length_tokens;
  });
}

// The micro-batches of one step while they fill.
class Bins {
 public:
  explicit Bins(const WlbPackingOptions& options)
      : options_(options),
        bins_(static_cast<std::size_t>(options.micro_batches)),
        workload_(bins_.size()),
        tokens_(bins_.size()) {}

  // Returns true if a bin has room.
  bool place(const Document& document) {
    for (const std::size_t bin : {argmin(workload_), argmin(tokens_)}) {
      if (tokens_[bin] + document.length_tokens > options_.max_tokens) continue;
      add(document, bin);
      return true;
    }
    return false;
  }
  void force(const Document& document) { add(document, argmin(workload_)); }

  [[nodiscard]] std::vector<MicroBatch> take() { return std::move(bins_); }

 private:
  template <typename Value>
  static std::size_t argmin(const std::vector<Value>& values) {
    return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) -
                                    values.begin());
  }
  void add(const Document& document, std::size_t bin) {
    bins_[bin].push_back(document);
    workload_[bin] += packing_workload(document.length_tokens, options_.balance_tokens);
    tokens_[bin] += document.length_tokens;
  }

  const WlbPackingOptions& options_;
  std::vector<MicroBatch> bins_;
  std::vector<double> workload_;
  std::vector<std::int64_t> tokens_;
};

// Puts outliers into their queues. The result has the other documents, and then those that the
// queues release.
std::vector<Document> pass_queues(std::span<const Document> arriving,
                                  std::span<const std::int64_t> levels, std::size_t num_released,
                                  OutlierRelease release,
                                  std::vector<std::vector<Document>>& queues) {
  std::vector<Document> ready;
  for (const Document& document : arriving) {
    const auto above = std::upper_bound(levels.begin(), levels.end(), document.length_tokens);
    if (above == levels.begin()) {
      ready.push_back(document);
    } else {
      queues[static_cast<std::size_t>(above - levels.begin()) - 1].push_back(document);
    }
  }
  for (std::vector<Document>& queue : queues) {
    if (release == OutlierRelease::kFullQueues && queue.size() < num_released) continue;
    const auto count =
        static_cast<std::ptrdiff_t>(release == OutlierRelease::kAll ? queue.size() : num_released);
    ready.insert(ready.end(), queue.begin(), queue.begin() + count);
    queue.erase(queue.begin(), queue.begin() + count);
  }
  return ready;
}

}  // namespace

double packing_workload(std::int64_t length_tokens, std::int64_t balance_tokens) {
  const double relative = static_cast<double>(length_tokens) / static_cast<double>(balance_tokens);
  return relative * relative + relative;
}

std::size_t WlbPackingState::num_waiting() const {
  std::size_t waiting = remained.size();
  for (const std::vector<Document>& queue : queues) waiting += queue.size();
  return waiting;
}

WlbPackingStep pack_wlb(WlbPackingState state, std::span<const Document> arriving,
                        const WlbPackingOptions& options, OutlierRelease release) {
  check_options(options);
  const std::vector<std::int64_t> levels = levels_of(options);
  check_state(state, levels.size(), options);
  check_documents(arriving, options.max_tokens);

  WlbPackingStep step;
  step.state.queues = std::move(state.queues);
  step.state.queues.resize(levels.size());
  std::vector<Document> ready =
      pass_queues(arriving, levels, static_cast<std::size_t>(options.micro_batches), release,
                  step.state.queues);
  sort_by_length(ready);
  std::vector<Document> documents = std::move(state.remained);
  documents.insert(documents.end(), ready.begin(), ready.end());

  Bins bins(options);
  std::copy_if(documents.begin(), documents.end(), std::back_inserter(step.state.remained),
               [&](const Document& document) { return !bins.place(document); });
  step.micro_batches = bins.take();
  return step;
}

std::vector<MicroBatch> pack_wlb_without_defer(std::span<const Document> documents,
                                               const WlbPackingOptions& options) {
  check_options(options);
  check_documents(documents, kMaxTokens);
  std::vector<Document> sorted(documents.begin(), documents.end());
  sort_by_length(sorted);
  Bins bins(options);
  std::vector<Document> homeless;
  std::copy_if(sorted.begin(), sorted.end(), std::back_inserter(homeless),
               [&](const Document& document) { return !bins.place(document); });
  for (const Document& document : homeless) bins.force(document);
  return bins.take();
}

std::vector<MicroBatch> pack_dp_balanced(std::span<const Document> documents,
                                         const DpBalancedPackingOptions& options) {
  CONTEXTILE_CHECK(options.multiple >= 1 && options.max_documents >= 0,
                   "packing: expected a positive multiple and a limit of documents or 0, found {} "
                   "and {}",
                   options.multiple, options.max_documents);
  check_documents(documents, options.max_tokens);
  const auto max_documents = static_cast<std::size_t>(options.max_documents);
  // Next fit: a document goes into the last bin or opens a new one.
  std::vector<MicroBatch> bins;
  std::int64_t tokens = 0;
  for (const Document& document : documents) {
    const bool is_full = bins.empty() || tokens + document.length_tokens > options.max_tokens ||
                         (max_documents > 0 && bins.back().size() == max_documents);
    if (is_full) {
      bins.emplace_back();
      tokens = 0;
    }
    bins.back().push_back(document);
    tokens += document.length_tokens;
  }
  // Single documents get bins of their own until there is a multiple.
  const auto multiple = static_cast<std::size_t>(options.multiple);
  for (std::size_t last = bins.size(); bins.size() % multiple != 0;) {
    while (last > 0 && bins[last - 1].size() <= 1) --last;
    CONTEXTILE_CHECK(last > 0, "expected sequences for a multiple of {} groups, found {} sequences",
                     multiple, documents.size());
    const Document moved = bins[last - 1].back();
    bins[last - 1].pop_back();
    bins.push_back({moved});
  }
  return bins;
}

}  // namespace contextile
