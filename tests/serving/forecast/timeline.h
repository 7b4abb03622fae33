// A rank that computes and exchanges at the same time, event by event. The closed forms of HOP-B
// are compared with it. It knows programs, no formulas.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace contextile {

// One processor, which executes its work in order, and one network, which carries exchanges in the
// order of their launches.
class Timeline {
 public:
  void compute(double time) { now_ += time; }
  // Returns the exchange's number.
  std::size_t launch(double time) {
    const double begin = ends_.empty() ? now_ : std::max(now_, ends_.back());
    ends_.push_back(begin + time);
    return ends_.size() - 1;
  }
  void wait(std::size_t exchange) { now_ = std::max(now_, ends_[exchange]); }
  [[nodiscard]] double now() const { return now_; }

 private:
  double now_ = 0;
  std::vector<double> ends_;  // of exchanges
};

// Every group's exchange runs during the attention of later groups; all have arrived at the end.
inline double attention_timeline(int groups, double attention, double exchange) {
  Timeline line;
  std::vector<std::size_t> launched;
  for (int group = 0; group < groups; ++group) {
    line.compute(attention);
    launched.push_back(line.launch(exchange));
  }
  for (const std::size_t number : launched) line.wait(number);
  return line.now();
}

// Every group's exchange runs during the feed-forward that is due, another group's. A group's
// attention needs its own feed-forward of the layer before.
inline double feed_forward_timeline(int groups, double attention, double exchange,
                                    std::span<const double> feed_forward) {
  struct Due {
    int group;
    double time;
  };
  Timeline line;
  std::optional<Due> due;
  const auto compute_due = [&] {
    if (due) line.compute(due->time);
    due.reset();
  };
  for (const double time : feed_forward) {
    for (int group = 0; group < groups; ++group) {
      if (due && due->group == group) compute_due();
      line.compute(attention);
      const std::size_t number = line.launch(exchange);
      compute_due();
      line.wait(number);
      due = Due{group, time};
    }
  }
  compute_due();
  return line.now();
}

}  // namespace contextile
