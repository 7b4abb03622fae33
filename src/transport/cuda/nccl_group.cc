#include "transport/cuda/nccl_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/quote.h"
#include "transport/agreement.h"
#include "transport/cuda/device_group.h"
#include "transport/cuda/nccl.h"

namespace contextile::cuda {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "an unnamed host";
}

// The names of what a rank tells the others before NCCL connects.
constexpr std::string_view kProblem = "problem";    // why it cannot connect, or empty
constexpr std::string_view kIdentity = "identity";  // of its GPU
constexpr std::string_view kDevice = "device";      // how its GPU is named in errors

// Fails on all ranks in the same words.
[[noreturn]] void fail_together(Transport& control, const std::string& problem) {
  let_all_look(control);
  throw InvalidArgument(problem);
}

// "0, 1 and 2".
std::string listed(std::span<const std::size_t> ranks) {
  return fmt::format("{} and {}", fmt::join(ranks.first(ranks.size() - 1), ", "), ranks.back());
}

// Looks at what all ranks have said. NCCL would refuse two ranks on one GPU, too, but only as an
// invalid usage that names neither.
void check_ranks(Transport& control, const std::vector<GatheredSettings>& ranks) {
  std::map<std::string, std::vector<std::size_t>> ranks_of;  // by the identity of the GPU
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const std::string problem = ranks[r].value(kProblem);
    if (!problem.empty())
      fail_together(control, fmt::format("rank {}: {}", r, without_orders(problem)));
    ranks_of[ranks[r].value(kIdentity)].push_back(r);
  }
  for (const auto& [identity, sharing] : ranks_of) {
    if (sharing.size() < 2) continue;
    fail_together(
        control,
        fmt::format("nccl: expected a GPU of its own for each rank, found {} for ranks {}; start "
                    "at most one rank for each GPU; in PyTorch call "
                    "torch.cuda.set_device(LOCAL_RANK) first, or pass "
                    "device=f\"cuda:{{LOCAL_RANK}}\"",
                    without_orders(ranks[sharing.front()].value(kDevice)), listed(sharing)));
  }
}

}  // namespace

std::unique_ptr<Transport> make_nccl_group(RankStreams& streams, Transport& control,
                                           const NcclGroupOptions& options) {
  const Driver& driver = streams.driver;
  NcclId id{};
  std::string library;
  std::string problem;
  try {
    library = find_nccl(options.libraries);
    if (control.rank() == Rank{0}) id = make_nccl_id(library);
  } catch (const Error& error) {  // that all ranks hear of
    problem = error.what();
  }
  const std::string identity(driver.device_identity());
  const Setting mine[] = {{kProblem, problem},
                          {kIdentity, identity},
                          {kDevice, fmt::format("GPU {} of {} ({}, {})", options.ordinal,
                                                host_name(), driver.device_name(), identity)}};
  check_ranks(control, gather_settings(control, mine));
  const auto ids = all_gather(control, std::as_bytes(std::span(&id, 1)));
  std::memcpy(id.data(), ids.front().data(), id.size());
  return make_device_group(
      streams,
      join_nccl(streams.driver, id, control.rank(), control.size(), options.timeout, library),
      control, {.timeout = options.timeout, .name = "nccl"});
}

}  // namespace contextile::cuda
