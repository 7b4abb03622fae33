// The bytes between every two devices, as a picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "report/html/text.h"

namespace contextile {

// Bytes from each device to each, in one direction, over all rounds and masks, with the padding
// that statistics charge.
class TrafficMatrix {
 public:
  // `merged` devices that follow each other count as one.
  TrafficMatrix(const Plan& plan, Direction direction, std::int32_t merged);

  [[nodiscard]] std::int32_t side() const { return side_; }
  [[nodiscard]] std::int64_t bytes(std::int32_t sender, std::int32_t receiver) const {
    return bytes_[static_cast<std::size_t>(sender) * static_cast<std::size_t>(side_) +
                  static_cast<std::size_t>(receiver)];
  }
  [[nodiscard]] const std::vector<std::int64_t>& all() const { return bytes_; }

 private:
  std::int32_t side_;
  std::vector<std::int64_t> bytes_;  // [sender][receiver]
};

struct TrafficPicture {
  // "merged": devices in a row; "side": rows; "forward", "backward": entries row by row in units of
  // "unit_bytes", a zero followed by how many follow each other.
  ReportJson json;
  std::vector<std::string> notes;
};

// Devices of a node are merged, 2, 4, … of them and then nodes, while the matrices take more than
// `budget_bytes`.
[[nodiscard]] TrafficPicture traffic_picture(const Plan& plan, std::size_t budget_bytes);

}  // namespace contextile
