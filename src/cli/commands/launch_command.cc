// contextile launch: ranks as processes of this machine, or this machine's share of a larger group.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/standard_stream.h"
#include "cli/command_line.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/transport_option.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/processes.h"
#include "contextile/extend/transport.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostProcesses = 4096;  // of one machine

struct LaunchOptions {
  std::int32_t processes = 1;
  std::optional<std::int32_t> ranks;  // of all machines; unset: those of this one
  std::int32_t first_rank = 0;
  std::string rendezvous;  // empty: a free port of this machine
  std::string run_id;      // empty: one of this launch
  std::string secret_file;
  double grace_s = 5;
  std::vector<std::string> command;
};

class Socket {
 public:
  Socket() : value_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (value_ >= 0) ::close(value_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

// A port that is free now. Another program may take it before rank 0 does; then that rank says so.
std::uint16_t free_port() {
  const Socket socket;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (socket.get() < 0 || ::bind(socket.get(), generic, size) != 0 ||
      ::getsockname(socket.get(), generic, &size) != 0) {
    fail_io("launch: cannot find a free port: {}", std::generic_category().message(errno));
  }
  return ntohs(address.sin_port);
}

std::string with_values(std::string word, std::int32_t rank, std::int32_t ranks,
                        const std::string& rendezvous, const std::string& run_id) {
  const std::pair<std::string_view, std::string> values[] = {{"{rank}", std::to_string(rank)},
                                                             {"{ranks}", std::to_string(ranks)},
                                                             {"{rendezvous}", rendezvous},
                                                             {"{run-id}", run_id}};
  for (const auto& [name, value] : values) {
    for (std::size_t at = word.find(name); at != std::string::npos;
         at = word.find(name, at + value.size())) {
      word.replace(at, name.size(), value);
    }
  }
  return word;
}

bool is_own(const std::vector<std::string>& command) {
  const std::vector<std::string> names = command_names(kContextileProgram);
  return std::ranges::find(names, command.front()) != names.end();
}

// The words that launch adds to the command of a rank of this program, which may not have them.
std::vector<std::string> own_words(const LaunchOptions& options) {
  std::vector<std::string> words = {"--rank",       "{rank}",   "--rendezvous",
                                    "{rendezvous}", "--run-id", "{run-id}"};
  if (options.command.front() == "profile" || options.command.front() == "serve")
    words.insert(words.end(), {"--ranks", "{ranks}"});
  return words;
}

// The command of a rank. Commands of this program run on gloo; any other program receives its
// values through {rank} and the like.
std::vector<std::string> template_of(const LaunchOptions& options) {
  std::vector<std::string> words = options.command;
  if (!is_own(words)) return words;
  const bool names_transport = std::ranges::any_of(words, [](const std::string& word) {
    return word == "--transport" || word.starts_with("--transport=");
  });
  words.insert(words.begin(), own_program());
  if (!names_transport) words.insert(words.end(), {"--transport", "gloo"});
  const std::vector<std::string> own = own_words(options);
  words.insert(words.end(), own.begin(), own.end());
  return words;
}

std::int32_t num_ranks(const LaunchOptions& options) {
  return options.ranks.value_or(options.processes);
}

// Ranks of other launches belong to the group, too.
bool has_others(const LaunchOptions& options) { return num_ranks(options) > options.processes; }

void check_processes(const LaunchOptions& options) {
  std::int64_t most = kMostProcesses;
  std::string why;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur < rlim_t{kMostProcesses}) {
    most = static_cast<std::int64_t>(limit.rlim_cur);
    why = ", the processes this user may have (ulimit -u)";
  }
  CONTEXTILE_CHECK(options.processes <= most,
                   "launch: -n: expected at most {} ranks on this machine{}, found {}", most, why,
                   options.processes);
  CONTEXTILE_CHECK(options.first_rank <= num_ranks(options) - options.processes,
                   "launch: expected --first-rank and -n inside the {} ranks, found {} and {}",
                   num_ranks(options), options.first_rank, options.processes);
}

void check_meeting(const LaunchOptions& options) {
  CONTEXTILE_CHECK(!has_others(options) || !options.rendezvous.empty(),
                   "launch: expected --rendezvous, where the {} ranks of all machines meet, found "
                   "none",
                   num_ranks(options));
  const bool is_folder = options.rendezvous.starts_with("file://");
  const bool is_known = is_folder || options.rendezvous.starts_with("tcp://");
  if (is_known || (is_own(options.command) && !options.rendezvous.empty())) {
    check_rendezvous(options.rendezvous);
  }
  CONTEXTILE_CHECK(!has_others(options) || !is_folder || !options.run_id.empty(),
                   "launch: expected --run-id with a folder, the same for all launches of one "
                   "group and another for every group, found none");
}

// Parses the words as a rank of this machine reads them, before launch adds its own.
void parse_command(CLI::App& app, const LaunchOptions& options) {
  std::vector<std::string> words = options.command;
  for (std::string& word : words) {
    word = with_values(word, options.first_rank, num_ranks(options), options.rendezvous,
                       options.run_id);
  }
  std::ranges::reverse(words);  // as CLI11 takes them
  app.parse(words);
}

// Reports a wrong command of this program once, before a rank starts.
void check_own_command(const LaunchOptions& options) {
  const std::string& name = options.command.front();
  if (name != "run" && name != "profile" && name != "serve") {
    fail_argument(
        "launch: expected 'run', 'profile' or 'serve', which take ranks, or a program, found {}",
        quote(name));
  }
  CommandLine line(kContextileProgram);
  try {
    parse_command(line.app(), options);
  } catch (const CLI::Success&) {  // the command prints its help
    return;
  } catch (const CLI::ParseError& error) {
    fail_argument("launch: {}", problem_text(line.app(), error));
  }
  const CLI::App& command = *line.app().get_subcommand(name);
  for (const std::string& word : own_words(options)) {
    if (!word.starts_with("--") || command.get_option(word)->count() == 0) continue;
    fail_argument("launch: {}: expected no {}, which launch gives every rank, found {}", name, word,
                  quote(command.get_option(word)->results().front()));
  }
  const CLI::Option& transport = *command.get_option("--transport");
  if (transport.count() > 0 && transport.results().front() != "gloo") {
    fail_argument(
        "launch: {}: expected --transport gloo, which launch gives every rank (over MPI mpirun "
        "starts the ranks), found {}",
        name, quote(transport.results().front()));
  }
  if (name == "serve" && command.get_option("--store")->count() > 0) {
    fail_argument(
        "launch: serve: expected no --store, by which ranks go on without a lost one, because "
        "launch ends all when one fails; start each rank by itself");
  }
  if (name != "run") return;
  const std::string& path = command.get_option("PLAN")->results().front();
  CONTEXTILE_CHECK(path != kStandardStream,
                   "launch: run: expected a plan file, which every rank reads, found '-', which "
                   "only one could");
  const std::int32_t devices = load_plan(path).num_devices();
  CONTEXTILE_CHECK(devices == num_ranks(options),
                   "launch: {}: expected {} ranks, one for each device of {}, found {}",
                   options.ranks ? "--ranks" : "-n", devices, printable(path), num_ranks(options));
}

std::vector<std::vector<std::string>> commands_of(const LaunchOptions& options) {
  check_processes(options);
  check_meeting(options);
  if (is_own(options.command)) check_own_command(options);
  const std::string rendezvous = options.rendezvous.empty()
                                     ? fmt::format("tcp://127.0.0.1:{}", free_port())
                                     : options.rendezvous;
  // Machines that are launched apart share only what both command lines say. An address belongs to
  // one group.
  const std::string run_id = !options.run_id.empty() ? options.run_id
                             : has_others(options)   ? "launch"
                                                   : fmt::format("{:08x}", std::random_device()());
  std::vector<std::vector<std::string>> commands;
  for (std::int32_t i = 0; i < options.processes; ++i) {
    std::vector<std::string>& words = commands.emplace_back(template_of(options));
    for (std::string& word : words) {
      word = with_values(word, options.first_rank + i, num_ranks(options), rendezvous, run_id);
    }
  }
  return commands;
}

void report_signal(const LaunchOptions& options, std::int32_t rank, const EndedProcess& ended) {
  const std::string why = ended.passed_on != 0 && ended.was_ended_here
                              ? fmt::format(", {:g} s (--grace) after signal {} was passed on",
                                            options.grace_s, ended.passed_on)
                              : "";
  print_to_stderr(fmt::format("contextile: launch: rank {} was ended by signal {}{}\n", rank,
                              ended.signal, why));
}

// Ranks read the secret from the file that CONTEXTILE_SECRET_FILE names. If this launch starts all
// ranks of a command of this program, it makes a random one; where the system lets no process have
// files in memory, or has no /proc, they have none.
class SecretOfRanks {
 public:
  explicit SecretOfRanks(const LaunchOptions& options) {
    if (!options.secret_file.empty()) {
      if (::access(options.secret_file.c_str(), R_OK) != 0) fail("cannot read it");
      ::setenv(kVariable, options.secret_file.c_str(), 1);
    } else if (is_own(options.command) && !has_others(options) &&
               std::getenv("CONTEXTILE_SECRET_FILE") == nullptr) {
      if (const std::string path = make_file(); ::access(path.c_str(), R_OK) == 0) {
        ::setenv(kVariable, path.c_str(), 1);
      } else {
        print_to_stderr(
            "contextile: launch: no file in memory or no /proc for a random secret: "
            "the ranks go on without one (--secret-file)\n");
      }
    }
  }
  ~SecretOfRanks() {
    if (file_ >= 0) ::close(file_);
  }
  SecretOfRanks(const SecretOfRanks&) = delete;
  SecretOfRanks& operator=(const SecretOfRanks&) = delete;

