// contextile/data.h and data.h: lengths of real batches.
#include "contextile/data.h"

#include <string>
#include <tuple>

#include "bind.h"

namespace contextile::python {
namespace {

BatchSamplerOptions sampler_options(std::int64_t tokens,
                                    std::optional<std::int64_t> max_document_tokens,
                                    const std::string& long_documents, std::uint64_t seed) {
  if (long_documents != "split" && long_documents != "drop") {
    fail("long_documents: expected split or drop, found '" + long_documents + "'");
  }
  return {
      .tokens = tokens,
      .max_document_tokens = max_document_tokens.value_or(0),
      .long_documents = long_documents == "split" ? LongDocuments::kSplit : LongDocuments::kDrop,
      .seed = seed};
}

void bind_sampler(nb::module_& module) {
  nb::class_<BatchSampler>(
      module, "BatchSampler",
      "Batches of a training run: the same batch for a step, whoever asks, in whatever order.")
      .def(
          "__init__",
          [](BatchSampler* self, std::vector<std::int64_t> documents_tokens, std::int64_t tokens,
             std::optional<std::int64_t> max_document_tokens, const std::string& long_documents,
             std::uint64_t seed) {
            new (self)
                BatchSampler(std::move(documents_tokens),
                             sampler_options(tokens, max_document_tokens, long_documents, seed));
          },
          "documents_tokens"_a, nb::kw_only(), "tokens"_a = 131072,
          "max_document_tokens"_a = nb::none(), "long_documents"_a = "split", "seed"_a = 0)
      .def_static(
          "of_dataset",
          [](std::string_view name, std::int64_t num_documents, std::int64_t tokens,
             std::optional<std::int64_t> max_document_tokens, const std::string& long_documents,
             std::uint64_t seed) {
            return BatchSampler::of_dataset(
                name, num_documents,
                sampler_options(tokens, max_document_tokens, long_documents, seed));
          },
          "name"_a, "num_documents"_a, nb::kw_only(), "tokens"_a = 131072,
          "max_document_tokens"_a = nb::none(), "long_documents"_a = "split", "seed"_a = 0)
      .def("batch", &BatchSampler::batch, "step"_a,
           "Lengths of the documents of that step's batch, tokens.")
      .def(
          "pieces",
          [](const BatchSampler& self, std::int64_t step) {
            std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> rows;
            for (const DocumentPiece& piece : self.pieces(step)) {
              rows.emplace_back(piece.document, piece.tokens.begin, piece.tokens.end);
            }
            return rows;
          },
          "step"_a, "What that step's batch is made of: (document, begin, end), in order.")
      .def_prop_ro("num_documents", &BatchSampler::num_documents, "Documents that are used.")
      .def_prop_ro("num_dropped", &BatchSampler::num_dropped)
      .def_prop_ro("epoch_tokens", &BatchSampler::epoch_tokens);
}

}  // namespace

void bind_data(nb::module_& module) {
  module.def(
      "read_lengths",
      [](const Path& path, const std::string& length_field) {
        return read_lengths(path.string(), length_field);
      },
      "path"_a, nb::kw_only(), "length_field"_a = "length",
      "Lengths of a file: one per line, a JSON array, JSONL with length_field in every object, "
      ".npy or a Megatron-LM .idx. Raises IoError and InvalidArgument.");
  module.def(
      "datasets",
      [] {
        std::vector<std::pair<std::string, std::string>> table;
        for (const Dataset& dataset : datasets())
          table.emplace_back(dataset.name, dataset.description);
        return table;
      },
      "Name and description of every built-in distribution of lengths.");
  module.def(
      "sample_lengths",
      [](std::string_view dataset, std::int64_t tokens, std::int64_t batches, double scale,
         std::uint64_t seed) {
        BatchOptions options;
        options.tokens = tokens;
        options.batches = batches;
        options.scale = scale;
        options.seed = seed;
        return batches_from_dataset(dataset, options);
      },
      "dataset"_a, nb::kw_only(), "tokens"_a, "batches"_a = 1, "scale"_a = 1.0, "seed"_a = 0,
      nb::call_guard<nb::gil_scoped_release>(),
      "Batches of lengths drawn from a built-in distribution, each of `tokens` tokens.");
  bind_sampler(module);
}

}  // namespace contextile::python
