// contextile/extend/transport.h, contextile/advanced/gpu.h: transports and GPUs.
#include <nanobind/stl/variant.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "contextile/advanced/gpu.h"
#include "contextile/extend/transport.h"
#include "contextile/inproc_attention.h"
#include "tensors.h"

namespace contextile::python {
namespace {

std::shared_ptr<Transport> gloo_transport(std::int32_t rank, std::int32_t size,
                                          const std::string& rendezvous, const std::string& run_id,
                                          const std::string& secret, const std::string& secret_file,
                                          const std::string& interface_name,
                                          const std::string& hostname, double connect_timeout,
                                          double timeout) {
  return make_gloo_transport(
      {.rank = Rank(rank),
       .size = size,
       .rendezvous = rendezvous,
       .run_id = run_id,
       .secret = secret,
       .secret_file = secret_file,
       .interface_name = interface_name,
       .hostname = hostname,
       .connect_timeout = milliseconds_of(connect_timeout, "connect_timeout"),
       .timeout = milliseconds_of(timeout, "timeout")});
}

void check_num_ranks(std::int32_t num_ranks) {
  if (num_ranks >= 1 && num_ranks <= 4096) return;
  fail("num_ranks: expected 1 to 4096, found " + std::to_string(num_ranks));
}

std::vector<std::shared_ptr<Transport>> inproc_group(std::int32_t num_ranks, double timeout) {
  check_num_ranks(num_ranks);
  std::vector<std::shared_ptr<Transport>> group;
  for (auto& end : make_inproc_group(num_ranks, {.timeout = milliseconds_of(timeout, "timeout")})) {
    group.push_back(std::move(end));
  }
  return group;
}

using DeviceName = std::variant<std::int32_t, std::string>;
std::shared_ptr<Gpu> open_gpu_of(const DeviceName& device, const std::string& kernels,
                                 const std::string& kernel, const std::string& library,
                                 const std::string& nccl_library, const std::string& graphs,
                                 double timeout) {
  GpuOptions options{.kernels = kernels,
                     .kernel = kernel,
                     .library = library,
                     .nccl_library = nccl_library,
                     .graphs = parse_graphs(graphs)};
  const InprocOptions transport{.timeout = milliseconds_of(timeout, "timeout")};
  if (const auto* const name = std::get_if<std::string>(&device)) {
    return open_gpu(*name, options, transport);
  }
  options.ordinal = std::get<std::int32_t>(device);
  return open_gpu(options, transport);
}

// Returns an end of a transport that keeps the objects it needs alive.
template <typename... Kept>
std::shared_ptr<Transport> keeping(std::unique_ptr<Transport> transport, Kept... kept) {
  return {transport.release(), [kept...](Transport* end) { delete end; }};
}

std::vector<std::shared_ptr<Transport>> group_on(const std::shared_ptr<Gpu>& gpu,
                                                 std::int32_t num_ranks) {
  check_num_ranks(num_ranks);
  std::vector<std::shared_ptr<Transport>> group;
  for (auto& end : gpu->make_group(num_ranks)) group.push_back(keeping(std::move(end), gpu));
  return group;
}

std::shared_ptr<Transport> join(const std::shared_ptr<Gpu>& gpu,
                                const std::shared_ptr<Transport>& control, double timeout) {
  return keeping(gpu->join(*control, milliseconds_of(timeout, "timeout")), gpu, control);
}

// Returns the bytes of every rank, all of one size, by rank.
std::vector<nb::bytes> gather_bytes(Transport& transport, const nb::bytes& mine) {
  const auto gathered = [&] {
    const WithoutGil release;
    const TransportUse use(transport, "all_gather");
    return all_gather(transport.control(), std::as_bytes(span_of(mine)));
  }();
  std::vector<nb::bytes> all;
  for (const std::vector<std::byte>& one : gathered) all.emplace_back(one.data(), one.size());
  return all;
}

void bind_inproc_group(nb::module_& module) {
  module.def("inproc_group", &inproc_group, "num_ranks"_a, nb::kw_only(), "timeout"_a = 60.0,
             R"(Returns a list with one end of a transport per rank, for threads of this process.

num_ranks is 1 to 4096; timeout is the number of seconds without a byte moving after which ranks
give up. Raises InvalidArgument.

>>> import contextile as ct
>>> [transport.rank for transport in ct.inproc_group(2)]
[0, 1]
)");
}

void bind_ends(nb::module_& module) {
  nb::class_<Transport>(
      module, "Transport",
      "One rank's end of a group. Threads use it one at a time; data moves while one computes. "
      "Made by inproc_group, gloo_transport, Gpu.group and Gpu.join.")
      .def_prop_ro("name", [](const Transport& self) { return std::string(self.name()); })
      .def_prop_ro("rank", &Transport::rank)
      .def_prop_ro("size", &Transport::size)
      .def_prop_ro("sent_bytes", &Transport::sent_bytes)
      .def_prop_ro("received_bytes", &Transport::received_bytes)
      .def_prop_ro("on_gpu", &moves_device_memory, "True if it moves the memory of a GPU.")
      .def(
          "barrier",
          [](Transport& self) {
            const TransportUse use(self, "barrier");
            barrier(self.control());
          },
          nb::call_guard<WithoutGil>(),
          "Returns when every rank has called it. Collective. Raises TransportError.")
      .def("all_gather", &gather_bytes, "mine"_a,
           "Returns the bytes of every rank, by rank. All give equally many. Collective. Raises "
           "TransportError.")
      .def(
          "abort", [](Transport& self, const std::string& reason) { self.abort(reason); },
          "reason"_a,
          "Tells the group that this rank gives up, so that no peer waits for it. Not collective.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Transport", {"name", "rank", "size"});
      });
}

