// Ranks as threads of this process, or as processes of which this is one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"
#include "contextile/extend/transport.h"

namespace contextile {

struct TransportOptions {
  std::string name = "inproc";
  double timeout_s = 60;
  // gloo: where the processes meet, and which of them this is.
  std::string rendezvous;
  std::string run_id;
  std::optional<std::int32_t> rank;
  std::string interface_name;
};
// --transport, --timeout, --rendezvous, --run-id, --rank, --interface.
void add_transport_options(CLI::App& app, TransportOptions& options);

// Ends a rank with kExitBadInput and without a word: rank 0 has said for all of them what is wrong.
struct SaidByRank0 {};

// Something that can be built in, as `contextile info` shows it. Empty `missing`: it is.
struct BuildPart {
  std::string name;
  std::string what;
  std::string missing;
};
[[nodiscard]] std::vector<BuildPart> transport_parts();

// Throws InvalidArgument on a name that is none, a transport that is not built in, and options of
// another one.
void check_transport_options(const TransportOptions& options);
// This process's end of a group of `num_ranks` processes; null for inproc. Collective: returns when
// all have come. Throws what make_mpi_transport and make_gloo_transport throw. `who` is what the
// ranks are for: "device of the plan". Over MPI the group has a size of its own, which is taken
// where `num_ranks` is unset; where it is another, rank 0 says so and all throw SaidByRank0.
[[nodiscard]] std::unique_ptr<Transport> open_transport(const TransportOptions& options,
                                                        std::optional<std::int32_t> num_ranks,
                                                        std::string_view who);
// The options as InprocOptions take them.
[[nodiscard]] InprocOptions inproc_options(const TransportOptions& options);

}  // namespace contextile
