// contextile/advanced/executor.h: executors.
#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "bind.h"
#include "contextile/advanced/executor.h"
#include "contextile/advanced/gpu.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "contextile/inproc_attention.h"
#include "contextile/plan_file.h"
#include "plan_object.h"
#include "tensors.h"

namespace contextile::python {
namespace {

// One rank's executor. The kernel is chosen by the dtype of the first plan, and again if a plan has
// another dtype.
class RankExecutor {
 public:
  RankExecutor(std::shared_ptr<Transport> transport, std::string kernel, std::string flight_folder,
               std::shared_ptr<Gpu> gpu)
      : transport_(std::move(transport)),
        gpu_(std::move(gpu)),
        kernel_name_(std::move(kernel)),
        flight_folder_(std::move(flight_folder)) {
    const bool is_on_gpu = moves_device_memory(*transport_);
    if (gpu_ == nullptr) {
      static_cast<void>(find_kernel(kernel_name_));
      if (is_on_gpu) fail("gpu: expected that of the transport, found none");
      return;
    }
    if (!is_on_gpu) {
      fail("transport: expected one of the GPU's (group, join), found '" +
           std::string(transport_->name()) + "'");
    }
    static_cast<void>(gpu_->kernel(transport_->rank()));
    if (!kernel_name_.empty()) {
      fail("kernel: expected none beside a GPU, which has one, found '" + kernel_name_ + "'");
    }
  }

  void prepare(const PlanObject& plan) {
    const TransportUse use(*transport_, "prepare");
    const AttentionKernel& kernel = gpu_ != nullptr
                                        ? gpu_->kernel(transport_->rank())
                                        : find_kernel(kernel_name_, plan.plan->shape.dtype);
    if (!executor_ || &kernel != kernel_) {
      executor_.reset();
      executor_ = std::make_unique<Executor>(*transport_, kernel, ExecutorOptions{flight_folder_});
      kernel_ = &kernel;
    }
    executor_->prepare(plan.plan);
    plan_ = plan.plan;
  }

  [[nodiscard]] Executor& executor() const {
    if (!executor_) fail("executor: expected prepare before a call, found no plan");
    return *executor_;
  }
  [[nodiscard]] const Plan& plan() const {
    static_cast<void>(executor());
    return *plan_;
  }
  // Returns the place of the tensors of calls.
  [[nodiscard]] ArrayPlace place() const {
    return {gpu_ == nullptr || gpu_->is_emulated() ? std::nullopt : std::optional(gpu_->ordinal())};
  }
  // Makes the arrays of a call memory of an emulated GPU while the result lives.
  template <typename... Arrays>
  [[nodiscard]] std::vector<std::shared_ptr<void>> lend(const Arrays&... arrays) const {
    std::vector<std::shared_ptr<void>> lent;
    if (gpu_ == nullptr || !gpu_->is_emulated()) return lent;
    const auto lend_one = [&](const auto& array) { lent.push_back(gpu_->lend(memory_of(array))); };
    const auto lend_any = [&](const auto& array) {
      if constexpr (requires { array.has_value(); }) {
        if (array) lend_one(*array);
      } else {
        lend_one(array);
      }
    };
    (lend_any(arrays), ...);
    return lent;
  }
  // Bytes and times of the last call; the times of an emulated GPU are NaN.
  [[nodiscard]] ExecutionStats last_stats() const {
    ExecutionStats stats = executor().last_stats();
    if (gpu_ != nullptr && gpu_->is_emulated()) {
      stats.total_s = stats.attention_s = stats.exposed_s =
          std::numeric_limits<double>::quiet_NaN();
    }
    return stats;
  }
  // Throws InvalidArgument if tensors are memory of a GPU, an emulated one included.
  void check_on_host(const char* call) const {
    if (gpu_ != nullptr)
      fail(std::string(call) + ": expected an executor on the CPU, found a GPU's");
  }
  // Runs a call. On a GPU it runs after the work that a stream (cudaStream_t) holds, and before
  // work that the stream receives later.
  template <typename Call>
  void on_stream(std::uintptr_t stream, const Call& call) const {
    auto* const callers = reinterpret_cast<void*>(stream);
    if (gpu_ != nullptr) gpu_->begin_behind(transport_->rank(), callers);
    call();
    if (gpu_ != nullptr) gpu_->end_before(transport_->rank(), callers);
  }

  // Held during a call, so that one of another thread is refused before it changes anything.
  [[nodiscard]] TransportUse use(const char* call) const { return {*transport_, call}; }

  [[nodiscard]] std::string kernel_name() const {
    return kernel_ == nullptr ? kernel_name_ : std::string(kernel_->name());
  }