void bind_groups(nb::module_& module) {
  bind_ends(module);
  module.def("gloo_available", &gloo_transport_available, "Returns whether this build has gloo.");
  module.def(
      "gloo_transport", &gloo_transport, nb::kw_only(), "rank"_a, "size"_a, "rendezvous"_a,
      "run_id"_a = "", "secret"_a = "", "secret_file"_a = "", "interface_name"_a = "",
      "hostname"_a = "", "connect_timeout"_a = 60.0, "timeout"_a = 60.0,
      nb::call_guard<WithoutGil>(),
      R"(Connects a group of processes over TCP with gloo, and returns this rank's end. Collective.

Parameters
----------
rank, size : int
    Number of this rank, and of ranks.
rendezvous : str
    'file:///shared/folder', or 'tcp://host:port' where rank 0 listens.
run_id : str
    Distinguishes runs with the same rendezvous.
secret, secret_file : str
    What only the ranks of the group know, 16 to 4096 bytes, or a file with it that only its owner
    and group may use; one line break at its end does not count. Each rank proves that it knows the
    secret, which is never sent. Default: the file that CONTEXTILE_SECRET_FILE names, else none.
interface_name, hostname : str
    The network interface, or the address, to use. Default: gloo's choice.
connect_timeout, timeout : float
    Seconds to wait for connections, and seconds without a byte moving after which peers count as
    lost.

Raises
------
InvalidArgument
    Arguments are bad, or this build has no gloo.
TransportError
    Not all ranks connected in time.

Examples
--------
>>> import contextile as ct
>>> transport = ct.gloo_transport(rank=0, size=1, rendezvous="tcp://127.0.0.1:29876")
>>> transport.size
1
)");
  bind_inproc_group(module);
}

void bind_gpus(nb::module_& module) {
  nb::class_<Gpu>(module, "Gpu", "A GPU, real or emulated, with the library's kernels.")
      .def_prop_ro("name", [](const Gpu& self) { return std::string(self.name()); })
      .def_prop_ro("ordinal", &Gpu::ordinal, "Number of the GPU on this machine.")
      .def_prop_ro("is_emulated", &Gpu::is_emulated,
                   "True if the kernels' PTX runs on the CPU. Tensors are then on the CPU.")
      .def_prop_ro(
          "kernel", [](const Gpu& self) { return std::string(self.kernel_name()); },
          "Name of the attention kernel: \"cuda:wgmma\" or \"cuda:mma\".")
      .def("group", &group_on, "num_ranks"_a,
           "Returns one end of a transport per rank, for threads of this process that share the "
           "GPU. Only one group exists at a time. Raises InvalidArgument.")
      .def("join", &join, "control"_a, nb::kw_only(), "timeout"_a = 60.0,
           nb::call_guard<WithoutGil>(),
           "Returns this rank's end of a group of processes with one GPU each. Data moves over "
           "NCCL; control messages go over control, an ordinary transport between the processes. "
           "Collective. timeout is the number of seconds without a transfer ending. Raises "
           "InvalidArgument (on all ranks if two have one GPU), DeviceError and TransportError.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Gpu", {"name", "ordinal"});
      });
  module.def(
      "num_gpus", [](const std::string& library) { return num_gpus({.library = library}); },
      "library"_a = "",
      "Returns the number of GPUs of this machine. library is the driver's (default: "
      "libcuda.so.1). Raises InvalidArgument if there is no driver.");
  module.def("open_gpu", &open_gpu_of, "device"_a = DeviceName(0), nb::kw_only(), "kernels"_a = "",
             "kernel"_a = "", "library"_a = "", "nccl_library"_a = "", "graphs"_a = "auto",
             "timeout"_a = 60.0, nb::call_guard<WithoutGil>(),
             R"(Opens a GPU of this machine with Contextile's kernels, or an emulated one.

The kernels take bf16 and f16, with head dims that are multiples of 8 up to 256.

Parameters
----------
device : int or str
    Number of the GPU, or "emulated": the kernels' PTX runs on the CPU, exactly and slowly. Tensors
    are then on the CPU. Times are NaN, and ranks wait for each other for a day.
kernels : str
    Folder of the compiled kernels. Default: $CONTEXTILE_CUDA_KERNELS, otherwise where they were
    installed.
kernel : str
    The attention kernel: "cuda:wgmma" or "cuda:mma". Default: the former if the GPU can run it.
library, nccl_library : str
    Libraries of the driver and of NCCL. Default: the system's; for NCCL also CONTEXTILE_NCCL, or
    the wheel that PyTorch depends on.
graphs : str
    Calls of ranks of group() that become CUDA graphs: those repeated with the same tensors
    ("auto"), all ("on"), or none ("off").
timeout : float
    Seconds that ranks of group() wait for each other.

Raises
------
InvalidArgument
    There is no driver, no such GPU, or no such kernel; the message says where kernels were sought.
DeviceError
    The driver failed.
)");
}

}  // namespace

void bind_transports(nb::module_& module) {
  bind_groups(module);
  bind_gpus(module);
}

}  // namespace contextile::python
