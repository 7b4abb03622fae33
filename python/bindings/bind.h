// Helpers that the files of the extension module share. Every file binds the names of one or two
// public headers; python/contextile adds defaults and forms that only Python has.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/mask.h"
#include "gil.h"

namespace contextile::python {

// The number of a rank as a caller gives it. It becomes a Rank where it is used, which throws
// InvalidArgument unless it is a whole number.
class RankArgument {
 public:
  RankArgument() = default;
  explicit RankArgument(nanobind::handle given) : given_(given) {}
  operator Rank() const;  // NOLINT(google-explicit-constructor)

 private:
  nanobind::handle given_;
};

}  // namespace contextile::python

// Ids are plain numbers in Python, ranges are pairs (begin, end).
namespace nanobind::detail {

template <typename Tag>
struct type_caster<contextile::Id<Tag>> {
  NB_TYPE_CASTER(contextile::Id<Tag>, const_name("int"))

  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::int32_t> number;
    if (!number.from_python(source, flags, cleanup)) return false;
    value = contextile::Id<Tag>(number.value);
    return true;
  }
  static handle from_cpp(contextile::Id<Tag> id, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<std::int32_t>::from_cpp(id.value, policy, cleanup);
  }
};

// Takes any object: RankArgument raises InvalidArgument later, with a text of the library's form.
template <>
struct type_caster<contextile::python::RankArgument> {
  NB_TYPE_CASTER(contextile::python::RankArgument, const_name("int"))

  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = contextile::python::RankArgument(source);
    return true;
  }
};

template <>
struct type_caster<contextile::Range> {
  NB_TYPE_CASTER(contextile::Range, const_name("tuple[int, int]"))

  using Pair = std::pair<std::int64_t, std::int64_t>;
  bool from_python(handle source, std::uint8_t flags, cleanup_list* cleanup) noexcept {
    make_caster<Pair> pair;
    if (!pair.from_python(source, flags, cleanup)) return false;
    const Pair ends = static_cast<Pair>(pair);
    value = {ends.first, ends.second};
    return true;
  }
  static handle from_cpp(const contextile::Range& range, rv_policy policy,
                         cleanup_list* cleanup) noexcept {
    return make_caster<Pair>::from_cpp(Pair(range.begin, range.end), policy, cleanup);
  }
};

}  // namespace nanobind::detail

namespace contextile::python {

namespace nb = nanobind;
using namespace nb::literals;

// str or os.PathLike.
using Path = std::filesystem::path;

// Each is defined in the file of its name.
void bind_errors(nb::module_& module);
void bind_masks(nb::module_& module);
void bind_models(nb::module_& module);
void bind_workloads(nb::module_& module);
void bind_clusters(nb::module_& module);
void bind_strategies(nb::module_& module);
void bind_arrangements(nb::module_& module);
void bind_plans(nb::module_& module);
void bind_planning(nb::module_& module);
void bind_validation(nb::module_& module);
void bind_schedules(nb::module_& module);
void bind_simulation(nb::module_& module);
void bind_transports(nb::module_& module);
void bind_exchanges(nb::module_& module);
void bind_execution(nb::module_& module);
void bind_data(nb::module_& module);
void bind_lookahead(nb::module_& module);
void bind_advice(nb::module_& module);
void bind_setups(nb::module_& module);
void bind_stores(nb::module_& module);
void bind_inference(nb::module_& module);
void bind_pipeline(nb::module_& module);

// Throws InvalidArgument.
[[noreturn]] void fail(const std::string& message);
// Throws InvalidArgument unless the blocking has that block.
[[nodiscard]] BlockId checked_block(const Blocking& blocking, std::int32_t block);

// Returns the bytes of a Python object, which stays their owner.
[[nodiscard]] std::span<const std::uint8_t> span_of(const nb::bytes& bytes);
// Throws InvalidArgument unless the name is "forward" or "backward".
[[nodiscard]] Direction direction_of(const std::string& name);

// Throws InvalidArgument naming the number unless it is 0 to 1e8 seconds.
[[nodiscard]] std::chrono::milliseconds milliseconds_of(double seconds, const char* name);

// Returns a hook that calls `callback(what, done, total)`; none if it is None. It may be called on
// any thread, with or without the GIL.
[[nodiscard]] ProgressHook progress_hook(nb::object callback);

// Returns a one-dimensional NumPy array that owns its numbers.
template <typename Number>
[[nodiscard]] nb::ndarray<nb::numpy, Number, nb::ndim<1>> numpy_array(std::vector<Number> values) {
  auto owned = std::make_unique<std::vector<Number>>(std::move(values));
  std::vector<Number>* numbers = owned.release();
  const nb::capsule owner(
      numbers, [](void* pointer) noexcept { delete static_cast<std::vector<Number>*>(pointer); });
  return nb::ndarray<nb::numpy, Number, nb::ndim<1>>(numbers->data(), {numbers->size()}, owner);
}

// Returns a text for __repr__, "Name(a=1, b='x')", of attributes that Python sees.
[[nodiscard]] std::string repr_of(nb::handle object, std::string_view name,
                                  std::initializer_list<const char*> attributes);

}  // namespace contextile::python
