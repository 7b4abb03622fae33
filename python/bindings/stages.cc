// contextile/advanced/stage_lists.h: what a rank executes, as arrays.
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "contextile/advanced/executor.h"
#include "contextile/advanced/stage_lists.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

// Returns the arrays of the kinds that have rows.
nb::dict arrays_by_kind(const RowsByKind& rows) {
  nb::dict arrays;
  for (int k = 0; k < kNumKinds; ++k) {
    const RowList& list = rows[static_cast<std::size_t>(k)];
    if (list.empty()) continue;
    arrays[std::string(to_string(static_cast<Kind>(k))).c_str()] = numpy_array(list);
  }
  return arrays;
}

// Returns an array [numbers / width, width].
nb::object table_of(const std::vector<std::int32_t>& numbers, std::int32_t width) {
  return nb::cast(numpy_array(numbers)).attr("reshape")(-1, width);
}

nb::tuple blocks_of(const StageIntervals::Blocks& blocks) {
  return nb::make_tuple(numpy_array(blocks.counts), table_of(blocks.lists, blocks.width));
}

template <typename Number>
nb::list arrays_of(const std::vector<std::vector<Number>>& lists) {
  nb::list arrays;
  for (const std::vector<Number>& list : lists) arrays.append(numpy_array(list));
  return arrays;
}

// Binds a property that copies a list into a new array.
template <typename Class, typename Number>
void add_array(nb::class_<Class>& bound, const char* name, std::vector<Number> Class::*list,
               const char* doc) {
  bound.def_prop_ro(
      name, [list](const Class& self) { return nb::cast(numpy_array(self.*list)); }, doc);
}

void bind_calls_and_intervals(nb::module_& module) {
  nb::class_<StageCall> call(module, "StageCall", "One call of variable-length attention.");
  call.def_prop_ro(
          "entry_class",
          [](const StageCall& self) { return std::string(to_string(self.entry_class)); },
          "Keys that row i of n sees among the m of an entry: 'full', all; 'causal', "
          "j <= i + m - n; 'window', i <= j <= i + window; 'inverse', j >= i.")
      .def_ro("window", &StageCall::window, "Keys before its last that a row of 'window' sees.")
      .def_prop_ro(
          "rows", [](const StageCall& self) { return arrays_by_kind(self.rows); },
          "Rows of the buffers by kind, int64, one entry after the other.")
      .def_ro("max_q", &StageCall::max_q, "Most rows of queries of an entry.")
      .def_ro("max_k", &StageCall::max_k, "Most rows of keys of an entry.")
      .def_ro("pairs", &StageCall::pairs)
      .def_ro("is_first", &StageCall::is_first,
              "True if nothing was added to its rows of results before.");
  add_array(call, "q_offsets", &StageCall::q_offsets, "Ends of the entries' queries, from 0 on.");
  add_array(call, "k_offsets", &StageCall::k_offsets, "Ends of the entries' keys, from 0 on.");
  add_array(call, "groups", &StageCall::groups, "Head group of every entry.");
  add_array(call, "q_tokens", &StageCall::q_tokens, "With tokens=True: token of every query row.");
  add_array(call, "q_positions", &StageCall::q_positions, "The same: its position.");
  add_array(call, "k_tokens", &StageCall::k_tokens, "With tokens=True: token of every key row.");
  add_array(call, "k_positions", &StageCall::k_positions, "The same: its position.");

  nb::class_<StageIntervals>(module, "StageIntervals",
                             "An attention instruction as one call of FlexAttention.")
      .def_prop_ro(
          "rows", [](const StageIntervals& self) { return arrays_by_kind(self.rows); },
          "Rows of the buffers by kind, int64. No key occurs twice.")
      .def_prop_ro(
          "low", [](const StageIntervals& self) { return table_of(self.low, self.width); },
          "First key of every interval, int32 [rows of queries, intervals].")
      .def_prop_ro(
          "high", [](const StageIntervals& self) { return table_of(self.high, self.width); },
          "The key after its last.")
      .def_prop_ro(
          "blocks",
          [](const StageIntervals& self) {
            return nb::make_tuple(blocks_of(self.kv_partial), blocks_of(self.kv_full),
                                  blocks_of(self.q_partial), blocks_of(self.q_full));
          },
          "Numbers of blocks and their lists, as BlockMask takes them: of keys by queries, partial "
          "and full, then of queries by keys.")
      .def_ro_static("block", &StageIntervals::kBlock, "Rows and keys of a block.");
}

void bind_attention(nb::module_& module) {
  nb::class_<StageAttention>(module, "StageAttention", "An attention instruction.")
      .def_prop_ro(
          "calls",
          [](nb::handle self) {
            nb::list calls;
            for (StageCall& call : nb::cast<StageAttention&>(self).calls) {
              calls.append(nb::cast(&call, nb::rv_policy::reference_internal, self));
            }
            return calls;
          },
          "The calls of a variable-length kernel.")
      .def_ro("intervals", &StageAttention::intervals, "With intervals=True: the same as one call.")
      .def_prop_ro(
          "resets", [](const StageAttention& self) { return arrays_by_kind(self.resets); },
          "Rows of results by kind that begin again before the calls.")
      .def_ro("pairs", &StageAttention::pairs)
      .def_ro("is_first", &StageAttention::is_first,
              "True if nothing was added before to any row of results that it writes.")
      .def_ro("num_keys", &StageAttention::num_keys, "Rows of keys without repetition.");
}

