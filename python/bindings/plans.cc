// contextile/plan.h: plans, their proofs, statistics, files and token layouts.
#include <algorithm>
#include <sstream>
#include <string>
#include <variant>

#include "bind.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "mask_object.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

std::vector<std::string> mask_names(const Plan& plan) {
  std::vector<std::string> names;
  if (plan.rounds.empty()) return names;
  for (const NamedMask& mask : plan.rounds[0].masks) names.push_back(mask.name);
  return names;
}

// Returns the mask over all rounds, each of which has its own tokens.
MaskObject mask_of(const PlanObject& self, std::size_t index) {
  MaskObject object;
  object.num_tokens = self.plan->num_tokens();
  for (const PlanRound& round : self.plan->rounds) {
    if (index >= round.masks.size()) {
      fail("mask: expected an index below " + std::to_string(round.masks.size()) + ", found " +
           std::to_string(index));
    }
    const std::vector<Band>& bands = round.masks[index].mask.bands;
    object.mask.bands.insert(object.mask.bands.end(), bands.begin(), bands.end());
  }
  return object;
}

nb::object positions_array(const PlanObject& self, Rank rank, std::int64_t TokenPosition::*field) {
  std::vector<std::int64_t> values;
  for (const TokenPosition& position : positions(*self.plan, rank))
    values.push_back(position.*field);
  return nb::cast(numpy_array(std::move(values)));
}

using SegmentRow = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

std::vector<SegmentRow> segment_rows(const PlanObject& self) {
  std::vector<SegmentRow> rows;
  for (const auto& [tokens, sequence, first, follows] : self.plan->positions) {
    rows.emplace_back(tokens.begin, tokens.end, sequence, first, follows);
  }
  return rows;
}

nb::object next_tokens_of(const PlanObject& self, Rank rank) {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> tokens;
  for (const NextToken& next : next_tokens(*self.plan, rank)) {
    rows.push_back(next.row);
    tokens.push_back(next.token);
  }
  return nb::make_tuple(numpy_array(std::move(rows)), numpy_array(std::move(tokens)));
}

std::string json_of(const Plan& plan, bool block_head_groups) {
  std::ostringstream out;
  export_json(plan, out, std::nullopt,
              block_head_groups ? ExportedHeadGroups::kOfBlocks : ExportedHeadGroups::kEven);
  return std::move(out).str();
}

template <typename Bytes>
nb::bytes bytes_object(const Bytes& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

void bind_counts(nb::module_& module) {
  nb::class_<DeviceStats>(module, "DeviceStats", "Counts of one device in one direction.")
      .def_ro("sent_bytes", &DeviceStats::sent_bytes)
      .def_ro("received_bytes", &DeviceStats::received_bytes)
      .def_ro("inter_sent_bytes", &DeviceStats::inter_sent_bytes, "Bytes sent to other nodes.")
      .def_ro("inter_received_bytes", &DeviceStats::inter_received_bytes)
      .def_ro("flops", &DeviceStats::flops)
      .def_ro("memory_bytes", &DeviceStats::memory_bytes, "Peak memory over rounds and masks.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "DeviceStats",
                       {"sent_bytes", "received_bytes", "flops", "memory_bytes"});
      });
  nb::class_<DirectionStats>(module, "DirectionStats",
                             "Counts of one direction of one layer of every mask, over all rounds. "
                             "Bytes are counted once, at the sender, including LSE and delta.")
      .def_ro("tiles", &DirectionStats::tiles)
      .def_ro("pairs", &DirectionStats::pairs, "Attended pairs of all tiles of head group 0.")
      .def_ro("transfers", &DirectionStats::transfers)
      .def_ro("messages", &DirectionStats::messages)
      .def_ro("launches", &DirectionStats::launches)
      .def_ro("inter_bytes", &DirectionStats::inter_bytes, "Bytes between nodes.")
      .def_ro("intra_bytes", &DirectionStats::intra_bytes, "Bytes inside nodes.")
      .def_prop_ro("total_bytes", &DirectionStats::total_bytes)
      .def_prop_ro("bytes_by_kind",
                   [](const DirectionStats& stats) {
                     std::map<std::string, std::int64_t> bytes;
                     for (int k = 0; k < kNumKinds; ++k) {
                       bytes[std::string(to_string(static_cast<Kind>(k)))] =
                           stats.bytes_by_kind[static_cast<std::size_t>(k)];
                     }
                     return bytes;
                   })
      .def_ro("max_device_bytes", &DirectionStats::max_device_bytes,
              "Largest max(sent, received) of a device.")
      .def_ro("max_node_uplink_bytes", &DirectionStats::max_node_uplink_bytes)
      .def_ro("flops", &DirectionStats::flops)
      .def_ro("compute_imbalance", &DirectionStats::compute_imbalance,
              "(max - mean) / max of FLOPs.")
      .def_ro("compute_overload", &DirectionStats::compute_overload, "max / mean - 1.")
      .def_ro("peak_memory_bytes", &DirectionStats::peak_memory_bytes)
      .def_ro("retained_bytes", &DirectionStats::retained_bytes,
              "Bytes kept for backward, on the device with the most.")
      .def_ro("devices", &DirectionStats::devices)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "DirectionStats",
                       {"tiles", "inter_bytes", "intra_bytes", "flops", "compute_imbalance",
                        "peak_memory_bytes"});
      });
}

