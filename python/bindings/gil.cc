#include "gil.h"

#include <cxxabi.h>
#include <unistd.h>

#include <exception>
#include <string>
#include <utility>

#include "bind.h"

namespace contextile::python {
namespace {

// The error that the handler of a signal raised. Not an Error, so that nothing goes on after it.
class SignalRaised : public std::exception {
 public:
  SignalRaised(nb::python_error error, std::string text)
      : error_(std::move(error)), text_(std::move(text)) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] const nb::python_error& error() const { return error_; }

 private:
  nb::python_error error_;
  std::string text_;
};

// Thrown into a call whose thread has a StopFlag that was set.
class FlagWasSet : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the call was stopped"; }
};

// NOTE: per thread, as the `with` blocks of StopFlags are; null outside.
thread_local const StopFlag* flag_of_thread = nullptr;

void look_for_signals() {
  const WithGil gil;
  if (PyErr_CheckSignals() == 0) return;
  nb::python_error error;
  // Without its text and place, which are of no use to peers.
  std::string text = nb::cast<std::string>(error.type().attr("__name__"));
  throw SignalRaised(std::move(error), std::move(text));
}

bool is_main_thread() { return ::gettid() == ::getpid(); }

[[noreturn]] void stay_out() {
  while (true) ::pause();
}

// Returns true if this thread cannot enter the interpreter, which has ended or ends on another one.
bool is_shut_out() { return Py_IsInitialized() == 0 && PyGILState_GetThisThreadState() == nullptr; }

}  // namespace

WithoutGil::WithoutGil() : thread_(PyEval_SaveThread()) {
  if (is_main_thread()) {
    interrupt_.emplace(look_for_signals);
  } else if (flag_of_thread != nullptr) {
    interrupt_.emplace([flag = flag_of_thread] {
      if (flag->is_set()) throw FlagWasSet();
    });
  }
}

WithoutGil::~WithoutGil() {
  interrupt_.reset();
  try {
    PyEval_RestoreThread(thread_);
  } catch (const abi::__forced_unwind&) {
    stay_out();
  }
}

WithGil::WithGil() {
  if (is_shut_out()) stay_out();
  try {
    state_ = PyGILState_Ensure();
  } catch (const abi::__forced_unwind&) {  // it began to end meanwhile
    stay_out();
  }
}

WithGil::~WithGil() { PyGILState_Release(state_); }

void DeleteWithGil::operator()(nb::object* object) const {
  if (is_shut_out()) return;
  const WithGil gil;
  delete object;
}

bool translate_interrupt(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const SignalRaised& raised) {
    nb::python_error error = raised.error();
    error.restore();
    return true;
  } catch (const FlagWasSet& stopped) {
    PyErr_SetString(PyExc_InterruptedError, stopped.what());
    return true;
  } catch (...) {
    return false;
  }
}

void bind_stop_flag(nb::module_& module) {
  nb::class_<StopFlag>(module, "StopFlag",
                       "Ends, once it is set, what threads other than the main one compute or wait "
                       "for inside `with flag:`, by an InterruptedError.")
      .def(nb::init<>())
      .def("set", &StopFlag::set, "Ends calls under way and later ones. From any thread.")
      .def("__enter__",
           [](const StopFlag& self) {
             if (flag_of_thread != nullptr)
               fail("stop flag: expected one at a time, found another");
             flag_of_thread = &self;
           })
      .def(
          "__exit__", [](const StopFlag&, const nb::args&) { flag_of_thread = nullptr; },
          nb::sig("def __exit__(self, *args: object) -> None"));
}

}  // namespace contextile::python
