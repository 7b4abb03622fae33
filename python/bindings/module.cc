// The extension module contextile._core.
#include <string>

#include "bind.h"
#include "contextile/base.h"

NB_MODULE(_core, module) {
  using namespace contextile::python;
  // PyTorch or a notebook may still hold objects when the interpreter ends; these are no leaks.
  nanobind::set_leak_warnings(false);
  module.doc() = "The C++ library behind the package contextile.";
  module.attr("__version__") = std::string(contextile::version());
  bind_errors(module);
  bind_stop_flag(module);
  bind_masks(module);
  bind_workloads(module);
  bind_clusters(module);
  bind_models(module);
  bind_strategies(module);
  bind_arrangements(module);
  bind_plans(module);
  bind_simulation(module);
  bind_planning(module);
  bind_validation(module);
  bind_schedules(module);
  bind_data(module);
  bind_transports(module);
  bind_exchanges(module);
  bind_execution(module);
  bind_stores(module);
  bind_inference(module);
  bind_pipeline(module);
  bind_lookahead(module);
  bind_setups(module);
  bind_advice(module);
}
