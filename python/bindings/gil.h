// The ways out of Python and back into it. The bindings use no others: a thread that enters an
// interpreter which is ending would be unwound by pthread_exit, which ends the whole process where
// C++ frames do not let it through.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <exception>
#include <optional>

#include "contextile/extend/interrupt.h"

namespace contextile::python {

// Ends the calls of threads that are in its `with` block, when it is set.
class StopFlag {
 public:
  void set() { is_set_ = true; }
  [[nodiscard]] bool is_set() const { return is_set_; }

 private:
  std::atomic<bool> is_set_ = false;
};

void bind_stop_flag(nanobind::module_& module);

// Releases the GIL for a call that computes or waits. On the main thread the call also ends by
// signals whose handlers raise, such as Ctrl-C (KeyboardInterrupt), on others by a StopFlag.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
  std::optional<InterruptScope> interrupt_;
};

// Holds the GIL, on any thread. An InterruptScope of the thread does not end what Python then
// calls, because its exceptions mean nothing to Python. In an interpreter that is ending, a thread
// other than the one that ends it stops here for good.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const InterruptScope none_{[] {}};
  PyGILState_STATE state_;
};

// Destroys an object of Python, on any thread; once the interpreter has ended it does nothing.
struct DeleteWithGil {
  void operator()(nanobind::object* object) const;
};

// Sets the error of Python for an interrupt: what a signal's handler raised, or InterruptedError of
// a StopFlag. Returns false if something else was thrown.
[[nodiscard]] bool translate_interrupt(const std::exception_ptr& thrown);

}  // namespace contextile::python
