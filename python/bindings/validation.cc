// contextile/advanced/validation.h: predictions held against measured times.
#include "contextile/advanced/validation.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bind.h"

namespace contextile::python {
namespace {

Validation validate(const Path& path, std::optional<Cluster> cluster, nb::object progress) {
  const ValidationOptions options = {.cluster = std::move(cluster),
                                     .progress = progress_hook(std::move(progress))};
  const WithoutGil release;
  return validate_rows(read_measured_rows(path.string()), options);
}

// The value of a row that is a training step; none for all other rows.
template <typename Value>
std::optional<Value> of_step(const HeldRow& held, Value (*value)(const MeasuredStep& step)) {
  if (!held.row.step) return std::nullopt;
  return value(*held.row.step);
}

void bind_step_sizes(nb::class_<HeldRow>& rows) {
  using Step = const MeasuredStep&;
  rows.def_prop_ro(
          "model",
          [](const HeldRow& held) { return held.row.step ? held.row.step->model_text : ""; },
          "Model of a training step; empty in all other rows.")
      .def_prop_ro(
          "tp",
          [](const HeldRow& held) {
            return of_step<std::int32_t>(held, [](Step step) { return step.sizes.tp; });
          },
          "Tensor-parallel ranks of a training step; None in all other rows.")
      .def_prop_ro(
          "cp",
          [](const HeldRow& held) {
            return of_step<std::int32_t>(held, [](Step step) { return step.sizes.cp; });
          },
          "Context-parallel ranks of a training step: the devices that tp, dp and pp leave.")
      .def_prop_ro(
          "dp",
          [](const HeldRow& held) {
            return of_step<std::int32_t>(held, [](Step step) { return step.sizes.dp; });
          },
          "Replicas of a training step.")
      .def_prop_ro(
          "pp",
          [](const HeldRow& held) {
            return of_step<std::int32_t>(held, [](Step step) { return step.sizes.pp; });
          },
          "Pipeline stages of a training step.")
      .def_prop_ro(
          "micro_batches",
          [](const HeldRow& held) {
            return of_step<std::int32_t>(held, [](Step step) { return step.micro_batches; });
          },
          "Micro-batches of every replica of a training step.");
}

void bind_step_options(nb::class_<HeldRow>& rows) {
  using Step = const MeasuredStep&;
  rows.def_prop_ro(
          "optimizer",
          [](const HeldRow& held) {
            return of_step<std::string_view>(
                held, [](Step step) { return to_string(step.options.optimizer); });
          },
          "'zero1', 'replicated' or 'fsdp'.")
      .def_prop_ro(
          "gradient_overlap",
          [](const HeldRow& held) {
            return of_step<std::string_view>(
                held, [](Step step) { return to_string(step.options.gradient_overlap); });
          },
          "'on' or 'off'.")
      .def_prop_ro(
          "recompute",
          [](const HeldRow& held) {
            return of_step<std::string_view>(
                held, [](Step step) { return to_string(step.options.recompute); });
          },
          "'none', 'selective' or 'full'.")
      .def_prop_ro(
          "linear_mfu",
          [](const HeldRow& held) {
            return of_step<double>(held, [](Step step) { return step.options.linear_mfu; });
          },
          "Share of the peak that everything outside attention reaches.");
}

void bind_rows(nb::module_& module) {
  nb::class_<HeldRow> rows(
      module, "HeldRow",
      "A row of a file of measured times, with its prediction. Texts are those of the row's "
      "columns (docs/predict.md); those of columns that it leaves out are empty.");
  rows.def_prop_ro(
          "line", [](const HeldRow& held) { return held.row.line; },
          "Line of the file that the row begins on, from 1.")
      .def_prop_ro("source", [](const HeldRow& held) { return held.row.source; })
      .def_prop_ro(
          "split", [](const HeldRow& held) { return to_string(held.row.split); },
          "'fitted' or 'judged'.")
      .def_prop_ro("cluster", [](const HeldRow& held) { return held.row.cluster_text; })
      .def_prop_ro(
          "method", [](const HeldRow& held) { return held.row.method; },
          "Name of the method in the source.")
      .def_prop_ro("kernel", [](const HeldRow& held) { return held.row.kernel_text; })
      .def_prop_ro("engine", [](const HeldRow& held) { return held.row.engine_text; })
      .def_prop_ro(
          "strategy", [](const HeldRow& held) { return held.row.strategy_text; },
          "Strategy that does the same; empty if none does.")
      .def_prop_ro("lengths", [](const HeldRow& held) { return held.row.lengths_text; })
      .def_prop_ro("mask", [](const HeldRow& held) { return held.row.mask_text; })
      .def_prop_ro(
          "shape", [](const HeldRow& held) { return held.row.shape; },
          "Shape of one layer; of a training step, that of one tensor-parallel rank.")
      .def_prop_ro(
          "direction", [](const HeldRow& held) { return to_string(held.row.direction); },
          "'forward', 'backward', 'forward+backward', or 'step': a training step.")
      .def_prop_ro(
          "wire",
          [](const HeldRow& held) -> std::optional<std::string_view> {
            if (!held.row.wire) return std::nullopt;
            return to_string(*held.row.wire);
          },
          "Type of partial results on their way; None: that of the original.")
      .def_prop_ro("experiment", [](const HeldRow& held) { return held.row.experiment; })
      .def_prop_ro("note", [](const HeldRow& held) { return held.row.note; })
      .def_prop_ro(
          "measured_ms", [](const HeldRow& held) { return held.row.ms; }, "Measured time, ms.")
      .def_ro("predicted_ms", &HeldRow::predicted_ms,
              "Predicted time of attention or of the training step, ms; None if the row cannot be "
              "predicted.")
      .def_prop_ro(
          "ratio",
          [](const HeldRow& held) -> std::optional<double> {
            if (!held.predicted_ms) return std::nullopt;
            return held.ratio();
          },
          "Predicted over measured time; None if the row cannot be predicted.")
      .def_ro("reason", &HeldRow::reason, "Why the row cannot be predicted; empty for all others.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "HeldRow",
                       {"line", "method", "measured_ms", "predicted_ms", "ratio", "reason"});
      });
  bind_step_sizes(rows);
  bind_step_options(rows);
}

