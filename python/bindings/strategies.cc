// contextile/planner.h: strategies by name.
#include <string>
#include <tuple>

#include "bind.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"

namespace contextile::python {

void bind_strategies(nb::module_& module) {
  nb::class_<OptionSpec>(module, "OptionSpec", "An option of a strategy.")
      .def_ro("name", &OptionSpec::name)
      .def_ro("default_value", &OptionSpec::default_value, "The default as text.")
      .def_ro("help", &OptionSpec::help, "Meaning, unit and allowed values.")
      .def_ro("values", &OptionSpec::values, "All values of a choice; empty if it is not a choice.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "OptionSpec", {"name", "default_value", "values"});
      });
  nb::class_<StrategyChoice>(
      module, "StrategyChoice",
      "A strategy by name, with its options as text. Made by contextile.strategies.dcp "
      "and the like. Raises InvalidArgument for an unknown name.")
      .def(
          "__init__",
          [](StrategyChoice* self, std::string name, std::map<std::string, std::string> options) {
            static_cast<void>(find_strategy(name));
            new (self) StrategyChoice{std::move(name), std::move(options)};
          },
          "name"_a, "options"_a = std::map<std::string, std::string>{})
      .def_ro("name", &StrategyChoice::name)
      .def_ro("options", &StrategyChoice::options)
      .def(
          "__eq__",
          [](const StrategyChoice& a, const StrategyChoice& b) {
            return choice_text(a) == choice_text(b);
          },
          nb::is_operator())
      .def("__hash__",
           [](const StrategyChoice& choice) {
             return std::hash<std::string>{}(choice_text(choice));
           })
      .def("__getstate__",
           [](const StrategyChoice& choice) { return std::make_pair(choice.name, choice.options); })
      .def("__setstate__",
           [](StrategyChoice& self,
              const std::pair<std::string, std::map<std::string, std::string>>& state) {
             static_cast<void>(find_strategy(state.first));
             new (&self) StrategyChoice{state.first, state.second};
           })
      .def("__str__", &choice_text)
      .def("__repr__", [](const StrategyChoice& choice) {
        return "StrategyChoice('" + choice_text(choice) + "')";
      });
  module.def(
      "parse_strategies", &parse_strategies, "text"_a,
      "Returns the strategies of a text, 'name:key=value,key=value,other,…', as the program's "
      "--strategy takes it. Raises InvalidArgument.");
  module.def(
      "strategy_table",
      [] {
        std::vector<std::tuple<std::string, std::string, std::vector<OptionSpec>>> table;
        for (const Strategy* strategy : strategies()) {
          table.emplace_back(strategy->name(), strategy->summary(), strategy->options());
        }
        return table;
      },
      "Returns name, summary and options of every strategy, in the order of tables.");
}

}  // namespace contextile::python
