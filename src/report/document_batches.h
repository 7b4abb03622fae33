// Batches of documents as a field of a row has them: "64K", "256+7392+544", "8*8192|2*32K".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "contextile/advanced/validation.h"

namespace contextile {

inline constexpr std::int64_t kMaxRowDocuments = std::int64_t{1} << 20;  // of one batch

// Parses "64K", "256+7392+544", "8*8192", and several batches between '|'. `where` names the source
// in messages. Throws InvalidArgument, also above kMaxRowDocuments and kMaxTokens. O(bytes).
[[nodiscard]] std::vector<DocumentBatch> parse_document_batches(std::string_view text,
                                                                std::string_view where);
[[nodiscard]] std::vector<std::int64_t> lengths_of(const DocumentBatch& batch);

}  // namespace contextile
