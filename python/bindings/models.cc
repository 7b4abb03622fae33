// contextile/advanced/model.h: models, and the time of their linear layers.
#include "bind.h"
#include "contextile/advanced/model.h"

namespace contextile::python {

void bind_models(nb::module_& module) {
  nb::class_<ModelSpec>(module, "ModelSpec", "A decoder-only transformer.")
      .def_ro("name", &ModelSpec::name)
      .def_ro("layers", &ModelSpec::layers)
      .def_ro("hidden", &ModelSpec::hidden)
      .def_ro("q_heads", &ModelSpec::q_heads)
      .def_ro("kv_heads", &ModelSpec::kv_heads)
      .def_ro("head_dim", &ModelSpec::head_dim)
      .def_ro("ffn", &ModelSpec::ffn)
      .def_ro("vocabulary", &ModelSpec::vocabulary)
      .def_ro("gated_ffn", &ModelSpec::gated_ffn)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ModelSpec", {"name", "layers", "hidden", "q_heads", "kv_heads"});
      });
  module.def("load_model", &load_model, "text"_a,
             "Loads a model from a preset's name or the path of a JSON file. Raises "
             "InvalidArgument or IoError.");
  module.def(
      "linear_us_per_token",
      [](const ModelSpec& model, const Cluster& cluster) {
        return linear_us_per_token(model, cluster);
      },
      "model"_a, "cluster"_a,
      "Returns the time per token of one layer's matrix products outside attention, forward, µs on "
      "one device.");
  module.def(
      "guessed_linear_us_per_token",
      [](const AttentionShape& shape, const Cluster& cluster) {
        return guessed_linear_us_per_token(shape, cluster);
      },
      "shape"_a, "cluster"_a,
      "Returns a guess of the same where only the attention is known: a layer as wide as all query "
      "heads, µs.");
}

}  // namespace contextile::python
