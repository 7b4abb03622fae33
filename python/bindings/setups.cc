// contextile/advanced/engine_setup.h: the flags of engines, written and read.
#include "bind.h"
#include "contextile/advanced/engine_setup.h"

namespace contextile::python {
namespace {

using SettingPairs = std::vector<std::pair<std::string, std::string>>;

std::vector<std::tuple<std::string, std::string, std::string>> tuples_of(
    const std::vector<SetupSetting>& settings) {
  std::vector<std::tuple<std::string, std::string, std::string>> tuples;
  for (const SetupSetting& setting : settings) {
    tuples.emplace_back(setting.key, setting.value, setting.note);
  }
  return tuples;
}

void bind_training_setup(nb::module_& module) {
  nb::class_<TrainingSetup>(module, "TrainingSetup", "How one training job runs.")
      .def(
          "__init__",
          [](TrainingSetup* self, std::int32_t tp, std::int32_t cp, std::int32_t dp,
             std::int32_t pp, std::int32_t ep, std::string_view exchange, std::int32_t a2a_ranks,
             std::string_view packing, std::int64_t tokens, std::int64_t step_tokens,
             std::string_view schedule, std::int32_t chunks, std::string_view recompute,
             std::string_view optimizer, std::string strategy) {
            TrainingSetup setup;
            setup.sizes.tp = tp;
            setup.sizes.cp = cp;
            setup.sizes.dp = dp;
            setup.sizes.pp = pp;
            setup.sizes.ep = ep;
            setup.exchange = parse_cp_exchange(exchange);
            setup.a2a_ranks = a2a_ranks;
            setup.packing = parse_document_packing(packing);
            setup.tokens = tokens;
            setup.step_tokens = step_tokens;
            setup.schedule = parse_pipeline_schedule(schedule);
            setup.chunks = chunks;
            setup.recompute = parse_recompute(recompute);
            setup.optimizer = parse_optimizer_shards(optimizer);
            setup.strategy = std::move(strategy);
            new (self) TrainingSetup(std::move(setup));
          },
          nb::kw_only(), "tp"_a = 1, "cp"_a = 1, "dp"_a = 1, "pp"_a = 1, "ep"_a = 1,
          "exchange"_a = "p2p", "a2a_ranks"_a = 0, "packing"_a = "sequential", "tokens"_a = 0,
          "step_tokens"_a = 0, "schedule"_a = "1f1b", "chunks"_a = 1, "recompute"_a = "none",
          "optimizer"_a = "zero1", "strategy"_a = "")
      .def_prop_ro("tp", [](const TrainingSetup& self) { return self.sizes.tp; })
      .def_prop_ro("cp", [](const TrainingSetup& self) { return self.sizes.cp; })
      .def_prop_ro("dp", [](const TrainingSetup& self) { return self.sizes.dp; })
      .def_prop_ro("pp", [](const TrainingSetup& self) { return self.sizes.pp; })
      .def_prop_ro("exchange", [](const TrainingSetup& self) { return to_string(self.exchange); })
      .def_prop_ro("ep", [](const TrainingSetup& self) { return self.sizes.ep; })
      .def_ro("a2a_ranks", &TrainingSetup::a2a_ranks)
      .def_prop_ro("packing", [](const TrainingSetup& self) { return to_string(self.packing); })
      .def_ro("tokens", &TrainingSetup::tokens)
      .def_ro("step_tokens", &TrainingSetup::step_tokens)
      .def_prop_ro("schedule", [](const TrainingSetup& self) { return to_string(self.schedule); })
      .def_ro("chunks", &TrainingSetup::chunks)
      .def_prop_ro("recompute", [](const TrainingSetup& self) { return to_string(self.recompute); })
      .def_prop_ro("optimizer", [](const TrainingSetup& self) { return to_string(self.optimizer); })
      .def_ro("strategy", &TrainingSetup::strategy)
      .def(
          "__eq__",
          [](const TrainingSetup& self, const TrainingSetup& other) { return self == other; },
          nb::is_operator(), "other"_a)
      .def("__str__", &setup_text);
}

}  // namespace

void bind_setups(nb::module_& module) {
  bind_training_setup(module);
  nb::class_<ReadSetup>(module, "ReadSetup", "A set-up as an engine's flags describe it.")
      .def_ro("setup", &ReadSetup::setup)
      .def_ro("given", &ReadSetup::given)
      .def_ro("num_gpus", &ReadSetup::num_gpus)
      .def_ro("model", &ReadSetup::model)
      .def_prop_ro("understood", [](const ReadSetup& self) { return tuples_of(self.understood); })
      .def_prop_ro("approximated",
                   [](const ReadSetup& self) { return tuples_of(self.approximated); })
      .def_prop_ro("without_effect",
                   [](const ReadSetup& self) { return tuples_of(self.without_effect); });
  module.def(
      "engine_problem",
      [](const TrainingSetup& setup, std::string_view engine) {
        return engine_problem(setup, parse_training_engine(engine));
      },
      "setup"_a, "engine"_a, "Returns why the engine cannot run the set-up, or None.");
  module.def(
      "engine_flags",
      [](const TrainingSetup& setup, std::string_view engine, bool experts,
         std::string_view gradient_overlap) {
        EngineFlags flags = engine_flags(
            setup, parse_training_engine(engine),
            {.experts = experts, .gradient_overlap = parse_gradient_overlap(gradient_overlap)});
        return std::pair(std::move(flags.flags), std::move(flags.script));
      },
      "setup"_a, "engine"_a, "experts"_a = false, "gradient_overlap"_a = "on",
      "Returns the flags that make the engine run the set-up, and the settings that stand "
      "elsewhere. Raises InvalidArgument.");
  module.def(
      "read_engine_setup",
      [](std::string_view engine, const SettingPairs& flat, std::optional<std::int64_t> num_gpus) {
        return read_engine_setup(parse_training_engine(engine), flat, num_gpus);
      },
      "engine"_a, "flat"_a, "num_gpus"_a = nb::none(),
      "Reads settings whose keys are joined by dots. Raises InvalidArgument.");
  module.def("read_megatron_arguments", &read_megatron_arguments, "shell_text"_a,
             "num_gpus"_a = nb::none(),
             "Reads a launch command of Megatron-LM. Raises InvalidArgument.");
}

}  // namespace contextile::python
