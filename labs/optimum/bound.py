"""A lower bound on the simulated time of every plan in given blocks, by CP-SAT.

The model chooses the owner of every block and the device of every tile of every head group. Nothing
is scheduled: each constraint on the time holds for any schedule of the choice.

busy      A device is busy for its runs, one call, one launch if it moves anything, another launch
          and conversions if results leave it or reach it. A run costs at least the lines of
          `Costs.lines_below`, also if several calls share it.
waiting   A device with an input of another device makes a second call, or idles until the first
          input is there. One that sends a result makes another call after the last launch, or idles
          until the result has arrived.
ports     Every input and result that a device needs or sends crosses its ports at least once.
          Inputs are followed by a call with one of their tiles. Results follow a launch, an input
          and a call. Relays only add to this.
nodes     The same for the links of a node.
all       All transfers together cross all ports.

Costs are rounded down to whole nanoseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimum.plans import Placement, repair

try:
    from ortools.sat.python import cp_model
except ImportError:
    cp_model = None

INSTALL = "expected the solver of OR-tools, found none: pip install ortools"


@dataclass
class Solution:
    """The solver's result."""

    status: str  # "optimal", "feasible" or "unknown"
    lower_us: float  # no plan is faster
    model_us: float  # what the placement costs in the model
    placement: Placement | None
    seconds: float


