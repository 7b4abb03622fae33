// What is computed while the attention of some requests of a step moves between ranks: the next
// requests' attention is HOP-B of Helix (arXiv 2507.07120, 2.1.3); others' feed-forward what
// serving engines call two-batch overlap.
#pragma once

#include <cstdint>
#include <string_view>

namespace contextile {

// What the exchange of partial outputs hides behind.
enum class HopBReading : std::uint8_t {
  kOff,          // nothing: all of the batch computes, then all of it moves
  kAttention,    // the attention of the next requests; projections and feed-forward as without
  kFeedForward,  // the feed-forward of the requests before, so requests take turns with whole
                 // layers
};
[[nodiscard]] std::string_view to_string(HopBReading reading);
// "off", "attention", "feed_forward". Throws InvalidArgument.
[[nodiscard]] HopBReading parse_hop_b(std::string_view text);

}  // namespace contextile
