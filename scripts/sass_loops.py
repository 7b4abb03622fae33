"""Counts the instructions of a kernel's main loop in its machine code (nvdisasm -c).

The main loop is the outermost loop with tensor products. Its step handles one block of streamed
rows. A step follows the shortest path that has all products, copies and barriers. A masked step
also passes every loop over bands once, as if the block had one band. Loops that wait for a barrier
never repeat: counts are of a step that waits for nothing. Branches around rare work are taken: the
sums of cuda:wgmma's forward are only rescaled when a largest score of the warp's rows rises.

Cycles are of a multiprocessor on which one warp of each of its four parts does that step. They
follow from the throughput that the CUDA programming guide lists ("Arithmetic instructions"), and
from 128 bytes per cycle of shared memory. The bound is the largest of them. It ignores latency,
dependencies and conflicts of banks, so it is a floor, not a prediction.
"""

import collections
import dataclasses
import re

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z]\S*)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L_\S+):")
TARGET = re.compile(r"`\((\.L_\S+?)\)")

# Cycles that a part of a multiprocessor needs for an instruction of a warp, and floating point
# operations of all tensor cores in a cycle.
ARCHITECTURES = {
    "sm_80": {"FMA": 2, "ALU": 2, "MUFU": 8, "tensor": 2048},
    "sm_90a": {"FMA": 1, "ALU": 2, "MUFU": 8, "tensor": 4096},
}
PARTS = 4
SHARED_BYTES = 128  # a cycle, of a multiprocessor
TENSOR = ("HGMMA", "HMMA")
UNITS = {
    "FMA": "FFMA FMUL FADD IMAD HFMA2 HADD2 HMUL2 FFMA32I FMUL32I FADD32I",
    "MUFU": "MUFU I2F F2I I2I F2F",
    "shared": "LDS STS LDSM STSM LDGSTS SHFL HGMMA",
    # Control, barriers, constants, global memory. Names that begin with U run next to the rest.
    "none": "BRA EXIT BAR BSSY BSYNC CALL RET NOP WARPSYNC DEPBAR WARPGROUP SYNCS LDC LDG LD STG "
    "ST R2UR S2R CS2R MEMBAR FENCE LDGDEPBAR ERRBAR CCTL YIELD BREAK HMMA ELECT",
}
UNIT_OF = {name: unit for unit, names in UNITS.items() for name in names.split()}


@dataclasses.dataclass
class Instruction:
    address: int
    predicate: str
    name: str  # with its suffixes
    operands: str

    @property
    def base(self):
        return self.name.split(".")[0]

    @property
    def target(self):
        """The label that it jumps to. A call of a label inside the kernel is a jump, too."""
        found = TARGET.search(self.operands) if self.base in ("BRA", "CALL") else None
        return found[1] if found is not None else None

    @property
    def ends(self):
        return self.base in ("BRA", "EXIT", "RET", "BRX", "JMP") or self.target is not None

    @property
    def is_conditional(self):
        return (
            bool(self.predicate)
            or re.match(r"!?U?P\d", self.operands) is not None
            or self.name.startswith("BRA.DIV")
        )


def parse(sass):
    """{kernel: (instructions, {label: index of the instruction behind it})}"""
    kernels, labels, instructions = {}, {}, []
    for line in sass.splitlines():
        if line.startswith(".text."):
            labels, instructions = {}, []
            kernels[line.removeprefix(".text.").rstrip(":")] = (instructions, labels)
        elif (label := LABEL.match(line)) is not None:
            labels[label[1]] = len(instructions)
        elif (found := INSTRUCTION.search(line)) is not None:
            instructions.append(Instruction(int(found[1], 16), found[2] or "", found[3], found[4]))
    return kernels


