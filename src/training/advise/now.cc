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
      {"gated_ffn", model.gated_ffn ? 1 : 0},
      {"experts", model.experts.experts},
      {"active_experts", model.experts.per_token},
      {"expert_ffn", model.experts.ffn},
      {"shared_expert_ffn", model.experts.shared_ffn},
      {"untied", model.tied_embeddings ? 0 : 1}};
  for (const auto& [name, size] : sizes) {
    const auto given = read.model.find(std::string(name));
    if (given == read.model.end() || given->second == size) continue;
    fail_argument("flags: expected {} {}, as predicted for the model {}, found {}", name, size,
                  model.name, given->second);
  }
  // Models of experts alone have no other feed-forward; engines want its width all the same.
  const auto ffn = read.model.find("ffn");
  if (ffn != read.model.end() && model.ffn > 0 && ffn->second != model.ffn) {
    fail_argument("flags: expected ffn {}, as predicted for the model {}, found {}", model.ffn,
                  model.name, ffn->second);
  }
  const auto expert_tp = read.model.find("expert_tp");
  if (expert_tp != read.model.end() && expert_tp->second != 1) {
    fail_argument(
        "flags: expected experts that tensor parallelism does not split (Megatron-LM: "
        "--expert-tensor-parallel-size 1), as they are predicted, found {} parts",
        expert_tp->second);
  }
  const auto vocabulary = read.model.find("vocabulary");
  if (vocabulary == read.model.end()) return;
  const double ratio = static_cast<double>(vocabulary->second) / model.vocabulary;
  if (ratio < 1 / kMostPadding || ratio > kMostPadding) {
    fail_argument("flags: expected a vocabulary of about {}, that of the model {}, found {}",
                  model.vocabulary, model.name, vocabulary->second);
  }
}

// Throws InvalidArgument where the job has other tokens than the flags.
void check_tokens(const ReadSetup& read, std::string_view field, std::int64_t of_flags,
                  std::int64_t of_job) {
  if (of_job == 0 || !read.has(field) || of_flags == of_job) return;
  fail_argument("flags: expected {} tokens a {}, as given for the job, found {}", of_job,
                field == "tokens" ? "micro-batch" : "step", of_flags);
}

}  // namespace

AdvisedSetup predict_read_setup(AdviseJob& job, const ReadSetup& read,
                                std::optional<double> measured_us) {
  check_model_of(read, job.model);
  check_tokens(read, "tokens", read.setup.tokens, job.tokens);
  check_tokens(read, "step_tokens", read.setup.step_tokens, job.step_tokens);
  // Given, or the engine's default.
  if (job.tokens == 0) job.tokens = read.setup.tokens;
  if (job.step_tokens == 0 && job.tokens == read.setup.tokens) {
    job.step_tokens = read.setup.step_tokens;
  }
  if (read.gradient_overlap) job.options.gradient_overlap = *read.gradient_overlap;
  TrainingSetup setup = read.setup;
  setup.tokens = setup.step_tokens = 0;
  return measured_us ? fit_setup(job, setup, *measured_us) : predict_setup(job, setup);
}

}  // namespace contextile
