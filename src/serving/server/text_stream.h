// The text of one request's tokens, as it comes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

// Returns only whole characters, replaces other bytes by U+FFFD, and withholds everything that may
// be the beginning of a stop sequence.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that is certain by now. Once a stop sequence is whole, returns the text before it, and
  // then nothing more.
  [[nodiscard]] std::string add(std::string_view bytes);
  // The rest, if no tokens follow.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  [[nodiscard]] std::string give(std::size_t end);

  std::vector<std::string> stops_;
  std::string held_;  // bytes not given out
  bool stopped_ = false;
};

}  // namespace contextile
