// An exception that says what memory ran out for.
#pragma once

#include <memory>
#include <new>
#include <string>
#include <utility>

namespace contextile {

// Memory ran out while something was made whose size depends on the input.
class OutOfMemory : public std::bad_alloc {
 public:
  // `subject` says what was made and how large it is: "a plan of 4096 tiles on 8 devices".
  explicit OutOfMemory(std::string subject)
      : subject_(std::make_shared<const std::string>(std::move(subject))) {}
  [[nodiscard]] const char* what() const noexcept override { return subject_->c_str(); }

 private:
  std::shared_ptr<const std::string> subject_;  // copies of exceptions must not throw
};

// Returns make(). If memory runs out in it, throws OutOfMemory with subject(); of nested calls, the
// innermost one gives the subject.
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
