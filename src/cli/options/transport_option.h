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
  std::string secret_file;  // empty: CONTEXTILE_SECRET_FILE, if that is set
  std::optional<std::int32_t> rank;
  std::string interface_name;
};
// --transport, --timeout, --rendezvous, --run-id, --secret-file, --rank, --interface.
void add_transport_options(CLI::App& app, TransportOptions& options);
// --secret-file alone; `otherwise` says what happens without it and the environment variable.
void add_secret_file(CLI::App& app, std::string& path, const std::string& otherwise);

// Ends a rank with kExitBadInput and no message: rank 0 has reported the error for all.
struct SaidByRank0 {};

// A part that may be built in, as `contextile info` shows it. If `missing` is empty, it is built
// in.
struct BuildPart {
  std::string name;
  std::string what;
  std::string missing;
};
[[nodiscard]] std::vector<BuildPart> transport_parts();

// Throws InvalidArgument on an unknown name, a transport that is not built in, and options of
// another transport.
void check_transport_options(const TransportOptions& options);
// This process's end of a group of `num_ranks` processes; null for inproc. Collective: returns when
// all have come. Throws what make_mpi_transport and make_gloo_transport throw. `who` names the
// purpose of the ranks: "device of the plan". Over MPI the group has a size of its own, which is
// taken if `num_ranks` is unset. If it is another one, rank 0 says so and all throw SaidByRank0.
[[nodiscard]] std::unique_ptr<Transport> open_transport(const TransportOptions& options,
                                                        std::optional<std::int32_t> num_ranks,
                                                        std::string_view who);
// Returns the number of ranks below this one that run on the same machine, so the ranks of every
// machine count from 0. Collective.
[[nodiscard]] std::int32_t rank_on_machine(Transport& transport);
// The same options in the form of InprocOptions.
[[nodiscard]] InprocOptions inproc_options(const TransportOptions& options);

}  // namespace contextile
