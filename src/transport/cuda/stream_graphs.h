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

// Says when calls of a group are captured: when they come again, when they first come, or never.
enum class KeptCalls : std::uint8_t { kSecond, kFirst, kNever };

// The graphs that the ranks of a group share. A capture begins on a stream of its own. All streams
// of all ranks wait for that stream, and it waits for them at the end, so that messages between
// ranks become edges of one graph.
class GroupGraphs {
 public:
  // The ranks share a driver and outlive it.
  explicit GroupGraphs(std::span<RankStreams* const> ranks);
  ~GroupGraphs();
  GroupGraphs(const GroupGraphs&) = delete;
  GroupGraphs& operator=(const GroupGraphs&) = delete;

  // One of the ranks calls these three while the others wait.
  void begin();
  [[nodiscard]] std::int64_t end();
  void launch(std::int64_t number);
  // Frees the graph when every rank has forgotten it.
  void forget(std::int64_t number) noexcept;
  // Called by a rank that gives up during a capture; all ranks will do so. The last one ends the
  // capture and the others wait for that. Otherwise their streams would execute work that is given
  // to them after the end, on memory that went with the capture.
  void leave(Rank rank) noexcept;
  [[nodiscard]] std::int64_t last_number() const { return last_number_; }

 private:
  struct Kept {
    Graph graph;
    std::size_t num_ranks = 0;  // that have not forgotten it
  };
  // `spread` makes every rank's stream wait for stream_; `gather` makes stream_ wait for all of
  // them.
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
  std::vector<bool> takes_part_;  // by rank: it takes part and has not left
  std::map<std::int64_t, Kept> kept_;
  std::int64_t last_number_ = 0;
};

// One rank's end. `control` is the control group of the rank's transport.
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
  // Runs `work` on rank 0 when all ranks have come this far; all continue when it is done.
  template <typename Work>
  void alone(const Work& work);

  const std::shared_ptr<GroupGraphs> group_;
  Transport& control_;
  const KeptCalls kept_;
};

}  // namespace contextile::cuda