class Graph:
    """The blocks of a kernel, [begin, end) of its instructions, and its loops."""

    def __init__(self, instructions, labels):
        self.instructions = instructions
        starts = {0, *labels.values(), *(i + 1 for i, one in enumerate(instructions) if one.ends)}
        starts = sorted(start for start in starts if start < len(instructions))
        self.blocks = list(zip(starts, [*starts[1:], len(instructions)], strict=True))
        block_at = {begin: number for number, (begin, _) in enumerate(self.blocks)}
        self.next = []
        for number, (_, end) in enumerate(self.blocks):
            last, after = instructions[end - 1], []
            if last.target is not None and labels[last.target] < len(instructions):
                after.append(block_at[labels[last.target]])
            if (not last.ends or last.is_conditional) and number + 1 < len(self.blocks):
                after.append(number + 1)
            self.next.append(after)
        self.order = self.reached()
        self.loops = self.found_loops()
        self.for_copies = self.found_for_copies()

    def body(self, block):
        begin, end = self.blocks[block]
        return self.instructions[begin:end]

    def count(self, block, *bases):
        return sum(one.base in bases for one in self.body(block))

    def reached(self):
        """Blocks that the entry reaches, in an order where dominators come first."""
        order, state, stack = [], {0: 1}, [(0, iter(self.next[0]))]
        while stack:
            block, rest = stack[-1]
            for after in rest:
                if after not in state:
                    state[after] = 1
                    stack.append((after, iter(self.next[after])))
                    break
            else:
                order.append(block)
                stack.pop()
        return order[::-1]

    def found_loops(self):
        """{first block: all blocks} of every natural loop."""
        order = self.order
        place = {block: i for i, block in enumerate(order)}
        before = collections.defaultdict(list)
        for block in order:
            for after in self.next[block]:
                before[after].append(block)
        dominator, changed = {0: 0}, True

        def meet(a, b):
            while a != b:
                if place[a] > place[b]:
                    a = dominator[a]
                else:
                    b = dominator[b]
            return a

        while changed:
            changed = False
            for block in order[1:]:
                known = [one for one in before[block] if one in dominator]
                new = known[0]
                for one in known[1:]:
                    new = meet(new, one)
                if dominator.get(block) != new:
                    dominator[block], changed = new, True

        def dominates(a, b):
            while b not in (a, 0):
                b = dominator[b]
            return a == b

        loops = {}
        for block in order:
            for first in self.next[block]:
                if not dominates(first, block):
                    continue
                members, rest = loops.setdefault(first, {first}), [block]
                while rest:
                    one = rest.pop()
                    if one not in members:
                        members.add(one)
                        rest.extend(before[one])
        return loops

    def found_for_copies(self):
        """Blocks from which a copy to shared memory is reached before anything else of a step."""
        before = collections.defaultdict(list)
        for block in self.order:
            for after in self.next[block]:
                before[after].append(block)
        rest = [block for block in self.order if self.count(block, "LDGSTS")]
        found = set(rest)
        while rest:
            for block in before[rest.pop()]:
                if block not in found and not self.count(block, "MUFU", "BAR", "LDSM", *TENSOR):
                    found.add(block)
                    rest.append(block)
        return found

    def path(self, first, goal, members):
        """Blocks from `first` to one of `goal`, no edge back: most that is due, then shortest."""
        order = [block for block in self.order if block in members]
        place = {block: i for i, block in enumerate(order)}
        best = {first: ((0, 0), None)}
        for block in order[place[first] :]:
            if block not in best:
                continue
            (missing, length), _ = best[block]
            due = self.count(block, "BAR", *TENSOR) + (
                self.count(block, "LDG", "LD", "LDGSTS") if block in self.for_copies else 0
            )
            cost = (missing - due, length + len(self.body(block)))
            for after in self.next[block]:
                if (
                    after in place
                    and place[after] > place[block]
                    and (after not in best or cost < best[after][0])
                ):
                    best[after] = (cost, block)
        ends = [block for block in goal if block in best]
        if not ends:
            return None
        block = min(ends, key=lambda end: best[end][0])
        found = []
        while block is not None:
            found.append(block)
            block = best[block][1]
        return found[::-1]


def main_loops(graph):
    """First blocks of the outermost loops with products."""
    with_products = [
        first
        for first, members in graph.loops.items()
        if any(graph.count(block, *TENSOR) for block in members)
    ]
    return [
        first
        for first in with_products
        if not any(first != other and first in graph.loops[other] for other in with_products)
    ]


