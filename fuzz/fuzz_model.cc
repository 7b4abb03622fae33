// Models as JSON: any text is a model whose weights can be counted, or an InvalidArgument.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "contextile/advanced/model.h"

namespace {

void check(const contextile::ModelSpec& model) {
  const contextile::ModelWeights weights = contextile::weights_of(model);
  const std::int64_t total = weights.total(model.layers);
  if (total < 1 || weights.active(model.layers) < 1 || weights.active(model.layers) > total) {
    std::abort();
  }
  if (!(contextile::linear_flops_of(model).layer() > 0)) std::abort();
  if (contextile::attention_shape_of(model, 1).value_dim < 1) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const contextile::LoadedModel loaded = contextile::parse_model_config(text, "fuzz");
    check(loaded.model);
    std::int64_t layers = 0;
    for (const contextile::MaskUse& use : loaded.masks) layers += use.layers;
    if (!loaded.masks.empty() && layers != loaded.model.layers) std::abort();
  } catch (const contextile::InvalidArgument&) {  // the only way to refuse
  }
  try {
    check(contextile::parse_model_json(text, "fuzz"));
  } catch (const contextile::InvalidArgument&) {
  }
  return 0;
}
