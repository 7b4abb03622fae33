// contextile/data.h: document lengths and batch samplers.
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
      R"(Composes the batches of a training run. A step has the same batch on every rank.

tokens is the size of a batch. Documents longer than max_document_tokens (default: tokens) are cut
(long_documents="split") or left out ("drop"). The order of documents depends on seed and epoch.

>>> import contextile as ct
>>> ct.BatchSampler([30, 70], tokens=100).num_documents
2
)")
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
          "max_document_tokens"_a = nb::none(), "long_documents"_a = "split", "seed"_a = 0,
          "Returns a sampler of num_documents lengths drawn from a built-in distribution. Raises "
          "InvalidArgument.")
      .def("batch", &BatchSampler::batch, "step"_a,
           "Returns the lengths of the documents of the step's batch, in tokens.")
      .def(
          "pieces",
          [](const BatchSampler& self, std::int64_t step) {
            std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t>> rows;
            for (const DocumentPiece& piece : self.pieces(step)) {
              rows.emplace_back(piece.document, piece.tokens.begin, piece.tokens.end);
            }
            return rows;
          },
          "step"_a, "Returns the rows (document, begin, end) of the step's batch, in order.")
      .def_prop_ro("num_documents", &BatchSampler::num_documents, "Number of documents in use.")
      .def_prop_ro("num_dropped", &BatchSampler::num_dropped,
                   "Number of documents left out for their length.")
      .def_prop_ro("epoch_tokens", &BatchSampler::epoch_tokens, "Tokens of all documents in use.");
}

}  // namespace

void bind_data(nb::module_& module) {
  module.def(
      "read_lengths",
      [](const Path& path, const std::string& length_field) {
        return read_lengths(path.string(), length_field);
      },
      "path"_a, nb::kw_only(), "length_field"_a = "length",
      "Reads document lengths from a file: one per line, a JSON array, JSONL with length_field in "
      "every object, .npy, or a Megatron-LM .idx. Raises IoError and InvalidArgument.");
  module.def(
      "datasets",
      [] {
        std::vector<std::pair<std::string, std::string>> table;
        for (const Dataset& dataset : datasets())
          table.emplace_back(dataset.name, dataset.description);
        return table;
      },
      "Returns name and description of every built-in distribution of lengths.");
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
      R"(Draws batches of document lengths from a built-in distribution, each of `tokens` tokens.

Lengths are multiplied by scale. Raises InvalidArgument for an unknown dataset, listing all.

>>> import contextile as ct
>>> [batch] = ct.sample_lengths("longalign", tokens=131072)
>>> sum(batch)
131072
)");
  bind_sampler(module);
}

}  // namespace contextile::python
