// contextile/advanced/advise.h and advice_report.h: the search of a training job's set-ups.
#include "bind.h"
#include "contextile/advanced/advice_report.h"
#include "contextile/advanced/advise.h"

namespace contextile::python {
namespace {

// A search with all that its report needs.
struct SearchedJob {
  AdviseJob job;
  Advice advice;
  std::optional<AdvisedSetup> now;
  std::optional<ReadSetup> read;
  double price = 0;
  std::vector<std::string> left_out;

  [[nodiscard]] AdviceReport report() const { return {job, advice, now, price, left_out, read}; }
};

std::optional<TrainingEngine> engine_of(const std::optional<std::string>& name) {
  return name ? std::optional(parse_training_engine(*name)) : std::nullopt;
}

std::vector<TrainingSetup> setups_of(const std::vector<AdvisedSetup>& advised) {
  std::vector<TrainingSetup> setups;
  setups.reserve(advised.size());
  for (const AdvisedSetup& one : advised) setups.push_back(one.setup);
  return setups;
}

SearchedJob search(std::vector<std::int64_t> lengths, const std::string& model,
                   const std::string& gpus, const std::vector<std::string>& masks,
                   std::int64_t tokens, std::int64_t step_tokens, std::optional<ReadSetup> now,
                   std::optional<double> measured_us, const std::optional<std::string>& engine,
                   double price, double seconds, std::int32_t best, std::uint64_t seed,
                   std::vector<std::string> strategies) {
  const WithoutGil released;
  LoadedModel loaded = load_described_model(model);
  SearchedJob searched;
  searched.job.model = std::move(loaded.model);
  searched.job.cluster = load_gpus(gpus);
  searched.job.masks = std::move(loaded.masks);
  if (!masks.empty()) searched.job.masks.clear();
  for (const std::string& mask : masks) searched.job.masks.push_back(parse_mask_use(mask));
  searched.job.lengths = std::move(lengths);
  searched.job.tokens = tokens;
  searched.job.step_tokens = step_tokens;
  searched.job.seed = seed;
  searched.left_out = std::move(loaded.left_out);
  searched.price = price;
  if (now) searched.now = predict_read_setup(searched.job, *now, measured_us);
  searched.read = std::move(now);
  AdviseOptions options;
  options.engine = engine_of(engine);
  options.seconds = seconds;
  options.best = best;
  options.strategies = std::move(strategies);
  searched.advice = advise(searched.job, options);
  return searched;
}

}  // namespace

void bind_advice(nb::module_& module) {
  nb::class_<SearchedJob>(module, "SearchedJob", "A search of set-ups, with its report.")
      .def_prop_ro("engines",
                   [](const SearchedJob& self) { return setups_of(self.advice.engines); })
      .def_prop_ro("own", [](const SearchedJob& self) { return setups_of(self.advice.own); })
      .def_prop_ro("has_experts",
                   [](const SearchedJob& self) { return self.job.model.has_experts(); })
      .def_prop_ro("gradient_overlap",
                   [](const SearchedJob& self) {
                     return std::string(to_string(self.job.options.gradient_overlap));
                   })
      .def_prop_ro("num_gpus",
                   [](const SearchedJob& self) { return self.job.cluster.num_devices(); })
      .def(
          "text",
          [](const SearchedJob& self, const std::optional<std::string>& engine) {
            return advice_text(self.report(), engine_of(engine));
          },
          "engine"_a = nb::none())
      .def("json", [](const SearchedJob& self) { return advice_json_text(self.report()); });
  module.def("search_setups", &search, nb::kw_only(), "lengths"_a, "model"_a, "gpus"_a, "masks"_a,
             "tokens"_a, "step_tokens"_a, "now"_a = nb::none(), "measured_us"_a = nb::none(),
             "engine"_a = nb::none(), "price"_a, "seconds"_a, "best"_a, "seed"_a, "strategies"_a,
             "Searches the set-ups of a training job. Raises InvalidArgument or IoError.");
  module.def(
      "num_gpus_of", [](const std::string& gpus) { return load_gpus(gpus).num_devices(); },
      "gpus"_a, "Returns the number of devices of a cluster such as 64xh100.");
}

}  // namespace contextile::python
