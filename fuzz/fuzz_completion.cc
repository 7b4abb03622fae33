// Requests of clients, and their text as tokens come: any bytes are read or refused.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "contextile/serving/completion_server.h"
#include "serving/server/completion.h"
#include "serving/server/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace contextile;
  static const auto tokenizer = byte_tokenizer();
  try {
    static_cast<void>(parse_detokenize({reinterpret_cast<const char*>(data), size}, *tokenizer));
  } catch (const ProtocolFailure&) {
  }
  try {
    const CompletionRequest request = parse_completion({reinterpret_cast<const char*>(data), size},
                                                       *tokenizer, {"m", 256, 4096, 8});
    Completion completion(request, *tokenizer);
    // The request's own bytes serve as the output.
    for (std::size_t i = 0; i < size && !completion.is_finished(); ++i) {
      EngineEvent event;
      event.token = data[i];
      event.top.assign(static_cast<std::size_t>(request.num_top), {data[i], -1});
      if (i + 1 == size) event.finish = FinishReason::kLength;
      if (i == 0) {
        const std::size_t num_scores = request.prompts.front().size() - 1;
        event.prompt.tokens.assign(num_scores, -2);
        event.prompt.top.assign(num_scores * static_cast<std::size_t>(request.num_top), {65, -1});
      }
      static_cast<void>(completion.add(0, event));
    }
    static_cast<void>(
        completion_json({}, request, *tokenizer, completion.choices(), completion.usage()));
  } catch (const ProtocolFailure& failure) {
    static_cast<void>(error_json(failure.error()));
  }
  return 0;
}
