// Exchanges of arrays between ranks, without a plan, and the records of those that failed.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "contextile/advanced/flight_record.h"
#include "contextile/extend/transport.h"
#include "gil.h"
#include "tensors.h"

namespace contextile::python {
namespace {

using SentBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReceivedBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sends = std::vector<std::pair<Rank, SentBytes>>;
using Receives = std::vector<std::pair<Rank, ReceivedBytes>>;

template <typename Ends>
std::vector<Message> messages_of(const Ends& ends) {
  std::vector<Message> messages;
  for (const auto& [peer, bytes] : ends) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    // Segments are mutable because receives write them; the memory of a send is only read.
    auto* const data = const_cast<std::uint8_t*>(bytes.data());
    messages.push_back({peer, {Segment{reinterpret_cast<std::byte*>(data), size, 1, size}}});
  }
  return messages;
}

// An exchange that has begun. It keeps its arrays, which the transport reads and writes.
class PendingExchange {
 public:
  PendingExchange(std::shared_ptr<Transport> transport, Sends sends, Receives receives)
      : transport_(std::move(transport)), sends_(std::move(sends)), receives_(std::move(receives)) {
    const TransportUse use(*transport_, "exchange");
    ticket_ = transport_->control().launch(messages_of(sends_), messages_of(receives_));
  }
  // The arrays are about to go, so the group cannot go on.
  ~PendingExchange() {
    if (is_open_) transport_->control().abort("an exchange was given up before it ended");
  }
  PendingExchange(const PendingExchange&) = delete;
  PendingExchange& operator=(const PendingExchange&) = delete;

  void wait() {
    if (!is_open_) fail("exchange: expected one that was not waited for");
    const TransportUse use(*transport_, "exchange");
    is_open_ = false;
    transport_->control().wait(ticket_);
  }

 private:
  const std::shared_ptr<Transport> transport_;
  const Sends sends_;
  const Receives receives_;
  std::int64_t ticket_ = 0;
  bool is_open_ = true;
};

std::shared_ptr<PendingExchange> begin_exchange(std::shared_ptr<Transport> transport, Sends sends,
                                                Receives receives) {
  return std::make_shared<PendingExchange>(std::move(transport), std::move(sends),
                                           std::move(receives));
}

void save_record(Transport& transport, const std::string& folder, double seconds,
                 const std::string& error) {
  const auto began = std::chrono::system_clock::now() - milliseconds_of(seconds, "seconds");
  save_flight_record(exchange_record(transport.control(), began, TransportError(error)), folder);
}

}  // namespace

void bind_exchanges(nb::module_& module) {
  nb::class_<PendingExchange>(module, "PendingExchange", "An exchange of bytes that has begun.")
      .def("wait", &PendingExchange::wait, nb::call_guard<WithoutGil>(),
           "Returns when all of it has moved. Raises TransportError.");
  module.def("begin_exchange", &begin_exchange, "transport"_a, "sends"_a, "receives"_a,
             "Begins to send bytes to peers and to receive theirs, given as pairs of a rank and an "
             "array of uint8. The n-th array that a rank sends to another fills the n-th that the "
             "other receives from it. Arrays stay as they are until wait. Raises TransportError.");
  module.def("save_exchange_record", &save_record, "transport"_a, "folder"_a, "seconds"_a,
             "error"_a,
             "Writes the flight record of an exchange that failed after so many seconds to "
             "FOLDER/rank-R.json. Raises IoError.");
}

}  // namespace contextile::python
