#include <array>
#include <cstring>
#include <random>
#include <type_traits>

#include "base/check.h"
#include "contextile/serving/engine.h"
#include "transport/agreement.h"

namespace contextile {
namespace {

void put_bytes(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  if (more.empty()) return;
  const std::size_t size = bytes.size();
  bytes.resize(size + more.size());  // GCC 12 warns of vector::insert here at -O3, falsely
  std::memcpy(bytes.data() + size, more.data(), more.size());
}

// Values travel as their bytes in memory, so all ranks must store them alike.
template <typename T>
void put_value(std::vector<std::byte>& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  put_bytes(bytes, std::as_bytes(std::span(&value, 1)));
}

// A list is its number of elements, then the elements.
template <typename T>
void put_list(std::vector<std::byte>& bytes, const std::vector<T>& list) {
  put_value(bytes, static_cast<std::uint64_t>(list.size()));
  put_bytes(bytes, std::as_bytes(std::span(list)));
}

// Reads what the functions above wrote. Numbers of elements are held against the remaining bytes
// before memory is allocated for them.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  [[nodiscard]] T value() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <typename T>
  [[nodiscard]] std::vector<T> list() {
    const auto count = value<std::uint64_t>();
    CONTEXTILE_CHECK(count <= bytes_.size() / sizeof(T),
                     "engine input: expected at most {} entries, found {}",
                     bytes_.size() / sizeof(T), count);
    std::vector<T> list(count);
    const auto raw = take(count * sizeof(T));
    if (!raw.empty()) std::memcpy(list.data(), raw.data(), raw.size());
    return list;
  }
  void check_end() const {
    CONTEXTILE_CHECK(bytes_.empty(), "engine input: expected its end, found {} bytes more",
                     bytes_.size());
  }

