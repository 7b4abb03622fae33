#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/interrupt.h"
#include "base/names_file.h"
#include "base/parse_name.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "base/standard_stream.h"
#include "base/suggest.h"
#include "contextile/advanced/validation.h"
#include "contextile/planner.h"
#include "report/csv_reader.h"
#include "report/document_batches.h"
#include "report/measured_steps.h"

namespace contextile {
namespace {

constexpr std::uint64_t kMaxRowsBytes = std::uint64_t{64} << 20;
constexpr std::array kSplits = {RowSplit::kFitted, RowSplit::kJudged};
constexpr std::array kDirectionsOfRows = {RowDirection::kForward, RowDirection::kBackward,
                                          RowDirection::kBoth, RowDirection::kStep};

// Runs `parse`, whose errors get the place of the row in front.
template <typename Parse>
auto with_place(std::string_view where, const Parse& parse) {
  try {
    return parse();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", where, error.what()));
  } catch (const IoError& error) {
    throw IoError(fmt::format("{}: {}", where, error.what()));
  }
}

// Clusters by the text of their rows: each is loaded once.
class LoadedClusters {
 public:
  explicit LoadedClusters(std::string_view folder) : folder_(folder) {}

  // The cluster with the kernel and the engine that are not empty.
  std::shared_ptr<const Cluster> find(const std::string& text, const std::string& kernel,
                                      const std::string& engine, std::string_view where) {
    if (kernel.empty() && engine.empty()) return find(text, where);
    std::shared_ptr<const Cluster>& cluster =
        by_text_[fmt::format("{}\n{}\n{}", text, kernel, engine)];
    if (!cluster) {
      Cluster changed = *find(text, where);
      if (!kernel.empty()) {
        with_place(where, [&] { use_gpu_kernel(text, kernel, changed); });
        changed.name += fmt::format(",kernel={}", kernel);
      }
      if (!engine.empty()) changed.engine = find_engine(engine);
      cluster = std::make_shared<const Cluster>(std::move(changed));
    }
    return cluster;
  }
  std::shared_ptr<const Cluster> find(const std::string& text, std::string_view where) {
    std::shared_ptr<const Cluster>& cluster = by_text_[text];
    if (!cluster) {
      cluster = with_place(
          where, [&] { return std::make_shared<const Cluster>(load_cluster(path_of(text))); });
    }
    return cluster;
  }
  // A file is in the folder of the rows that name it. Names of presets stay as they are.
  [[nodiscard]] std::string path_of(const std::string& text) const {
    return names_file(text) ? (std::filesystem::path(folder_) / text).string() : text;
  }