def steps(graph, first):
    """(paths of a step without and with a mask, loops that repeat inside) of a main loop."""
    members = graph.loops[first]
    ends = [block for block in members if first in graph.next[block]]
    inner = {
        head: blocks for head, blocks in graph.loops.items() if head != first and head in members
    }

    def holds(head, *bases):
        return any(graph.count(block, *bases) for block in inner[head])

    repeated = {head: blocks for head, blocks in inner.items() if holds(head, "LDGSTS", *TENSOR)}
    of_bands = [head for head in inner if head not in repeated and holds(head, "LDG", "LD")]
    of_bands = [
        head
        for head in of_bands
        if not any(head in inner[other] for other in of_bands if other != head)
    ]
    in_bands = set().union(*(inner[head] for head in of_bands)) if of_bands else set()
    plain = graph.path(first, ends, members - in_bands)
    masked, at = [first], first
    for head in sorted(of_bands):
        to = graph.path(at, [head], members)
        if to is None or graph.path(head, ends, members) is None:
            continue
        around = graph.path(
            head, [block for block in inner[head] if head in graph.next[block]], inner[head]
        )
        leaves = any(after not in inner[head] for after in graph.next[around[-1]])
        masked += to[1:] + around[1:] + ([] if leaves else [head])
        at = masked[-1]
    rest = graph.path(at, ends, members)
    masked = masked + rest[1:] if rest is not None and len(masked) > 1 else None
    return plain, masked, repeated


def width(name):
    """Wavefronts of shared memory that an instruction of a warp takes: 128 bytes each."""
    matrices = re.search(r"\.MT?88(?:\.(\d))?", name)
    if matrices is not None:
        return int(matrices[1] or 1)
    return 4 if ".128" in name else 2 if ".64" in name else 1


@dataclasses.dataclass
class Product:
    """A product of a warpgroup: 64 rows by `columns`, 16 deep."""

    columns: int
    reads_left: bool  # from shared memory

    @classmethod
    def of(cls, one):
        return cls(
            int(one.name.split(".")[1].split("x")[1]),
            re.match(r"R\d+, R\d+, ", one.operands) is None,
        )

    @property
    def operations(self):
        return 2 * 64 * self.columns * 16

    @property
    def shared_bytes(self):
        return (self.columns + 64 * self.reads_left) * 16 * 2


@dataclasses.dataclass
class Step:
    """A step of a main loop: instructions of a warp, cycles of a multiprocessor."""

    instructions: int
    products: int
    copies: int
    cycles: dict
    gap: int = 0  # most instructions from one product to the next, without a wait for products
    alone: int = 0  # instructions while no product of the warpgroup is under way
    late: int = 0  # exponentials among them

    @property
    def bound(self):
        return max(self.cycles.values())


def weighed(architecture, counted, box_bytes):
    """The step of `counted`: (instruction, number of times). `box_bytes` arrive by TMA."""
    rates = ARCHITECTURES[architecture]
    cycles = dict.fromkeys(("issue", "tensor", "FMA", "ALU", "MUFU", "shared"), 0)
    cycles["shared"] = box_bytes / SHARED_BYTES
    count = collections.Counter()
    for one, times in counted:
        unit = UNIT_OF.get(one.base, "none" if one.base.startswith("U") else "ALU")
        count[one.base] += times
        cycles["issue"] += times
        if unit in rates:
            cycles[unit] += rates[unit] * times
        if one.base == "HGMMA":
            product = Product.of(one)
            cycles["tensor"] += product.operations / rates["tensor"] * times
            cycles["shared"] += product.shared_bytes / SHARED_BYTES * times
        elif one.base == "HMMA":
            cycles["tensor"] += 2 * 16 * 8 * 16 * PARTS / rates["tensor"] * times
        elif unit == "shared":
            cycles["shared"] += width(one.name) * PARTS * times
    step = Step(cycles["issue"], sum(count[name] for name in TENSOR), count["LDGSTS"], cycles)
    if count["HGMMA"]:
        step.gap, step.alone, step.late = overlap([one for one, _ in counted])
    return step


