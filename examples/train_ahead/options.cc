#include "options.h"

#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace {

std::int64_t parse_number(const std::string& name, const std::string& text, std::int64_t least) {
  std::size_t used = 0;
  std::int64_t number = least - 1;
  try {
    number = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || text.empty() || number < least || number > (std::int64_t{1} << 31)) {
    throw std::invalid_argument(name + ": expected a number from " + std::to_string(least) +
                                " on, found '" + text + "'");
  }
  return number;
}

// A store makes its folder if it is missing, so processes with a wrong folder would wait for each
// other there.
void check_shared_folder(const std::string& store) {
  constexpr std::string_view kFolder = "file://";
  std::error_code ignored;
  if (!store.starts_with(kFolder) ||
      std::filesystem::is_directory(store.substr(kFolder.size()), ignored)) {
    return;
  }
  throw std::invalid_argument(
      "--store: expected a folder that is there, which planners and ranks "
      "share, found none: '" +
      store + "' (mkdir makes it)");
}

}  // namespace

const char* const kUsage =
    "usage: train_ahead [OPTION VALUE]…\n"
    "The attention of a training run whose plans are made ahead, with everything in one process "
    "or\n"
    "a process each:\n"
    "  train_ahead                                          planner and ranks as threads\n"
    "  train_ahead --planner --store STORE --steps 50       a planner, one or more of them\n"
    "  train_ahead --rank R --ranks 4 --rendezvous WHERE --store STORE --steps 50\n"
    "                                                       a rank, for R = 0, 1, 2, 3\n"
    "All of them get the same --run-id, --steps, --first-step, --tokens, --dataset, --plan-steps\n"
    "and --ranks. Exits with 0 when every checked step was exact, 1 when one was not, 2 on wrong\n"
    "options, 3 when something failed.\n"
    "  --store STORE       where plans wait: redis://HOST[:PORT], redis+unix:///SOCKET, or\n"
    "                      file:///FOLDER, which must be there (default: in this process)\n"
    "  --run-id TEXT       tells runs in one store apart: another for every run (train)\n"
    "  --planner           this process plans\n"
    "  --rank R            this process is rank R (default: all ranks are threads of it)\n"
    "  --ranks N           ranks in all (4)\n"
    "  --rendezvous WHERE  where ranks meet: tcp://HOST:PORT of rank 0, or file:///FOLDER\n"
    "  --interface NAME    network of the ranks (default: the one that leads to rank 0)\n"
    "  --steps N           the step behind the last one (20)\n"
    "  --first-step N      where to begin or go on (0)\n"
    "  --tokens N          tokens of a batch (1024)\n"
    "  --dataset NAME      lengths of documents, see contextile info (prolong)\n"
    "  --plan-steps N      steps of the search for each plan (100000)\n"
    "  --ahead N           steps that are planned before ranks need them (4)\n"
    "  --threads N         threads that plan (1)\n"
    "  --check-every N     compare every so many steps with the oracle; 0: never (10)\n"
    "  --claim-ms MS       after which another planner takes over a step of one that died (2000)\n";

Options parse_options(int argc, char** argv) {
  Options options;
  const auto text = [](std::string& value) {
    return [&value](const std::string&, const std::string& given) { value = given; };
  };
  const auto number = [](auto& value, std::int64_t least) {
    return [&value, least](const std::string& name, const std::string& given) {
      value =
          static_cast<std::remove_reference_t<decltype(value)>>(parse_number(name, given, least));
    };
  };
  using Take = std::function<void(const std::string& name, const std::string& value)>;
  const std::map<std::string, Take> known = {{"--store", text(options.store)},
                                             {"--run-id", text(options.run_id)},
                                             {"--rank", number(options.rank, 0)},
                                             {"--ranks", number(options.ranks, 1)},
                                             {"--rendezvous", text(options.rendezvous)},
                                             {"--interface", text(options.interface)},
                                             {"--steps", number(options.steps, 1)},
                                             {"--first-step", number(options.first_step, 0)},
                                             {"--tokens", number(options.tokens, 1)},
                                             {"--dataset", text(options.dataset)},
                                             {"--plan-steps", number(options.plan_steps, 1)},
                                             {"--ahead", number(options.ahead, 1)},
                                             {"--threads", number(options.threads, 1)},
                                             {"--check-every", number(options.check_every, 0)},
                                             {"--claim-ms", number(options.claim_ms, 3)}};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--planner") {
      options.is_planner = true;
      continue;
    }
    if (name == "--help" || name == "-h") {
      options.is_help = true;
      return options;
    }
    const auto found = known.find(name);
    if (found == known.end()) {
      throw std::invalid_argument("expected an option of train_ahead --help, found '" + name + "'");
    }
    if (i + 1 == argc) throw std::invalid_argument(name + ": expected a value, found none");
    found->second(name, argv[++i]);
  }
  if ((options.is_planner || options.rank >= 0) && options.store.empty()) {
    throw std::invalid_argument("expected --store where planner and ranks are processes");
  }
  if (options.is_planner && options.rank >= 0) {
    throw std::invalid_argument("expected either --planner or --rank, found both");
  }
  if (options.is_planner || options.rank >= 0) check_shared_folder(options.store);
  return options;
}

contextile::PlanJob job_of(const Options& options) {
  constexpr std::int64_t kDocuments = 10'000;
  contextile::WorkloadInput input;
  input.shape = {.q_heads = 4,  // small, because the oracle is slow
                 .kv_heads = 2,
                 .head_dim = 32,
                 .value_dim = 32,
                 .dtype = contextile::Dtype::kF32};
  return {.sampler = contextile::BatchSampler::of_dataset(options.dataset, kDocuments,
                                                          {.tokens = options.tokens}),
          .input = input,
          // A machine of its own for every rank.
          .cluster = contextile::load_cluster("local:" + std::to_string(options.ranks) + "x1"),
          .choice = {"auto", {{"steps", std::to_string(options.plan_steps)}}},
          .plan = {}};
}