void bind_statistics(nb::module_& module) {
  bind_counts(module);
  nb::class_<PlanStats>(
      module, "PlanStats",
      "Bytes, FLOPs and memory of a plan, by direction. backward is None for a plan "
      "without it.")
      .def_ro("tokens", &PlanStats::tokens)
      .def_ro("token_imbalance", &PlanStats::token_imbalance, "(max - mean) / max of owned tokens.")
      .def_ro("token_overload", &PlanStats::token_overload, "max / mean - 1.")
      .def_ro("forward", &PlanStats::forward)
      .def_ro("backward", &PlanStats::backward)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "PlanStats", {"tokens", "token_imbalance", "forward", "backward"});
      });
  nb::class_<VerifyReport>(
      module, "VerifyReport",
      "The verifier's result. It is true in conditions if the plan is correct.")
      .def_prop_ro("ok", &VerifyReport::ok)
      .def_ro("violations", &VerifyReport::violations,
              "The first violations, causes before consequences.")
      .def_ro("num_violations", &VerifyReport::num_violations)
      .def_ro("warnings", &VerifyReport::warnings)
      .def_ro("grouped_launches_ok", &VerifyReport::grouped_launches_ok)
      .def("__bool__", &VerifyReport::ok)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "VerifyReport", {"ok", "num_violations", "violations", "warnings"});
      });
}

// Returns rows (q begin, q end, k begin, k end, device) of the blocks' hulls, or nothing if there
// are more than `limit`.
std::optional<nb::object> placed_tiles(const PlanObject& self, std::int64_t limit, std::size_t mask,
                                       const std::string& direction) {
  const Direction asked = direction_of(direction);
  const auto hull = [](const Blocking& blocks, BlockId block) {
    Range range = blocks.ranges(block)[0];
    for (const Range& other : blocks.ranges(block)) {
      range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
    }
    return range;
  };
  std::vector<std::int64_t> rows;
  for (const PlanRound& round : self.plan->rounds) {
    for (std::size_t device = 0; device < round.devices.size(); ++device) {
      if (mask >= round.devices[device].programs.size()) continue;
      const auto& program = round.devices[device].programs[mask].of(asked);
      if (!program) continue;
      for (const Instruction& instruction : program->instructions) {
        const auto* attention = std::get_if<AttentionOp>(&instruction);
        if (attention == nullptr) continue;
        for (const TileOp& tile : attention->tiles) {
          if (tile.group.value != 0) continue;
          if (static_cast<std::int64_t>(rows.size() / 5) >= limit) return std::nullopt;
          const Range q = hull(round.blocks, tile.q_block);
          const Range k = hull(round.blocks, tile.kv_block);
          for (const std::int64_t value :
               {q.begin, q.end, k.begin, k.end, static_cast<std::int64_t>(device)}) {
            rows.push_back(value);
          }
        }
      }
    }
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size() / 5);
  return nb::cast(numpy_array(std::move(rows))).attr("reshape")(num_rows, 5);
}

PlanObject object_of(Plan plan) { return {std::make_shared<const Plan>(std::move(plan))}; }

