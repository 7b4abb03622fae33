#include "runtime/check/run_error.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/kernel.h"
#include "kernel/tensor.h"
#include "runtime/executor/unit_view.h"

namespace contextile {
namespace {

constexpr double kOutBound = 2e-6;
constexpr double kGradientBound = 1e-5;
constexpr double kSingleDeviceFactor = 1.5;
constexpr double kCancellation = 64;
// Bounds for kernels that round weights (docs/kernels.md says where they round).
constexpr double kRoundedLseBound = 0x1p-18;
constexpr double kRoundedCancellation = 2;

double max_abs(std::span<const double> values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

// delta and the absolute terms of dsink, from the true results.
struct Cancelling {
  double max_delta = 0;
  double max_sink_terms = 0;
};

Cancelling cancelling_terms(const ResultComparison& c) {
  Cancelling terms;
  const auto heads = static_cast<std::size_t>(c.shape.q_heads);
  const auto dim = static_cast<std::size_t>(c.shape.value_dim);
  std::vector<double> sink_terms(heads);
  for (std::size_t row = 0; row < c.truth.lse.size(); ++row) {
    double delta = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      delta += c.batch.dout[row * dim + d] * c.truth.out[row * dim + d];
    }
    terms.max_delta = std::max(terms.max_delta, std::abs(delta));
    if (!c.shape.sink) continue;
    const std::size_t h = row % heads;
    sink_terms[h] += std::exp(c.batch.sink[h] - c.truth.lse[row]) * std::abs(delta);
  }
  terms.max_sink_terms = max_abs(sink_terms);
  return terms;
}

}  // namespace

WireRounding wire_rounding(const Plan& plan, std::size_t mask) {
  WireRounding rounding;
  const bool partials_are_narrow = plan.partial_wire == plan.shape.dtype;
  for (const PlanRound& round : plan.rounds) {
    std::map<std::tuple<Kind, BlockId, GroupId>, int> roundings;
    const auto count = [&](const Program& program) {
      for (const Instruction& instruction : program.instructions) {
        const auto* launch = std::get_if<LaunchOp>(&instruction);
        if (launch == nullptr) continue;
        for (const TransferEnd& send : launch->sends) {
          if (!is_converted(send.kind, send.wire)) continue;
          const bool finished = send.wire == plan.shape.dtype && !partials_are_narrow;
          if (finished && !(send.kind == Kind::kO && plan.shape.sink)) continue;
          int& times = roundings[{send.kind, send.block, send.group}];
          ++times;
          int& most = send.kind == Kind::kO    ? rounding.o
                      : send.kind == Kind::kDq ? rounding.dq
                                               : rounding.dkv;
          most = std::max(most, times);
          rounding.step = std::max(rounding.step, rounding_step(send.wire));
        }
      }
    };
    for (const DeviceProgram& device : round.devices) {
      const ProgramPair& pair = device.programs[mask];
      if (pair.forward) count(*pair.forward);
      if (pair.backward) count(*pair.backward);
    }
  }
  return rounding;
}

double relative_error(std::span<const double> found, std::span<const double> truth, double floor) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (found.size() != truth.size()) return kInfinity;
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == truth[i]) continue;
    const double difference = std::abs(found[i] - truth[i]);
    if (!std::isfinite(difference)) return kInfinity;
    largest = std::max(largest, difference);
  }
  if (largest == 0) return 0;
  return largest / std::max(max_abs(truth), floor);
}

namespace {

// The least denominators of relative errors: at least `least`, and `least_rounded` for the error
// that rounded weights may add.
struct Measure {
  double least = 0;
  double least_rounded = 0;
};

// Returns the measure of an array whose terms cancel.
Measure of_terms(double largest) {
  return {largest / kCancellation, largest / kRoundedCancellation};
}

// Returns the error of a sum that is rounded n times, in roundings of its result: at most n. A
// rounding to nearest is off by an error of mean zero whose deviation is 1/sqrt(3) of the step, and
// is independent of the others. A sum of terms with random signs grows with the square root of
// their number, so the k-th of n roundings weighs sqrt(k/n), and the deviation of all is sqrt(n/6).
// Six deviations cover 10^8 elements.
double error_of_roundings(int n) {
  constexpr double kDeviations = 6;
  return std::min(static_cast<double>(n), kDeviations * std::sqrt(n / 6.0));
}

// Returns how much rounded weights may add to the error of an array as relative_error measures it.
double rounded_bound(double rounding, double largest, const Measure& measure) {
  const double denominator = std::max(largest, measure.least);
  if (denominator == 0) return 0;
  return rounding * std::max(largest, measure.least_rounded) / denominator;
}

}  // namespace

std::vector<RunError> compare_results(const ResultComparison& c) {
  const bool is_rounded = c.weight_dtype != Dtype::kF32;
  const double of_weights = weight_rounding(c.weight_dtype);
  std::vector<RunError> errors;
  const auto add = [&](std::string name, std::vector<double> OracleResult::*array,
                       const Measure& measure, double f32_bound, double weight_bound,
                       int roundings) {
    RunError error;
    error.array = std::move(name);
    error.error = relative_error(c.found.*array, c.truth.*array, measure.least);
    error.single_device_error =
        relative_error(c.single_device.*array, c.truth.*array, measure.least);
    error.bound = f32_bound;
    if (c.shape.dtype != Dtype::kF32) {
      error.bound = std::max(f32_bound, kSingleDeviceFactor * error.single_device_error);
    }
    error.bound =
        std::max(error.bound, rounded_bound(weight_bound, max_abs(c.truth.*array), measure));
    error.bound += error_of_roundings(roundings) * c.rounding.step;
    errors.push_back(std::move(error));
  };
  if (c.with_forward) {
    add("out", &OracleResult::out, {}, kOutBound, of_weights, c.rounding.o);
    add("lse", &OracleResult::lse, {1, 1}, kOutBound, is_rounded ? kRoundedLseBound : 0, 0);
  }
  if (c.with_backward) {
    const Cancelling terms = cancelling_terms(c);
    const double scale = c.shape.effective_scale() * terms.max_delta;
    const int of_delta = 2 * c.rounding.o;
    add("dq", &OracleResult::dq, of_terms(scale * max_abs(c.batch.k)), kGradientBound, of_weights,
        c.rounding.dq + of_delta);
    add("dk", &OracleResult::dk, of_terms(scale * max_abs(c.batch.q)), kGradientBound, of_weights,
        c.rounding.dkv + of_delta);
    add("dv", &OracleResult::dv, {}, kGradientBound, of_weights, c.rounding.dkv);
    if (c.shape.sink) {
      add("dsink", &OracleResult::dsink, of_terms(terms.max_sink_terms), kGradientBound, of_weights,
          of_delta);
    }
  }
  return errors;
}

}  // namespace contextile