 private:
  static constexpr const char* kVariable = "CONTEXTILE_SECRET_FILE";

  [[noreturn]] static void fail(std::string_view what) {
    fail_io("launch: the secret of the ranks: {}: {}", what,
            std::generic_category().message(errno));
  }

  // Makes a file in memory, which has no name and ends with the ranks that inherit it. Returns an
  // empty path if the system refuses one.
  std::string make_file() {
    std::array<unsigned char, 32> bytes{};
    file_ = ::memfd_create("contextile-secret", 0);
    if (file_ < 0 || ::fchmod(file_, S_IRUSR | S_IWUSR) != 0) return {};
    if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()) ||
        ::write(file_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      fail("cannot make random bytes");
    }
    return fmt::format("/proc/self/fd/{}", file_);
  }

  int file_ = -1;
};

int run(const LaunchOptions& options) {
  const std::vector<std::vector<std::string>> commands = commands_of(options);
  const SecretOfRanks secret(options);
  const auto grace = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * options.grace_s));
  const std::vector<EndedProcess> ended = run_processes(commands, grace);
  // Ranks that lose another one by the signal that was passed on to all fail as a consequence.
  const auto passed_on = std::ranges::find_if(ended, &EndedProcess::ended_by_passed_on);
  int exit_code = kExitOk;
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (ended[i].ended_by_passed_on()) continue;
    if (ended[i].signal != 0) {
      report_signal(options, options.first_rank + static_cast<std::int32_t>(i), ended[i]);
    } else if (passed_on != ended.end() && ended[i].passed_on != 0) {
      continue;
    }
    // The error that a rank found counts more than the report of another rank that heard of it.
    const int code = ended[i].signal != 0 ? kExitEnvironment : ended[i].exit_code;
    if (exit_code == kExitOk || (exit_code == kExitEnvironment && code != kExitOk))
      exit_code = code;
  }
  // A shell then sees that the signal ended this program.
  if (exit_code == kExitOk && passed_on != ended.end()) std::raise(passed_on->signal);
  return exit_code;
}

}  // namespace

