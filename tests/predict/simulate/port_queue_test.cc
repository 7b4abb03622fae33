#include "predict/simulate/port_queue.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <set>

namespace contextile {
namespace {

TEST(PortQueue, HasTheLeastEntryInFrontWhateverIsPushedReplacedAndPopped) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    PortQueue queue;
    std::set<PortShare> reference;
    for (std::size_t port = 0; port < 400; ++port) {
      const PortShare entry(static_cast<double>(random() % 20), port);  // many shares are equal
      const unsigned action = random() % 4;
      if (reference.empty() || action < 2) {
        queue.push(entry);
        reference.insert(entry);
      } else if (action == 2) {
        reference.erase(reference.begin());
        reference.insert(entry);
        queue.replace_least(entry);
      } else {
        reference.erase(reference.begin());
        queue.pop();
      }
      ASSERT_EQ(queue.empty(), reference.empty());
      if (!reference.empty()) {
        ASSERT_EQ(queue.least(), *reference.begin());
      }
    }
    queue.clear();
    EXPECT_TRUE(queue.empty());
  }
}

}  // namespace
}  // namespace contextile
