// The library's errors as Python exceptions. Most derive from a built-in exception, too.
#include <exception>
#include <string>

#include "bind.h"
#include "contextile/advanced/lookahead.h"
#include "contextile/planner.h"

namespace contextile::python {
namespace {

// Classes live as long as the process.
PyObject* g_error = nullptr;
PyObject* g_invalid_argument = nullptr;
PyObject* g_invalid_plan = nullptr;
PyObject* g_io_error = nullptr;
PyObject* g_transport_error = nullptr;
PyObject* g_device_error = nullptr;
PyObject* g_check_failed = nullptr;
PyObject* g_planning_failed = nullptr;

PyObject* add_error(nb::module_& module, const char* name, const char* doc, nb::handle bases) {
  const std::string full = std::string("contextile.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases.ptr(), nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(type);
  return type;
}

void translate(const std::exception_ptr& thrown, void*) {
  if (translate_interrupt(thrown)) return;
  // The most derived first.
  try {
    std::rethrow_exception(thrown);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(g_invalid_argument, error.what());
  } catch (const InvalidPlan& error) {
    PyErr_SetString(g_invalid_plan, error.what());
  } catch (const IoError& error) {
    PyErr_SetString(g_io_error, error.what());
  } catch (const TransportError& error) {
    PyErr_SetString(g_transport_error, error.what());
  } catch (const DeviceError& error) {
    PyErr_SetString(g_device_error, error.what());
  } catch (const CheckFailed& error) {
    PyErr_SetString(g_check_failed, error.what());
  } catch (const PlanningFailed& error) {
    PyErr_SetString(g_planning_failed, error.what());
  } catch (const Error& error) {
    PyErr_SetString(g_error, error.what());
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  const nb::handle runtime(PyExc_RuntimeError);
  g_error = add_error(
      module, "Error",
      "Base class of all errors of Contextile. Messages say what was expected, found and where.",
      runtime);
  const nb::handle error(g_error);
  g_invalid_argument = add_error(
      module, "InvalidArgument",
      "The caller's input is wrong: lengths, mask, cluster, options, shapes. Also a ValueError.",
      nb::make_tuple(error, nb::handle(PyExc_ValueError)));
  g_invalid_plan =
      add_error(module, "InvalidPlan",
                "A plan, or its bytes, is broken or does not fit its use. Also a ValueError.",
                nb::make_tuple(error, nb::handle(PyExc_ValueError)));
  g_io_error =
      add_error(module, "IoError", "A file or a store cannot be read or written. Also an OSError.",
                nb::make_tuple(error, nb::handle(PyExc_OSError)));
  g_transport_error = add_error(
      module, "TransportError",
      "A peer died, stalled past the timeout, or sent unexpected data. Also a ConnectionError.",
      nb::make_tuple(error, nb::handle(PyExc_ConnectionError)));
  g_device_error =
      add_error(module, "DeviceError", "The driver of a GPU, or NCCL, reported an error.", error);
  g_check_failed = add_error(module, "CheckFailed",
                             "A plan does not verify, so none of its numbers are valid.", error);
  g_planning_failed =
      add_error(module, "PlanningFailed",
                "A step could not be planned ahead, because of its batch or the strategy.", error);
  nb::register_exception_translator(translate);
}

}  // namespace contextile::python
