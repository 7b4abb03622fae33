#include "base/check.h"
#include "base/process_owner.h"
#include "contextile/extend/transport.h"
#include "transport/gloo/group.h"
#include "transport/gloo/link.h"
#include "transport/gloo/rendezvous.h"
#include "transport/gloo/secret.h"

namespace contextile {
namespace {

constexpr std::string_view kThisGroup = "gloo: this group of ranks";

class GlooTransport : public Transport {
 public:
  GlooTransport(const GlooOptions& options, std::unique_ptr<GlooMesh> mesh,
                const std::vector<HostAndPort>& members)
      : rank_(options.rank),
        size_(options.size),
        group_(std::make_unique<GlooGroup>(options, std::move(mesh), members)) {}
  ~GlooTransport() override {
    // Its sockets were closed by the fork. The rest stays: its threads are not here, nor is
    // gloo's own.
    if (owner_.is_forked()) static_cast<void>(group_.release());
  }
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  [[nodiscard]] std::string_view name() const override { return "gloo"; }
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] std::int32_t size() const override { return size_; }
  std::int64_t launch(std::span<const Message> sends, std::span<const Message> recvs) override {
    return group().launch(sends, recvs);
  }
  void wait(std::int64_t ticket) override { group().wait(ticket); }
  void abort(std::string_view reason) noexcept override {
    if (!owner_.is_forked()) group_->fail(reason);
  }
  [[nodiscard]] std::vector<OpenTransfer> open_transfers() const override {
    return group().open_transfers();
  }
  [[nodiscard]] std::vector<Rank> silent_ranks() const override { return group().silent_ranks(); }
  [[nodiscard]] std::int64_t sent_bytes() const override { return group().sent_bytes(); }
  [[nodiscard]] std::int64_t received_bytes() const override { return group().received_bytes(); }

 private:
  [[nodiscard]] GlooGroup& group() const {
    owner_.check(kThisGroup);
    return *group_;
  }

  const Rank rank_;
  const std::int32_t size_;
  const ProcessOwner owner_;
  std::unique_ptr<GlooGroup> group_;
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
  const Member member = member_of(options, secret_of(options));
  if (options.size == 1)
    return std::make_unique<GlooTransport>(options, nullptr, std::vector<HostAndPort>(1));
  const std::unique_ptr<Rendezvous> rendezvous =
      open_rendezvous(options.rendezvous, member, options.connect_timeout);
  const SigpipeBlock block;  // for gloo's thread and ours, which start here
  const bool is_free = options.interface_name.empty() && options.hostname.empty();
  auto mesh = std::make_unique<GlooMesh>(options, member,
                                         is_free ? rendezvous->local_address() : options.hostname);
  const std::vector<Introduction> all =
      rendezvous->exchange({options.rank, options.size, mesh->address()});
  std::vector<HostAndPort> members;
  for (const Introduction& other : all) members.push_back(other.address);
  auto transport = std::make_unique<GlooTransport>(options, std::move(mesh), members);
  rendezvous->complete();
  return transport;
}

}  // namespace contextile
