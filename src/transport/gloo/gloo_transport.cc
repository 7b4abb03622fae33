#include "base/check.h"
#include "contextile/extend/transport.h"
#include "transport/gloo/group.h"
#include "transport/gloo/link.h"
#include "transport/gloo/rendezvous.h"

namespace contextile {
namespace {

class GlooTransport : public Transport {
 public:
  GlooTransport(const GlooOptions& options, std::unique_ptr<GlooMesh> mesh,
                const std::vector<std::string>& members)
      : rank_(options.rank), size_(options.size), group_(options, std::move(mesh), members) {}

  [[nodiscard]] std::string_view name() const override { return "gloo"; }
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t size() const override { return size_; }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    return group_.launch(sends, recvs);
  }
  void wait(std::int64_t ticket) override { group_.wait(ticket); }
  void abort(std::string_view reason) noexcept override { group_.fail(reason); }
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    return group_.open_transfers();
  }
  [[nodiscard]] std::vector<Rank> silent_ranks() const override { return group_.silent_ranks(); }
  [[nodiscard]] std::int64_t sent_bytes() const override { return group_.sent_bytes(); }
  [[nodiscard]] std::int64_t received_bytes() const override { return group_.received_bytes(); }

 private:
  const Rank rank_;
  const std::int32_t size_;
  GlooGroup group_;
};

void check_options(const GlooOptions& options) {
  CONTEXTILE_CHECK(options.size >= 1, "gloo: expected at least 1 rank, found {}", options.size);
  CONTEXTILE_CHECK(options.rank.valid() && options.rank.value < options.size,
                   "gloo: expected a rank of 0 … {}, found {}", options.size - 1,
                   options.rank.value);
  CONTEXTILE_CHECK(options.timeout.count() > 0 && options.connect_timeout.count() > 0,
                   "gloo: expected positive timeouts, found {} ms and {} ms to connect",
                   options.timeout.count(), options.connect_timeout.count());
}

}  // namespace

bool gloo_transport_available() { return true; }

std::unique_ptr<Transport> make_gloo_transport(const GlooOptions& options) {
  check_options(options);
  if (options.size == 1)
    return std::make_unique<GlooTransport>(options, nullptr, std::vector<std::string>(1));
  const std::unique_ptr<Rendezvous> rendezvous = open_rendezvous(options);
  const SigpipeBlock block;  // for gloo's thread and ours, which start here
  const bool is_free = options.interface_name.empty() && options.hostname.empty();
  auto mesh =
      std::make_unique<GlooMesh>(options, is_free ? rendezvous->local_address() : options.hostname);
  const std::vector<Introduction> all =
      rendezvous->exchange({options.rank, options.size, options.run_id, mesh->addresses()});
  std::vector<std::string> members;
  for (const Introduction& other : all) members.push_back(other.addresses[options.rank.index()]);
  auto transport = std::make_unique<GlooTransport>(options, std::move(mesh), members);
  rendezvous->complete();
  return transport;
}

}  // namespace contextile
