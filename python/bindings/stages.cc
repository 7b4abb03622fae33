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

using List = std::vector<std::int32_t>;

// Returns a read-only array of a list's numbers, which keeps their owner alive.
nb::object view_of(const List& list, nb::handle owner) {
  return nb::cast(
      nb::ndarray<nb::numpy, const std::int32_t, nb::ndim<1>>(list.data(), {list.size()}, owner));
}

// Returns the arrays of the kinds that have rows.
nb::dict arrays_by_kind(const RowsByKind& rows, nb::handle owner) {
  nb::dict arrays;
  for (int k = 0; k < kNumKinds; ++k) {
    const RowList& list = rows[static_cast<std::size_t>(k)];
    if (list.empty()) continue;
    arrays[std::string(to_string(static_cast<Kind>(k))).c_str()] = view_of(list, owner);
  }
  return arrays;
}

// Returns an array [numbers / width, width].
nb::object table_of(const List& numbers, std::int32_t width, nb::handle owner) {
  return view_of(numbers, owner).attr("reshape")(-1, width);
}

nb::tuple blocks_of(const StageIntervals::Blocks& blocks, nb::handle owner) {
  return nb::make_tuple(view_of(blocks.counts, owner), table_of(blocks.lists, blocks.width, owner));
}

// Binds a property that is an array of a list.
template <typename Class>
void add_array(nb::class_<Class>& bound, const char* name, List Class::*list, const char* doc) {
  bound.def_prop_ro(
      name, [list](nb::handle self) { return view_of(nb::cast<Class&>(self).*list, self); }, doc);
}

// Binds a property that is the arrays of the kinds that have rows.
template <typename Class>
void add_rows(nb::class_<Class>& bound, const char* name, RowsByKind Class::*rows,
              const char* doc) {
  bound.def_prop_ro(
      name, [rows](nb::handle self) { return arrays_by_kind(nb::cast<Class&>(self).*rows, self); },
      doc);
}

// Binds a property that is a table of numbers.
void add_table(nb::class_<StageIntervals>& bound, const char* name, List StageIntervals::*numbers,
               const char* doc) {
  bound.def_prop_ro(
      name,
      [numbers](nb::handle self) {
        const auto& lists = nb::cast<StageIntervals&>(self);
        return table_of(lists.*numbers, lists.width, self);
      },
      doc);
}

void bind_calls_and_intervals(nb::module_& module) {
  nb::class_<StageCall> call(module, "StageCall", "One call of variable-length attention.");
  call.def_prop_ro(
          "entry_class",
          [](const StageCall& self) { return std::string(to_string(self.entry_class)); },
          "Keys that row i of n sees among the m of an entry: 'full', all; 'causal', "
          "j <= i + m - n; 'window', i <= j <= i + window; 'inverse', j >= i.")
      .def_ro("window", &StageCall::window, "Keys before its last that a row of 'window' sees.")
      .def_ro("max_q", &StageCall::max_q, "Most rows of queries of an entry.")
      .def_ro("max_k", &StageCall::max_k, "Most rows of keys of an entry.")
      .def_ro("pairs", &StageCall::pairs)
      .def_ro("is_first", &StageCall::is_first,
              "True if nothing was added to its rows of results before.");
  add_rows(call, "rows", &StageCall::rows,
           "Rows of the buffers by kind, int32, one entry after the other.");
  add_array(call, "q_offsets", &StageCall::q_offsets, "Ends of the entries' queries, from 0 on.");
  add_array(call, "k_offsets", &StageCall::k_offsets, "Ends of the entries' keys, from 0 on.");
  add_array(call, "groups", &StageCall::groups, "Head group of every entry.");
  add_array(call, "q_tokens", &StageCall::q_tokens, "With tokens=True: token of every query row.");
  add_array(call, "q_positions", &StageCall::q_positions, "The same: its position.");
  add_array(call, "k_tokens", &StageCall::k_tokens, "With tokens=True: token of every key row.");
  add_array(call, "k_positions", &StageCall::k_positions, "The same: its position.");

  nb::class_<StageIntervals> intervals(module, "StageIntervals",
                                       "An attention instruction as one call of FlexAttention.");
  add_rows(intervals, "rows", &StageIntervals::rows,
           "Rows of the buffers by kind, int32. No key occurs twice.");
  add_table(intervals, "low", &StageIntervals::low,
            "First key of every interval, int32 [rows of queries, intervals].");
  add_table(intervals, "high", &StageIntervals::high, "The key after its last.");
  add_array(intervals, "q_tokens", &StageIntervals::q_tokens,
            "With tokens=True: token of every query row.");
  add_array(intervals, "q_positions", &StageIntervals::q_positions, "The same: its position.");
  add_array(intervals, "q_groups", &StageIntervals::q_groups, "The same: its head group.");
  add_array(intervals, "k_tokens", &StageIntervals::k_tokens,
            "With tokens=True: token of every key row.");
  add_array(intervals, "k_positions", &StageIntervals::k_positions, "The same: its position.");
  intervals
      .def_prop_ro(
          "blocks",
          [](nb::handle self) {
            const auto& lists = nb::cast<StageIntervals&>(self);
            return nb::make_tuple(blocks_of(lists.kv_partial, self), blocks_of(lists.kv_full, self),
                                  blocks_of(lists.q_partial, self), blocks_of(lists.q_full, self));
          },
          "Numbers of blocks and their lists, as BlockMask takes them: of keys by queries, partial "
          "and full, then of queries by keys.")
      .def_ro_static("block", &StageIntervals::kBlock, "Rows and keys of a block.");
}

