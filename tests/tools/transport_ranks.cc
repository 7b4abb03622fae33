// The conformance cases of transports, run as one rank of a group of processes: a launcher starts
// this program once for each rank. Prints every case that failed on this rank and why. Or it sends
// messages without end, for tests that kill or stop a rank: prints which process is which rank, and
// the error in which it ends.
//
// Ends with 0 if all cases passed, 1 if one failed, 2 on wrong arguments, 3 if the group itself
// failed.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/parse_number.h"
#include "contextile/extend/transport.h"
#include "transport/conformance.h"

namespace contextile {
namespace {

constexpr const char* kUsage =
    "usage: transport_ranks TRANSPORT [--case NAME] [--endless MS] [--piece-bytes N]\n"
    "  TRANSPORT  mpi: started by mpirun, where the library was built with MPI;\n"
    "             inproc: four ranks as threads of this process, to try the program itself;\n"
    "             gloo: one rank, --rank R --size N --rendezvous URL --run ID [--connect MS]\n"
    "             [--secret-file FILE]\n"
    "  --case     that case alone (all)\n"
    "  --endless  no cases: messages around a ring until an error, with that timeout\n"
    "  --piece-bytes  how large the pieces are that messages are cut into (the transport's own)\n";

struct Settings {
  std::string transport;
  std::string only;              // empty: every case
  std::int64_t endless_ms = 0;   // 0: cases
  std::int64_t piece_bytes = 0;  // 0: the transport's default
  GlooOptions gloo;
};

Settings settings_of(int argc, char** argv) {
  if (argc < 2 || argc % 2 != 0) fail_argument("expected TRANSPORT and pairs of option and value");
  Settings settings;
  settings.transport = argv[1];
  for (int i = 2; i < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--case") {
      settings.only = value;
    } else if (name == "--endless") {
      settings.endless_ms = parse_size(name, value, 1);
    } else if (name == "--piece-bytes") {
      settings.piece_bytes = parse_size(name, value, 1);
    } else if (name == "--rank") {
      settings.gloo.rank = Rank{static_cast<std::int32_t>(parse_size(name, value, 0))};
    } else if (name == "--size") {
      settings.gloo.size = static_cast<std::int32_t>(parse_size(name, value, 0));
    } else if (name == "--rendezvous") {
      settings.gloo.rendezvous = value;
    } else if (name == "--run") {
      settings.gloo.run_id = value;
    } else if (name == "--secret-file") {
      settings.gloo.secret_file = value;
    } else if (name == "--connect") {
      settings.gloo.connect_timeout = std::chrono::milliseconds(parse_size(name, value, 1));
    } else {
      fail_argument("expected an option, found '{}'", name);
    }
  }
  return settings;
}

// Prints one line per write, so that lines of ranks that share a terminal stay whole.
void say(std::FILE* file, const std::string& line) {
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

// Runs every case that the group is large enough for. Returns the number of those that failed here.
std::int32_t run_cases(const Settings& settings, const MakeTransport& make) {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  const MakeTransport make_and_look = [&](std::chrono::milliseconds timeout) {
    std::unique_ptr<Transport> transport = make(timeout);
    rank = transport->rank().value;
    size = transport->size();
    return transport;
  };
  barrier(*make_and_look(std::chrono::milliseconds(30'000)));
  std::int32_t num_run = 0;
  std::int32_t num_failed = 0;
  for (const ConformanceCase& tested : conformance_cases()) {
    if (!settings.only.empty() && settings.only != tested.name) continue;
    if (size < tested.sizes[0]) {
      if (rank == 0) say(stdout, fmt::format("{}: needs {} ranks", tested.name, tested.sizes[0]));
      continue;
    }
    ++num_run;
    const std::string failure = run_case(tested, make_and_look);
    if (failure.empty()) continue;
    ++num_failed;
    say(stderr, fmt::format("{}: failed on rank {} of {}: {}", tested.name, rank, size, failure));
  }
  if (num_run == 0) fail_argument("expected the name of a case, found '{}'", settings.only);
  say(stdout, fmt::format("rank {} of {}: {} cases, {} failed", rank, size, num_run, num_failed));
  return num_failed;
}

// Ends only in an error.
[[noreturn]] void run_endless(const Settings& settings, const MakeTransport& make) {
  const std::unique_ptr<Transport> transport = make(std::chrono::milliseconds(settings.endless_ms));
  const std::int32_t rank = transport->rank().value;
  say(stdout, fmt::format("rank {} is process {}", rank, getpid()));
  std::vector<std::byte> out(3'000'000);
  std::vector<std::byte> in(out.size());
  const auto bytes = static_cast<std::int64_t>(out.size());
  const Message send{Rank{(rank + 1) % transport->size()}, {{out.data(), bytes, 1, bytes}}};
  const Message recv{Rank{(rank + transport->size() - 1) % transport->size()},
                     {{in.data(), bytes, 1, bytes}}};
  while (true) transport->wait(transport->launch({&send, 1}, {&recv, 1}));
}

// Every thread receives its end of the next group, which the first to come makes for all.
std::int32_t run_threads(const Settings& settings) {
  constexpr std::size_t kRanks = 4;
  std::mutex mutex;
  std::vector<std::vector<std::unique_ptr<Transport>>> groups;
  std::vector<std::int32_t> num_failed(kRanks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      std::size_t next = 0;
      num_failed[r] = run_cases(settings, [&](std::chrono::milliseconds timeout) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (next == groups.size())
          groups.push_back(make_inproc_group(kRanks, {.timeout = timeout}));
        return std::move(groups[next++][r]);
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int32_t total = 0;
  for (const std::int32_t failed : num_failed) total += failed;
  return total;
}

// A rendezvous serves one group, so each case has a run of its own.
std::int32_t run_gloo(const Settings& settings) {
  std::int32_t num_groups = 0;
  const MakeTransport make = [&](std::chrono::milliseconds timeout) {
    GlooOptions options = settings.gloo;
    options.hostname = "127.0.0.1";  // all ranks are here, whatever this machine is called
    options.timeout = timeout;
    options.run_id += fmt::format(".{}", num_groups++);
    return make_gloo_transport(options);
  };
  if (settings.endless_ms > 0) run_endless(settings, make);
  return run_cases(settings, make);
}

std::int32_t run(const Settings& settings) {
  if (settings.transport == "inproc") return run_threads(settings);
  if (settings.transport == "mpi") {
    const MakeTransport make = [&](std::chrono::milliseconds timeout) {
      MpiOptions options;
      options.timeout = timeout;
      if (settings.piece_bytes > 0) options.piece_bytes = settings.piece_bytes;
      return make_mpi_transport(options);
    };
    if (settings.endless_ms > 0) run_endless(settings, make);
    return run_cases(settings, make);
  }
  if (settings.transport == "gloo") return run_gloo(settings);
  fail_argument("expected a transport of this build, found '{}'", settings.transport);
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  using namespace contextile;  // NOLINT(google-build-using-namespace)
  try {
    return run(settings_of(argc, argv)) == 0 ? 0 : 1;
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "transport_ranks: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    say(stderr, fmt::format("transport_ranks: {}", error.what()));
    return 3;
  }
}
