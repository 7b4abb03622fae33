// Calls of ranks that share a device, captured as one graph.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "contextile/extend/transport.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// When calls of a group are kept.
enum class KeptCalls : std::uint8_t { kSecond, kFirst, kNever };

// What the ranks of a group share. A capture begins on a stream of its own, which all streams of
// all ranks wait for and which waits for them at the end: messages between ranks are edges of one
// graph.
class GroupGraphs {
 public:
  // The ranks share a driver and outlive it.
  explicit GroupGraphs(std::span<RankStreams* const> ranks);
  ~GroupGraphs();
  GroupGraphs(const GroupGraphs&) = delete;
  GroupGraphs& operator=(const GroupGraphs&) = delete;

  // By one of the ranks while the others stand still.
  void begin();
  [[nodiscard]] std::int64_t end();
  void launch(std::int64_t number);
  // The graph goes when every rank has forgotten it.
  void forget(std::int64_t number) noexcept;
  // By a rank that gives up in a capture, which all will do. The last one ends it and the others
  // wait for that: work given to streams behind its end would be done, on memory that never was.
  void leave(Rank rank) noexcept;
  [[nodiscard]] std::int64_t last_number() const { return last_number_; }

 private:
  struct Kept {
    Graph graph;
    std::size_t num_ranks = 0;  // that have not forgotten it
  };
  // Every stream behind this one, or this one behind every stream.
  void spread();
  void gather();

  Driver& driver_;
  std::vector<Stream> streams_;  // of all ranks
  const Stream stream_;
  const Event begun_;
  std::vector<Event> ended_;  // of every stream
  std::mutex mutex_;
  std::condition_variable capture_is_over_;
  bool is_open_ = false;          // a capture is under way
  std::vector<bool> takes_part_;  // by rank: in it, and has not left
  std::map<std::int64_t, Kept> kept_;
  std::int64_t last_number_ = 0;
};

// One rank's end. `control` is that of the rank's transport.
class RankGraphs : public CallGraphs {
 public:
  RankGraphs(std::shared_ptr<GroupGraphs> group, Transport& control, KeptCalls kept)
      : group_(std::move(group)), control_(control), kept_(kept) {}

  [[nodiscard]] bool keeps_first_calls() const override { return kept_ == KeptCalls::kFirst; }
  void begin_capture() override;
  [[nodiscard]] std::int64_t end_capture() override;
  void replay(std::int64_t number) override;
  void forget(std::int64_t number) noexcept override { group_->forget(number); }

 private:
  // Runs work on rank 0 when all have come so far; all go on when it has.
  template <typename Work>
  void alone(const Work& work);

  const std::shared_ptr<GroupGraphs> group_;
  Transport& control_;
  const KeptCalls kept_;
};

}  // namespace contextile::cuda
