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

namespace contextile {

// The text by which a rank introduces itself to the others before they connect.
struct Introduction {
  Rank rank;
  std::int32_t size = 0;
  std::string run_id;
  std::vector<std::string> addresses;  // where each peer finds this rank, in gloo's form

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

[[nodiscard]] std::unique_ptr<Rendezvous> open_rendezvous(const GlooOptions& options);
[[nodiscard]] std::unique_ptr<Rendezvous> open_folder(const GlooOptions& options,
                                                      const std::string& folder);
// `host` and `port` are those of rank 0.
[[nodiscard]] std::unique_ptr<Rendezvous> open_address(const GlooOptions& options,
                                                       const std::string& host,
                                                       const std::string& port);

}  // namespace contextile