 private:
  [[nodiscard]] std::span<const std::byte> take(std::size_t size) {
    CONTEXTILE_CHECK(size <= bytes_.size(), "engine input: expected {} bytes, found {}", size,
                     bytes_.size());
    const auto taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace

// The order of fields is that of `decode_engine_input`. A new field of a request must be added to
// both, or else ranks choose different tokens.
std::vector<std::byte> encode(const EngineInput& input) {
  std::vector<std::byte> bytes;
  put_value(bytes, static_cast<std::uint8_t>(input.stop ? 1 : 0));
  put_value(bytes, input.limit);
  put_list(bytes, input.cancelled);
  put_value(bytes, static_cast<std::uint64_t>(input.allowed.size()));
  for (const auto& [request, tokens] : input.allowed) {
    put_value(bytes, request);
    put_list(bytes, tokens);
  }
  put_value(bytes, static_cast<std::uint64_t>(input.arrivals.size()));
  for (const GenerationRequest& request : input.arrivals) {
    put_value(bytes, request.id);
    put_value(bytes, request.max_tokens);
    put_value(bytes, request.sampling.temperature);
    put_value(bytes, request.sampling.top_p);
    put_value(bytes, request.sampling.top_k);
    put_value(bytes, request.sampling.seed);
    put_value(bytes, request.sampling.min_p);
    put_value(bytes, request.sampling.repetition_penalty);
    put_value(bytes, request.sampling.presence_penalty);
    put_value(bytes, request.sampling.frequency_penalty);
    put_list(bytes, request.sampling.logit_bias);
    put_value(bytes, request.num_logprobs);
    put_value(bytes, static_cast<std::uint8_t>(request.scores_prompt ? 1 : 0));
    put_value(bytes, static_cast<std::uint8_t>(request.is_guided ? 1 : 0));
    put_list(bytes, request.prompt);
    put_list(bytes, request.stop_tokens);
  }
  return bytes;
}

EngineInput decode_engine_input(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  EngineInput input;
  input.stop = reader.value<std::uint8_t>() != 0;
  input.limit = reader.value<StepLimit>();
  input.cancelled = reader.list<RequestId>();
  // These numbers need no bound of their own: every entry takes bytes, and the reader throws at the
  // end.
  const auto num_allowed = reader.value<std::uint64_t>();
  for (std::uint64_t i = 0; i < num_allowed; ++i) {
    const auto request = reader.value<RequestId>();
    input.allowed.emplace_back(request, reader.list<std::uint32_t>());
  }
  const auto num_arrivals = reader.value<std::uint64_t>();
  for (std::uint64_t i = 0; i < num_arrivals; ++i) {
    GenerationRequest request;
    request.id = reader.value<RequestId>();
    request.max_tokens = reader.value<std::int32_t>();
    request.sampling.temperature = reader.value<double>();
    request.sampling.top_p = reader.value<double>();
    request.sampling.top_k = reader.value<std::int32_t>();
    request.sampling.seed = reader.value<std::uint64_t>();
    request.sampling.min_p = reader.value<double>();
    request.sampling.repetition_penalty = reader.value<double>();
    request.sampling.presence_penalty = reader.value<double>();
    request.sampling.frequency_penalty = reader.value<double>();
    request.sampling.logit_bias = reader.list<TokenBias>();
    request.num_logprobs = reader.value<std::int32_t>();
    request.scores_prompt = reader.value<std::uint8_t>() != 0;
    request.is_guided = reader.value<std::uint8_t>() != 0;
    request.prompt = reader.list<std::int32_t>();
    request.stop_tokens = reader.list<std::int32_t>();
    input.arrivals.push_back(std::move(request));
  }
  reader.check_end();
  return input;
}

// Compares the settings first, so that ranks which differ fail before anything is shared.
std::uint64_t agree_on_engine(Transport& transport, std::span<const EngineSetting> settings) {
  std::vector<Setting> all;
  for (const EngineSetting& setting : settings) all.push_back({setting.name, setting.value});
  check_same_settings(transport, "serve", all);
  std::random_device device;
  const std::uint64_t mine = (std::uint64_t{device()} << 32) | device();
  // Every rank sends a number, because all ranks send equally many bytes; that of rank 0 counts.
  const auto drawn = all_gather(transport, std::as_bytes(std::span(&mine, 1)));
  std::uint64_t first = 0;
  std::memcpy(&first, drawn.front().data(), sizeof first);
  return first;
}

// All ranks say how many bytes they bring, and what their tables are; only the first rank brings
// any.
EngineInput EngineRank::share(const EngineInput& input) {
  const bool is_first = transport_.rank().value == 0;
  std::vector<std::byte> bytes;
  if (is_first) {
    // Times of steps differ between ranks, so the limit of the first rank holds for all.
    EngineInput limited = input;
    limited.limit = engine_.limit();
    bytes = encode(limited);
  }
  const std::array<std::uint64_t, 2> mine = {bytes.size(), engine_.digest()};
  const auto all = all_gather(transport_, std::as_bytes(std::span(mine)));
  std::array<std::uint64_t, 2> first;
  std::memcpy(first.data(), all.front().data(), sizeof first);
  // All ranks compare the same digests, so all of them find the same rank and throw the same words.
  for (std::size_t r = 1; r < all.size(); ++r) {
    std::array<std::uint64_t, 2> its;
    std::memcpy(its.data(), all[r].data(), sizeof its);
    if (its[1] == first[1]) continue;
    let_all_look(transport_);
    fail_argument(
        "engine: expected the same block tables on all ranks, found {:016x} on rank 0 and {:016x} "
        "on rank {}",
        first[1], its[1], r);
  }
  // The other ranks now know the size of the message that they are to receive.
  bytes.resize(first[0]);
  const auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<Message> sends;
  std::vector<Message> recvs;
  for (std::int32_t r = 1; is_first && r < transport_.size(); ++r) {
    sends.push_back({Rank(r), {{bytes.data(), size, 1, size}}});
  }
  if (!is_first) recvs.push_back({Rank(0), {{bytes.data(), size, 1, size}}});
  transport_.wait(transport_.launch(sends, recvs));
  return decode_engine_input(bytes);
}

// Applies the shared input in one order on all ranks, which keeps their schedulers equal.
// Cancellations are of requests that came with earlier inputs, so they come first and free places
// for arrivals. Allowed tokens may be those of an arrival.
EngineOutput EngineRank::advance(const EngineInput& input) {
  EngineInput shared = share(input);
  EngineOutput output;
  output.stopped = shared.stop;
  for (const RequestId request : shared.cancelled) engine_.cancel(request);
  for (GenerationRequest& request : shared.arrivals) {
    const RequestId id = request.id;
    try {
      if (engine_.submit(std::move(request))) continue;
      output.rejections.push_back({id, "too many requests wait", true});
    } catch (const InvalidArgument& error) {
      // All ranks refuse the same requests, since a scheduler depends on its calls alone.
      output.rejections.push_back({id, error.what(), false});
    }
  }
  for (auto& [request, tokens] : shared.allowed) {
    static_cast<void>(engine_.allow(request, std::move(tokens)));  // false: it has been rejected
  }
  if (!output.stopped) output.events = engine_.step(shared.limit);
  return output;
}

}  // namespace contextile
