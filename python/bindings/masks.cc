// contextile/mask.h: bands, rules, blocks, tiles.
#include <nanobind/operators.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "bind.h"
#include "contextile/mask.h"
#include "mask_object.h"

namespace contextile::python {
namespace {

using Ranges = std::vector<Range>;

Band band_of(const BandRow& row) {
  const auto& [q_begin, q_end, k_begin, k_end, lo, hi] = row;
  return {{q_begin, q_end}, {k_begin, k_end}, lo.value_or(-kUnbounded), hi.value_or(kUnbounded)};
}

BandRow row_of(const Band& band) {
  return {band.q.begin,
          band.q.end,
          band.k.begin,
          band.k.end,
          band.lo <= -kUnbounded ? std::nullopt : std::optional(band.lo),
          band.hi >= kUnbounded ? std::nullopt : std::optional(band.hi)};
}

SliceType slice_type(const std::string& name) {
  if (name == "full") return SliceType::kFull;
  if (name == "causal") return SliceType::kCausal;
  if (name == "inverse_causal") return SliceType::kInverseCausal;
  if (name == "bi_causal") return SliceType::kBiCausal;
  fail("type of a slice: expected full, causal, inverse_causal or bi_causal, found '" + name + "'");
}

MaskObject mask_of_slices(const Ranges& q_ranges, const Ranges& k_ranges,
                          const std::vector<std::string>& types,
                          std::optional<std::int64_t> num_tokens) {
  if (q_ranges.size() != k_ranges.size() || q_ranges.size() != types.size()) {
    fail("slices: expected as many q_ranges, k_ranges and types, found " +
         std::to_string(q_ranges.size()) + ", " + std::to_string(k_ranges.size()) + " and " +
         std::to_string(types.size()));
  }
  std::vector<Slice> slices;
  slices.reserve(types.size());
  for (std::size_t i = 0; i < types.size(); ++i) {
    slices.push_back({q_ranges[i], k_ranges[i], slice_type(types[i])});
  }
  MaskObject object = {.mask = mask_from_slices(slices), .num_tokens = num_tokens};
  if (num_tokens) check_mask(object.mask, *num_tokens);
  return object;
}

using DenseMask = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Row q has the ranges with indices [row_splits[q], row_splits[q + 1]) in begins and ends.
MaskObject mask_of_ragged_rows(const Numbers& row_splits, const Numbers& begins,
                               const Numbers& ends) {
  if (row_splits.shape(0) == 0 || begins.shape(0) != ends.shape(0)) {
    fail("row ranges: expected row_splits of one more than the rows and as many begins as ends");
  }
  std::vector<Ranges> rows(row_splits.shape(0) - 1);
  const auto num_ranges = static_cast<std::int64_t>(begins.shape(0));
  for (std::size_t q = 0; q < rows.size(); ++q) {
    const std::int64_t first = row_splits(q);
    const std::int64_t last = row_splits(q + 1);
    if (first < 0 || last < first || last > num_ranges) {
      fail("row ranges: expected ascending row_splits in [0, " + std::to_string(num_ranges) +
           "], found " + std::to_string(first) + " and " + std::to_string(last) + " of row " +
           std::to_string(q));
    }
    rows[q].reserve(static_cast<std::size_t>(last - first));
    for (std::int64_t i = first; i < last; ++i) {
      rows[q].push_back({begins(static_cast<std::size_t>(i)), ends(static_cast<std::size_t>(i))});
    }
  }
  return {mask_from_row_ranges(rows), static_cast<std::int64_t>(rows.size())};
}

std::vector<std::uint8_t> dense_of(const Mask& mask, std::int64_t num_tokens) {
  constexpr std::int64_t kMost = 1 << 15;
  if (num_tokens < 0 || num_tokens > kMost) {
    fail("dense mask: expected at most " + std::to_string(kMost) + " tokens, found " +
         std::to_string(num_tokens));
  }
  std::vector<std::uint8_t> dense(static_cast<std::size_t>(num_tokens * num_tokens), 0);
  for (const Band& whole : mask.bands) {
    const Band band = clip(whole, {0, num_tokens}, {0, num_tokens});
    for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
      const std::int64_t begin = std::max(band.k.begin, q + band.lo);
      const std::int64_t end = std::min(band.k.end, q + band.hi + 1);
      for (std::int64_t k = begin; k < end; ++k) {
        dense[static_cast<std::size_t>(q * num_tokens + k)] = 1;
      }
    }
  }
  return dense;
}

std::optional<std::pair<std::int64_t, std::int64_t>> offsets_of(const MaskObject& object) {
  std::optional<std::pair<std::int64_t, std::int64_t>> found;
  for (const Band& whole : object.mask.bands) {
    const Band band = clip(whole, whole.q, whole.k);
    if (band.q.empty()) continue;
    const std::int64_t least = std::max(band.lo, band.k.begin - (band.q.end - 1));
    const std::int64_t most = std::min(band.hi, band.k.end - 1 - band.q.begin);
    if (!found) found = {least, most};
    found->first = std::min(found->first, least);
    found->second = std::max(found->second, most);
  }
  return found;
}

nb::object dense_array(const MaskObject& object, std::optional<std::int64_t> asked) {
  const std::optional<std::int64_t> num_tokens = asked ? asked : object.num_tokens;
  if (!num_tokens)
    fail("dense mask: expected num_tokens, for the mask was made without; found none");
  auto flat = numpy_array(dense_of(object.mask, *num_tokens));
  nb::object array = nb::cast(flat);
  return array.attr("reshape")(*num_tokens, *num_tokens).attr("view")("bool");
}

Role role_of(const std::string& name) {
  if (name == "both") return Role::kBoth;
  if (name == "kv_only") return Role::kKvOnly;
  if (name == "q_only") return Role::kQOnly;
  fail("role: expected both, kv_only or q_only, found '" + name + "'");
}

void bind_blocking(nb::module_& module) {
  nb::class_<Blocking>(
      module, "Blocking",
      R"(Token blocks, the units of ownership. A block is an ordered list of disjoint token ranges.

>>> import contextile as ct
>>> blocking = ct.Blocking()
>>> blocking.add([(0, 100), (300, 400)])
0
>>> blocking.num_tokens(0)
200
)")
      .def(nb::init<>())
      .def(
          "add",
          [](Blocking& blocking, const Ranges& ranges, const std::string& role) {
            return blocking.add(ranges, role_of(role));
          },
          "ranges"_a, nb::kw_only(), "role"_a = "both",
          "Appends a block of non-empty ranges (begin, end) and returns its number. role is "
          "'both', 'kv_only' or 'q_only'. Raises InvalidArgument.")
      .def(
          "ranges",
          [](const Blocking& blocking, std::int32_t block) {
            const BlockId id = checked_block(blocking, block);
            return Ranges(blocking.ranges(id).begin(), blocking.ranges(id).end());
          },
          "Returns the token ranges (begin, end) of a block. Raises InvalidArgument.")
      .def(
          "num_tokens",
          [](const Blocking& blocking, std::int32_t block) {
            return blocking.num_tokens(checked_block(blocking, block));
          },
          "Returns the number of tokens of a block. Raises InvalidArgument.")
      .def_prop_ro("total_tokens", &Blocking::total_tokens, "Number of tokens of all blocks.")
      .def("__len__", &Blocking::num_blocks)
      .def("__repr__", [](const Blocking& blocking) {
        return "Blocking(" + std::to_string(blocking.num_blocks()) + " blocks, " +
               std::to_string(blocking.total_tokens()) + " tokens)";
      });
}

void bind_tiles(nb::module_& module) {
  nb::class_<Tile>(module, "Tile", "The attended pairs of a block of queries and a block of keys.")
      .def_ro("q_block", &Tile::q_block)
      .def_ro("kv_block", &Tile::kv_block)
      .def_ro("pairs", &Tile::pairs, "Number of attended (query, key) pairs, above 0.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Tile", {"q_block", "kv_block", "pairs"});
      });
  module.def(
      "tiles",
      [](const MaskObject& object, const Blocking& blocking) {
        return TileIndex(object.mask, blocking).tiles();
      },
      "mask"_a, "blocking"_a, nb::call_guard<WithoutGil>(),
      R"(Returns the non-empty tiles of a mask and a blocking, ordered by (q_block, kv_block).

>>> import contextile as ct
>>> workload = ct.make_workload([60, 40])
>>> [tile.pairs for tile in ct.tiles(workload.mask(), ct.cut_sequences(workload, 64))]
[1830, 820]
)");
}

