// Measured rows: any text is records of CSV, or an InvalidArgument; any field is batches of
// documents within their bounds, or an InvalidArgument. Cluster files that a row may name are left
// out: fuzz_cluster has them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "contextile/mask.h"
#include "report/csv_reader.h"
#include "report/document_batches.h"

namespace {

void check_batches(const std::string& field) {
  try {
    for (const contextile::DocumentBatch& batch :
         contextile::parse_document_batches(field, "fuzz")) {
      std::int64_t tokens = 0;
      for (const contextile::DocumentRun& run : batch) tokens += run.count * run.tokens;
      if (batch.empty() || tokens < 1 || tokens > contextile::kMaxTokens) std::abort();
    }
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    contextile::CsvReader reader(text, "fuzz");
    for (contextile::CsvRecord record; reader.next(record);) {
      if (record.fields.empty() || record.line < 1) std::abort();
      for (const std::string& field : record.fields) check_batches(field);
    }
  } catch (const contextile::InvalidArgument&) {
  }
  return 0;
}