 private:
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Gpu> gpu_;  // null: the CPU
  std::string kernel_name_;
  std::string flight_folder_;
  const AttentionKernel* kernel_ = nullptr;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Executor> executor_;
};

// Bias and dropout of a call, with the arrays that they are read from, on the CPU.
class TermArrays {
 public:
  TermArrays(std::optional<InStats> slopes, std::optional<InTable> table,
             std::optional<InBuckets> buckets, std::int32_t num_buckets, std::int32_t first_offset,
             double dropout, std::uint64_t seed)
      : slopes_(std::move(slopes)), table_(std::move(table)), buckets_(std::move(buckets)) {
    terms_.slopes_H = numbers_of(slopes_, "slopes");
    if (table_) terms_.table_HB = {table_->data(), table_->size()};
    if (buckets_) terms_.buckets = {buckets_->data(), buckets_->size()};
    terms_.num_buckets = num_buckets;
    terms_.first_offset = first_offset;
    terms_.dropout = dropout;
    terms_.dropout_seed = seed;
  }

  [[nodiscard]] const ScoreTerms& terms() const { return terms_; }

 private:
  std::optional<InStats> slopes_;
  std::optional<InTable> table_;
  std::optional<InBuckets> buckets_;
  ScoreTerms terms_;
};

// The comparison of a call with a neighbour's. It ends the group if it is given up.
class PendingAgreement {
 public:
  PendingAgreement(std::shared_ptr<Transport> transport, const PlanObject& plan, std::size_t mask,
                   Direction direction, std::int64_t number, const TermArrays* terms,
                   const std::optional<InStats>& sink)
      : transport_(std::move(transport)) {
    SharedCall call{direction, mask, number, {}, numbers_of(sink, "sink")};
    if (terms != nullptr) call.terms = terms->terms();
    const TransportUse use(*transport_, to_string(direction));
    agreement_.emplace(transport_->control(), *plan.plan, call);
  }
  ~PendingAgreement() {
    if (agreement_) transport_->control().abort("a call was given up before it ended");
  }
  PendingAgreement(const PendingAgreement&) = delete;
  PendingAgreement& operator=(const PendingAgreement&) = delete;

  // Ends the group where calls differ.
  void wait() {
    if (!agreement_) return;
    const TransportUse use(*transport_, "call");
    try {
      agreement_->wait();
    } catch (const std::exception& error) {
      transport_->control().abort(error.what());
      agreement_.reset();
      throw;
    }
    agreement_.reset();
  }

 private:
  const std::shared_ptr<Transport> transport_;
  std::optional<CallAgreement> agreement_;
};

// A call that has begun. The caller keeps the executor and the arrays alive until it has finished.
class PendingCall {
 public:
  PendingCall(Executor& executor, Executor::Handle handle)
      : executor_(executor), handle_(std::move(handle)) {}

  void advance() { executor_.advance(handle()); }
  ExecutionStats finish() {
    static_cast<void>(executor_.finish(std::move(handle())));
    handle_.reset();
    return executor_.last_stats();
  }

 private:
  [[nodiscard]] Executor::Handle& handle() {
    if (!handle_) fail("call: expected one that has not finished, found one that has");
    return *handle_;
  }