void bind_mask(nb::module_& module) {
  nb::class_<MaskObject>(
      module, "Mask",
      "A set of attended (query, key) pairs, as pairwise disjoint bands. Made by "
      "the functions contextile.masks.from_… and by Workload.mask.")
      .def_prop_ro(
          "num_pairs", [](const MaskObject& object) { return object.mask.num_pairs(); },
          "Number of attended (query, key) pairs.")
      .def_ro("num_tokens", &MaskObject::num_tokens, "Tokens of the batch; None if not known.")
      .def_prop_ro(
          "bands", [](const MaskObject& object) { return rows_of(object.mask); },
          "Rows (q_begin, q_end, k_begin, k_end, lo, hi). Query q attends key k if both are in "
          "their ranges and lo <= k - q <= hi; None is no bound.")
      .def_prop_ro("offsets", &offsets_of,
                   "Least and largest k - q of all pairs; None if there are none.")
      .def("dense", &dense_array, "num_tokens"_a = nb::none(),
           "Returns the mask as a bool array [num_tokens, num_tokens], of at most 32768 tokens. "
           "Raises InvalidArgument.")
      .def(
          "__eq__",
          [](const MaskObject& a, const MaskObject& b) { return a.mask.bands == b.mask.bands; },
          nb::is_operator())
      .def("__getstate__",
           [](const MaskObject& object) {
             return std::make_pair(rows_of(object.mask), object.num_tokens);
           })
      .def("__setstate__",
           [](MaskObject& self,
              const std::pair<std::vector<BandRow>, std::optional<std::int64_t>>& state) {
             new (&self) MaskObject(mask_of_bands(state.first, state.second));
           })
      .def("__repr__", [](const MaskObject& object) {
        return "Mask(" + std::to_string(object.mask.bands.size()) + " bands, " +
               std::to_string(object.mask.num_pairs()) + " pairs)";
      });
}