 private:
  std::string folder_;
  std::map<std::string, std::shared_ptr<const Cluster>> by_text_;
};

// The input of a column's reader: a field, its place for messages, and the clusters loaded so far.
struct Field {
  const std::string& text;
  const std::string& where;
  LoadedClusters& clusters;
};

std::int32_t parse_count(const Field& field) {
  return checked_cast<std::int32_t>(parse_size(field.where, field.text, 1), field.where);
}

void read_strategy(const Field& field, MeasuredRow& row) {
  row.strategy_text = field.text;
  with_place(field.where, [&] {
    std::vector<StrategyChoice> choices = parse_strategies(field.text);
    CONTEXTILE_CHECK(choices.size() == 1, "expected one strategy, found {} in {}", choices.size(),
                     quote(field.text));
    static_cast<void>(find_strategy(choices.front().name));
    row.strategy = std::move(choices.front());
  });
}

void read_ms(const Field& field, MeasuredRow& row) {
  row.ms = parse_number(field.where, field.text);
  CONTEXTILE_CHECK(row.ms >= 1e-6 && row.ms <= 1e12,
                   "{}: expected a time of 1e-6 to 1e12 ms, found {}", field.where,
                   quote(field.text));
}

void read_wire(const Field& field, MeasuredRow& row) {
  if (field.text == "original") return;
  row.wire = with_place(field.where, [&] { return parse_dtype(field.text); });
}

// The step of a row that has a column of one.
MeasuredStep& step_of(MeasuredRow& row) {
  if (!row.step) row.step.emplace();
  return *row.step;
}

void read_model(const Field& field, MeasuredRow& row) {
  step_of(row).model_text = field.text;
  row.step->model =
      with_place(field.where, [&] { return load_model(field.clusters.path_of(field.text)); });
}

void read_linear_mfu(const Field& field, MeasuredRow& row) {
  IterationOptions& options = step_of(row).options;
  options.linear_mfu = parse_number(field.where, field.text);
  with_place(field.where, [&] { check_iteration_options(options); });
}

// The rows that must have a value in a column. Steps take the shape from their model.
enum class ValueIn : std::uint8_t { kEveryRow, kEveryRowButSteps, kNoRow };

// A column of the file. Readers get values that are not empty. Columns that are not used have none.
struct ColumnReader {
  std::string_view name;
  bool required = false;
  ValueIn value = ValueIn::kNoRow;
  void (*read)(const Field& field, MeasuredRow& row) = nullptr;
  bool of_steps = false;  // empty in all other rows
};

std::span<const ColumnReader> column_readers() {
  // clang-format off
  static const std::array kReaders = {
      ColumnReader{"source", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) { row.source = field.text; }},
      ColumnReader{"split", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) { row.split = parse_name<RowSplit>(field.where, kSplits, field.text); }},
      ColumnReader{"cluster", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) {
        row.cluster_text = field.text;
        row.cluster = field.clusters.find(field.text, field.where);
      }},
      ColumnReader{"method", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) { row.method = field.text; }},
      ColumnReader{"strategy", true, ValueIn::kNoRow, read_strategy},
      ColumnReader{"lengths", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) {
        row.lengths_text = field.text;
        row.batches = parse_document_batches(field.text, field.where);
      }},
      ColumnReader{"mask", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) {
        row.mask_text = field.text;
        row.mask = with_place(field.where, [&] { return parse_mask_use(field.text); });
      }},
      ColumnReader{"q_heads", true, ValueIn::kEveryRowButSteps, [](const Field& field, MeasuredRow& row) { row.shape.q_heads = parse_count(field); }},
      ColumnReader{"kv_heads", true, ValueIn::kEveryRowButSteps, [](const Field& field, MeasuredRow& row) { row.shape.kv_heads = parse_count(field); }},
      ColumnReader{"head_dim", true, ValueIn::kEveryRowButSteps, [](const Field& field, MeasuredRow& row) { row.shape.head_dim = row.shape.value_dim = parse_count(field); }},
      ColumnReader{"dtype", true, ValueIn::kEveryRowButSteps, [](const Field& field, MeasuredRow& row) {
        row.shape.dtype = with_place(field.where, [&] { return parse_dtype(field.text); });
      }},
      ColumnReader{"direction", true, ValueIn::kEveryRow, [](const Field& field, MeasuredRow& row) { row.direction = parse_name<RowDirection>(field.where, kDirectionsOfRows, field.text); }},
      ColumnReader{"ms", true, ValueIn::kEveryRow, read_ms},
      ColumnReader{"experiment", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { row.experiment = field.text; }},
      ColumnReader{"note", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { row.note = field.text; }},
      ColumnReader{"kernel", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { row.kernel_text = field.text; }},
      ColumnReader{"engine", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) {
        row.engine_text = field.text;
        with_place(field.where, [&] { static_cast<void>(find_engine(field.text)); });
      }},
      ColumnReader{"wire", false, ValueIn::kNoRow, read_wire},
      ColumnReader{"model", false, ValueIn::kNoRow, read_model, true},
      ColumnReader{"tp", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { step_of(row).sizes.tp = parse_count(field); }, true},
      ColumnReader{"dp", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { step_of(row).sizes.dp = parse_count(field); }, true},
      ColumnReader{"pp", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { step_of(row).sizes.pp = parse_count(field); }, true},
      ColumnReader{"micro_batches", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) { step_of(row).micro_batches = parse_count(field); }, true},
      ColumnReader{"optimizer", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) {
        step_of(row).options.optimizer = with_place(field.where, [&] { return parse_optimizer_shards(field.text); });
      }, true},
      ColumnReader{"gradient_overlap", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) {
        step_of(row).options.gradient_overlap = with_place(field.where, [&] { return parse_gradient_overlap(field.text); });
      }, true},
      ColumnReader{"recompute", false, ValueIn::kNoRow, [](const Field& field, MeasuredRow& row) {
        step_of(row).options.recompute = with_place(field.where, [&] { return parse_recompute(field.text); });
      }, true},
      ColumnReader{"linear_mfu", false, ValueIn::kNoRow, read_linear_mfu, true},
      ColumnReader{"value"},
      ColumnReader{"unit"},
      ColumnReader{"uncertainty"},
      ColumnReader{"read_from"},
  };
  // clang-format on
  return kReaders;
}

// The readers of a header's columns, in the header's order.
std::vector<const ColumnReader*> read_header(const CsvRecord& header, std::string_view where) {
  const std::span<const ColumnReader> readers = column_readers();
  std::vector<std::string> names;
  for (const ColumnReader& reader : readers) names.emplace_back(reader.name);
  std::vector<const ColumnReader*> columns;
  for (const std::string& name : header.fields) {
    const auto found = std::ranges::find(readers, name, &ColumnReader::name);
    CONTEXTILE_CHECK(found != readers.end(), "{}: line {}: expected the columns {}, found {}{}",
                     where, header.line, fmt::join(names, ", "), quote(name),
                     did_you_mean(name, names));
    CONTEXTILE_CHECK(std::ranges::find(columns, &*found) == columns.end(),
                     "{}: line {}: expected every column once, found {} twice", where, header.line,
                     quote(name));
    columns.push_back(&*found);
  }
  // Steps need no shape, so a file of steps may be without. Its other rows are refused.
  const bool may_be_steps = std::ranges::find(header.fields, "model") != header.fields.end();
  for (const ColumnReader& reader : readers) {
    if (!reader.required || std::ranges::find(columns, &reader) != columns.end()) continue;
    CONTEXTILE_CHECK(may_be_steps && reader.value == ValueIn::kEveryRowButSteps,
                     "{}: line {}: expected the column {}, found only {}", where, header.line,
                     reader.name, fmt::join(header.fields, ", "));  // which are known names
  }
  return columns;
}