void bind_search(nb::module_& module) {
  nb::class_<SearchPhase>(module, "SearchPhase", "One phase of a search for a plan.")
      .def_ro("name", &SearchPhase::name)
      .def_ro("work", &SearchPhase::work, "Work of the phase, in one line.")
      .def_ro("budget_share", &SearchPhase::budget_share,
              "Share of the search's limits that may be spent when the phase ends, 0 to 1.")
      .def_ro("ran", &SearchPhase::ran, "False if the batch did not need the phase.")
      .def_ro("seconds", &SearchPhase::seconds)
      .def_ro("candidates", &SearchPhase::candidates, "Number of plans simulated in the phase.")
      .def_ro("best_us", &SearchPhase::best_us,
              "Predicted time of the best candidate when the phase ended; None if there is none.")
      .def_ro("improved", &SearchPhase::improved,
              "True if the phase found a better candidate than earlier ones.");
  nb::class_<SearchReport>(module, "SearchReport",
                           "A search for a plan and the candidate that won (Plan.search).")
      .def_ro("phases", &SearchReport::phases, "The phases in the order in which they ran.")
      .def_ro("prepare_s", &SearchReport::prepare_s, "Seconds before the first phase.")
      .def_ro("finish_s", &SearchReport::finish_s, "Seconds after the last one.")
      .def_ro("winner", &SearchReport::winner,
              "'placement', or the name of the strategy whose plan won.")
      .def_ro("winner_options", &SearchReport::winner_options)
      .def_ro("found_in", &SearchReport::found_in, "Name of the phase that found the winner.")
      .def_ro("best_other", &SearchReport::best_other,
              "The best other strategy that the search simulated; empty if it simulated none.")
      .def_ro("best_other_us", &SearchReport::best_other_us,
              "Its predicted time of attention, forward and backward; None if there is none.");
}

void bind_proof(nb::class_<PlanObject>& plan) {
  const auto release = nb::call_guard<WithoutGil>();
  plan.def(
          "verify",
          [](const PlanObject& self, std::int64_t max_shown) {
            return verify(*self.plan, {.max_shown = max_shown});
          },
          nb::kw_only(), "max_shown"_a = 50, release,
          "Proves that every tile is computed once, that data is where it is used, that messages "
          "match, and that there is no race and no deadlock; also checks memory and ownership. "
          "Returns a VerifyReport with at most max_shown violations. Never raises on a broken "
          "plan.")
      .def("placed_tiles", &placed_tiles, nb::kw_only(), "limit"_a = 1'000'000, "mask"_a = 0,
           "direction"_a = "forward",
           nb::sig("def placed_tiles(self, *, limit: int = 1000000, mask: int = 0, "
                   "direction: str = 'forward') -> numpy.typing.NDArray[numpy.int64] | None"),
           "Returns the devices that compute tiles: int64 rows (q_begin, q_end, k_begin, k_end, "
           "device) of the hulls of blocks, for the first head group. None if there are more than "
           "`limit`.")
      .def(
          "stats", [](const PlanObject& self) { return statistics(*self.plan); }, release,
          "Returns PlanStats: bytes, FLOPs and memory, counted from the plan alone.");
}

void bind_layout(nb::class_<PlanObject>& plan) {
  plan.def(
          "num_local_tokens",
          [](const PlanObject& self, RankArgument rank) {
            return num_local_tokens(*self.plan, rank);
          },
          "rank"_a, "Returns the number of tokens that a rank owns.")
      .def(
          "local_tokens",
          [](const PlanObject& self, RankArgument rank) {
            return numpy_array(local_tokens(*self.plan, rank));
          },
          "rank"_a,
          "Returns the index in the batch of every token of a rank, in local order: int64 [local "
          "tokens]. Not collective.")
      .def(
          "local_ranges",
          [](const PlanObject& self, RankArgument rank) { return local_ranges(*self.plan, rank); },
          "rank"_a, "Returns the tokens of a rank as ranges (begin, end), in local order.")
      .def(
          "positions",
          [](const PlanObject& self, RankArgument rank) {
            check_knows_positions(*self.plan, "positions");
            return positions_array(self, rank, &TokenPosition::position);
          },
          "rank"_a,
          "Returns the position in its document, for RoPE, of every token of a rank: int64 [local "
          "tokens]. Raises InvalidArgument if no mask tells them and none were given.")
      .def(
          "sequence_ids",
          [](const PlanObject& self, RankArgument rank) {
            return positions_array(self, rank, &TokenPosition::sequence);
          },
          "rank"_a,
          "Returns the number of the document of every token of a rank: int64 [local tokens].")
      .def_prop_ro(
          "position_segments", &segment_rows,
          "Rows (begin, end, document, first position, follows) of tokens that follow one another. "
          "A row begins a document, or a branch of one, such as another answer to a shared "
          "question. follows is the earlier token that a branch follows, and -1 for others; -2 if "
          "positions were given and no rule tells which token follows which, -3 if positions are "
          "not known either.")
      .def("next_tokens", &next_tokens_of, "rank"_a,
           nb::sig("def next_tokens(self, rank: int) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]"),
           "Returns (rows, tokens): every token that tokens of a rank predict, and the local row "
           "that does. A row behind which branches part has several. Two int64 arrays, ascending. "
           "Raises InvalidArgument if the plan does not know which token follows which.")
      .def(
          "rolled_tokens",
          [](const PlanObject& self, RankArgument rank) {
            return numpy_array(rolled_tokens(*self.plan, rank));
          },
          "rank"_a,
          "Returns the index in the batch of the token that every token of a rank predicts; -1 at "
          "the end of a document or of a branch: int64 [local tokens]. next_tokens also has "
          "those of branches. Raises as next_tokens.");
}

