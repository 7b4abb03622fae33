// contextile/extend/arrangement.h: arrangements that are made in Python.
#include <string>

#include "bind.h"
#include "contextile/extend/arrangement.h"
#include "mask_object.h"

namespace contextile::python {
namespace {

Kind kind_of(const std::string& name) {
  for (int k = 0; k < kNumKinds; ++k) {
    if (to_string(static_cast<Kind>(k)) == name) return static_cast<Kind>(k);
  }
  fail("kind: expected q, kv, o, do, dq or dkv, found '" + name + "'");
}

void bind_placed_tile(nb::module_& module) {
  nb::class_<PlacedTile>(
      module, "PlacedTile",
      "A tile with the device that computes it, and the stage. A stage is one attention "
      "call. Blocks, devices and groups count from 0; pairs is Tile.pairs.")
      .def(
          "__init__",
          [](PlacedTile* self, BlockId q_block, BlockId kv_block, Rank device, std::int64_t pairs,
             GroupId group, std::int32_t stage) {
            new (self) PlacedTile{q_block, kv_block, group, device, stage, pairs};
          },
          nb::kw_only(), "q_block"_a, "kv_block"_a, "device"_a, "pairs"_a, "group"_a = 0,
          "stage"_a = 0)
      .def_ro("q_block", &PlacedTile::q_block)
      .def_ro("kv_block", &PlacedTile::kv_block)
      .def_ro("group", &PlacedTile::group, "Head group of its blocks.")
      .def_ro("device", &PlacedTile::device)
      .def_ro("stage", &PlacedTile::stage)
      .def_ro("pairs", &PlacedTile::pairs, "Attended pairs, as contextile.tiles counts them.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "PlacedTile",
                       {"q_block", "kv_block", "group", "device", "stage", "pairs"});
      });
}

void bind_directions(nb::module_& module) {
  bind_placed_tile(module);
  nb::class_<Transfer>(
      module, "Transfer",
      "The move of one unit (kind, block, head group) from device src to device dst. It is "
      "launched before attention of launch_stage and awaited before attention of need_stage, "
      "which is larger. Kinds: 'q', 'kv', 'o' in forward; 'q', 'kv', 'do', 'dq', 'dkv' in "
      "backward.")
      .def(
          "__init__",
          [](Transfer* self, const std::string& kind, BlockId block, Rank src, Rank dst,
             GroupId group, std::int32_t launch_stage, std::int32_t need_stage) {
            new (self) Transfer{kind_of(kind), block, group, src, dst, launch_stage, need_stage};
          },
          nb::kw_only(), "kind"_a, "block"_a, "src"_a, "dst"_a, "group"_a = 0, "launch_stage"_a = 0,
          "need_stage"_a = 1)
      .def_prop_ro("kind",
                   [](const Transfer& transfer) { return std::string(to_string(transfer.kind)); })
      .def_ro("block", &Transfer::block)
      .def_ro("group", &Transfer::group)
      .def_ro("src", &Transfer::src)
      .def_ro("dst", &Transfer::dst)
      .def_ro("launch_stage", &Transfer::launch_stage)
      .def_ro("need_stage", &Transfer::need_stage)
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Transfer",
                       {"kind", "block", "group", "src", "dst", "launch_stage", "need_stage"});
      });
  nb::class_<ArrangedDirection>(
      module, "ArrangedDirection",
      "The tiles and transfers of one direction. Tiles of one device and stage run in listed "
      "order. Transfers between two devices with equal stages travel as one message.")
      .def(
          "__init__",
          [](ArrangedDirection* self, std::vector<PlacedTile> tiles,
             std::vector<Transfer> transfers) {
            new (self) ArrangedDirection{std::move(tiles), std::move(transfers)};
          },
          nb::kw_only(), "tiles"_a, "transfers"_a)
      .def_ro("tiles", &ArrangedDirection::tiles)
      .def_ro("transfers", &ArrangedDirection::transfers);
}

void bind_rounds(nb::module_& module) {
  nb::class_<ArrangedRound>(
      module, "ArrangedRound",
      "A part of the batch with its own blocks and owners. blocks is a Blocking, owners has "
      "the rank of every block, masks and programs have one entry per mask.")
      .def(
          "__init__",
          [](ArrangedRound* self, Blocking blocks, std::vector<Rank> owners,
             const std::vector<MaskObject>& objects, std::vector<ArrangedMask> programs,
             std::int32_t head_groups, std::vector<std::int32_t> block_head_groups) {
            std::vector<Mask> masks;
            for (const MaskObject& object : objects) masks.push_back(object.mask);
            new (self)
                ArrangedRound{std::move(blocks), std::move(owners),   head_groups,
                              std::move(masks),  std::move(programs), std::move(block_head_groups)};
          },
          nb::kw_only(), "blocks"_a, "owners"_a, "masks"_a, "programs"_a, "head_groups"_a = 1,
          "block_head_groups"_a = std::vector<std::int32_t>{})
      .def_ro("blocks", &ArrangedRound::blocks)
      .def_ro("owners", &ArrangedRound::owners, "The rank that owns each block.")
      .def_ro("head_groups", &ArrangedRound::head_groups,
              "Number of head groups of every block; divides the KV heads.")
      .def_ro(
          "block_head_groups", &ArrangedRound::block_head_groups,
          "Head groups of every block, each a divisor of head_groups. Empty: all have head_groups.")
      .def_prop_ro(
          "masks",
          [](const ArrangedRound& round) {
            std::vector<MaskObject> objects;
            for (const Mask& mask : round.masks) objects.push_back({mask});
            return objects;
          },
          "The workload's masks in its order, restricted to this round's tokens.")
      .def_ro("programs", &ArrangedRound::programs, "One ArrangedMask per mask.");
}

}  // namespace

void bind_arrangements(nb::module_& module) {
  bind_directions(module);
  nb::class_<ArrangedMask>(
      module, "ArrangedMask",
      "The forward and backward program of one mask in one round; None: no such direction.")
      .def(
          "__init__",
          [](ArrangedMask* self, std::optional<ArrangedDirection> forward,
             std::optional<ArrangedDirection> backward) {
            new (self) ArrangedMask{std::move(forward), std::move(backward), {}};
          },
          nb::kw_only(), "forward"_a = nb::none(), "backward"_a = nb::none())
      .def_ro("forward", &ArrangedMask::forward)
      .def_ro("backward", &ArrangedMask::backward);
  bind_rounds(module);
  nb::class_<Arrangement>(
      module, "Arrangement",
      "The result of a strategy: which rank owns which token blocks, which device computes which "
      "tiles at which stage, and what moves when. docs/python/strategies.md has an example. Raises "
      "InvalidArgument if partial_wire is no dtype.")
      .def(
          "__init__",
          [](Arrangement* self, std::string strategy, std::vector<ArrangedRound> rounds,
             std::map<std::string, std::string> options, const std::string& partial_wire) {
            Arrangement arrangement;
            arrangement.strategy = std::move(strategy);
            arrangement.options = std::move(options);
            arrangement.partial_wire = parse_dtype(partial_wire);
            arrangement.rounds = std::move(rounds);
            new (self) Arrangement(std::move(arrangement));
          },
          nb::kw_only(), "strategy"_a, "rounds"_a,
          "options"_a = std::map<std::string, std::string>{}, "partial_wire"_a = "f32")
      .def_ro("strategy", &Arrangement::strategy)
      .def_ro("options", &Arrangement::options)
      .def_ro("rounds", &Arrangement::rounds,
              "Rounds, executed in order with a barrier between them.");
}

}  // namespace contextile::python
