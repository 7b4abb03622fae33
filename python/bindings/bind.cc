#include "bind.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "contextile/base.h"

namespace contextile::python {

void fail(const std::string& message) { throw InvalidArgument(message); }

RankArgument::operator Rank() const {
  std::int32_t number = 0;
  const nb::object index =
      nb::steal(PyBool_Check(given_.ptr()) ? nullptr : PyNumber_Index(given_.ptr()));
  if (index.is_valid() && nb::try_cast(index, number)) return Rank(number);
  PyErr_Clear();
  fail("rank: expected a whole number below 2^31, found " +
       nb::cast<std::string>(nb::repr(given_)));
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
  if (callback.is_none()) return {};
  const std::shared_ptr<nb::object> shared(new nb::object(std::move(callback)), DeleteWithGil());
  return [shared](std::string_view what, std::int64_t done, std::int64_t total) {
    const WithGil gil;
    (*shared)(nb::str(what.data(), what.size()), done, total);
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
