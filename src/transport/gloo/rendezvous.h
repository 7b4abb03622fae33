// The rendezvous by which the processes of a group find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/extend/transport.h"
#include "transport/gloo/greeting.h"
#include "transport/gloo/socket.h"

namespace contextile {

// The text by which a rank introduces itself to the others before they connect.
struct Introduction {
  Rank rank;
  std::int32_t size = 0;
  HostAndPort address;  // where the peers find this rank

  [[nodiscard]] std::string text() const;
  // Returns nothing if the text is no introduction.
  [[nodiscard]] static std::optional<Introduction> parse(std::string_view text);
};

// Throws TransportError if the other does not belong to the same group.
void check_fits(const Introduction& mine, const Introduction& other);

// Returns, for example, "ranks 1, 3 of 4".
[[nodiscard]] std::string list_of_ranks(const std::vector<std::int32_t>& ranks, std::int32_t size);

// A meeting of all ranks. Every call may take as long as the options allow; then it throws
// TransportError naming the missing ranks.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Returns the address of this machine that the others reach; empty if the rendezvous cannot tell.
  [[nodiscard]] virtual std::string local_address() const { return ""; }
  // Gives every rank's introduction to every rank, and returns them by rank.
  [[nodiscard]] virtual std::vector<Introduction> exchange(const Introduction& mine) = 0;
  // Called when all ranks have read this one's introduction, so that nothing of it need be kept.
  virtual void complete() {}
};

// Returns this process as greetings know it.
[[nodiscard]] Member member_of(const GlooOptions& options, std::string secret);

// `timeout` limits how long all ranks take to come.
[[nodiscard]] std::unique_ptr<Rendezvous> open_rendezvous(const std::string& url,
                                                          const Member& member,
                                                          std::chrono::milliseconds timeout);
[[nodiscard]] std::unique_ptr<Rendezvous> open_folder(const std::string& folder,
                                                      const Member& member,
                                                      std::chrono::milliseconds timeout);
// `address` is that of rank 0.
[[nodiscard]] std::unique_ptr<Rendezvous> open_address(HostAndPort address, const Member& member,
                                                       std::chrono::milliseconds timeout);

}  // namespace contextile
