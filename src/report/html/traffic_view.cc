#include "report/html/traffic_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <variant>

#include "report/html/varint_text.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostRows = 512;

VarintText encode(const TrafficMatrix& matrix, std::int64_t unit_bytes) {
  VarintText packed;
  const std::vector<std::int64_t>& bytes = matrix.all();
  for (std::size_t i = 0; i < bytes.size();) {
    if (bytes[i] != 0) {
      packed.add(bytes[i++] / unit_bytes);
      continue;
    }
    const std::size_t begin = i;
    while (i < bytes.size() && bytes[i] == 0) ++i;
    packed.add(0);
    packed.add(static_cast<std::int64_t>(i - begin));
  }
  return packed;
}

// Possible numbers of devices per row: parts of a node, then whole nodes.
std::vector<std::int32_t> row_sizes(const Plan& plan) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t k = 1; k <= plan.devices_per_node; ++k) {
    if (plan.devices_per_node % k == 0) sizes.push_back(k);
  }
  for (std::int32_t nodes = 2; nodes <= plan.nodes; nodes *= 2) {
    sizes.push_back(nodes * plan.devices_per_node);
  }
  return sizes;
}

}  // namespace

TrafficMatrix::TrafficMatrix(const Plan& plan, Direction direction, std::int32_t merged)
    : side_((plan.num_devices() + merged - 1) / merged),
      bytes_(static_cast<std::size_t>(side_) * static_cast<std::size_t>(side_)) {
  for (const PlanRound& round : plan.rounds) {
    for (std::size_t r = 0; r < round.devices.size(); ++r) {
      const std::size_t row =
          r / static_cast<std::size_t>(merged) * static_cast<std::size_t>(side_);
      for (const ProgramPair& pair : round.devices[r].programs) {
        if (!pair.of(direction)) continue;
        for (const Instruction& instruction : pair.of(direction)->instructions) {
          const auto* launch = std::get_if<LaunchOp>(&instruction);
          if (launch == nullptr) continue;
          for (const TransferEnd& send : launch->sends) {
            bytes_[row + static_cast<std::size_t>(send.peer.value / merged)] +=
                unit_bytes(send.kind, round.blocks.num_tokens(send.block), plan.shape,
                           round.groups_of(send.block), send.wire);
          }
        }
      }
    }
  }
  if (plan.padded_bytes_factor == 1) return;
  for (std::int64_t& bytes : bytes_) {
    bytes = std::llround(static_cast<double>(bytes) * plan.padded_bytes_factor);
  }
}

TrafficPicture traffic_picture(const Plan& plan, std::size_t budget_bytes) {
  TrafficPicture picture;
  for (const std::int32_t merged : row_sizes(plan)) {
    if (plan.num_devices() / merged > kMostRows) continue;
    std::size_t used = 0;
    picture.json = {{"merged", merged}};
    for (const Direction direction : kDirections) {
      if (!plan.has_direction(direction)) continue;
      const TrafficMatrix matrix(plan, direction, merged);
      std::int64_t unit_bytes = 0;
      for (const std::int64_t bytes : matrix.all()) unit_bytes = std::gcd(unit_bytes, bytes);
      unit_bytes = std::max<std::int64_t>(unit_bytes, 1);
      const VarintText packed = encode(matrix, unit_bytes);
      used += packed.size();
      picture.json["side"] = matrix.side();
      picture.json[std::string(to_string(direction))] = {{"unit_bytes", unit_bytes},
                                                         {"entries", packed.base64()}};
    }
    if (used > budget_bytes) continue;
    if (merged > 1) {
      picture.notes.push_back(
          fmt::format("To keep the page small, a row or column is {} devices.", merged));
    }
    return picture;
  }
  picture.json = ReportJson::object();
  picture.notes.emplace_back("The traffic of so many devices is too much to draw.");
  return picture;
}

}  // namespace contextile