// Refuses a row of attention without a shape, or with columns of a step. `place_of` returns the
// place of a column for messages.
template <typename PlaceOf>
void check_attention_row(const CsvRecord& record, std::span<const ColumnReader* const> columns,
                         const MeasuredRow& row, const PlaceOf& place_of) {
  for (const ColumnReader& reader : column_readers()) {
    const auto found = std::ranges::find(columns, &reader);
    const std::string_view text =
        found == columns.end() ? std::string_view{}
                               : record.fields[static_cast<std::size_t>(found - columns.begin())];
    CONTEXTILE_CHECK(!text.empty() || reader.value != ValueIn::kEveryRowButSteps,
                     "{}: expected a value, found none", place_of(reader.name));
    CONTEXTILE_CHECK(text.empty() || !reader.of_steps,
                     "{}: expected none in a row of direction {}, found {}", place_of(reader.name),
                     to_string(row.direction), quote(text));
  }
}

MeasuredRow read_row(const CsvRecord& record, std::span<const ColumnReader* const> columns,
                     std::string_view name, LoadedClusters& clusters) {
  CONTEXTILE_CHECK(record.fields.size() == columns.size(),
                   "{}: line {}: expected {} fields, as the header has, found {}", name,
                   record.line, columns.size(), record.fields.size());
  MeasuredRow row;
  row.line = record.line;
  row.shape.q_heads = row.shape.kv_heads = row.shape.head_dim = 0;  // until a column says them
  const auto place_of = [&](std::string_view column) {
    return fmt::format("{}: line {}, {}", name, record.line, column);
  };
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string& text = record.fields[i];
    const std::string where = place_of(columns[i]->name);
    CONTEXTILE_CHECK(!text.empty() || columns[i]->value != ValueIn::kEveryRow,
                     "{}: expected a value, found none", where);
    if (!text.empty() && columns[i]->read != nullptr) {
      columns[i]->read({text, where, clusters}, row);
    }
  }
  const std::string where = fmt::format("{}: line {}", name, record.line);
  row.cluster = clusters.find(row.cluster_text, row.kernel_text, row.engine_text, where);
  if (row.direction == RowDirection::kStep) {
    complete_step(row, where);
    return row;
  }
  check_attention_row(record, columns, row, place_of);
  with_place(where, [&] { check_shape(row.shape); });
  return row;
}

}  // namespace

std::string_view to_string(RowSplit split) {
  return split == RowSplit::kFitted ? "fitted" : "judged";
}

std::string_view to_string(RowDirection direction) {
  switch (direction) {
    case RowDirection::kForward:
      return "forward";
    case RowDirection::kBackward:
      return "backward";
    case RowDirection::kStep:
      return "step";
    case RowDirection::kBoth:
      break;
  }
  return "forward+backward";
}

std::string_view to_string(RowKind kind) { return kind == RowKind::kStep ? "step" : "attention"; }

MeasuredRows parse_measured_rows(std::string_view text, std::string where,
                                 std::string_view folder) {
  MeasuredRows result{.name = std::move(where), .rows = {}};
  const std::string& name = result.name;
  CsvReader reader(text, name);
  CsvRecord record;
  CONTEXTILE_CHECK(reader.next(record), "{}: expected a header and rows, found nothing", name);
  const std::vector<const ColumnReader*> columns = read_header(record, name);
  LoadedClusters clusters(folder);
  while (reader.next(record)) {
    check_interrupt();
    CONTEXTILE_CHECK(result.rows.size() < kMaxMeasuredRows,
                     "{}: line {}: expected at most {} rows, found more", name, record.line,
                     kMaxMeasuredRows);
    result.rows.push_back(read_row(record, columns, name, clusters));
  }
  CONTEXTILE_CHECK(!result.rows.empty(),
                   "{}: expected at least one row below the header, found none", name);
  return result;
}

MeasuredRows read_measured_rows(const std::string& path) {
  const FileBytes file(path, [](std::span<const std::uint8_t> first, std::string_view name) {
    static_cast<void>(expect_text("measured rows as CSV")(first, name));
    return kMaxRowsBytes;
  });
  CONTEXTILE_CHECK(file.bytes().size() <= kMaxRowsBytes, "{}: expected at most {} bytes, found {}",
                   file.name(), kMaxRowsBytes, file.bytes().size());
  const std::string folder =
      path == kStandardStream ? "" : std::filesystem::path(path).parent_path().string();
  return parse_measured_rows(file.text(), file.name(), folder);
}

}  // namespace contextile