// A ratio of a method, if any row of it is predicted.
std::optional<double> ratio_of(const HeldMethod& method, double RatioSummary::*ratio) {
  if (method.ratios.rows == 0) return std::nullopt;
  return method.ratios.*ratio;
}

void bind_methods(nb::module_& module) {
  nb::class_<HeldMethod>(module, "HeldMethod",
                         "Rows of one source, method, kind and split. Ratios are of predicted over "
                         "measured time: below 1, "
                         "predictions are too fast.")
      .def_ro("source", &HeldMethod::source)
      .def_ro("method", &HeldMethod::method, "Name of the method in the source.")
      .def_prop_ro(
          "kind", [](const HeldMethod& method) { return to_string(method.kind); },
          "'attention', or 'step': training steps.")
      .def_prop_ro(
          "split", [](const HeldMethod& method) { return to_string(method.split); },
          "'fitted' or 'judged'.")
      .def_prop_ro(
          "rows", [](const HeldMethod& method) { return method.ratios.rows; },
          "Number of rows that are predicted.")
      .def_ro("unpredicted", &HeldMethod::unpredicted, "Number of rows that are not.")
      .def_prop_ro(
          "median_ratio",
          [](const HeldMethod& method) { return ratio_of(method, &RatioSummary::median); },
          "Median ratio, of an even number the mean of the middle two; None without predictions.")
      .def_prop_ro(
          "furthest_ratio",
          [](const HeldMethod& method) { return ratio_of(method, &RatioSummary::furthest); },
          "Ratio that is furthest from 1 by factor; None without predictions.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(
            self, "HeldMethod",
            {"source", "method", "split", "rows", "unpredicted", "median_ratio", "furthest_ratio"});
      });
}

void bind_experiments(nb::module_& module) {
  nb::class_<HeldExperiment>(
      module, "HeldExperiment",
      "Rows of one source and split that differ only in the method, and the order of their times.")
      .def_ro("source", &HeldExperiment::source)
      .def_prop_ro(
          "split", [](const HeldExperiment& experiment) { return to_string(experiment.split); },
          "'fitted' or 'judged'.")
      .def_prop_ro(
          "setting",
          [](const HeldExperiment& experiment) {
            return experiment.batch + ", " + experiment.shape;
          },
          "Cluster, documents, mask, direction and shape of its rows.")
      .def_ro("methods", &HeldExperiment::methods, "Number of methods, at least two.")
      .def_prop_ro(
          "pairs", [](const HeldExperiment& experiment) { return experiment.order.pairs; },
          "Pairs of methods whose measured times differ by 2% or more.")
      .def_prop_ro(
          "pairs_in_order",
          [](const HeldExperiment& experiment) { return experiment.order.in_order; },
          "Pairs that are predicted in the measured order.")
      .def_prop_ro(
          "tau", [](const HeldExperiment& experiment) { return experiment.order.tau(); },
          "Kendall's tau: 1 if all pairs are in the measured order, -1 if all are turned; None "
          "without pairs.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "HeldExperiment",
                       {"source", "split", "setting", "methods", "pairs", "pairs_in_order", "tau"});
      });
}

}  // namespace

void bind_validation(nb::module_& module) {
  bind_rows(module);
  bind_methods(module);
  bind_experiments(module);
  nb::class_<Validation>(module, "Validation",
                         "Predictions held against measured times. It prints as `contextile "
                         "validate` does. Fitted and judged rows are never mixed.")
      .def_ro("name", &Validation::name, "Name of the file, for messages.")
      .def_ro("rows", &Validation::rows, "All rows, in the order of the file.")
      .def_ro("methods", &Validation::methods,
              "Summaries of methods, fitted before judged, in the order of their first rows.")
      .def_ro("experiments", &Validation::experiments,
              "Experiments of at least two predicted methods, in the same order.")
      .def("__repr__", [](const Validation& validation) {
        std::string text = validation_text(validation);
        text.pop_back();  // the end of the last line
        return text;
      });
  module.def("validate", &validate, "path"_a, "cluster"_a.none(), "progress"_a.none());
}

}  // namespace contextile::python
