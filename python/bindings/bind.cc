#include "bind.h"

#include <chrono>
#include <mutex>
#include <string>

#include "contextile/base.h"

namespace contextile::python {

void fail(const std::string& message) { throw InvalidArgument(message); }

RankArgument::operator Rank() const {
  std::int32_t number = 0;
  const nb::object index =
      nb::steal(PyBool_Check(given_.ptr()) ? nullptr : PyNumber_Index(given_.ptr()));
  if (index.is_valid() && nb::try_cast(index, number)) return Rank(number);
  PyErr_Clear();
  fail("rank: expected a whole number, found " + nb::cast<std::string>(nb::repr(given_)));
}

std::span<const std::uint8_t> span_of(const nb::bytes& bytes) {
  return {static_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

Direction direction_of(const std::string& name) {
  for (const Direction direction : kDirections) {
    if (to_string(direction) == name) return direction;
  }
  fail("direction: expected forward or backward, found '" + name + "'");
}

std::chrono::milliseconds milliseconds_of(double seconds, const char* name) {
  if (!(seconds >= 0 && seconds <= 1e8)) {  // so that NaN is refused, too
    fail(std::string(name) + ": expected 0 to 1e8 seconds, found " + std::to_string(seconds));
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3));
}

ProgressHook progress_hook(nb::object callback) {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kBetweenSignals = std::chrono::milliseconds(50);
  struct State {
    nb::object callback;
    Clock::time_point next_look{};
    ~State() {
      const nb::gil_scoped_acquire gil;
      callback.reset();
    }
  };
  auto state = std::make_shared<State>();
  if (!callback.is_none()) state->callback = std::move(callback);
  return [state](std::string_view what, std::int64_t done, std::int64_t total) {
    const Clock::time_point now = Clock::now();
    if (!state->callback.is_valid() && now < state->next_look) return;
    state->next_look = now + kBetweenSignals;
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (state->callback.is_valid()) {
      state->callback(nb::str(what.data(), what.size()), done, total);
    }
  };
}

std::string repr_of(nb::handle object, std::string_view name,
                    std::initializer_list<const char*> attributes) {
  std::string text(name);
  text += '(';
  bool first = true;
  for (const char* attribute : attributes) {
    if (!first) text += ", ";
    first = false;
    text += attribute;
    text += '=';
    text += nb::cast<std::string>(nb::repr(object.attr(attribute)));
  }
  return text + ')';
}

}  // namespace contextile::python
