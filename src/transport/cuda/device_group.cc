#include "transport/cuda/device_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/cuda/event_pool.h"
#include "transport/cuda/run_copies.h"
#include "transport/failure_text.h"
#include "transport/posted_end.h"

namespace contextile::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLookEvery{50};

// Returns the segments as one piece of memory, or nothing if they are several pieces.
std::optional<Rows> one_piece(std::span<const Segment> segments) {
  if (segments.size() != 1) return std::nullopt;
  const Segment& segment = segments.front();
  if (segment.num_rows > 1 && segment.stride_bytes != segment.row_bytes) return std::nullopt;
  return Rows{segment.data, segment.size_bytes(), 1, segment.size_bytes()};
}

class DeviceGroup : public Transport {
 public:
  DeviceGroup(RankStreams& streams, std::unique_ptr<PointToPoint> communicator, Transport& control,
              const DeviceGroupOptions& options)
      : streams_(streams),
        driver_(streams.driver),
        communicator_(std::move(communicator)),
        control_(control),
        options_(options),
        events_(driver_),
        signal_(driver_.allocate(2 * kSignalBytes)),
        watcher_([this] { watch(); }) {}

  ~DeviceGroup() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    watcher_.join();
    driver_.free(signal_);
  }
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  [[nodiscard]] std::string_view name() const override { return options_.name; }
  [[nodiscard]] Rank rank() const override { return control_.rank(); }
  [[nodiscard]] std::int32_t size() const override { return control_.size(); }
  [[nodiscard]] Transport& control() override { return control_; }

  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    std::vector<PostedEnd> ends = make_ends(rank(), size(), sends, recvs);
    const std::int64_t ticket = next_ticket_++;
    check(fmt::format("launch {}", ticket));
    const auto [begun, done] = move(ends);
    const std::lock_guard lock(mutex_);
    for (const PostedEnd& end : ends) {
      (end.is_send ? sent_bytes_ : received_bytes_) += end.size_bytes;
    }
    under_way_.push_back({ticket, begun, done, std::move(ends)});
    events_of_[ticket] = done;
    changed_.notify_all();
    return ticket;
  }

  void wait(std::int64_t ticket) override {
    Event done;
    {
      const std::lock_guard lock(mutex_);
      const auto at = events_of_.find(ticket);
      CONTEXTILE_CHECK(at != events_of_.end(),
                       "rank {}, wait: expected a launch under way, found ticket {}", rank().value,
                       ticket);
      done = at->second;
      events_of_.erase(at);
    }
    check(fmt::format("wait for launch {}", ticket));
    driver_.wait(streams_.compute, done);
    events_.release(done);
  }

  void abort(std::string_view reason) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      set_failure(gave_up_text(rank(), reason));
    }
    control_.abort(reason);
  }

  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    const std::lock_guard lock(mutex_);
    std::vector<OpenTransfer> open;
    for (const Launch& launch : under_way_) append_open_transfers(launch.ticket, launch.ends, open);
    return open;
  }
  [[nodiscard]] std::vector<Rank> silent_ranks() const override { return control_.silent_ranks(); }
  [[nodiscard]] std::int64_t sent_bytes() const override {
    const std::lock_guard lock(mutex_);
    return sent_bytes_;
  }
  [[nodiscard]] std::int64_t received_bytes() const override {
    const std::lock_guard lock(mutex_);
    return received_bytes_;
  }

 private:
  static constexpr std::int64_t kSignalBytes = 256;
  struct Launch {
    std::int64_t ticket = 0;
    std::optional<Event> begun;  // unset: it is done
    Event done;
    std::vector<PostedEnd> ends;
  };
  // A message that is copied through contiguous memory of its own.
  struct Packed {
    const PostedEnd* end = nullptr;
    std::unique_ptr<StreamMemory> memory;
  };

  // Puts a launch on the stream for moves. Returns the events that stand for its beginning, when
  // the work that it waits for is done, and for its end.
  std::pair<Event, Event> move(std::span<const PostedEnd> ends) {
    const Event ready = events_.take(1);
    driver_.record(ready, streams_.compute);
    driver_.wait(streams_.moves, ready);
    events_.release(ready);
    const Event begun = events_.take(1);
    driver_.record(begun, streams_.moves);
    std::vector<PeerBytes> sends;
    std::vector<PeerBytes> recvs;
    std::vector<Packed> packed;
    for (const PostedEnd& end : ends) {
      (end.is_send ? sends : recvs).push_back(bytes_of(end, packed));
    }
    copy_all(packed, Way::kIntoPacked);
    if (!sends.empty() || !recvs.empty()) communicator_->exchange(streams_.moves, sends, recvs);
    copy_all(packed, Way::kOutOfPacked);
    // One use is for `wait`, the other for the watcher.
    const Event done = events_.take(2);
    driver_.record(done, streams_.moves);
    return {begun, done};
  }

  PeerBytes bytes_of(const PostedEnd& end, std::vector<Packed>& packed) {
    if (end.size_bytes == 0) {  // a barrier's: a byte that is never read
      return {end.peer, signal_ + (end.is_send ? 0 : kSignalBytes), 1};
    }
    if (const std::optional<Rows> piece = one_piece(end.segments)) {
      return {end.peer, piece->data, piece->row_bytes};
    }
    packed.push_back(
        {&end, std::make_unique<StreamMemory>(driver_, streams_.moves, end.size_bytes)});
    return {end.peer, packed.back().memory->data(), end.size_bytes};
  }

  // Copies all sends into their packed memory, or all receives out of it.
  enum class Way : std::uint8_t { kIntoPacked, kOutOfPacked };
  void copy_all(std::span<const Packed> packed, Way way) {
    RunCopies copies(driver_, streams_.moves);
    for (const Packed& message : packed) {
      if (message.end->is_send != (way == Way::kIntoPacked)) continue;
      const std::int64_t bytes = message.end->size_bytes;
      const Segment all{message.memory->data(), bytes, 1, bytes};
      const std::span<const Segment> segments = message.end->segments;
      if (message.end->is_send) {
        copies.add(segments, {&all, 1});
      } else {
        copies.add({&all, 1}, segments);
      }
    }
    copies.flush();
  }

  void check(const std::string& operation) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) return;
    throw TransportError(fmt::format("rank {}, {}: {}", rank().value, operation, failure_));
  }

  // Needs the lock.
  void set_failure(std::string text) noexcept {
    if (!failure_.empty()) return;
    failure_ = std::move(text);
    communicator_->abort();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (under_way_.empty() || !failure_.empty()) {
        changed_.wait(lock);
        continue;
      }
      look();
      if (failure_.empty()) {
        changed_.wait_for(lock, kLookEvery);
        continue;
      }
      const std::string text = failure_;
      lock.unlock();
      control_.abort(text);
      lock.lock();
    }
  }

  // Takes launches that are done off the list, and notes failures. Needs the lock.
  void look() {
    try {
      while (!under_way_.empty() && driver_.is_done(under_way_.front().done)) {
        note_begun(under_way_.front());
        events_.release(under_way_.front().done);
        under_way_.pop_front();
        last_progress_ = Clock::now();
      }
      // The time of a launch does not count while it waits for this rank's own work.
      if (!under_way_.empty() && under_way_.front().begun) {
        if (driver_.is_done(*under_way_.front().begun)) note_begun(under_way_.front());
        last_progress_ = Clock::now();
      }
    } catch (const DeviceError& error) {
      return set_failure(error.what());
    }
    if (under_way_.empty()) return;
    const std::string open = open_ends(under_way_.front().ends);
    if (const std::string problem = communicator_->failure(); !problem.empty()) {
      return set_failure(fmt::format("{}; open: {}", problem, open));
    }
    if (Clock::now() - last_progress_ < options_.timeout) return;
    set_failure(fmt::format("nothing moved for {} ms; open: {}", options_.timeout.count(), open));
  }

  // Needs the lock.
  void note_begun(Launch& launch) {
    if (const std::optional<Event> begun = std::exchange(launch.begun, std::nullopt)) {
      events_.release(*begun);
    }
  }

  RankStreams& streams_;
  Driver& driver_;
  const std::unique_ptr<PointToPoint> communicator_;
  Transport& control_;
  const DeviceGroupOptions options_;
  EventPool events_;
  std::byte* const signal_;
  std::int64_t next_ticket_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Launch> under_way_;             // in the order of the stream
  std::map<std::int64_t, Event> events_of_;  // of launches not yet waited for
  Clock::time_point last_progress_ = Clock::now();
  std::string failure_;
  bool stopping_ = false;
  std::int64_t sent_bytes_ = 0;
  std::int64_t received_bytes_ = 0;
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Transport> make_device_group(RankStreams& streams,
                                             std::unique_ptr<PointToPoint> communicator,
                                             Transport& control,
                                             const DeviceGroupOptions& options) {
  return std::make_unique<DeviceGroup>(streams, std::move(communicator), control, options);
}

}  // namespace contextile::cuda