def overlap(instructions):
    """Returns gap, alone and late of a step whose instructions repeat."""
    gap = alone = late = since = 0
    under_way = counts = False
    for lap in range(2):
        for one in instructions:
            since += 1
            if lap and not under_way:
                alone += 1
                late += one.name.startswith("MUFU.EX2")
            if one.base == "HGMMA":
                gap = max(gap, since - 1 if counts else 0)
                since, under_way, counts = 0, True, True
            elif one.name.startswith("WARPGROUP.DEPBAR"):
                under_way = under_way and "0x0" not in one.operands.split(",")[-1]
                counts = False
    return gap, alone, late


@dataclasses.dataclass
class Shape:
    """Expected of a kernel's step: products of a warp (group), copies of a thread."""

    products: int
    scores: tuple = ()  # of each matrix of scores; loops repeat over their depth
    copies: tuple = ()  # of each tensor
    box_bytes: float = 0  # that TMA brings for a consumer


NAME = re.compile(
    r"(wgmma_|paged_|)(forward|backward_dq|backward_dkv|backward_dk|backward_dv|wide|bytes)_"
    r"(?:bf16|f16)_(\d+)(?:_(\d+))?(?:_capped)?$"
)


def shape_of(kernel):
    """The shape of a kernel with a main loop, otherwise None. Blocks are those of tile_shapes.h."""
    found = NAME.match(kernel)
    if found is None:
        return None
    family, kind, dim = found[1], found[2], int(found[3])
    of_values = int(found[4] or dim)
    if family == "wgmma_":
        rows = 64 if kind == "backward_dkv" else 128
        scores = dim // 16 * (1 if kind == "forward" else 2)
        return Shape(
            scores + rows // 16 * (2 if rows == 64 else 1),
            box_bytes=rows * (dim + of_values) * 2 / 2,
        )
    if family == "paged_":
        latent = dim > 256
        widths = (dim,) if latent else (of_values, dim)
        copies = tuple(64 * columns // (16 if kind == "bytes" else 8) // 128 for columns in widths)
        return Shape(2 * dim // 16 + of_values // 4 // 8 * 4, (2 * dim // 16,), copies)
    if kind == "forward":
        rows = 32 if dim > 192 or of_values > 128 else 64
        scores, sums = [dim], [of_values]
    else:
        scores = [dim] + ([of_values] if kind != "backward_dv" else [])
        sums = ([dim] if kind != "backward_dv" else []) + (
            [of_values] if kind in ("backward_dkv", "backward_dv") else []
        )
        narrow = (kind == "backward_dkv" and dim + of_values > 256) or (
            kind in ("backward_dq", "backward_dk") and dim > 192
        )
        rows = 16 if narrow else 32
    scores = tuple(rows // 8 * depth // 16 for depth in scores)
    order = (of_values, dim) if kind == "forward" else (dim, of_values)
    return Shape(
        sum(scores) + sum(width // 8 * rows // 16 for width in sums),
        scores,
        tuple(rows * d // 8 // 128 for d in order),
    )


def times_of(graph, path, repeated, shape):
    """{first block of an inner loop on the path: its number of steps}, from what is due."""
    times, due = {}, {"products": list(shape.scores), "copies": list(shape.copies)}
    for head in sorted(repeated):
        inside = [block for block in path if block in repeated[head]]
        if not inside or any(head != other and head in repeated[other] for other in repeated):
            continue
        products = sum(graph.count(block, *TENSOR) for block in inside)
        kind = "products" if products else "copies"
        if not due[kind]:
            raise ValueError(f"expected {shape}, found one more loop of {kind}")
        times[head] = due[kind].pop(0) / (
            products or sum(graph.count(block, "LDGSTS") for block in inside)
        )
    return times


def steps_of(architecture, kernel, instructions, labels):
    """(step without a mask, step with one, or None) of a kernel's main loop."""
    shape = shape_of(kernel)
    if shape is None:
        return None, None
    graph = Graph(instructions, labels)
    loops = main_loops(graph)
    if len(loops) != 1:
        raise ValueError(f"{kernel}: expected one loop of products, found {len(loops)}")
    plain, masked, repeated = steps(graph, loops[0])

    def step_of(path):
        times, counted = times_of(graph, path, repeated, shape), []
        for block in path:
            inside = [head for head in times if block in repeated[head]]
            counted += [(one, times[inside[0]] if inside else 1) for one in graph.body(block)]
        found = weighed(architecture, counted, shape.box_bytes)
        if (found.products, found.copies) != (shape.products, sum(shape.copies)):
            raise ValueError(
                f"{kernel}: expected {shape}, found {found.products} products and {found.copies} "
                "copies"
            )
        return found

    return step_of(plain), step_of(masked) if masked else None


REGISTER = re.compile(r"(?<![A-Z])R(\d+)(\.64)?")
DONOR = "USETMAXREG.DEALLOC"


def producer_registers(instructions, labels):
    """(registers used behind setmaxnreg.dec, those it leaves), or None without it."""
    graph = Graph(instructions, labels)
    starts = [
        block
        for block in graph.order
        if any(one.name.startswith(DONOR) for one in graph.body(block))
    ]
    if not starts:
        return None
    used, left, seen, rest = 0, 0, set(), list(starts)
    while rest:
        block = rest.pop()
        if block in seen:
            continue
        seen.add(block)
        rest.extend(graph.next[block])
        body = graph.body(block)
        for i, one in enumerate(body):
            if one.name.startswith(DONOR):
                left = int(one.operands.split(",")[-1], 16)
                body = body[i:]
        for one in body:
            for at, (number, pair) in enumerate(REGISTER.findall(one.operands)):
                is_wide = at == 0 and ("WIDE" in one.name or ".64" in one.name)
                used = max(
                    used,
                    int(number)
                    + (4 if at == 0 and ".128" in one.name else 2 if pair or is_wide else 1),
                )
    return used, left


COLUMNS = (
    "kernel",
    "D",
    "step",
    "instructions",
    "tensor",
    "FMA",
    "ALU",
    "MUFU",
    "shared memory",
    "tensor / bound",
    "gap",
    "alone",
)


def table(rows):
    """The table of [(kernel's title, dims, step's title, step)]."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for title, dims, kind, step in rows:
        figures = [
            round(step.cycles[unit]) for unit in ("issue", "tensor", "FMA", "ALU", "MUFU", "shared")
        ]
        beside = [step.gap, step.alone] if step.gap else ["–", "–"]
        cells = [title, dims, kind, *figures, f"{step.cycles['tensor'] / step.bound:.0%}", *beside]
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "".join(f"{line}\n" for line in lines)


# A loop like that of wgmma_forward at D 16 with 16 keys: a product of scores, two exponentials, a
# branch around a loop over bands, a product of weights that is waited for; then a producer.
SAMPLE = """
.text.wgmma_forward_bf16_16:
        /*0000*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_1:
        /*0010*/                   HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], RZ, !UPT, gsb0 ;
        /*0020*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0030*/               @P0 BRA `(.L_x_3) ;
.L_x_2:
        /*0040*/                   LDG.E R4, desc[UR4][R6.64] ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0060*/                   FFMA R4, R24, R25, R26 ;
        /*0070*/                   MUFU.EX2 R4, R4 ;
        /*0080*/                   FMNMX R5, R4, R5, PT ;
        /*0090*/                   UIADD3 UR8, UR8, 0x2, URZ ;
{products}        /*00b0*/              @!P2 BRA `(.L_x_1) ;
        /*00c0*/                   USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
        /*00d0*/                   IMAD.WIDE R22, R3, R4, R6 ;
        /*00e0*/                   EXIT ;
""".replace(
    "{products}",
    "        /*00a0*/                   HGMMA.64x16x16.F32.BF16 R88, R4, gdesc[UR8].tnspB, R88 ;\n"
    * 8,
)


def self_test():
    """Returns what the sample's counts should not be."""
    [(kernel, (instructions, labels))] = parse(SAMPLE).items()
    plain, masked = steps_of("sm_90a", kernel, instructions, labels)
    expected = {"issue": 16, "tensor": 72, "FMA": 1, "ALU": 2, "MUFU": 8, "shared": 20 + 8 * 4 + 32}
    failures = [f"expected {expected}, found {plain.cycles}"] * (plain.cycles != expected)
    found = (
        masked.cycles["issue"],
        plain.gap,
        plain.alone,
        plain.late,
        plain.products,
        producer_registers(instructions, labels),
    )
    wanted = (18, 1, 6, 1, 9, (24, 24))
    return failures + [f"expected {wanted}, found {found}"] * (found != wanted)
