// Gathers row operations of one kind into launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu/driver.h"
#include "kernel/cuda/row_calls.h"
#include "kernel/cuda/row_launch.h"

namespace contextile::cuda {

// Puts calls on a rank's compute stream, as many per launch as it takes. `List` is one of the lists
// of row_calls.h; append(access, item) adds the memory that the call of an item touches.
template <typename List, typename Item, typename Append>
class ListLauncher {
 public:
  using Call = std::remove_cvref_t<decltype(List::calls[0])>;

  ListLauncher(const RankStreams& streams, std::string_view kernel, Append append)
      : streams_(streams), kernel_(kernel), append_(std::move(append)) {}

  void add(const Call& call, const Item& item) {
    const std::int64_t rows = call.shape.num_rows();
    if (rows == 0) return;
    if (items_.size() == std::size(list_.calls)) flush();
    list_.calls[items_.size()] = call;
    list_.shape.tokens += rows;
    list_.end_row[items_.size()] = list_.shape.tokens;
    items_.push_back(&item);
    list_.num_calls = static_cast<std::int32_t>(items_.size());
  }

  // Adds a call with sources.
  template <typename Source>
  void add(Call call, const Item& item, const std::vector<Source>& sources) {
    if (call.shape.num_rows() == 0) return;
    call.sources.count = static_cast<std::int32_t>(sources.size());
    if (sources.size() > std::size(list_.near)) {
      call.sources.far =
          reinterpret_cast<const Source*>(uploaded(std::as_bytes(std::span(sources))));
      return add(call, item);
    }
    const bool is_full = items_.size() == std::size(list_.calls);
    if (is_full || num_sources_ + sources.size() > std::size(list_.near)) flush();
    call.sources.first = static_cast<std::int32_t>(num_sources_);
    std::copy(sources.begin(), sources.end(), list_.near + num_sources_);
    num_sources_ += sources.size();
    add(call, item);
  }

  // Launches the calls that are left. It must be called after the last `add`.
  void flush() {
    if (items_.empty()) return;
    launch_rows(streams_, kernel_, list_, [this] {
      Access access;
      for (const Item* item : items_) append_(access, *item);
      access.reads.insert(access.reads.end(), far_rows_.begin(), far_rows_.end());
      return access;
    });
    list_.shape.tokens = 0;
    items_.clear();
    num_sources_ = 0;
    far_.clear();
    far_rows_.clear();
  }

 private:
  const std::byte* uploaded(std::span<const std::byte> sources) {
    far_.push_back(
        std::make_unique<StreamMemory>(streams_.driver, streams_.compute, std::ssize(sources)));
    streams_.driver.write(streams_.compute, far_.back()->data(), sources);
    far_rows_.push_back({far_.back()->data(), std::ssize(sources), 1, 0});
    return far_.back()->data();
  }

  const RankStreams& streams_;
  const std::string_view kernel_;
  const Append append_;
  List list_{};
  std::vector<const Item*> items_;  // of the calls of the list
  std::size_t num_sources_ = 0;
  std::vector<std::unique_ptr<StreamMemory>> far_;  // freed after the launch
  std::vector<Rows> far_rows_;
};

}  // namespace contextile::cuda
