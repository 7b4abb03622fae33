#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/decode_pass.h"
#include "serving/model/decoder_core.h"
#include "serving/model/prefill_pass.h"

namespace contextile {

class DecoderRank::State {
 public:
  State(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
        const DecoderOptions& options)
      : core_(transport, config, std::move(weights), options), decode_(core_), prefill_(core_) {}

  [[nodiscard]] DecoderCore& core() { return core_; }
  [[nodiscard]] const DecoderCore& core() const { return core_; }

  [[nodiscard]] HostTensor forward(std::span<const StepRequest> requests) {
    for (const StepRequest& request : requests) check(request);
    if (std::ranges::none_of(requests, [this](const auto& its) { return is_shared(its); })) {
      return core_.logits(decode_.forward(requests));
    }
    // The activations that need logits, by request: these need not be computed in order.
    std::vector<Floats> last(requests.size());
    const std::vector<std::int32_t> levels = levels_of(requests);
    const std::int32_t num_levels = 1 + *std::ranges::max_element(levels);
    for (std::int32_t level = 0; level < num_levels; ++level) {
      for (const bool shared : {false, true}) {
        std::vector<std::size_t> some;
        for (std::size_t i = 0; i < requests.size(); ++i) {
          if (levels[i] == level && is_shared(requests[i]) == shared) some.push_back(i);
        }
        if (!some.empty()) compute(requests, some, shared, last);
      }
    }
    Floats sampled;
    for (const Floats& its : last) sampled.insert(sampled.end(), its.begin(), its.end());
    return core_.logits(sampled);
  }

 private:
  void check(const StepRequest& request) const {
    const std::int64_t count = std::ssize(request.tokens);
    CONTEXTILE_CHECK(count >= 1, "step: expected at least 1 token of every request, found none");
    CONTEXTILE_CHECK(request.num_logits >= 0 && request.num_logits <= count,
                     "step: expected logits of 0 to {} tokens, found {}", count,
                     request.num_logits);
    CONTEXTILE_CHECK(request.num_drafts >= 0 && request.num_drafts < count,
                     "step: expected fewer drafts than the {} tokens of a request, found {}", count,
                     request.num_drafts);
    for (const std::int32_t token : request.tokens) core_.check_token(token);
    const std::int64_t blocks = core_.options().layout.num_blocks(request.position + count);
    CONTEXTILE_CHECK(std::ssize(request.table) >= blocks,
                     "step: expected a table of at least {} pages, found {}", blocks,
                     request.table.size());
  }

  // True if the context-parallel ranks share the tokens of the request.
  [[nodiscard]] bool is_shared(const StepRequest& request) const {
    return core_.part().context_parallel > 1 && request.num_drafts == 0 &&
           std::ssize(request.tokens) >= core_.options().prefill.min_tokens;
  }

  // A request that reads a page which an earlier one writes is of a later level than that one.
  [[nodiscard]] std::vector<std::int32_t> levels_of(std::span<const StepRequest> requests) const {
    const KvLayout& layout = core_.options().layout;
    std::map<PageId, std::int32_t> written;  // pages, by the level that writes them
    std::vector<std::int32_t> levels;
    for (const StepRequest& request : requests) {
      std::int32_t level = 0;
      const auto pages = request.table;
      for (std::int64_t i = 0; i < layout.num_blocks(request.position); ++i) {
        const auto found = written.find(pages[static_cast<std::size_t>(i)]);
        if (found != written.end()) level = std::max(level, found->second + 1);
      }
      const std::int64_t end = layout.num_blocks(request.position + std::ssize(request.tokens));
      for (std::int64_t i = request.position / layout.block_tokens(); i < end; ++i) {
        written[pages[static_cast<std::size_t>(i)]] = level;
      }
      levels.push_back(level);
    }
    return levels;
  }

  void compute(std::span<const StepRequest> requests, std::span<const std::size_t> some,
               bool shared, std::vector<Floats>& last) {
    std::vector<StepRequest> group;
    for (const std::size_t i : some) group.push_back(requests[i]);
    const Floats rows = shared ? prefill_.forward(group) : decode_.forward(group);
    auto row = rows.begin();
    for (const std::size_t i : some) {
      const auto end = row + requests[i].num_logits * core_.config().hidden_size;
      last[i].assign(row, end);
      row = end;
    }
  }

  DecoderCore core_;
  DecodePass decode_;
  PrefillPass prefill_;
};

DecoderRank::DecoderRank(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
                         const DecoderOptions& options)
    : state_(std::make_unique<State>(transport, config, std::move(weights), options)) {}
DecoderRank::~DecoderRank() = default;

void DecoderRank::copy_pages(std::span<const PageCopy> copies) {
  state_->core().copy_pages(copies);
}
HostTensor DecoderRank::forward(std::span<const StepRequest> requests) {
  return state_->forward(requests);
}
const DecoderTraffic& DecoderRank::traffic() const { return state_->core().traffic(); }
const DecoderWork& DecoderRank::work() const { return state_->core().work(); }
std::int64_t DecoderRank::kv_bytes() const {
  const DecoderCore& core = std::as_const(*state_).core();
  return std::int64_t{core.options().num_pages} * core.options().layout.page_size *
         kv_bytes_per_token(core.config(), core.options().kv_dtype,
                            core.part().kv_heads(core.config().kv_heads).size());
}

}  // namespace contextile
