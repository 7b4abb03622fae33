#include <thread>
#include <utility>

#include "base/check.h"
#include "base/process_owner.h"
#include "contextile/extend/transport.h"
#include "transport/mpi/launches.h"
#include "transport/mpi/mpi_progress.h"
#include "transport/mpi/session.h"
#include "transport/mpi/wire.h"

namespace contextile {
namespace {

class MpiTransport : public Transport {
 public:
  MpiTransport(const MpiOptions& options, std::unique_ptr<MpiWire> wire)
      : rank_(wire->rank()),
        size_(wire->size()),
        launches_(std::make_shared<MpiLaunches>(rank_, size_, options.timeout)),
        progress_(std::make_shared<MpiProgress>(std::move(wire), launches_, options.piece_bytes)),
        thread_([progress = progress_] { progress->run(); }) {}
  ~MpiTransport() override {
    if (owner_.is_forked()) {
      // The thread is the parent's; what it works on stays with it.
      static_cast<void>(new std::thread(std::move(thread_)));
      return;
    }
    launches_->close();
    if (progress_->has_ended()) {
      thread_.join();
    } else {  // MPI holds the thread; what it works on stays with it
      note_lost_peer();
      thread_.detach();
    }
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t size() const override { return size_; }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    return launches().launch(sends, recvs);
  }
  void wait(std::int64_t ticket) override { launches().wait(ticket); }
  void abort(std::string_view reason) noexcept override {
    if (!owner_.is_forked()) launches_->abort(reason);
  }
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    return launches().open_transfers();
  }
  [[nodiscard]] std::int64_t sent_bytes() const override { return launches().sent_bytes(); }
  [[nodiscard]] std::int64_t received_bytes() const override { return launches().received_bytes(); }

 private:
  [[nodiscard]] MpiLaunches& launches() const {
    owner_.check("MPI: this group of ranks");
    return *launches_;
  }

  const ProcessOwner owner_;
  const SigtermWatch sigterm_;
  const Rank rank_;
  const std::int32_t size_;
  const std::shared_ptr<MpiLaunches> launches_;
  const std::shared_ptr<MpiProgress> progress_;
  std::thread thread_;
};

}  // namespace

bool mpi_transport_available() { return true; }

std::unique_ptr<Transport> make_mpi_transport(const MpiOptions& options) {
  constexpr std::int64_t kMostPieceBytes = 1 << 30;  // MPI counts in int
  CONTEXTILE_CHECK(options.timeout.count() > 0, "MPI: expected a positive timeout, found {} ms",
                   options.timeout.count());
  CONTEXTILE_CHECK(options.piece_bytes >= 1 && options.piece_bytes <= kMostPieceBytes,
                   "MPI: expected pieces of 1 to {} bytes, found {}", kMostPieceBytes,
                   options.piece_bytes);
  start_mpi(options.timeout);
  const SigtermWatch sigterm;  // the signal may come while joining, too
  return std::make_unique<MpiTransport>(
      options, std::make_unique<MpiWire>(options.timeout, options.piece_bytes));
}

}  // namespace contextile
