#include "contextile/serving/engine.h"

#include "base/clock.h"
#include "serving/engine/step_times.h"

namespace contextile {

Engine::Engine(DecoderRank& model, const DecoderConfig& config, const EngineOptions& options)
    : model_(model),
      scheduler_(options, config.max_length),
      pace_(options.pace),
      times_(std::make_unique<StepTimes>()) {}
Engine::~Engine() = default;

StepLimit Engine::limit() const { return times_->limit(pace_); }

std::vector<EngineEvent> Engine::step(const StepLimit& limit) {
  const std::vector<ScheduledTokens> scheduled = scheduler_.next(limit);
  if (scheduled.empty()) return {};
  const Clock::time_point begin = Clock::now();
  StepContents contents;
  model_.copy_pages(scheduler_.cache().take_copies());
  std::vector<StepRequest> requests;
  for (const ScheduledTokens& part : scheduled) {
    const auto prompt = std::ssize(scheduler_.request(part.request).prompt);
    if (part.tokens.size() > 1 || part.tokens.begin < prompt) contents.add(part.tokens);
    requests.push_back({scheduler_.tokens(part.request)
                            .subspan(static_cast<std::size_t>(part.tokens.begin),
                                     static_cast<std::size_t>(part.tokens.size())),
                        part.tokens.begin, scheduler_.cache().table(part.request),
                        part.needs_logits});
  }
  const HostTensor logits = model_.forward(requests);
  times_->add(seconds_since(begin), contents);
  const std::span<const float> all = logits.values<float>();
  const auto width = static_cast<std::size_t>(logits.dim());
  std::vector<EngineEvent> events;
  for (const ScheduledTokens& part : scheduled) {
    if (!part.needs_logits) continue;
    const GenerationRequest& asked = scheduler_.request(part.request);
    const std::int64_t number = part.tokens.end - static_cast<std::int64_t>(asked.prompt.size());
    const auto row = all.subspan(events.size() * width, width);
    try {
      const SampledToken sampled = sample(row, asked.sampling, number);
      events.push_back(scheduler_.take(part.request, sampled.token, sampled.logprob));
    } catch (const InvalidArgument& error) {  // the same on all ranks, whose logits are
      scheduler_.cancel(part.request);
      events.push_back({});
      events.back().request = part.request;
      events.back().failure = error.what();
    }
  }
  return events;
}

}  // namespace contextile
