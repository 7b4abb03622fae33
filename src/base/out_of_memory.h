// What memory ran out for.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <utility>

namespace contextile {

// Memory ran out while something was made that is as large as the input asks for.
class OutOfMemory : public std::bad_alloc {
 public:
  // What it was and how large: "a plan of 4096 tiles on 8 devices".
  explicit OutOfMemory(std::string subject)
      : subject_(std::make_shared<const std::string>(std::move(subject))) {}
  [[nodiscard]] const char* what() const noexcept override { return subject_->c_str(); }

 private:
  std::shared_ptr<const std::string> subject_;  // copies of exceptions must not throw
};

// make(). When memory runs out in it, OutOfMemory says what for: subject(), or the subject of the
// innermost of such calls within each other.
template <typename Subject, typename Make>
decltype(auto) with_memory_for(const Subject& subject, const Make& make) {
  try {
    return make();
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(subject());
  }
}

}  // namespace contextile
