#include "options.h"

#include <functional>
#include <map>
#include <stdexcept>

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

}  // namespace

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
    const auto found = known.find(name);
    if (found == known.end() || i + 1 == argc) {
      std::string names = "--planner";
      for (const auto& [each, take] : known) names += ", " + each;
      throw std::invalid_argument("expected options of " + names + " with values, found '" + name +
                                  "'");
    }
    found->second(name, argv[++i]);
  }
  if ((options.is_planner || options.rank >= 0) && options.store.empty()) {
    throw std::invalid_argument("expected --store where planner and ranks are processes");
  }
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
