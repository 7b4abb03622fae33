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

// (document, begin, end) of a piece of a document.
using PieceRow = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
using PieceRows = std::vector<PieceRow>;

PieceRows rows_of(const std::vector<DocumentPiece>& pieces) {
  PieceRows rows;
  for (const DocumentPiece& piece : pieces) {
    rows.emplace_back(piece.document, piece.tokens.begin, piece.tokens.end);
  }
  return rows;
}

// Numbers pieces, so that the packers' ids lead back to them.
class PieceTable {
 public:
  std::vector<Document> documents_of(const PieceRows& rows) {
    std::vector<Document> documents;
    for (const PieceRow& row : rows) {
      const auto& [document, begin, end] = row;
      documents.push_back({std::ssize(rows_), end - begin});
      rows_.push_back(row);
    }
    return documents;
  }
  [[nodiscard]] PieceRows rows_of(const std::vector<Document>& documents) const {
    PieceRows rows;
    for (const Document& document : documents) {
      rows.push_back(rows_[static_cast<std::size_t>(document.id)]);
    }
    return rows;
  }
  [[nodiscard]] std::vector<PieceRows> rows_of(
      const std::vector<std::vector<Document>>& lists) const {
    std::vector<PieceRows> all;
    for (const std::vector<Document>& documents : lists) all.push_back(rows_of(documents));
    return all;
  }

 private:
  PieceRows rows_;
};

// Micro-batches of a step, queues and remaining pieces.
using WlbRows = std::tuple<std::vector<PieceRows>, std::vector<PieceRows>, PieceRows>;

WlbRows pack_wlb_rows(const std::vector<PieceRows>& queues, const PieceRows& remained,
                      const PieceRows& arriving, const WlbPackingOptions& options,
                      bool release_all) {
  PieceTable table;
  WlbPackingState state;
  for (const PieceRows& queue : queues) state.queues.push_back(table.documents_of(queue));
  state.remained = table.documents_of(remained);
  const std::vector<Document> documents = table.documents_of(arriving);
  const WlbPackingStep step =
      pack_wlb(std::move(state), documents, options,
               release_all ? OutlierRelease::kAll : OutlierRelease::kFullQueues);
  return {table.rows_of(step.micro_batches), table.rows_of(step.state.queues),
          table.rows_of(step.state.remained)};
}

void bind_packing(nb::module_& module) {
  nb::class_<WlbPackingOptions>(module, "WlbPackingOptions", "Options of WLB-LLM's packing.")
      .def_rw("micro_batches", &WlbPackingOptions::micro_batches)
      .def_rw("max_tokens", &WlbPackingOptions::max_tokens, "Tokens of one micro-batch.")
      .def_rw("balance_tokens", &WlbPackingOptions::balance_tokens,
              "A document of this many tokens costs as much in attention as in everything else.");
  module.def(
      "parse_wlb_packing",
      [](std::string_view text) {
        BatchOptions options;
        parse_packing(text, options);
        if (options.packing == Packing::kSequential) {
          fail("packing: expected wlb[:key=value,...], found '" + std::string(text) + "'");
        }
        return std::pair(options.wlb, options.packing == Packing::kWlb);
      },
      "text"_a, "Parses wlb[:key=value,...]. Returns the options and true if documents may wait.");
  module.def("pack_wlb", &pack_wlb_rows, "queues"_a, "remained"_a, "arriving"_a, "options"_a,
             nb::kw_only(), "release_all"_a,
             "One step of WLB-LLM's packing of rows (document, begin, end). Returns its "
             "micro-batches, and the queues and the remaining rows for the next step.");
  module.def(
      "pack_wlb_without_defer",
      [](const PieceRows& arriving, const WlbPackingOptions& options) {
        PieceTable table;
        const std::vector<Document> documents = table.documents_of(arriving);
        return table.rows_of(pack_wlb_without_defer(documents, options));
      },
      "arriving"_a, "options"_a, "The same for a step by itself, in which nothing waits.");
  module.def(
      "pack_dp_balanced",
      [](const PieceRows& arriving, std::int64_t max_tokens, std::int64_t multiple) {
        PieceTable table;
        const std::vector<Document> documents = table.documents_of(arriving);
        return table.rows_of(
            pack_dp_balanced(documents, {.max_tokens = max_tokens, .multiple = multiple}));
      },
      "arriving"_a, nb::kw_only(), "max_tokens"_a, "multiple"_a,
      "Packing of Megatron-LM's scheduler dp_balanced.");
  module.def("packing_workload", &packing_workload, "length_tokens"_a, "balance_tokens"_a,
             "Returns the work of a document of L tokens: (L/B)^2 + L/B.");
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
          [](const BatchSampler& self, std::int64_t step) { return rows_of(self.pieces(step)); },
          "step"_a, "Returns the rows (document, begin, end) of the step's batch, in order.")
      .def(
          "pieces_of",
          [](const BatchSampler& self, std::int64_t first, std::int64_t count) {
            std::vector<PieceRows> batches;
            for (const auto& pieces : self.pieces_of(first, count)) {
              batches.push_back(rows_of(pieces));
            }
            return batches;
          },
          "first"_a, "count"_a,
          "Returns the same rows of each of `count` steps from `first` on, in one pass.")
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
      nb::call_guard<WithoutGil>(),
      R"(Draws batches of document lengths from a built-in distribution, each of `tokens` tokens.

Lengths are multiplied by scale. Raises InvalidArgument for an unknown dataset, listing all.

>>> import contextile as ct
>>> [batch] = ct.sample_lengths("longalign", tokens=131072)
>>> sum(batch)
131072
)");
  bind_sampler(module);
  bind_packing(module);
}

}  // namespace contextile::python
