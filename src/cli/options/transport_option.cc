#include "cli/options/transport_option.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <span>
#include <string>

#include "base/check.h"
#include "base/quote.h"
#include "cli/help.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/extend/transport.h"

namespace contextile {
namespace {

std::chrono::milliseconds timeout_of(const TransportOptions& options) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3));
}

std::string names_of(const std::vector<BuildPart>& parts) {
  std::string names;
  for (const BuildPart& part : parts) names += (names.empty() ? "" : ", ") + part.name;
  return names;
}

std::unique_ptr<Transport> open_mpi(const TransportOptions& options) {
  // The transport notices the signal inside a wait, so that this rank can still say what it waited
  // for; the handler that removes unfinished files would end it at once.
  std::signal(SIGTERM, SIG_DFL);
  return make_mpi_transport({.timeout = timeout_of(options)});
}

std::unique_ptr<Transport> open_gloo(const TransportOptions& options, std::int32_t num_ranks,
                                     std::string_view who) {
  CONTEXTILE_CHECK(*options.rank < num_ranks, "--rank: expected 0 to {}, one for each {}, found {}",
                   num_ranks - 1, who, *options.rank);
  GlooOptions gloo;
  gloo.rank = Rank{*options.rank};
  gloo.size = num_ranks;
  gloo.rendezvous = options.rendezvous;
  gloo.run_id = options.run_id;
  gloo.secret_file = options.secret_file;
  gloo.interface_name = options.interface_name;
  gloo.timeout = gloo.connect_timeout = timeout_of(options);
  return make_gloo_transport(gloo);
}

// The launcher decides how many ranks there are, and each rank's plan how many there must be. All
// ranks look at all of them, so that rank 0 reports for all before a launcher that sees one end
// ends the others.
void check_size(Transport& transport, std::optional<std::int32_t> expected, std::string_view who) {
  const std::int32_t mine = expected.value_or(transport.size());
  const auto all = all_gather(transport, std::as_bytes(std::span(&mine, 1)));
  std::optional<std::string> problem;
  for (std::size_t r = 0; r < all.size() && !problem; ++r) {
    std::int32_t of_rank = 0;
    std::memcpy(&of_rank, all[r].data(), sizeof of_rank);
    if (of_rank == transport.size()) continue;
    problem =
        fmt::format("--transport mpi: expected {} processes, one for each {}{}, found {}", of_rank,
                    who, r == 0 ? "" : fmt::format(" on rank {}", r), transport.size());
  }
  if (!problem) return;
  if (transport.rank() == Rank{0}) print_error(*problem);
  barrier(transport);
  throw SaidByRank0();
}

// Bytes that only processes of the same machine have: its name, and the number of its boot.
// Containers of one machine differ in their names.
std::array<char, 320> machine_identity() {
  std::array<char, 320> identity{};
  constexpr std::size_t kMaxName = 256;
  ::gethostname(identity.data(), kMaxName);
  std::ifstream("/proc/sys/kernel/random/boot_id")
      .read(identity.data() + kMaxName, identity.size() - kMaxName);
  return identity;
}

}  // namespace

std::vector<BuildPart> transport_parts() {
  return {{"inproc", "ranks as threads of one process", ""},
          {"mpi", "ranks as processes of an MPI job (mpirun, Slurm)",
           mpi_transport_available() ? "" : "built without MPI (libopenmpi-dev)"},
          {"gloo", "ranks as processes over TCP, without a launcher",
           gloo_transport_available() ? "" : "built without gloo (libgloo-dev, libssl-dev)"}};
}

void add_secret_file(CLI::App& app, std::string& path, const std::string& otherwise) {
  add_value(app, "--secret-file",
            {"FILE",
             "gloo: the secret by which the ranks know each other, 16 to 4096 bytes, the same on "
             "all; only its owner and group may use the file",
             "that of CONTEXTILE_SECRET_FILE, otherwise " + otherwise},
            [&path](const std::string& text) {
              CONTEXTILE_CHECK(!text.empty(), "--secret-file: expected a file, found no name");
              path = text;
            });
}

void add_transport_options(CLI::App& app, TransportOptions& options) {
  add_text(app, "--transport", options.name,
           {"NAME",
            "inproc: a thread for each rank; mpi, gloo: this process is one rank, the others are "
            "started next to it",
            "",
            {"inproc", "mpi", "gloo"}});
  add_value(app, "--timeout",
            {"SECONDS", "give up when nothing moves between ranks for that long", "60"},
            [&options](const std::string& text) {
              options.timeout_s = parse_number("--timeout", text);
              if (options.timeout_s < 1e-3 || options.timeout_s > 1e9) {
                fail_argument("--timeout: expected 0.001 to 1e9 seconds, found {}", quote(text));
              }
            });
  add_size_as<std::int32_t>(app, "--rank", options.rank, 0,
                            {"N", "gloo: which rank this process is, from 0 on", ""});
  add_value(app, "--rendezvous",
            {"WHERE",
             "gloo: where the ranks meet, tcp://HOST:PORT of rank 0 or file:///FOLDER that "
             "all see",
             ""},
            [&options](const std::string& text) { options.rendezvous = text; });
  add_value(app, "--run-id",
            {"TEXT", "gloo: tells runs in one folder apart, the same on all ranks", ""},
            [&options](const std::string& text) { options.run_id = text; });
  add_secret_file(app, options.secret_file, "none");
  add_value(app, "--interface",
            {"NAME", "gloo: network interface", "the one that leads to the rendezvous"},
            [&options](const std::string& text) { options.interface_name = text; });
}

void check_transport_options(const TransportOptions& options) {
  const std::vector<BuildPart> parts = transport_parts();
  const auto part = std::ranges::find(parts, options.name, &BuildPart::name);
  if (part == parts.end()) {
    fail_argument("--transport: expected one of {}, found {}", names_of(parts),
                  quote(options.name));
  }
  if (!part->missing.empty()) {
    fail_argument("--transport {}: not in this build: {}", options.name, part->missing);
  }
  const bool gloo = options.name == "gloo";
  if (!gloo && (options.rank || !options.rendezvous.empty() || !options.run_id.empty() ||
                !options.secret_file.empty() || !options.interface_name.empty())) {
    fail_argument(
        "--rank, --rendezvous, --run-id, --secret-file, --interface: expected with --transport "
        "gloo, found them "
        "with {}",
        options.name);
  }
  if (gloo && !options.rank) {
    fail_argument(
        "--transport gloo: expected --rank and --rendezvous (contextile launch gives "
        "them), found no rank");
  }
}

std::unique_ptr<Transport> open_transport(const TransportOptions& options,
                                          std::optional<std::int32_t> num_ranks,
                                          std::string_view who) {
  if (options.name == "inproc") return nullptr;
  if (options.name == "gloo") return open_gloo(options, num_ranks.value(), who);
  std::unique_ptr<Transport> transport = open_mpi(options);
  check_size(*transport, num_ranks, who);
  return transport;
}

std::int32_t rank_on_machine(Transport& transport) {
  const std::array<char, 320> mine = machine_identity();
  const auto all = all_gather(transport, std::as_bytes(std::span(mine)));
  const auto& own = all[transport.rank().index()];
  return static_cast<std::int32_t>(
      std::ranges::count(std::span(all).first(transport.rank().index()), own));
}

InprocOptions inproc_options(const TransportOptions& options) {
  return {.timeout = timeout_of(options)};
}

}  // namespace contextile
