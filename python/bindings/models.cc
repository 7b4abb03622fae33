// contextile/advanced/model.h: models, and the time of their linear layers.
#include "bind.h"
#include "contextile/advanced/model.h"

namespace contextile::python {

void bind_models(nb::module_& module) {
  nb::class_<ModelExperts>(module, "ModelExperts", "Experts of a model's feed-forward.")
      .def_ro("experts", &ModelExperts::experts, "Routed experts of a layer; 0: none.")
      .def_ro("per_token", &ModelExperts::per_token)
      .def_ro("ffn", &ModelExperts::ffn, "Size of one routed expert.")
      .def_ro("shared_ffn", &ModelExperts::shared_ffn,
              "Size of the experts that every token visits, together.")
      .def_ro("dense_layers", &ModelExperts::dense_layers,
              "Layers without experts, which come first.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ModelExperts", {"experts", "per_token", "ffn", "shared_ffn"});
      });
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
      .def_prop_ro("value_dim", &ModelSpec::value_elements, "Elements of a value of one head.")
      .def_ro("tied_embeddings", &ModelSpec::tied_embeddings)
      .def_ro("experts", &ModelSpec::experts)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ModelSpec", {"name", "layers", "hidden", "q_heads", "kv_heads"});
      });
  module.def("load_model", &load_model, "text"_a,
             "Loads a model from a preset's name, the path of a JSON file (also a config.json of "
             "Hugging Face), or that of a folder with a config.json. Raises InvalidArgument or "
             "IoError.");
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