void bind_files(nb::class_<PlanObject>& plan) {
  const auto release = nb::call_guard<WithoutGil>();
  plan.def(
          "save",
          [](const PlanObject& self, const Path& path) { save_plan(*self.plan, path.string()); },
          "path"_a, release,
          "Writes a plan file. An existing file is replaced atomically. Raises IoError.")
      .def_static(
          "load", [](const Path& path) { return object_of(load_plan(path.string())); }, "path"_a,
          release, "Reads a plan file. Raises InvalidPlan and IoError.")
      .def(
          "to_bytes", [](const PlanObject& self) { return bytes_object(serialize(*self.plan)); },
          "Returns the bytes of a plan file.")
      .def_static(
          "from_bytes",
          [](const nb::bytes& bytes) { return object_of(deserialize(span_of(bytes), "bytes")); },
          "data"_a, "Returns the plan of to_bytes(). Raises InvalidPlan.")
      .def(
          "slice_to_bytes",
          [](const PlanObject& self, RankArgument rank) {
            return bytes_object(serialize_slice(*self.plan, rank));
          },
          "rank"_a,
          "Returns the part of the plan that one rank needs to execute it, a fraction of its "
          "bytes.")
      .def_static(
          "slice_from_bytes",
          [](const nb::bytes& bytes) {
            return object_of(deserialize_slice(span_of(bytes), "bytes"));
          },
          "data"_a, "Returns the slice of slice_to_bytes(). Raises InvalidPlan.")
      .def(
          "to_json",
          [](const PlanObject& self, bool block_head_groups) {
            return json_of(*self.plan, block_head_groups);
          },
          nb::kw_only(), "block_head_groups"_a = false, release,
          "Returns the plan as JSON (docs/plan-format.md). By default all blocks are written with "
          "as many head groups as the finest block has; block_head_groups=True writes the groups "
          "of each block.")
      .def_static(
          "from_json", [](std::string_view text) { return object_of(import_json(text, "JSON")); },
          "text"_a, release,
          "Returns the plan of a JSON text, by any author. verify() says whether it is correct. "
          "Raises InvalidPlan.")
      .def("__getstate__",
           [](const PlanObject& self) {
             if (self.plan->slice_of.valid()) fail("pickle: expected a whole plan, found a slice");
             return nb::make_tuple(bytes_object(serialize(*self.plan)),
                                   self.cluster ? to_json(*self.cluster) : std::string());
           })
      .def("__setstate__", [](PlanObject& self, const std::pair<nb::bytes, std::string>& state) {
        PlanObject plan = object_of(deserialize(span_of(state.first), "pickle"));
        if (!state.second.empty()) plan.cluster = parse_cluster_json(state.second, "pickle");
        new (&self) PlanObject(std::move(plan));
      });
}

}  // namespace

Cluster cluster_for(const PlanObject& plan, const MaybeCluster& asked) {
  if (asked) {
    const auto* cluster = std::get_if<Cluster>(&*asked);
    return cluster != nullptr ? *cluster : load_cluster(std::get<std::string>(*asked));
  }
  if (plan.cluster) return *plan.cluster;
  fail("cluster: expected one, for a plan that was not made here; found none. The plan is for '" +
       plan.plan->cluster_name + "', " + std::to_string(plan.plan->nodes) + " x " +
       std::to_string(plan.plan->devices_per_node) + " devices");
}

