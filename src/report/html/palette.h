// Colours of devices: hue by node, lightness inside the node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace contextile {

struct Colour {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
  friend bool operator==(const Colour&, const Colour&) = default;
};

// The colours by rank. Every node has a slice of the hue circle; its devices go from dark to light
// and through that slice. Few nodes lie round the circle in order; of many, consecutive ones lie
// far apart. All colours are readable on white and on near-black. They are chosen in OKLCH, where
// equal steps look equal.
[[nodiscard]] std::vector<Colour> device_colours(std::int32_t nodes, std::int32_t devices_per_node);

[[nodiscard]] std::string hex_text(Colour colour);  // "1f77b4"

}  // namespace contextile
