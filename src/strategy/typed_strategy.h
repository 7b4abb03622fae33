// Common base of all strategies: it parses options, asks the strategy whether it can plan, and
// writes the strategy's name and options into the arrangement.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/strategy.h"
#include "strategy/disabled_phases.h"
#include "strategy/options.h"
#include "strategy/roundings.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {

// How partial results of the original travel. StrategyRequest::wire overrides it.
enum class PartialWire : std::uint8_t {
  kF32,
  kActivations,  // in the dtype of the activations
  kArranged,     // arrange_with() decides
};

// The description of a strategy.
struct StrategyCard {
  std::string_view name;
  std::string_view summary;  // its source and its method, in one line
  PartialWire wire = PartialWire::kF32;
  Deciding deciding = Deciding::kByRule;
};

// A strategy whose options are the aggregate `Options` (contextile/extend/strategies.h). A subclass
// defines how arrange_with() uses its options, and why it may refuse them.
template <typename Options>
class TypedStrategy : public Strategy {
 public:
  [[nodiscard]] std::string_view name() const final { return card_.name; }
  [[nodiscard]] std::string_view summary() const final { return card_.summary; }
  [[nodiscard]] Deciding deciding() const final { return card_.deciding; }
  [[nodiscard]] std::vector<OptionSpec> options() const final { return table_.specs(); }

  // Converts text to options and back, with the errors of the table.
  [[nodiscard]] Options parse(const std::map<std::string, std::string>& given) const {
    return table_.parse(name(), given);
  }
  [[nodiscard]] StrategyChoice choice(const Options& options) const {
    return {std::string(name()), table_.print_changed(options)};
  }

  [[nodiscard]] std::optional<std::string> unsupported(const Workload& workload,
                                                       const Cluster& cluster,
                                                       const StrategyRequest& request) const final {
    const Options options = options_of(request);
    if (auto reason = unsupported_with(workload, cluster, options)) return reason;
    return unplannable_with(workload, cluster, options);
  }

  [[nodiscard]] std::vector<std::int64_t> block_sizes(const StrategyRequest& request) const final {
    return block_sizes_with(request, options_of(request));
  }

  [[nodiscard]] std::vector<std::map<std::string, std::string>> variants(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const final {
    std::vector<std::map<std::string, std::string>> texts;
    for (const Options& options : variants_with(workload, cluster, request)) {
      texts.push_back(table_.print_changed(options));
    }
    return texts;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const final {
    Options options = options_of(request);
    if (const auto reason = unsupported_with(workload, cluster, options)) refuse(*reason);
    Arrangement arrangement = arrange_with(workload, cluster, request, options);
    align_tokens(workload, cluster, request, arrangement);
    arrangement.strategy = name();
    arrangement.options.merge(table_.print(options));
    if (card_.wire != PartialWire::kArranged) {
      const bool in_f32 = card_.wire == PartialWire::kF32 ||
                          (!request.wire && workload.shape.dtype != Dtype::kF32 &&
                           request.max_roundings != kAnyRoundings &&
                           most_roundings(arrangement) > request.max_roundings);
      arrangement.partial_wire = request.wire.value_or(in_f32 ? Dtype::kF32 : workload.shape.dtype);
    }
    return arrangement;
  }

 protected:
  TypedStrategy(StrategyCard card, OptionTable<Options> table)
      : card_(card), table_(std::move(table)) {}

  // Returns why these options cannot be planned, or nothing. It is called before every
  // arrange_with().
  [[nodiscard]] virtual std::optional<std::string> unsupported_with(const Workload&, const Cluster&,
                                                                    const Options&) const {
    return std::nullopt;
  }
  // The same for reasons that take as long to find as planning itself. Only unsupported() calls it;
  // arrange_with() throws these reasons when it meets them.
  [[nodiscard]] virtual std::optional<std::string> unplannable_with(const Workload&, const Cluster&,
                                                                    const Options&) const {
    return std::nullopt;
  }
  // Implements Strategy::block_sizes.
  [[nodiscard]] virtual std::vector<std::int64_t> block_sizes_with(const StrategyRequest&,
                                                                   const Options&) const {
    return {};
  }
  // Implements Strategy::variants.
  [[nodiscard]] virtual std::vector<Options> variants_with(const Workload&, const Cluster&,
                                                           const StrategyRequest&) const {
    return {Options{}};
  }
  // Returns the rounds. Decisions that `options` leaves open are written to it, and decisions that
  // are no option to the arrangement's options.
  [[nodiscard]] virtual Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                                 const StrategyRequest& request,
                                                 Options& options) const = 0;

  // Returns the options of a request. Throws InvalidArgument on bad options and unknown phases.
  [[nodiscard]] Options options_of(const StrategyRequest& request) const {
    check_disabled_phases(*this, request);
    return parse(request.options);
  }

  [[nodiscard]] PartialWire wire() const { return card_.wire; }
  // Returns all options as text.
  [[nodiscard]] std::map<std::string, std::string> printed(const Options& options) const {
    return table_.print(options);
  }

  [[noreturn]] void refuse(std::string_view reason) const {
    fail_argument("strategy {}: {}", name(), reason);
  }

 private:
  StrategyCard card_;
  OptionTable<Options> table_;
};

// Records the requested block size among the options of a plan whose strategy has no such option.
inline void record_block_size(const StrategyRequest& request, Arrangement& arrangement) {
  if (!request.block_size) return;
  arrangement.options["block_size"] = fmt::format("{}", *request.block_size);
}

}  // namespace contextile
