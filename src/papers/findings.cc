#include "papers/findings.h"

#include <fmt/format.h>

#include <utility>

namespace contextile {

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string range_text(double least, double most) {
  return fmt::format("{:.2f}x to {:.2f}x", least, most);
}

Finding gains_finding(const Extent& gains, std::string claim, double paper_least,
                      double paper_most) {
  constexpr double kSlack = 0.05;
  return {std::move(claim), range_text(gains.least, gains.most),
          gains.within(paper_least - kSlack, paper_most + kSlack),
          fmt::format("every gain lies in that range, give or take {}", kSlack)};
}

}  // namespace contextile