void bind_others(nb::module_& module) {
  nb::class_<StageMessage>(module, "StageMessage", "All rows of one kind for one peer.")
      .def_ro("peer", &StageMessage::peer)
      .def_prop_ro("kind",
                   [](const StageMessage& self) { return std::string(to_string(self.kind)); })
      .def_prop_ro("wire",
                   [](const StageMessage& self) { return std::string(to_string(self.wire)); })
      .def_prop_ro("rows",
                   [](const StageMessage& self) { return nb::cast(numpy_array(self.rows)); });
  nb::class_<StageLaunch>(module, "StageLaunch", "Messages that begin together.")
      .def_ro("id", &StageLaunch::id)
      .def_ro("sends", &StageLaunch::sends)
      .def_ro("recvs", &StageLaunch::recvs);
  nb::class_<StageWait>(module, "StageWait", "The end of a launch.").def_ro("id", &StageWait::id);
  nb::class_<StageReduce>(module, "StageReduce", "Results that are merged or added up.")
      .def_prop_ro("kind",
                   [](const StageReduce& self) { return std::string(to_string(self.kind)); })
      .def_prop_ro("dst", [](const StageReduce& self) { return nb::cast(numpy_array(self.dst)); })
      .def_prop_ro(
          "srcs", [](const StageReduce& self) { return arrays_of(self.srcs); },
          "The first sources of all rows, the second ones of the first rows, and so on.");
  nb::class_<StageCopy>(module, "StageCopy", "Rows that are copied.")
      .def_prop_ro("kind", [](const StageCopy& self) { return std::string(to_string(self.kind)); })
      .def_prop_ro("dst", [](const StageCopy& self) { return nb::cast(numpy_array(self.dst)); })
      .def_prop_ro("src", [](const StageCopy& self) { return nb::cast(numpy_array(self.src)); });
}

nb::list instructions_of(nb::handle self) {
  nb::list instructions;
  for (StageInstruction& one : nb::cast<StageProgram&>(self).instructions) {
    std::visit(
        [&](auto& instruction) {
          instructions.append(nb::cast(&instruction, nb::rv_policy::reference_internal, self));
        },
        one);
  }
  return instructions;
}

void bind_program(nb::module_& module) {
  nb::class_<StageProgram>(module, "StageProgram", "What one rank executes in one round.")
      .def_ro("head_groups", &StageProgram::head_groups)
      .def_ro("own_tokens", &StageProgram::own_tokens, "Tokens of the rank in this round.")
      .def_prop_ro(
          "rows",
          [](const StageProgram& self) {
            std::map<std::string, std::int64_t> rows;
            for (int k = 0; k < kNumKinds; ++k) {
              const std::int64_t num = self.rows[static_cast<std::size_t>(k)];
              if (num > 0) rows[std::string(to_string(static_cast<Kind>(k)))] = num;
            }
            return rows;
          },
          "Rows of the buffer of each kind: own_tokens for each head group, then the arena.")
      .def_prop_ro("instructions", &instructions_of,
                   "StageAttention, StageReduce, StageCopy, StageLaunch and StageWait, in order.")
      .def_prop_ro(
          "retain",
          [](const StageProgram& self) {
            nb::list all;
            for (const StageRetain& one : self.retain) {
              all.append(
                  nb::make_tuple(std::string(to_string(one.kind)), one.forward, one.backward));
            }
            return all;
          },
          "(kind, rows (begin, end) of forward, rows of backward) that backward keeps.")
      .def_ro("begin_cut", &StageProgram::begin_cut,
              "Number of instructions that a call may issue while an earlier one has not finished.")
      .def_ro("launches_end", &StageProgram::launches_end,
              "Number of instructions up to the last launch.");
}

}  // namespace

void bind_stages(nb::module_& module, nb::class_<PlanObject>& plan) {
  bind_calls_and_intervals(module);
  bind_attention(module);
  bind_others(module);
  bind_program(module);
  plan.def(
      "stages",
      [](const PlanObject& self, RankArgument rank, const std::string& mask,
         const std::string& direction, bool intervals, bool tokens, std::int64_t max_rows) {
        const Direction way = direction_of(direction);
        const Rank number = rank;
        const WithoutGil release;
        return stage_lists(*self.plan, number, find_mask(*self.plan, mask), way,
                           {.intervals = intervals, .tokens = tokens, .max_rows = max_rows});
      },
      "rank"_a, "mask"_a = "", "direction"_a = "forward", nb::kw_only(), "intervals"_a = false,
      "tokens"_a = false, "max_rows"_a = std::int64_t{1} << 40,
      R"(Returns what a rank executes as arrays, round by round, for kernels on packed rows.

A buffer of each kind has rows [heads of a head group, dim]: the rank's own tokens, head group after
head group, then the staging arena. With ``intervals`` an attention instruction is also one call of
FlexAttention; with ``tokens`` its rows have their tokens and positions. A call of a variable-length
kernel takes further entries while it has at most ``max_rows`` rows; a row of one of n head groups
counts as 1/n. Raises InvalidPlan,
InvalidArgument.)");
}

}  // namespace contextile::python
