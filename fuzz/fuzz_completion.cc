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
    const CompletionRequest request = parse_completion({reinterpret_cast<const char*>(data), size},
                                                       *tokenizer, {"m", 256, 4096, 8});
    Completion completion(request, *tokenizer);
    // The request's own bytes serve as the output.
    for (std::size_t i = 0; i < size && !completion.is_finished(); ++i) {
      EngineEvent event;
      event.token = data[i];
      if (i + 1 == size) event.finish = FinishReason::kLength;
      static_cast<void>(completion.add(0, event));
    }
    static_cast<void>(completion_json({}, request, completion.choices(), completion.usage()));
  } catch (const ProtocolFailure& failure) {
    static_cast<void>(error_json(failure.error()));
  }
  return 0;
}
