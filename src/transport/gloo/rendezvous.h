// How the processes of a group find each other.
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

// What a rank tells the others before they connect.
struct Introduction {
  Rank rank;
  std::int32_t size = 0;
  std::string run_id;
  std::vector<std::string> addresses;  // where each peer finds this rank, in gloo's form

  [[nodiscard]] std::string text() const;
  // Nothing where the text is no introduction.
  [[nodiscard]] static std::optional<Introduction> parse(std::string_view text);
};

// Throws TransportError if the other belongs to no group of this one.
void check_fits(const Introduction& mine, const Introduction& other);

// "ranks 1, 3 of 4"
[[nodiscard]] std::string list_of_ranks(const std::vector<std::int32_t>& ranks, std::int32_t size);

// Every call may take as long as the options allow, and then throws TransportError naming who is
// missing.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // The address of this machine that the others reach; empty if the rendezvous cannot tell.
  [[nodiscard]] virtual std::string local_address() const { return ""; }
  // Gives every rank's introduction to every rank, by rank.
  [[nodiscard]] virtual std::vector<Introduction> exchange(const Introduction& mine) = 0;
  // All ranks have read this one's introduction: nothing of it need be kept.
  virtual void complete() {}
};

[[nodiscard]] std::unique_ptr<Rendezvous> open_rendezvous(const GlooOptions& options);
[[nodiscard]] std::unique_ptr<Rendezvous> open_folder(const GlooOptions& options,
                                                      const std::string& folder);
// Those of rank 0.
[[nodiscard]] std::unique_ptr<Rendezvous> open_address(const GlooOptions& options,
                                                       const std::string& host,
                                                       const std::string& port);

}  // namespace contextile
