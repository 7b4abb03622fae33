// contextile/workload.h: batches.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "bind.h"
#include "contextile/data.h"
#include "contextile/workload.h"
#include "mask_object.h"

namespace contextile::python {
namespace {

// A rule, one rule per sequence, or bands of the batch.
using AnyMask = std::variant<MaskSpec, std::vector<MaskSpec>, MaskObject>;
// Name, layers, mask.
using MaskEntry = std::tuple<std::string, std::int32_t, AnyMask>;
// None, a layout as load_layout takes it, or (begin, end, rank) of ascending ranges.
using HomeRow = std::tuple<std::int64_t, std::int64_t, std::int32_t>;
using Home = std::variant<std::monostate, std::string, std::vector<HomeRow>>;

Mask built(const AnyMask& mask, const std::vector<Range>& sequences) {
  if (const auto* spec = std::get_if<MaskSpec>(&mask)) return build_mask(*spec, sequences);
  if (const auto* specs = std::get_if<std::vector<MaskSpec>>(&mask)) {
    return build_document_mask(*specs, sequences);
  }
  const auto& object = std::get<MaskObject>(mask);
  if (object.num_tokens && *object.num_tokens != sequences.back().end) {
    fail("mask: expected one of the batch's " + std::to_string(sequences.back().end) +
         " tokens, found one of " + std::to_string(*object.num_tokens));
  }
  return object.mask;
}

// Returns the positions that the rules of a mask set, if it is made of rules.
std::vector<PositionSegment> positions_of(const AnyMask& mask,
                                          const std::vector<Range>& sequences) {
  if (const auto* spec = std::get_if<MaskSpec>(&mask)) return build_positions(*spec, sequences);
  const auto* specs = std::get_if<std::vector<MaskSpec>>(&mask);
  if (specs == nullptr) return {};
  std::vector<PositionSegment> all;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (PositionSegment segment : build_positions((*specs)[s], {&sequences[s], 1})) {
      segment.sequence = static_cast<std::int64_t>(s);
      all.push_back(segment);
    }
  }
  return all;
}

std::vector<HomeRange> home_of(const Home& home, const std::vector<Range>& sequences,
                               std::int32_t num_ranks) {
  if (const auto* layout = std::get_if<std::string>(&home)) {
    return load_layout(*layout, sequences, num_ranks);
  }
  std::vector<HomeRange> ranges;
  if (const auto* rows = std::get_if<std::vector<HomeRow>>(&home)) {
    for (const auto& [begin, end, rank] : *rows) ranges.push_back({{begin, end}, Rank(rank)});
  }
  return ranges;
}

const char* role_name(Role role) { return role == Role::kKvOnly ? "kv_only" : "q_only"; }

std::vector<RoleRange> roles_of(
    const std::vector<std::tuple<std::int64_t, std::int64_t, std::string>>& rows) {
  std::vector<RoleRange> roles;
  for (const auto& [begin, end, role] : rows) {
    if (role != "kv_only" && role != "q_only") {
      fail("roles: expected kv_only or q_only, found '" + role + "'");
    }
    roles.push_back({{begin, end}, role == "kv_only" ? Role::kKvOnly : Role::kQOnly});
  }
  return roles;
}

Workload make(const std::vector<std::int64_t>& lengths, const AttentionShape& shape,
              const std::vector<MaskEntry>& masks, const Home& home, std::int32_t num_ranks,
              const std::vector<std::tuple<std::int64_t, std::int64_t, std::string>>& roles,
              const std::optional<std::vector<std::int64_t>>& token_positions) {
  Workload workload;
  workload.sequences = sequences_from_lengths(lengths);
  workload.shape = shape;
  const std::vector<PositionSegment> plain = build_positions(MaskSpec{}, workload.sequences);
  workload.positions = plain;
  for (const auto& [name, layers, mask] : masks) {
    if (const auto* specs = std::get_if<std::vector<MaskSpec>>(&mask);
        specs != nullptr && specs->size() != workload.sequences.size()) {
      fail("mask '" + name + "': expected a rule for each of " +
           std::to_string(workload.sequences.size()) + " documents, found " +
           std::to_string(specs->size()));
    }
    workload.masks.push_back({name, layers, built(mask, workload.sequences)});
    auto positions = positions_of(mask, workload.sequences);
    if (positions.empty() || positions == plain) continue;
    if (workload.positions != plain && workload.positions != positions) {
      fail("mask '" + name +
           "': expected the branches of the masks before it, because a token has one position, "
           "found others");
    }
    workload.positions = std::move(positions);
  }
  // Rules know their positions. If none has its own, masks without a rule show theirs.
  const bool has_bands = std::ranges::any_of(masks, [](const MaskEntry& entry) {
    return std::holds_alternative<MaskObject>(std::get<2>(entry));
  });
  if (has_bands && workload.positions == plain) {
    std::vector<const Mask*> all;
    for (const NamedMask& mask : workload.masks) all.push_back(&mask.mask);
    workload.positions = infer_positions(all, workload.sequences);
  }
  if (token_positions) set_positions(workload, *token_positions);
  workload.home = home_of(home, workload.sequences, num_ranks);
  workload.roles = roles_of(roles);
  check_workload(workload);
  return workload;
}

// The pickled state: numbers and names, in the order of the fields.
using ShapeState = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t, std::string,
                              double, double, bool>;
using MaskState = std::tuple<std::string, std::int32_t, std::vector<BandRow>>;
using RoleRow = std::tuple<std::int64_t, std::int64_t, std::string>;
using PositionRow = std::tuple<Range, std::int64_t, std::int64_t, std::int64_t>;
using WorkloadState =
    std::tuple<std::vector<Range>, ShapeState, std::vector<MaskState>, std::vector<RoleRow>,
               std::vector<HomeRow>, std::vector<PositionRow>>;

ShapeState state_of(const AttentionShape& shape) {
  return {shape.q_heads,
          shape.kv_heads,
          shape.head_dim,
          shape.value_dim,
          std::string(to_string(shape.dtype)),
          shape.scale,
          shape.softcap,
          shape.sink};
}

AttentionShape shape_of(const ShapeState& state) {
  const auto& [q_heads, kv_heads, head_dim, value_dim, dtype, scale, softcap, sink] = state;
  const AttentionShape shape = {q_heads, kv_heads, head_dim, value_dim, parse_dtype(dtype),
                                scale,   softcap,  sink};
  check_shape(shape);
  return shape;
}

WorkloadState state_of_workload(const Workload& workload) {
  std::vector<MaskState> masks;
  for (const NamedMask& mask : workload.masks) {
    masks.emplace_back(mask.name, mask.layers, rows_of(mask.mask));
  }
  std::vector<RoleRow> roles;
  for (const RoleRange& range : workload.roles) {
    roles.emplace_back(range.tokens.begin, range.tokens.end, role_name(range.role));
  }
  std::vector<HomeRow> home;
  for (const HomeRange& range : workload.home) {
    home.emplace_back(range.tokens.begin, range.tokens.end, range.owner.value);
  }
  std::vector<PositionRow> positions;
  for (const PositionSegment& segment : workload.positions) {
    positions.emplace_back(segment.tokens, segment.sequence, segment.first_position,
                           segment.follows);
  }
  return {workload.sequences, state_of(workload.shape), masks, roles, home, positions};
}

Workload workload_of(const WorkloadState& state) {
  const auto& [sequences, shape, masks, roles, home, positions] = state;
  Workload workload;
  workload.sequences = sequences;
  workload.shape = shape_of(shape);
  for (const auto& [name, layers, rows] : masks) {
    workload.masks.push_back({name, layers, mask_of_bands(rows, std::nullopt).mask});
  }
  workload.roles = roles_of(roles);
  workload.home = home_of(home, workload.sequences, 0);
  for (const auto& [tokens, sequence, first_position, follows] : positions) {
    workload.positions.push_back({tokens, sequence, first_position, follows});
  }
  check_workload(workload);
  return workload;
}

void bind_shapes(nb::module_& module) {
  nb::class_<AttentionShape>(
      module, "AttentionShape",
      R"(The shape of an attention layer. Query head h reads KV head h // (q_heads // kv_heads).

value_dim defaults to head_dim. Raises InvalidArgument for impossible shapes.

>>> import contextile as ct
>>> ct.AttentionShape(q_heads=32, kv_heads=8, head_dim=64).effective_scale
0.125
)")
      .def(
          "__init__",
          [](AttentionShape* self, std::int32_t q_heads, std::int32_t kv_heads,
             std::int32_t head_dim, std::optional<std::int32_t> value_dim, const std::string& dtype,
             double scale, double softcap, bool sink) {
            const AttentionShape shape = {
                q_heads, kv_heads, head_dim, value_dim.value_or(head_dim), parse_dtype(dtype),
                scale,   softcap,  sink};
            check_shape(shape);
            new (self) AttentionShape(shape);
          },
          nb::kw_only(), "q_heads"_a = 32, "kv_heads"_a = 8, "head_dim"_a = 128,
          "value_dim"_a = nb::none(), "dtype"_a = "bf16", "scale"_a = 0.0, "softcap"_a = 0.0,
          "sink"_a = false)
      .def_ro("q_heads", &AttentionShape::q_heads)
      .def_ro("kv_heads", &AttentionShape::kv_heads)
      .def_ro("head_dim", &AttentionShape::head_dim, "Dimension of Q and K.")
      .def_ro("value_dim", &AttentionShape::value_dim, "Dimension of V and O.")
      .def_prop_ro(
          "dtype", [](const AttentionShape& shape) { return std::string(to_string(shape.dtype)); },
          "dtype of Q, K, V, O, dO and gradients: 'f32', 'bf16' or 'f16'.")
      .def_ro("scale", &AttentionShape::scale, "Factor of the scores; 0 means 1/sqrt(head_dim).")
      .def_prop_ro("effective_scale", &AttentionShape::effective_scale,
                   "Factor of the scores, the default filled in.")
      .def_ro("softcap", &AttentionShape::softcap, "The c of c·tanh(s/c); 0 means no softcap.")
      .def_ro("sink", &AttentionShape::sink, "True if every query head has a sink logit.")
      .def(
          "__eq__", [](const AttentionShape& a, const AttentionShape& b) { return a == b; },
          nb::is_operator())
      .def("__getstate__", [](const AttentionShape& shape) { return state_of(shape); })
      .def("__setstate__",
           [](AttentionShape& self, const ShapeState& state) {
             new (&self) AttentionShape(shape_of(state));
           })
      .def("__repr__", [](nb::handle self) {
        return repr_of(
            self, "AttentionShape",
            {"q_heads", "kv_heads", "head_dim", "value_dim", "dtype", "scale", "softcap", "sink"});
      });
}

std::vector<std::int64_t> document_begins(const Workload& workload) {
  std::vector<std::int64_t> begins;
  for (const PositionSegment& segment : workload.positions) {
    if (segment.follows < 0) begins.push_back(segment.tokens.begin);
  }
  return begins;
}

}  // namespace

