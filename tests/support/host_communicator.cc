#include "support/host_communicator.h"

#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace contextile::cuda {

struct HostCommunicators::State {
  // One side of a message that the other has not come to.
  struct Waiting {
    std::size_t group = 0;
    PeerBytes bytes;
  };
  struct Pair {
    std::deque<Waiting> sends;
    std::deque<Waiting> recvs;
  };

  HostDriver& driver;
  mutable std::mutex mutex;
  std::map<std::pair<Rank, Rank>, Pair> pairs;  // from, to
  std::string failure;
  std::int64_t num_aborts = 0;

  void post(Rank rank, std::size_t group, const PeerBytes& bytes, bool is_send) {
    const auto key = is_send ? std::pair(rank, bytes.peer) : std::pair(bytes.peer, rank);
    Pair& pair = pairs[key];
    std::deque<Waiting>& others = is_send ? pair.recvs : pair.sends;
    if (others.empty()) {
      (is_send ? pair.sends : pair.recvs).push_back({group, bytes});
      return;
    }
    const Waiting other = others.front();
    others.pop_front();
    const auto rows = [](const PeerBytes& piece) {
      return Rows{piece.data, piece.bytes, 1, piece.bytes};
    };
    const PeerBytes& to = is_send ? other.bytes : bytes;
    const PeerBytes& from = is_send ? bytes : other.bytes;
    driver.add_transfer(group, other.group, rows(to), rows(from));
  }
};

namespace {

class HostCommunicator : public PointToPoint {
 public:
  HostCommunicator(std::shared_ptr<HostCommunicators::State> state, Rank rank)
      : state_(std::move(state)), rank_(rank) {}

  void exchange(Stream stream, std::span<const PeerBytes> sends,
                std::span<const PeerBytes> recvs) override {
    const std::lock_guard lock(state_->mutex);
    const std::size_t group =
        state_->driver.add_group(stream, std::ssize(sends) + std::ssize(recvs));
    for (const PeerBytes& send : sends) state_->post(rank_, group, send, true);
    for (const PeerBytes& recv : recvs) state_->post(rank_, group, recv, false);
  }
  [[nodiscard]] std::string failure() override {
    const std::lock_guard lock(state_->mutex);
    return state_->failure;
  }
  void abort() noexcept override {
    const std::lock_guard lock(state_->mutex);
    ++state_->num_aborts;
  }

 private:
  const std::shared_ptr<HostCommunicators::State> state_;
  const Rank rank_;
};

}  // namespace

HostCommunicators::HostCommunicators(HostDriver& driver)
    : state_(new State{.driver = driver, .mutex = {}, .pairs = {}, .failure = {}}) {}
HostCommunicators::~HostCommunicators() = default;

std::unique_ptr<PointToPoint> HostCommunicators::end_of(Rank rank) {
  return std::make_unique<HostCommunicator>(state_, rank);
}

void HostCommunicators::fail(const std::string& what) {
  const std::lock_guard lock(state_->mutex);
  state_->failure = what;
}

std::int64_t HostCommunicators::num_aborts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->num_aborts;
}

}  // namespace contextile::cuda
