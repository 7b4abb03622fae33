#include "report/html/palette.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace contextile {
namespace {

constexpr double kDarkest = 0.46;
constexpr double kLightest = 0.84;
constexpr std::int32_t kNodesInOrder = 8;
constexpr double kGolden = 0.618033988749895;

// Linear sRGB of OKLCH (Ottosson, 2020): lightness, chroma, hue as a share of the circle.
std::array<double, 3> linear_rgb(double lightness, double chroma, double hue) {
  const double angle = 2 * std::numbers::pi * hue;
  const double a = chroma * std::cos(angle);
  const double b = chroma * std::sin(angle);
  const double l = std::pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  return {4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
          -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
          -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s};
}

std::uint8_t gamma_encoded(double linear) {
  const double value =
      linear <= 0.0031308 ? 12.92 * linear : 1.055 * std::pow(linear, 1 / 2.4) - 0.055;
  return static_cast<std::uint8_t>(std::lround(255 * std::clamp(value, 0.0, 1.0)));
}

// The colour, as colourful as requested or as screens can show.
Colour shown(double lightness, double chroma, double hue) {
  std::array<double, 3> rgb = linear_rgb(lightness, chroma, hue);
  const auto outside = [](double x) { return x < -0.0005 || x > 1.0005; };
  while (chroma > 0 && std::ranges::any_of(rgb, outside)) {
    chroma -= 0.004;
    rgb = linear_rgb(lightness, std::max(chroma, 0.0), hue);
  }
  return {gamma_encoded(rgb[0]), gamma_encoded(rgb[1]), gamma_encoded(rgb[2])};
}

}  // namespace

std::vector<Colour> device_colours(std::int32_t nodes, std::int32_t devices_per_node) {
  std::vector<Colour> colours;
  colours.reserve(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(devices_per_node));
  const double slice = 1.0 / nodes;
  for (std::int32_t n = 0; n < nodes; ++n) {
    const double turn = nodes <= kNodesInOrder ? n * slice : std::fmod(n * kGolden, 1.0);
    for (std::int32_t d = 0; d < devices_per_node; ++d) {
      const double place =
          devices_per_node == 1 ? 0.5 : static_cast<double>(d) / (devices_per_node - 1);
      // A lone device of a node has the middle of its slice. One node alone has the whole circle,
      // its ends kept apart.
      const double spread = (nodes == 1 ? 0.9 : 0.6) * slice;
      const double hue = 0.06 + turn + spread * (place - 0.5);
      // Lightness alternates on a node alone: the hue tells its devices apart already.
      const double step = nodes == 1 ? (d % 2 == 0 ? 0.35 : 0.75) : place;
      const double chroma = nodes > kNodesInOrder && n % 2 == 1 ? 0.1 : 0.16;
      colours.push_back(shown(kDarkest + (kLightest - kDarkest) * step, chroma, hue));
    }
  }
  return colours;
}

std::string hex_text(Colour colour) {
  return fmt::format("{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue);
}

}  // namespace contextile