void bind_rules(nb::module_& module) {
  nb::class_<MaskSpec>(module, "MaskSpec",
                       "A mask rule with its parameters, for every document on its own. Made by "
                       "contextile.masks.causal and the like.")
      .def_prop_ro("text", [](const MaskSpec& spec) { return to_string(spec); })
      .def(
          "__eq__",
          [](const MaskSpec& a, const MaskSpec& b) { return to_string(a) == to_string(b); },
          nb::is_operator())
      .def("__hash__",
           [](const MaskSpec& spec) { return std::hash<std::string>{}(to_string(spec)); })
      .def("__getstate__", [](const MaskSpec& spec) { return to_string(spec); })
      .def("__setstate__",
           [](MaskSpec& self, const std::string& text) {
             new (&self) MaskSpec(parse_mask_spec(text));
           })
      .def("__str__", [](const MaskSpec& spec) { return to_string(spec); })
      .def("__repr__", [](const MaskSpec& spec) { return "MaskSpec('" + to_string(spec) + "')"; });
}

}  // namespace

std::vector<BandRow> rows_of(const Mask& mask) {
  std::vector<BandRow> rows;
  rows.reserve(mask.bands.size());
  for (const Band& band : mask.bands) rows.push_back(row_of(band));
  return rows;
}

MaskObject mask_of_bands(const std::vector<BandRow>& rows, std::optional<std::int64_t> num_tokens) {
  if (num_tokens && (*num_tokens < 0 || *num_tokens > kMaxTokens)) {
    fail("num_tokens: expected 0 to " + std::to_string(kMaxTokens) + ", found " +
         std::to_string(*num_tokens));
  }
  MaskObject object = {.mask = {}, .num_tokens = num_tokens};
  for (const BandRow& row : rows) object.mask.bands.push_back(band_of(row));
  check_mask(object.mask, num_tokens.value_or(kMaxTokens));
  return object;
}

BlockId checked_block(const Blocking& blocking, std::int32_t block) {
  if (block < 0 || block >= blocking.num_blocks()) {
    fail("block: expected 0 to " + std::to_string(blocking.num_blocks() - 1) + ", found " +
         std::to_string(block));
  }
  return BlockId(block);
}

void bind_masks(nb::module_& module) {
  bind_mask(module);
  bind_rules(module);
  module.def("parse_mask_spec", &parse_mask_spec, "text"_a,
             "Returns the rule of a text as --mask takes it: 'causal', 'lambda:64,4096', … Raises "
             "InvalidArgument.");
  module.def("mask_spec_help", &mask_spec_help,
             "Returns all rules with their parameters, one per line.");
  nb::class_<TokenTree>(module, "TokenTree")
      .def_prop_ro(
          "tokens", [](const TokenTree& tree) { return nb::cast(numpy_array(tree.tokens)); },
          nb::sig("def tokens(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def_ro("mask", &TokenTree::mask)
      .def_ro("branches", &TokenTree::branches);
  module.def(
      "build_token_tree",
      [](const std::vector<std::vector<std::int64_t>>& branches) {
        return build_token_tree(branches);
      },
      "branches"_a, nb::call_guard<WithoutGil>());
  module.def(
      "build_mask",
      [](const MaskSpec& spec, const Ranges& sequences) {
        return MaskObject{build_mask(spec, sequences),
                          sequences.empty() ? 0 : sequences.back().end};
      },
      "spec"_a, "sequences"_a);
  module.def("mask_from_bands", &mask_of_bands, "rows"_a, "num_tokens"_a);
  module.def(
      "mask_from_row_ranges",
      [](const std::vector<Ranges>& rows) {
        return MaskObject{mask_from_row_ranges(rows), static_cast<std::int64_t>(rows.size())};
      },
      "rows"_a);
  module.def("mask_from_ragged_rows", &mask_of_ragged_rows, "row_splits"_a, "begins"_a, "ends"_a);
  module.def(
      "mask_from_dense",
      [](const DenseMask& dense) {
        const auto num_rows = static_cast<std::int64_t>(dense.shape(0));
        return MaskObject{mask_from_dense({dense.data(), dense.size()}, num_rows,
                                          static_cast<std::int64_t>(dense.shape(1))),
                          num_rows};
      },
      "dense"_a);
  module.def("mask_from_slices", &mask_of_slices, "q_ranges"_a, "k_ranges"_a, "types"_a,
             "num_tokens"_a.none());
  bind_blocking(module);
  bind_tiles(module);
}

}  // namespace contextile::python
