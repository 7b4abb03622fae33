// contextile/advanced/store.h: stores that processes share.
#include <chrono>
#include <string>

#include "bind.h"
#include "contextile/advanced/store.h"

namespace contextile::python {
namespace {

using std::chrono::milliseconds;

nb::object bytes_or_none(const std::optional<StoreValue>& value) {
  if (!value) return nb::none();
  return nb::bytes(value->data(), value->size());
}

template <typename Call>
auto without_gil(const Call& call) {
  const WithoutGil release;
  return call();
}

// Binds put, replace and renew.
template <typename Stored>
auto store_value(Stored (Store::*call)(std::string_view, std::span<const std::uint8_t>,
                                       milliseconds)) {
  return [call](Store& self, const std::string& key, const nb::bytes& value, double expiry) {
    const auto bytes = span_of(value);
    const milliseconds life = milliseconds_of(expiry, "expiry");
    return without_gil([&] { return (self.*call)(key, bytes, life); });
  };
}

}  // namespace

void bind_stores(nb::module_& module) {
  nb::class_<Store>(module, "Store",
                    R"(A store of small values under keys that processes share. Every value expires.

Calls are atomic. Times are seconds. Calls raise InvalidArgument for keys, values and times out of
bounds, and IoError if the store is gone. Made by open_store.

>>> import contextile as ct
>>> store = ct.open_store("memory:")
>>> store.put("key", b"value", expiry=60)
True
>>> store.get("key")
b'value'
)")
      .def_prop_ro(
          "name", [](const Store& self) { return std::string(self.name()); },
          "Address of the store, without a password.")
      .def(
          "put", store_value(&Store::put), "key"_a, "value"_a, nb::kw_only(), "expiry"_a,
          "Stores the value unless the key has one already. Returns whether the key has this value "
          "now.")
      .def("replace", store_value(&Store::replace), "key"_a, "value"_a, nb::kw_only(), "expiry"_a,
           "Stores the value and replaces any other.")
      .def(
          "get",
          [](Store& self, const std::string& key) {
            return bytes_or_none(without_gil([&] { return self.get(key); }));
          },
          "key"_a, "Returns the value, or None.")
      .def(
          "pull",
          [](Store& self, const std::string& key, double timeout) {
            const milliseconds most = milliseconds_of(timeout, "timeout");
            return bytes_or_none(without_gil([&] { return self.pull(key, most); }));
          },
          "key"_a, nb::kw_only(), "timeout"_a,
          "Waits for the value and returns it; None after the timeout.")
      .def(
          "erase",
          [](Store& self, const std::string& key) {
            return without_gil([&] { return self.erase(key); });
          },
          "key"_a, "Removes the value. Returns whether there was one.")
      .def("renew", store_value(&Store::renew), "key"_a, "value"_a, nb::kw_only(), "expiry"_a,
           "Extends the expiry if the key has this value. Returns whether it has.")
      .def("__repr__",
           [](const Store& self) { return "Store('" + std::string(self.name()) + "')"; });
  module.def(
      "open_store",
      [](const std::string& address, double timeout) {
        return std::shared_ptr<Store>(
            open_store(address, {.timeout = milliseconds_of(timeout, "timeout")}));
      },
      "address"_a, nb::kw_only(), "timeout"_a = 10.0, nb::call_guard<WithoutGil>(),
      "Opens a store by its address: 'memory:' (of this process), 'file:///FOLDER', "
      "'redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]' or 'redis+unix:///SOCKET'. timeout is the "
      "number of seconds that a call may take. Raises InvalidArgument and IoError.");
}

}  // namespace contextile::python
