#include "transport/all_reduce.h"

#include <cstddef>
#include <utility>

namespace contextile {
namespace {

Message message(std::int32_t peer, std::span<float> values) {
  const auto bytes = static_cast<std::int64_t>(values.size_bytes());
  return {Rank(peer), {{reinterpret_cast<std::byte*>(values.data()), bytes, 1, bytes}}};
}

std::span<float> part(std::span<float> values, std::span<const std::int64_t> splits,
                      std::int32_t r) {
  const auto i = static_cast<std::size_t>(r);
  return values.subspan(static_cast<std::size_t>(splits[i]),
                        static_cast<std::size_t>(splits[i + 1] - splits[i]));
}

// Calls take(peer) for every other rank, beginning with the next one.
template <typename Take>
void for_each_peer(const Transport& transport, const Take& take) {
  for (std::int32_t step = 1; step < transport.size(); ++step) {
    take((transport.rank().value + step) % transport.size());
  }
}

}  // namespace

std::vector<std::int64_t> equal_splits(std::int64_t count, std::int32_t num_parts) {
  std::vector<std::int64_t> splits;
  for (std::int32_t r = 0; r <= num_parts; ++r) splits.push_back(count * r / num_parts);
  return splits;
}

void all_gather(Transport& transport, std::span<float> values,
                std::span<const std::int64_t> splits) {
  std::vector<Message> sends;
  std::vector<Message> recvs;
  const std::span<float> mine = part(values, splits, transport.rank().value);
  for_each_peer(transport, [&](std::int32_t peer) {
    sends.push_back(message(peer, mine));
    recvs.push_back(message(peer, part(values, splits, peer)));
  });
  transport.wait(transport.launch(sends, recvs));
}

void all_reduce(Transport& transport, std::span<float> values) {
  const std::int32_t ranks = transport.size();
  const std::int32_t me = transport.rank().value;
  const std::vector<std::int64_t> splits =
      equal_splits(static_cast<std::int64_t>(values.size()), ranks);
  const std::span<float> mine = part(values, splits, me);
  std::vector<std::vector<float>> parts(static_cast<std::size_t>(ranks),
                                        std::vector<float>(mine.size()));
  std::vector<Message> sends;
  std::vector<Message> recvs;
  for_each_peer(transport, [&](std::int32_t peer) {
    sends.push_back(message(peer, part(values, splits, peer)));
    recvs.push_back(message(peer, parts[static_cast<std::size_t>(peer)]));
  });
  transport.wait(transport.launch(sends, recvs));
  parts[static_cast<std::size_t>(me)].assign(mine.begin(), mine.end());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    float sum = parts.front()[i];
    for (std::size_t r = 1; r < parts.size(); ++r) sum += parts[r][i];
    mine[i] = sum;
  }
  all_gather(transport, values, splits);
}

}  // namespace contextile
