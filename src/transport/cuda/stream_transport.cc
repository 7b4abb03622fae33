#include "transport/cuda/stream_transport.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include "transport/forwarding_transport.h"
#include "transport/inproc_group.h"
#include "transport/inproc_transport.h"
#include "transport/strided_copy.h"

namespace contextile::cuda {
namespace {

// Events that are recorded again once nobody is left to wait for them.
class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // An event that `uses` calls of `release` give back.
  Event take(std::int64_t uses) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.push_back(driver_.create_event());
      uses_left_.resize(std::max(uses_left_.size(), static_cast<std::size_t>(idle_.back().id) + 1));
    }
    const Event event = idle_.back();
    idle_.pop_back();
    uses_left_[static_cast<std::size_t>(event.id)] = uses;
    return event;
  }
  void release(Event event) {
    const std::lock_guard lock(mutex_);
    if (--uses_left_[static_cast<std::size_t>(event.id)] == 0) idle_.push_back(event);
  }

 private:
  Driver& driver_;
  std::mutex mutex_;
  std::vector<Event> idle_;
  std::vector<std::int64_t> uses_left_;  // by event
};

// Runs of equal length at equal distances on both sides become one copy.
class RunCopies {
 public:
  RunCopies(Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}

  void add(std::byte* to, std::byte* from, std::int64_t bytes) {
    if (to_.num_rows > 0 && !extend(to, from, bytes)) flush();
    if (to_.num_rows > 0) return;
    to_ = {to, bytes, 1, bytes};
    from_ = {from, bytes, 1, bytes};
  }
  void flush() {
    if (to_.num_rows > 0) driver_.copy(stream_, to_, from_);
    to_ = {};
    from_ = {};
  }

 private:
  bool extend(std::byte* to, std::byte* from, std::int64_t bytes) {
    if (bytes != to_.row_bytes) return false;
    const std::int64_t to_stride = to - (to_.data + (to_.num_rows - 1) * to_.stride_bytes);
    const std::int64_t from_stride =
        from - (from_.data + (from_.num_rows - 1) * from_.stride_bytes);
    if (to_stride < bytes || from_stride < bytes) return false;
    const bool is_second = to_.num_rows == 1;
    if (!is_second && (to_stride != to_.stride_bytes || from_stride != from_.stride_bytes)) {
      return false;
    }
    to_.stride_bytes = to_stride;
    from_.stride_bytes = from_stride;
    ++to_.num_rows;
    ++from_.num_rows;
    return true;
  }

  Driver& driver_;
  Stream stream_;
  Rows to_;
  Rows from_;
};

// Moves on the receiver's stream for moves. Tokens are events.
class StreamMover : public SegmentMover {
 public:
  explicit StreamMover(std::span<RankStreams* const> ranks)
      : ranks_(ranks.begin(), ranks.end()),
        driver_(ranks.front()->driver),
        mutexes_(ranks.size()),
        events_(driver_) {}

  std::int64_t ready(Rank rank, std::int64_t num_ends) override {
    if (num_ends == 0) return -1;
    const Event event = events_.take(num_ends);
    driver_.record(event, ranks_[rank.index()]->compute);
    return event.id;
  }

  std::int64_t move(const PostedEnd& send, std::int64_t send_ready, Rank receiver,
                    const PostedEnd& recv, std::int64_t recv_ready) override {
    const Stream stream = ranks_[receiver.index()]->moves;
    const Event moved = events_.take(2);
    {
      const std::lock_guard lock(mutexes_[receiver.index()]);
      for (const std::int64_t ready : {send_ready, recv_ready})
        driver_.wait(stream, event_of(ready));
      copy(stream, send.segments, recv.segments);
      driver_.record(moved, stream);
    }
    for (const std::int64_t ready : {send_ready, recv_ready}) events_.release(event_of(ready));
    return moved.id;
  }

  void wait(Rank rank, std::int64_t moved) override {
    driver_.wait(ranks_[rank.index()]->compute, event_of(moved));
    events_.release(event_of(moved));
  }

  // All moves so far, on the device.
  void synchronize() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::lock_guard lock(mutexes_[r]);
      driver_.synchronize(ranks_[r]->moves);
    }
  }

 private:
  static Event event_of(std::int64_t token) { return {static_cast<std::int32_t>(token)}; }

  void copy(Stream stream, std::span<const Segment> from, std::span<const Segment> to) {
    SegmentCursor source(from);
    SegmentCursor target(to);
    RunCopies copies(driver_, stream);
    while (!source.done() && !target.done()) {
      const std::int64_t bytes = std::min(source.run_bytes(), target.run_bytes());
      copies.add(target.data(), source.data(), bytes);
      source.advance(bytes);
      target.advance(bytes);
    }
    copies.flush();
  }

  std::vector<RankStreams*> ranks_;
  Driver& driver_;
  std::vector<std::mutex>
      mutexes_;  // of every rank's stream for moves: several threads give it work
  EventPool events_;
};

class StreamTransport : public ForwardingTransport {
 public:
  StreamTransport(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  StreamMover& mover)
      : ForwardingTransport(*data),
        data_(std::move(data)),
        control_(std::move(control)),
        mover_(mover) {}

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] Transport& control() override { return *control_; }
  void abort(std::string_view reason) noexcept override {
    data_->abort(reason);
    control_->abort(reason);
    mover_.synchronize();
  }

 private:
  std::unique_ptr<Transport> data_;
  std::unique_ptr<Transport> control_;
  StreamMover& mover_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_stream_group(std::span<RankStreams* const> ranks,
                                                          const InprocOptions& options) {
  const auto size = static_cast<std::int32_t>(ranks.size());
  auto mover = ranks.empty() ? nullptr : std::make_unique<StreamMover>(ranks);
  StreamMover* const moves = mover.get();
  const auto data = std::make_shared<InprocGroup>(size, options, std::move(mover));
  const auto control = std::make_shared<InprocGroup>(size, options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::int32_t r = 0; r < size; ++r) {
    transports.push_back(std::make_unique<StreamTransport>(
        std::make_unique<InprocTransport>(data, Rank{r}),
        std::make_unique<InprocTransport>(control, Rank{r}), *moves));
  }
  return transports;
}

}  // namespace contextile::cuda