  Executor& executor_;
  std::optional<Executor::Handle> handle_;
};

ForwardTensors forward_tensors(const ArrayPlace& place, const InArray& q, const InArray& k,
                               const InArray& v, const std::optional<InStats>& sink,
                               const OutArray& out, const OutStats& lse,
                               const std::optional<OutBytes>& saved) {
  ForwardTensors tensors;
  tensors.q_THD = view_of_array(q, "q", place);
  tensors.k_THD = view_of_array(k, "k", place);
  tensors.v_THD = view_of_array(v, "v", place);
  tensors.sink_H = numbers_of(sink, "sink", place);
  tensors.out_THD = view_of_array(out, "out", place);
  tensors.lse_TH = stats_of_array(lse, tensors.q_THD, "lse", place);
  tensors.saved = bytes_of(saved, "saved", place);
  return tensors;
}

BackwardTensors backward_tensors(const ArrayPlace& place, const InArray& q, const InArray& k,
                                 const InArray& v, const std::optional<InStats>& sink,
                                 const InArray& out, const InStats& lse, const InArray& dout,
                                 const OutArray& dq, const OutArray& dk, const OutArray& dv,
                                 const std::optional<OutStats>& dsink,
                                 const std::optional<InBytes>& saved) {
  BackwardTensors tensors;
  tensors.q_THD = view_of_array(q, "q", place);
  tensors.k_THD = view_of_array(k, "k", place);
  tensors.v_THD = view_of_array(v, "v", place);
  tensors.out_THD = view_of_array(out, "out", place);
  tensors.lse_TH = stats_of_array(lse, tensors.q_THD, "lse", place);
  tensors.dout_THD = view_of_array(dout, "dout", place);
  tensors.sink_H = numbers_of(sink, "sink", place);
  tensors.dq_THD = view_of_array(dq, "dq", place);
  tensors.dk_THD = view_of_array(dk, "dk", place);
  tensors.dv_THD = view_of_array(dv, "dv", place);
  tensors.dsink_H = numbers_of(dsink, "dsink", place);
  tensors.saved = bytes_of(saved, "saved", place);
  return tensors;
}

void forward(RankExecutor& self, std::size_t mask, std::int64_t call, const InArray& q,
             const InArray& k, const InArray& v, const std::optional<InStats>& sink,
             const OutArray& out, const OutStats& lse, const std::optional<OutBytes>& saved,
             const TermArrays* terms, std::uintptr_t stream) {
  ForwardTensors tensors = forward_tensors(self.place(), q, k, v, sink, out, lse, saved);
  if (terms != nullptr) tensors.terms = terms->terms();
  const WithoutGil release;
  const TransportUse use = self.use("forward");
  const auto lent = self.lend(q, k, v, sink, out, lse, saved);
  self.executor().check_same_call({Direction::kForward, mask, call, tensors.terms, tensors.sink_H});
  self.on_stream(stream, [&] { static_cast<void>(self.executor().forward(mask, tensors)); });
}

void backward(RankExecutor& self, std::size_t mask, std::int64_t call, const InArray& q,
              const InArray& k, const InArray& v, const std::optional<InStats>& sink,
              const InArray& out, const InStats& lse, const InArray& dout, const OutArray& dq,
              const OutArray& dk, const OutArray& dv, const std::optional<OutStats>& dsink,
              const std::optional<InBytes>& saved, const TermArrays* terms,
              const std::optional<OutTable>& dtable, std::uintptr_t stream) {
  BackwardTensors tensors =
      backward_tensors(self.place(), q, k, v, sink, out, lse, dout, dq, dk, dv, dsink, saved);
  if (terms != nullptr) tensors.terms = terms->terms();
  if (dtable) tensors.dtable_HB = {dtable->data(), dtable->size()};
  const WithoutGil release;
  const TransportUse use = self.use("backward");
  const auto lent = self.lend(q, k, v, sink, out, lse, dout, dq, dk, dv, dsink, saved);
  self.executor().check_same_call(
      {Direction::kBackward, mask, call, tensors.terms, tensors.sink_H});
  self.on_stream(stream, [&] { self.executor().backward(mask, tensors, Saved()); });
}

PendingCall begin_forward(RankExecutor& self, std::size_t mask, std::int64_t call, const InArray& q,
                          const InArray& k, const InArray& v, const OutArray& out,
                          const OutStats& lse, const std::optional<OutBytes>& saved) {
  self.check_on_host("begin_forward");
  const ForwardTensors tensors =
      forward_tensors(self.place(), q, k, v, std::nullopt, out, lse, saved);
  const WithoutGil release;
  Executor& executor = self.executor();
  return {executor, executor.begin_forward(mask, tensors, call)};
}

PendingCall begin_backward(RankExecutor& self, std::size_t mask, std::int64_t call,
                           const InArray& q, const InArray& k, const InArray& v, const InArray& out,
                           const InStats& lse, const InArray& dout, const OutArray& dq,
                           const OutArray& dk, const OutArray& dv,
                           const std::optional<InBytes>& saved) {
  self.check_on_host("begin_backward");
  const BackwardTensors tensors = backward_tensors(self.place(), q, k, v, std::nullopt, out, lse,
                                                   dout, dq, dk, dv, std::nullopt, saved);
  const WithoutGil release;
  Executor& executor = self.executor();
  return {executor, executor.begin_backward(mask, tensors, Saved(), call)};
}

void bind_calls(nb::module_& module) {
  nb::class_<ExecutionStats>(module, "ExecutionStats",
                             "Bytes and seconds of one call on this rank.")
      .def_ro("sent_bytes", &ExecutionStats::sent_bytes)
      .def_ro("received_bytes", &ExecutionStats::received_bytes)
      .def_ro("total_s", &ExecutionStats::total_s)
      .def_ro("attention_s", &ExecutionStats::attention_s, "Seconds inside the kernel.")
      .def_ro("exposed_s", &ExecutionStats::exposed_s, "Seconds blocked in waits.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ExecutionStats",
                       {"sent_bytes", "received_bytes", "total_s", "attention_s", "exposed_s"});
      });
  nb::class_<TermArrays>(module, "ScoreTerms", "Bias and dropout of a call.")
      .def(nb::init<std::optional<InStats>, std::optional<InTable>, std::optional<InBuckets>,
                    std::int32_t, std::int32_t, double, std::uint64_t>(),
           nb::kw_only(), "slopes"_a.none(), "table"_a.none(), "buckets"_a.none(), "num_buckets"_a,
           "first_offset"_a, "dropout"_a, "seed"_a);
  const auto release = nb::call_guard<WithoutGil>();
  nb::class_<PendingCall>(module, "PendingCall", "A call of attention that has begun.")
      .def("advance", &PendingCall::advance, release,
           "Runs the call up to its last transfer; finish then only waits for results.")
      .def("finish", &PendingCall::finish, release, "Ends the call. Returns its ExecutionStats.");
}