void bind_attention(nb::module_& module) {
  nb::class_<StageAttention> attention(module, "StageAttention", "An attention instruction.");
  attention
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
      .def_ro("pairs", &StageAttention::pairs)
      .def_ro("is_first", &StageAttention::is_first,
              "True if nothing was added before to any row of results that it writes.")
      .def_ro("num_keys", &StageAttention::num_keys, "Rows of keys without repetition.");
  add_rows(attention, "resets", &StageAttention::resets,
           "Rows of results by kind that begin again before the calls.");
}

// Binds the name of a kind of data.
template <typename Class>
void add_kind(nb::class_<Class>& bound) {
  bound.def_prop_ro("kind", [](const Class& self) { return std::string(to_string(self.kind)); });
}

void bind_others(nb::module_& module) {
  nb::class_<StageMessage> message(module, "StageMessage", "All rows of one kind for one peer.");
  message.def_ro("peer", &StageMessage::peer).def_prop_ro("wire", [](const StageMessage& self) {
    return std::string(to_string(self.wire));
  });
  add_kind(message);
  add_array(message, "rows", &StageMessage::rows, "Its rows, int32.");
  nb::class_<StageLaunch>(module, "StageLaunch", "Messages that begin together.")
      .def_ro("id", &StageLaunch::id)
      .def_ro("sends", &StageLaunch::sends)
      .def_ro("recvs", &StageLaunch::recvs);
  nb::class_<StageWait>(module, "StageWait", "The end of a launch.").def_ro("id", &StageWait::id);
  nb::class_<StageReduce> reduce(module, "StageReduce", "Results that are merged or added up.");
  add_kind(reduce);
  add_array(reduce, "dst", &StageReduce::dst, "Rows that are written, int32.");
  reduce.def_prop_ro(
      "srcs",
      [](nb::handle self) {
        nb::list arrays;
        for (const RowList& list : nb::cast<StageReduce&>(self).srcs) {
          arrays.append(view_of(list, self));
        }
        return arrays;
      },
      "The first sources of all rows, the second ones of the first rows, and so on.");
  nb::class_<StageCopy> copy(module, "StageCopy", "Rows that are copied.");
  add_kind(copy);
  add_array(copy, "dst", &StageCopy::dst, "Rows that are written, int32.");
  add_array(copy, "src", &StageCopy::src, "Rows that are read.");
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
