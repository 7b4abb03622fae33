#include "labs/papers/dcp/setting.h"

#include <fmt/format.h>

#include <string_view>

namespace contextile {

const std::string kTransformerEngineIs =
    "TE (TransformerEngine) has two head-parallel ranks in zigzag rings, as the paper's, and sends "
    "every key around whatever the mask.";

const std::string kEnginesAre =
    "Each method runs on its own engine (contextile info): dcp and te have host time for each "
    "sequence, rings merge partial outputs apart from attention.";

const std::string kDocumentsAreWhole =
    "Documents above the longest length are left out and none is cut, as in the paper. "
    "LongAlign's lengths are quantiles of a published sample; LongDataCollections' are guessed.";

const std::pair<std::string, std::string> kDcpIs = {"dcp", "relays=off, as published"};

std::string dcp_masks_text(std::span<const PaperMask> masks) {
  std::vector<std::string> texts;
  for (const PaperMask& mask : masks) {
    texts.push_back(std::string_view(mask.name) == mask.spec
                        ? std::string(mask.name)
                        : fmt::format("{} ({})", mask.name, mask.spec));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

PaperSetting dcp_attention_setting() {
  PaperSetting setting;
  setting.batch.tokens = 131072;
  setting.batch.long_documents = LongDocuments::kDrop;
  setting.shape.q_heads = 8;
  setting.shape.kv_heads = 2;
  setting.cluster_name = "p4de:4x8";
  setting.input.options.wire = Dtype::kBf16;
  return setting;
}

StrategyChoice transformer_engine_choice() {
  return parse_strategies("hybrid:head_parallel=2").front();
}

std::string table_name(const StrategyChoice& choice) {
  constexpr std::string_view kLong = "head_parallel=";
  std::string text = choice_text(choice);
  if (const std::size_t at = text.find(kLong); at != std::string::npos) {
    text.replace(at, kLong.size(), "A=");
  }
  return text;
}

}  // namespace contextile
