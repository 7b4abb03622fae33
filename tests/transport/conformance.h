// The requirements on every transport, as cases that all ranks of a group run together. Ranks
// communicate only through the transport, so they may be threads or processes of one machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/extend/transport.h"

namespace contextile {

// Thrown by a case on a rank if the transport does not do what it must.
class ConformanceFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct ConformanceCase {
  std::string_view name;  // a sentence in PascalCase
  // Sizes of the groups of threads that are worth running. The case runs on any group of at least
  // sizes[0] ranks; ranks that it does not need return at once.
  std::vector<std::int32_t> sizes;
  std::int32_t num_turns = 1;                 // each on a fresh group
  std::chrono::milliseconds timeout{30'000};  // the group's
  // One rank's part. Many cases leave the group failed.
  void (*run)(Transport& transport, std::int32_t turn) = nullptr;
};

[[nodiscard]] std::span<const ConformanceCase> conformance_cases();

// Makes one rank's end of a fresh group; all ranks make it together.
using MakeTransport = std::function<std::unique_ptr<Transport>(std::chrono::milliseconds timeout)>;

// Runs all turns of a case as one rank of a process group. A failure reaches the peers as an abort,
// so that none of them waits for this rank. Returns what went wrong, empty if nothing did.
[[nodiscard]] std::string run_case(const ConformanceCase& tested, const MakeTransport& make);

}  // namespace contextile
