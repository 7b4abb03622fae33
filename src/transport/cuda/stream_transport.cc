#include "transport/cuda/stream_transport.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "transport/cuda/event_pool.h"
#include "transport/cuda/run_copies.h"
#include "transport/forwarding_transport.h"
#include "transport/inproc_group.h"
#include "transport/inproc_transport.h"

namespace contextile::cuda {
namespace {

// Copies segments on the receiver's stream for moves. Its tokens are events.
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
      RunCopies copies(driver_, stream);
      copies.add(send.segments, recv.segments);
      copies.flush();
      driver_.record(moved, stream);
    }
    for (const std::int64_t ready : {send_ready, recv_ready}) events_.release(event_of(ready));
    return moved.id;
  }

  void wait(Rank rank, std::int64_t moved) override {
    driver_.wait(ranks_[rank.index()]->compute, event_of(moved));
    events_.release(event_of(moved));
  }

  // Waits until the device has done all moves so far.
  void synchronize() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::lock_guard lock(mutexes_[r]);
      driver_.synchronize(ranks_[r]->moves);
    }
  }

 private:
  static Event event_of(std::int64_t token) { return {static_cast<std::int32_t>(token)}; }

  std::vector<RankStreams*> ranks_;
  Driver& driver_;
  std::vector<std::mutex>
      mutexes_;  // of every rank's stream for moves: several threads give it work
  EventPool events_;
};

class StreamTransport : public ForwardingTransport {
 public:
  // `graphs` may be null.
  StreamTransport(std::unique_ptr<Transport> data, std::unique_ptr<Transport> control,
                  StreamMover& mover, const std::shared_ptr<GroupGraphs>& graphs, KeptCalls kept)
      : ForwardingTransport(*data),
        data_(std::move(data)),
        control_(std::move(control)),
        mover_(mover),
        group_graphs_(graphs) {
    if (graphs != nullptr) graphs_ = std::make_unique<CountedGraphs>(graphs, *this, kept);
  }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] Transport& control() override { return *control_; }
  [[nodiscard]] CallGraphs* graphs() override { return graphs_.get(); }
  void abort(std::string_view reason) noexcept override {
    data_->abort(reason);
    control_->abort(reason);
    if (group_graphs_ != nullptr) group_graphs_->leave(rank());
    mover_.synchronize();
  }
  [[nodiscard]] std::int64_t sent_bytes() const override {
    return ForwardingTransport::sent_bytes() + replayed_.sent;
  }
  [[nodiscard]] std::int64_t received_bytes() const override {
    return ForwardingTransport::received_bytes() + replayed_.received;
  }

 private:
  struct Bytes {
    std::int64_t sent = 0;
    std::int64_t received = 0;
  };
  // Counts the bytes of replayed calls.
  class CountedGraphs : public RankGraphs {
   public:
    CountedGraphs(std::shared_ptr<GroupGraphs> group, StreamTransport& transport, KeptCalls kept)
        : RankGraphs(std::move(group), *transport.control_, kept), transport_(transport) {}
    void begin_capture() override {
      RankGraphs::begin_capture();
      before_ = {transport_.sent_bytes(), transport_.received_bytes()};
    }
    [[nodiscard]] std::int64_t end_capture() override {
      const std::int64_t number = RankGraphs::end_capture();
      bytes_[number] = {transport_.sent_bytes() - before_.sent,
                        transport_.received_bytes() - before_.received};
      return number;
    }
    void replay(std::int64_t number) override {
      RankGraphs::replay(number);
      transport_.replayed_.sent += bytes_.at(number).sent;
      transport_.replayed_.received += bytes_.at(number).received;
    }
    void forget(std::int64_t number) noexcept override {
      RankGraphs::forget(number);
      bytes_.erase(number);
    }

   private:
    StreamTransport& transport_;
    Bytes before_;
    std::map<std::int64_t, Bytes> bytes_;  // by number
  };

  std::unique_ptr<Transport> data_;
  std::unique_ptr<Transport> control_;
  StreamMover& mover_;
  const std::shared_ptr<GroupGraphs> group_graphs_;
  std::unique_ptr<CountedGraphs> graphs_;
  Bytes replayed_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_stream_group(std::span<RankStreams* const> ranks,
                                                          const InprocOptions& options,
                                                          KeptCalls kept) {
  const auto size = static_cast<std::int32_t>(ranks.size());
  auto mover = ranks.empty() ? nullptr : std::make_unique<StreamMover>(ranks);
  StreamMover* const moves = mover.get();
  const auto data = std::make_shared<InprocGroup>(size, options, std::move(mover));
  const auto control = std::make_shared<InprocGroup>(size, options);
  const bool keeps = kept != KeptCalls::kNever && !ranks.empty();
  const auto graphs = keeps ? std::make_shared<GroupGraphs>(ranks) : nullptr;
  std::vector<std::unique_ptr<Transport>> transports;
  for (std::int32_t r = 0; r < size; ++r) {
    transports.push_back(std::make_unique<StreamTransport>(
        std::make_unique<InprocTransport>(data, Rank{r}),
        std::make_unique<InprocTransport>(control, Rank{r}), *moves, graphs, kept));
  }
  return transports;
}

}  // namespace contextile::cuda