Action add_launch_command(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  add_size<std::int32_t>(app, "-n,--processes", options->processes, 1,
                         {"N", "ranks to start on this machine", ""});
  add_size_as<std::int32_t>(app, "--ranks", options->ranks, 1,
                            {"N", "ranks of all machines together", "those of this one"});
  add_size<std::int32_t>(app, "--first-rank", options->first_rank, 0,
                         {"N", "rank of the first one that is started here", ""});
  add_value(app, "--rendezvous",
            {"WHERE",
             "where ranks of several machines meet: tcp://HOST:PORT of rank 0, or "
             "file:///FOLDER that all see",
             "a free port of this machine"},
            [options](const std::string& text) { options->rendezvous = text; });
  add_value(app, "--run-id",
            {"TEXT",
             "tells groups that meet in one folder apart: the same for all launches of a group, "
             "another for every group",
             "random, where one launch starts all ranks"},
            [options](const std::string& text) { options->run_id = text; });
  add_secret_file(app, options->secret_file,
                  "a random one, where one launch starts all ranks of this program");
  add_value(
      app, "--grace",
      {"SECONDS",
       "how long ranks have to end by themselves after one has failed or a signal has arrived",
       "5"},
      [options](const std::string& text) {
        options->grace_s = parse_number("--grace", text);
        if (options->grace_s < 0 || options->grace_s > 1e6) {
          fail_argument("--grace: expected 0 to 1e6 seconds, found {}", quote(text));
        }
      });
  add_words(
      app, "COMMAND", options->command,
      {"",
       "behind --: run, profile or serve of this program, or any program and its arguments, in "
       "which "
       "{rank}, {ranks}, {rendezvous} and {run-id} are filled in",
       ""});
  add_examples(app, {"contextile launch -n 4 -- run small.plan --seed 3",
                     "contextile launch -n 4 -- profile -o machine.json --quick",
                     "contextile launch -n 2 -- echo rank {rank} of {ranks}"});
  return [options] { return run(*options); };
}

}  // namespace contextile