void bind_agreements(nb::module_& module) {
  const auto release = nb::call_guard<WithoutGil>();
  module.def(
      "agree_on_plan",
      [](const std::shared_ptr<Transport>& transport, const PlanObject& plan) {
        const TransportUse use(*transport, "prepare");
        return agree_on_plan(transport->control(), *plan.plan);
      },
      "transport"_a, "plan"_a, release,
      "Returns true if any rank has only a slice of the plan, which all ranks give. Collective. "
      "Raises InvalidPlan, the same on every rank, if plans, versions or numbers of ranks differ.");
  nb::class_<PendingAgreement>(module, "PendingAgreement",
                               "The comparison of a call with the neighbour's.")
      .def("wait", &PendingAgreement::wait, release,
           "Returns when both are the same call. Raises InvalidArgument.");
  module.def(
      "begin_agreement",
      [](std::shared_ptr<Transport> transport, const PlanObject& plan, std::size_t mask,
         const std::string& direction, std::int64_t number, const TermArrays* terms,
         const std::optional<InStats>& sink) {
        return std::make_shared<PendingAgreement>(std::move(transport), plan, mask,
                                                  direction_of(direction), number, terms, sink);
      },
      "transport"_a, "plan"_a, "mask"_a, "direction"_a, "number"_a, "terms"_a.none() = nb::none(),
      "sink"_a.none() = nb::none(),
      "Begins to compare a call with the neighbours': all ranks make the same one, or all learn "
      "that they do not.");
}

}  // namespace

void bind_execution(nb::module_& module) {
  bind_calls(module);
  bind_agreements(module);
  module.def(
      "kernel_table",
      [] {
        std::vector<std::string> names;
        for (const AttentionKernel* kernel : kernels()) names.emplace_back(kernel->name());
        return names;
      },
      "Returns the names of the kernels that this CPU can run, the preferred one for f32 first.");

  const auto release = nb::call_guard<WithoutGil>();
  nb::class_<RankExecutor>(
      module, "RankExecutor",
      "Runs one rank's programs of a plan. It holds buffers but no activations.")
      .def(nb::init<std::shared_ptr<Transport>, std::string, std::string, std::shared_ptr<Gpu>>(),
           "transport"_a, nb::kw_only(), "kernel"_a = "", "flight_folder"_a = "",
           "gpu"_a.none() = nb::none())
      .def("prepare", &RankExecutor::prepare, "plan"_a, release)
      .def(
          "saved_bytes",
          [](const RankExecutor& self, std::size_t mask) {
            return self.executor().saved_bytes(mask);
          },
          "mask"_a)
      .def(
          "find_mask",
          [](const RankExecutor& self, std::string_view name) {
            return find_mask(self.plan(), name);
          },
          "name"_a)
      .def("forward", &forward, nb::kw_only(), "mask"_a, "call"_a, "q"_a, "k"_a, "v"_a,
           "sink"_a.none(), "out"_a, "lse"_a, "saved"_a.none(), "terms"_a.none() = nb::none(),
           "stream"_a = 0)
      .def("backward", &backward, nb::kw_only(), "mask"_a, "call"_a, "q"_a, "k"_a, "v"_a,
           "sink"_a.none(), "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a, "dsink"_a.none(),
           "saved"_a.none(), "terms"_a.none() = nb::none(), "dtable"_a.none() = nb::none(),
           "stream"_a = 0)
      .def("begin_forward", &begin_forward, nb::kw_only(), "mask"_a, "call"_a, "q"_a, "k"_a, "v"_a,
           "out"_a, "lse"_a, "saved"_a.none(), nb::keep_alive<0, 1>())
      .def("begin_backward", &begin_backward, nb::kw_only(), "mask"_a, "call"_a, "q"_a, "k"_a,
           "v"_a, "out"_a, "lse"_a, "dout"_a, "dq"_a, "dk"_a, "dv"_a, "saved"_a.none(),
           nb::keep_alive<0, 1>())
      .def_prop_ro("last_stats", &RankExecutor::last_stats)
      .def_prop_ro("memory_bytes",
                   [](const RankExecutor& self) {
                     const ExecutorMemory memory = self.executor().memory();
                     return memory.staging_bytes + memory.accumulator_bytes +
                            memory.conversion_bytes + memory.workspace_bytes;
                   })
      .def_prop_ro("kernel", &RankExecutor::kernel_name);
}

}  // namespace contextile::python