// How the plan was made, and what it is equal to.
void bind_identity(nb::class_<PlanObject>& plan) {
  plan.def_prop_ro(
          "has_backward",
          [](const PlanObject& self) { return self.plan->has_direction(Direction::kBackward); },
          "True unless it was planned for forward only.")
      .def_prop_ro(
          "digest", [](const PlanObject& self) { return digest_text(self.plan->digest); },
          "16 hexadecimal digits, which are equal for equal plans.")
      .def_prop_ro(
          "slice_of",
          [](const PlanObject& self) -> std::optional<std::int32_t> {
            if (!self.plan->slice_of.valid()) return std::nullopt;
            return self.plan->slice_of.value;
          },
          "The only rank whose programs the plan has; None for a whole plan.")
      .def_ro("arrange_s", &PlanObject::arrange_s,
              "Seconds that the strategy took; 0 for a plan not made here.")
      .def_ro("build_s", &PlanObject::build_s, "Seconds that building the programs took.")
      .def_ro("verify_s", &PlanObject::verify_s, "Seconds that the proof took.")
      .def_ro(
          "search", &PlanObject::search,
          "The search that found the plan, phase by phase. None if the strategy does not search in "
          "phases, or the plan was not made here.")
      .def(
          "__eq__",
          [](const PlanObject& a, const PlanObject& b) {
            return a.plan->digest == b.plan->digest && a.plan->slice_of == b.plan->slice_of;
          },
          nb::is_operator())
      .def("__hash__", [](const PlanObject& self) { return self.plan->digest; })
      .def(
          "__repr__",
          [](nb::handle self) {
            return nb::module_::import_("contextile._plan_display").attr("plan_text")(self);
          },
          nb::sig("def __repr__(self) -> str"))
      .def("_repr_html_", [](nb::handle self) {
        return nb::module_::import_("contextile._plan_display").attr("plan_html")(self);
      });
}

void bind_plans(nb::module_& module) {
  bind_statistics(module);
  bind_search(module);
  nb::class_<PlanObject> plan(
      module, "Plan",
      R"(A plan of one batch: a program of five kinds of instructions per device and direction.

A plan never changes. Equal plans have equal digests. Made by contextile.plan, Plan.load,
Plan.from_bytes and Plan.from_json. Plans can be pickled; slices cannot.

>>> import contextile as ct
>>> plan = ct.plan([500, 90_000, 40_572], cluster="dgx-h200:4x8", strategy="zigzag")
>>> plan.verify().ok, plan.num_devices
(True, 32)
>>> ct.Plan.from_bytes(plan.to_bytes()) == plan
True
)");
  plan.def_prop_ro(
          "strategy", [](const PlanObject& self) { return self.plan->strategy; },
          "Name of the strategy.")
      .def_prop_ro(
          "options", [](const PlanObject& self) { return self.plan->options; },
          "Options of the strategy, as it used them.")
      .def_prop_ro(
          "shape", [](const PlanObject& self) { return self.plan->shape; },
          "AttentionShape of every layer.")
      .def_prop_ro(
          "cluster", [](const PlanObject& self) { return self.cluster; },
          "The cluster that it was planned for; None for a plan from a file.")
      .def_prop_ro("cluster_name", [](const PlanObject& self) { return self.plan->cluster_name; })
      .def_prop_ro("nodes", [](const PlanObject& self) { return self.plan->nodes; })
      .def_prop_ro("devices_per_node",
                   [](const PlanObject& self) { return self.plan->devices_per_node; })
      .def_prop_ro(
          "num_devices", [](const PlanObject& self) { return self.plan->num_devices(); },
          "Number of devices, which are the ranks that execute it.")
      .def_prop_ro(
          "num_tokens", [](const PlanObject& self) { return self.plan->num_tokens(); },
          "Tokens of the batch.")
      .def_prop_ro("num_rounds", [](const PlanObject& self) { return self.plan->rounds.size(); })
      .def_prop_ro(
          "sequences", [](const PlanObject& self) { return self.plan->sequences; },
          "Token range (begin, end) of every document.")
      .def_prop_ro(
          "mask_names", [](const PlanObject& self) { return mask_names(*self.plan); },
          "Names of the masks, in order.")
      .def("mask", &mask_of, "index"_a = 0,
           "Returns one of its masks, also for a slice. Raises InvalidArgument.");
  bind_identity(plan);
  bind_proof(plan);
  bind_layout(plan);
  bind_files(plan);
  bind_stages(module, plan);
}

}  // namespace contextile::python