class BoundModel:
    """Variables and constraints. Keys are (block, group, device) unless a name says otherwise."""

    def __init__(self, costs, least_us, limit_us):
        self.costs, self.model = costs, cp_model.CpModel()
        self.devices, self.groups = range(costs.cluster.num_devices), range(costs.groups)
        self.blocks = range(len(costs.tokens))
        self.time = self.model.NewIntVar(
            math.floor(1e3 * least_us), math.ceil(1e3 * limit_us), "time"
        )
        self._place()
        self._find_transfers()
        self._charge()
        self.model.Minimize(self.time)

    def _place(self):
        model, costs = self.model, self.costs
        self.own = {
            (b, d): model.NewBoolVar(f"own{b},{d}") for b in self.blocks for d in self.devices
        }
        for b in self.blocks:
            model.AddExactlyOne(self.own[b, d] for d in self.devices)
        for d in self.devices:
            model.Add(
                sum(costs.tokens[b] * self.own[b, d] for b in self.blocks) <= costs.token_limit
            )
        self._break_symmetry()
        self.at = {}
        for t in range(len(costs.tiles)):
            for g in self.groups:
                for d in self.devices:
                    self.at[t, g, d] = model.NewBoolVar(f"at{t},{g},{d}")
                model.AddExactlyOne(self.at[t, g, d] for d in self.devices)

    def _break_symmetry(self):
        """Devices of one node are alike, and so are nodes: first blocks set their order."""
        width = self.costs.cluster.devices_per_node
        if width == 1 or self.costs.cluster.nodes == 1:
            for b in self.blocks:
                for d in self.devices[1:]:
                    self.model.Add(self.own[b, d] <= sum(self.own[a, d - 1] for a in range(b)))
        else:
            self.model.Add(self.own[0, 0] == 1)

    def _any(self, name, variables):
        """A variable that is at least each of these."""
        found = self.model.NewBoolVar(name)
        for variable in variables:
            self.model.AddImplication(variable, found)
        return found

    def _unless(self, name, needed, owned):
        """A variable that is at least needed - owned."""
        found = self.model.NewBoolVar(name)
        self.model.Add(found >= needed - owned)
        return found

    def _and(self, name, a, b):
        found = self.model.NewBoolVar(name)
        self.model.Add(found >= a + b - 1)
        return found

    def _find_transfers(self):
        """kv, q: inputs that arrive, and results that q brings back; kv_out, q_out: an owner sends
        an input to at least one device."""
        costs = self.costs
        tiles = {"q": {}, "kv": {}}
        for t, tile in enumerate(costs.tiles):
            tiles["q"].setdefault(tile.q_block, []).append(t)
            tiles["kv"].setdefault(tile.kv_block, []).append(t)
        self.arrives, self.leaves = {"q": {}, "kv": {}}, {"q": {}, "kv": {}}
        for kind, of_block in tiles.items():
            for b, members in of_block.items():
                for g in self.groups:
                    for d in self.devices:
                        uses = [self.at[t, g, d] for t in members]
                        used = self._any(f"{kind}used{b},{g},{d}", uses)
                        arrives = self._unless(f"{kind}in{b},{g},{d}", used, self.own[b, d])
                        self.arrives[kind][b, g, d] = arrives
                    inputs = [self.arrives[kind][b, g, d] for d in self.devices]
                    away = self._any(f"{kind}away{b},{g}", inputs)
                    for d in self.devices:
                        leaves = self._and(f"{kind}out{b},{g},{d}", away, self.own[b, d])
                        self.leaves[kind][b, g, d] = leaves

    def _sum(self, variables, weights, device):
        """Total of weights[block] over the variables of a device, each rounded down."""
        return sum(math.floor(weights[b]) * v for (b, _, d), v in variables.items() if d == device)

    def _runs_ns(self, device):
        model, costs = self.model, self.costs
        terms = []
        for (block, begin, end), parts in costs.runs().items():
            rows = end - begin
            lines = costs.lines_below(rows, list(parts.values()))
            most = math.ceil(costs.profile.run_ns(rows, sum(parts.values())))
            for g in self.groups:
                here = {t: self.at[t, g, device] for t in parts}
                starts = self._any(f"run{block},{begin},{g},{device}", list(here.values()))
                cost = model.NewIntVar(0, 2 * most, f"cost{block},{begin},{g},{device}")
                for fixed, slope in lines:
                    work = sum(math.floor(slope * pairs) * here[t] for t, pairs in parts.items())
                    model.Add(cost >= math.floor(fixed) * starts + work)
                terms.append(cost)
        return sum(terms)

    def _charge(self):
        costs = self.costs
        calls = [costs.attention_ns([t]) for t in range(len(costs.tiles))]
        self.first_call_ns = math.floor(costs.call_ns + min(calls))
        self.start_ns = math.floor(costs.launch_ns + costs.latency_ns)
        for d in self.devices:
            self._charge_device(d)
        self._charge_all()
        if costs.has_nodes:
            for node in range(costs.cluster.nodes):
                self._charge_node(node)

    def _charge_device(self, d):
        model, costs = self.model, self.costs
        kv, q = self.arrives["kv"], self.arrives["q"]
        of_device = lambda group: [v for (_, _, at), v in group.items() if at == d]
        reads = self._any(f"reads{d}", of_device(kv) + of_device(q))
        works = self._any(f"works{d}", [v for (_, _, at), v in self.at.items() if at == d])
        sends = of_device(self.leaves["kv"]) + of_device(self.leaves["q"])
        moves = self._any(f"moves{d}", [reads, *sends])
        returns = self._any(f"returns{d}", of_device(q))
        gathers = self._any(f"gathers{d}", of_device(self.leaves["q"]))
        results = self._any(f"results{d}", [returns, gathers])
        launch, call = math.floor(costs.launch_ns), math.floor(costs.call_ns)
        runs = self._runs_ns(d)
        sends_ns = self._sum(q, costs.convert_ns, d)
        gathers_ns = self._sum(self.leaves["q"], costs.convert_ns, d)
        model.Add(
            self.time >= runs + call * works + launch * (moves + results) + sends_ns + gathers_ns
        )
        first = costs.latency_ns + min(*costs.kv_bytes, *costs.q_bytes) / costs.device_rate
        last = costs.latency_ns + min(costs.o_bytes) / costs.device_rate
        # The launch of another group may fall into the first wait.
        first_wait = math.floor(min(costs.call_ns, first - costs.launch_ns))
        last_wait = math.floor(min(costs.call_ns, last))
        waits = max(0, first_wait) * reads + last_wait * returns
        model.Add(self.time >= runs + call * works + launch * (reads + returns) + sends_ns + waits)
        self._charge_ports(d, reads, returns, gathers)

    def _charge_ports(self, d, reads, returns, gathers):
        model, costs, rate = self.model, self.costs, self.costs.device_rate
        sizes = {"kv": costs.kv_bytes, "q": costs.q_bytes, "o": costs.o_bytes}
        per = {name: [size / rate for size in of_blocks] for name, of_blocks in sizes.items()}
        inputs = self._sum(self.arrives["kv"], per["kv"], d) + self._sum(
            self.arrives["q"], per["q"], d
        )
        gathered = self._sum(self.leaves["q"], per["o"], d)
        returned = self._sum(self.arrives["q"], per["o"], d)
        sent = self._sum(self.leaves["kv"], per["kv"], d) + self._sum(self.leaves["q"], per["q"], d)
        # A result needs a query that was sent, and a call with it.
        query_ns, convert_ns = min(costs.q_bytes) / rate, min(costs.convert_ns)
        result = math.floor(2 * self.start_ns + self.first_call_ns + query_ns + convert_ns)
        model.Add(self.time >= inputs + (self.start_ns + self.first_call_ns) * reads)
        model.Add(self.time >= inputs + gathered + self.start_ns * reads)
        model.Add(self.time >= sent + returned)
        model.Add(self.time >= gathered + result * gathers)
        model.Add(self.time >= returned + result * returns)

    def _charge_all(self):
        """Every transfer leaves one port and enters one."""
        costs, rate = self.costs, self.costs.device_rate
        total = sum(
            self._sum(self.arrives[kind], [size / rate for size in sizes], d)
            for kind, sizes in (("kv", costs.kv_bytes), ("q", costs.q_bytes), ("q", costs.o_bytes))
            for d in self.devices
        )
        self.model.Add(len(self.devices) * self.time >= total)

    def _charge_node(self, node):
        costs, model, rate = self.costs, self.model, self.costs.node_rate
        width = costs.cluster.devices_per_node
        here = [d for d in self.devices if d // width == node]
        elsewhere = [d for d in self.devices if d // width != node]
        terms_in, terms_out = [], []
        for kind, sizes in (("kv", costs.kv_bytes), ("q", costs.q_bytes)):
            for b, g in sorted({(b, g) for b, g, _ in self.arrives[kind]}):
                owned = sum(self.own[b, d] for d in here)
                inside = self._any(f"{kind}at{node},{b},{g}", self._users(kind, b, g, here))
                outside = self._any(f"{kind}off{node},{b},{g}", self._users(kind, b, g, elsewhere))
                enters = self._unless(f"{kind}enters{node},{b},{g}", inside, owned)
                exits = self._and(f"{kind}exits{node},{b},{g}", outside, owned)
                size = math.floor(sizes[b] / rate)
                result = math.floor(costs.o_bytes[b] / rate) if kind == "q" else 0
                terms_in.append(size * enters + result * exits)
                terms_out.append(size * exits + result * enters)
        model.Add(self.time >= sum(terms_in))
        model.Add(self.time >= sum(terms_out))

    def _users(self, kind, block, group, devices):
        return [
            self.at[t, group, d]
            for t, tile in enumerate(self.costs.tiles)
            if (tile.q_block if kind == "q" else tile.kv_block) == block
            for d in devices
        ]

    def _choices(self, placement):
        """The variables of a placement with their values, devices in the order of symmetry."""
        width, order = self.costs.cluster.devices_per_node, list(dict.fromkeys(placement.owners))
        number = {d: d for d in self.devices}
        if width == 1 or self.costs.cluster.nodes == 1:
            others = [d for d in self.devices if d not in order]
            number = {d: place for place, d in enumerate(order + others)}
        else:
            # Nodes may be swapped, and devices within a node: the first block is on device 0.
            first = order[0]
            for d in self.devices:
                node = (d // width - first // width) % self.costs.cluster.nodes
                number[d] = node * width + (d - first) % width
        for (b, d), variable in self.own.items():
            yield variable, number[placement.owners[b]] == d
        for (t, g, d), variable in self.at.items():
            yield variable, number[placement.devices[t * len(self.groups) + g]] == d

    def hint(self, placement):
        """Starts the search at a placement."""
        for variable, value in self._choices(placement):
            self.model.AddHint(variable, value)

    def fix(self, placement):
        """Allows this placement only."""
        for variable, value in self._choices(placement):
            self.model.Add(variable == value)

    def placement(self, solver):
        owners = [
            next(d for d in self.devices if solver.Value(self.own[b, d])) for b in self.blocks
        ]
        count = len(self.costs.tiles)
        devices = [
            next(d for d in self.devices if solver.Value(self.at[t, g, d]))
            for t in range(count)
            for g in self.groups
        ]
        found = Placement(owners, devices, [0] * len(devices))
        repair(self.costs, found)
        return found


def least_us_of(costs, placement):
    """The model's time of one placement: no schedule of it is faster."""
    problem = BoundModel(costs, 0, 1e7)
    problem.fix(placement)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.Solve(problem.model)
    if status != cp_model.OPTIMAL:
        found = solver.StatusName(status)
        raise AssertionError(f"expected a placement within the limits, found {found}")
    return solver.ObjectiveValue() / 1e3


def solve(costs, least_us, known, known_us, seconds, threads=2):
    """Solves the model. No plan takes less than `least_us`. `known` is a placement with a plan of
    `known_us`."""
    if cp_model is None:
        raise ModuleNotFoundError(INSTALL)
    problem = BoundModel(costs, least_us, known_us)
    problem.hint(known)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    solver.parameters.relative_gap_limit = 0.005
    status = solver.Solve(problem.model)
    names = {
        cp_model.OPTIMAL: "optimal",
        cp_model.FEASIBLE: "feasible",
        cp_model.UNKNOWN: "unknown",
    }
    if status not in names:
        raise AssertionError(
            f"expected a placement of at most {known_us} µs, found {solver.StatusName(status)}"
        )
    found = status != cp_model.UNKNOWN
    return Solution(
        status=names[status],
        lower_us=max(least_us, solver.BestObjectiveBound() / 1e3),
        model_us=solver.ObjectiveValue() / 1e3 if found else math.nan,
        placement=problem.placement(solver) if found else None,
        seconds=solver.WallTime(),
    )