void bind_workloads(nb::module_& module) {
  bind_shapes(module);
  nb::class_<Workload>(module, "Workload",
                       "A batch: documents end to end, attention shape and masks. It is the input "
                       "of every strategy. Made by contextile.make_workload.")
      .def_prop_ro("num_tokens", &Workload::num_tokens, "Tokens of the batch.")
      .def_ro("sequences", &Workload::sequences, "Token range (begin, end) of every document.")
      .def_ro("shape", &Workload::shape, "AttentionShape of every layer.")
      .def_prop_ro("document_begins", &document_begins,
                   "First token of every document, which no token predicts.")
      .def_prop_ro("mask_names",
                   [](const Workload& workload) {
                     std::vector<std::string> names;
                     for (const NamedMask& mask : workload.masks) names.push_back(mask.name);
                     return names;
                   })
      .def(
          "mask",
          [](const Workload& workload, std::size_t index) {
            if (index >= workload.masks.size()) {
              fail("mask: expected an index below " + std::to_string(workload.masks.size()) +
                   ", found " + std::to_string(index));
            }
            return MaskObject{workload.masks[index].mask, workload.num_tokens()};
          },
          "index"_a = 0, "Returns one of the masks. Raises InvalidArgument.")
      .def(
          "__eq__",
          [](const Workload& a, const Workload& b) {
            return state_of_workload(a) == state_of_workload(b);
          },
          nb::is_operator())
      .def("__getstate__", &state_of_workload)
      .def("__setstate__",
           [](Workload& self, const WorkloadState& state) {
             new (&self) Workload(workload_of(state));
           })
      .def("__repr__", [](const Workload& workload) {
        return "Workload(" + std::to_string(workload.num_tokens()) + " tokens, " +
               std::to_string(workload.sequences.size()) + " documents, " +
               std::to_string(workload.masks.size()) + " masks)";
      });
  module.def("make_workload", &make, "lengths"_a, "shape"_a, "masks"_a, "home"_a.none(),
             "num_ranks"_a, "roles"_a, "positions"_a.none(), nb::call_guard<WithoutGil>());
  module.def(
      "cut_sequences",
      [](const Workload& workload, std::int64_t block_size) {
        return cut_sequences(workload, block_size);
      },
      "workload"_a, "block_size"_a, nb::call_guard<WithoutGil>(),
      R"(Cuts every document into blocks of block_size tokens, of which the last may be shorter.

Blocks are also cut where roles and homes change. Returns a Blocking.

>>> import contextile as ct
>>> len(ct.cut_sequences(ct.make_workload([100, 60]), 64))
3
)");
}

}  // namespace contextile::python
