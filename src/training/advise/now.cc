// The set-up of today, as an engine's flags describe it.
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "contextile/advanced/advise.h"

namespace contextile {
namespace {

constexpr double kMostPadding = 1.05;  // of a vocabulary

// Throws InvalidArgument where flags describe another model. Vocabularies differ by
// their padding.
void check_model_of(const ReadSetup& read, const ModelSpec& model) {
  const std::pair<std::string_view, std::int64_t> sizes[] = {
      {"layers", model.layers},
      {"hidden", model.hidden},
      {"q_heads", model.q_heads},
      {"kv_heads", model.kv_heads},
      {"head_dim", model.head_dim},
      {"ffn", model.ffn},
      {"gated_ffn", model.gated_ffn ? 1 : 0},
      {"experts", model.experts.experts},
      {"active_experts", model.experts.per_token},
      {"expert_ffn", model.experts.ffn},
      {"shared_expert_ffn", model.experts.shared_ffn},
      {"untied", model.tied_embeddings ? 0 : 1},
      {"expert_tp", 1}};  // as expert parallelism is predicted
  for (const auto& [name, size] : sizes) {
    const auto given = read.model.find(std::string(name));
    if (given == read.model.end() || given->second == size) continue;
    fail_argument("flags: expected {} {}, as predicted for the model {}, found {}", name, size,
                  model.name, given->second);
  }
  const auto vocabulary = read.model.find("vocabulary");
  if (vocabulary == read.model.end()) return;
  const double ratio = static_cast<double>(vocabulary->second) / model.vocabulary;
  if (ratio < 1 / kMostPadding || ratio > kMostPadding) {
    fail_argument("flags: expected a vocabulary of about {}, that of the model {}, found {}",
                  model.vocabulary, model.name, vocabulary->second);
  }
}

}  // namespace

AdvisedSetup predict_read_setup(AdviseJob& job, const ReadSetup& read,
                                std::optional<double> measured_us) {
  check_model_of(read, job.model);
  if (job.tokens == 0 && read.has("tokens")) job.tokens = read.setup.tokens;
  if (job.step_tokens == 0 && read.has("step_tokens")) job.step_tokens = read.setup.step_tokens;
  if (read.gradient_overlap) job.options.gradient_overlap = *read.gradient_overlap;
  TrainingSetup setup = read.setup;
  setup.tokens = setup.step_tokens = 0;
  return measured_us ? fit_setup(job, setup, *measured_us) : predict_setup(job, setup);
}

}  // namespace contextile
