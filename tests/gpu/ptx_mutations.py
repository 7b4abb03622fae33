#!/usr/bin/env python3
"""Changes the compiled kernels one instruction at a time, and requires that a test notices each.

  tests/gpu/ptx_mutations.py --nvcc NVCC --build FOLDER [--only TEXT] [--every N]

Each mutation is made in the PTX of every kernel whose name begins as said. The kernels then run on
the machine of src/gpu/emulated under the suites of kernels, with asynchronous work late and at
once. A mutation is caught by a message of the machine, by wrong results, or by a time limit. Prints
a line for each. --every makes only each N-th mutation of a module. Exit 1 if one passes, 77 if
there is no nvcc.
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SECONDS = 120  # of one run
ATTEMPTS = (("late", 1), ("at-once", 1), ("late", 1000))  # timing, first seed

Suite = collections.namedtuple("Suite", "program filter")
CONFORMANCE = (
    "OfDevice/*ForwardEquals*/{0}:OfDevice/*BackwardEquals*/{0}:OfDevice/*TilesOfOneSlot*/{0}"
)
SUITES = {
    "wgmma": Suite("kernel_test", CONFORMANCE.format("cuda_wgmma")),
    "mma": Suite("kernel_test", CONFORMANCE.format("cuda_mma")),
    "paged": Suite(
        "paged_attention_test",
        "PagedAttention.IsThatOfFp64:PagedAttention.TakesHeads*:PagedAttention.ManyKeys*",
    ),
    "rows": Suite("kernel_test", "All/EveryRowOps.*/cuda:RowOps.*"),
}

# `which` is the number of the match in each kernel, from 0, or None for all.
Mutation = collections.namedtuple(
    "Mutation", "what prefix pattern replacement which", defaults=(None,)
)
GONE = ""
ANY = r"[\s\S]*?"
FLIP = "flip"
PARITY = r"mbarrier\.try_wait\.parity\S* p, \[%r\d+\], (%r\d+);"
FENCE = r"fence\.proxy\.async\.shared::cta;"
TMA = (
    r"cp\.async\.bulk\.tensor\S* \[(%r\d+)\], \[(%rd\d+), \{(%r\d+), (%r\d+), (%r\d+)\}\], "
    r"\[%r\d+\];"
)
WGMMA = r"(wgmma\.mma_async\S* \{[^}]*\}, "
LEFT = r"\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}"
MMA = r"(mma\.sync\S*\s+\{[^}]*\}, \s*)"
WGMMA_MUTATIONS = [
    Mutation("fence of mbarriers removed", "wgmma_", r"fence\.mbarrier_init\S*;", GONE),
    Mutation("fence of tensor maps removed", "wgmma_", r"fence\.proxy\.tensormap[^;]*;", GONE),
    Mutation(
        "proxy fence behind cp.async removed",
        "wgmma_forward",
        r"(cp\.async\.wait_all;[^;]*)" + FENCE,
        r"\1",
    ),
    Mutation(
        "proxy fence behind cp.async removed",
        "wgmma_backward",
        r"(cp\.async\.wait_all;[^;]*)" + FENCE,
        r"\1",
    ),
    Mutation("wait for cp.async removed", "wgmma_forward", r"cp\.async\.wait_all;", GONE),
    Mutation("barrier behind mbarrier.init removed", "wgmma_", r"bar\.sync\s+0;", GONE, 0),
    Mutation("barrier of a group removed", "wgmma_forward", r"bar\.sync %r\d+, 128;", GONE),
    Mutation(
        "barrier of a group with 256 threads", "wgmma_", r"(bar\.sync %r\d+), 128;", r"\1, 256;"
    ),
    Mutation("turn that is not awaited", "wgmma_forward", r"bar\.sync %r\d+, 256;", GONE),
    Mutation("turn that is not passed on", "wgmma_forward", r"bar\.arrive %r\d+, 256;", GONE),
    Mutation("wgmma.fence removed", "wgmma_", r"wgmma\.fence\S*;", GONE),
    Mutation("first commit removed", "wgmma_forward", r"wgmma\.commit_group\S*;", GONE, 0),
    Mutation(
        "wait before its commit",
        "wgmma_forward",
        r"(wgmma\.commit_group\S*;)(" + ANY + r")(wgmma\.wait_group\S* 0;)",
        r"\3\2\1",
        0,
    ),
    Mutation("last commit removed", "wgmma_backward", r"wgmma\.commit_group\S*;", GONE, -1),
    Mutation("wait for scores removed", "wgmma_forward", r"wgmma\.wait_group\S* 1;", GONE),
    Mutation(
        "wait for values becomes partial",
        "wgmma_forward",
        r"(wgmma\.wait_group\S*) 0;",
        r"\1 1;",
        1,
    ),
    Mutation(
        "wait for gradients becomes partial",
        "wgmma_backward",
        r"(wgmma\.wait_group\S*) 0;",
        r"\1 1;",
        -1,
    ),
    Mutation("wait for slopes removed", "wgmma_backward", r"wgmma\.wait_group\S* 1;", GONE),
    Mutation("first parity inverted", "wgmma_", PARITY, FLIP, 0),
    Mutation("second parity inverted", "wgmma_", PARITY, FLIP, 1),
    Mutation("third parity inverted", "wgmma_", PARITY, FLIP, 2),
    Mutation(
        "arrival with the bytes removed",
        "wgmma_",
        r"(" + TMA + ANY + r")mbarrier\.arrive[^;]*;",
        r"\1",
    ),
    Mutation("first arrival removed", "wgmma_", r"mbarrier\.arrive[^;]*;", GONE, 0),
    Mutation("last arrival removed", "wgmma_", r"mbarrier\.arrive[^;]*;", GONE, -1),
    Mutation("first arrival doubled", "wgmma_", r"mbarrier\.arrive[^;]*;", r"\g<0> \g<0>", 0),
    Mutation("last arrival doubled", "wgmma_", r"mbarrier\.arrive[^;]*;", r"\g<0> \g<0>", -1),
    Mutation(
        "full mbarrier of 2 arrivals",
        "wgmma_",
        r"(mbarrier\.init\S* \[%r\d+\]), %r\d+;",
        r"\1, 2;",
        0,
    ),
    Mutation(
        "empty mbarrier of 3 arrivals",
        "wgmma_",
        r"(mbarrier\.init\S* \[%r\d+\]), %r\d+;",
        r"\1, 3;",
        1,
    ),
    Mutation(
        "expected bytes too many",
        "wgmma_",
        r"(mbarrier\.expect_tx\S* \[%r\d+\]), %r\d+;",
        r"\1, 65536;",
        0,
    ),
    Mutation("expected bytes not announced", "wgmma_", r"mbarrier\.expect_tx[^;]*;", GONE),
    Mutation(
        "arrival before the bytes are announced",
        "wgmma_",
        r"(mbarrier\.expect_tx[^;]*;" + ANY + r")(mbarrier\.arrive[^;]*;)",
        r"\2 \1",
        0,
    ),
    Mutation("first copy removed", "wgmma_", TMA, GONE, 0),
    Mutation("last copy removed", "wgmma_", TMA, GONE, -1),
    Mutation(
        "heads and tokens of a copy exchanged",
        "wgmma_",
        r"(\[%rd\d+, \{%r\d+), (%r\d+), (%r\d+)\}",
        r"\1, \3, \2}",
    ),
    Mutation(
        "destination of a copy 1 KiB behind",
        "wgmma_",
        r"(complete_tx::bytes \[%r\d+)\]",
        r"\1+1024]",
        0,
    ),
    Mutation(
        "values read as rows", "wgmma_forward", WGMMA + LEFT + r", %rd\d+, 1, 1, 1), 1;", r"\1, 0;"
    ),
    Mutation(
        "keys read transposed",
        "wgmma_forward",
        WGMMA + r"%rd\d+, %rd\d+, p, 1, 1, 0), 0;",
        r"\1, 1;",
    ),
    Mutation(
        "rows read as values",
        "wgmma_backward",
        WGMMA + LEFT + r", %rd\d+, 1, 1, 1), 1;",
        r"\1, 0;",
        0,
    ),
    Mutation(
        "weights exchanged in registers",
        "wgmma_forward",
        WGMMA + r")" + LEFT,
        r"\1{\3, \2, \4, \5}",
    ),
    Mutation(
        "slopes exchanged in registers",
        "wgmma_backward",
        WGMMA + r")" + LEFT,
        r"\1{\2, \3, \5, \4}",
    ),
    Mutation(
        "sums of scores never cleared",
        "wgmma_",
        r"setp\.ne\.b32 p, %r\d+, 0;",
        r"setp.eq.b32 p, 0, 0;",
    ),
    Mutation(
        "sums of scores always cleared",
        "wgmma_",
        r"setp\.ne\.b32 p, %r\d+, 0;",
        r"setp.ne.b32 p, 0, 0;",
    ),
    Mutation(
        "sums of values cleared",
        "wgmma_forward",
        WGMMA + LEFT + r", %rd\d+), 1, 1, 1, 1;",
        r"\1, 0, 1, 1, 1;",
    ),
    Mutation(
        "swizzle of 64 bytes",
        "wgmma_",
        r"46116862933\d{8}",
        lambda found: str(int(found[0]) ^ (3 << 62)),
        0,
    ),
    Mutation(
        "stride of a descriptor doubled",
        "wgmma_",
        r"46116862933\d{8}",
        lambda found: str(int(found[0]) + (64 << 32)),
        0,
    ),
    Mutation(
        "leading bytes of values halved",
        "wgmma_forward",
        r"(add\.s32\s+%r\d+, %r\d+), 67108864;",
        r"\1, 33554432;",
    ),
    Mutation("too many registers", "wgmma_", r"(setmaxnreg\.inc\S*) 240;", r"\1 256;"),
    Mutation("registers not in eights", "wgmma_", r"(setmaxnreg\.dec\S*) 24;", r"\1 28;"),
    Mutation(
        "weights packed the other way",
        "wgmma_forward",
        r"(cvt\.rn\.\w+x2\.f32 %r\d+), (%f\d+), (%f\d+);",
        r"\1, \3, \2;",
    ),
]
# The barrier behind each main loop of cuda:mma and of pages is not needed for its launches, so
# nothing can notice that it is removed.
MMA_MUTATIONS = [
    Mutation("first wait for cp.async removed", "forward", r"cp\.async\.wait_all;", GONE, 0),
    Mutation("second wait for cp.async removed", "forward", r"cp\.async\.wait_all;", GONE, 1),
    Mutation("first wait for cp.async removed", "backward", r"cp\.async\.wait_all;", GONE, 0),
    Mutation("last wait for cp.async removed", "backward", r"cp\.async\.wait_all;", GONE, -1),
    Mutation("first barrier removed", "forward", r"bar\.sync\s+0;", GONE, 0),
    Mutation("second barrier removed", "forward", r"bar\.sync\s+0;", GONE, 1),
    Mutation("first barrier removed", "backward", r"bar\.sync\s+0;", GONE, 0),
    Mutation("second barrier removed", "backward", r"bar\.sync\s+0;", GONE, 1),
    Mutation("barrier of half the threads", "forward", r"bar\.sync\s+0;", "bar.sync 0, 64;", 0),
    Mutation("keys read transposed", "forward", r"m8n8\.x4\.shared", "m8n8.x4.trans.shared", 1),
    Mutation("values not read transposed", "forward", r"x4\.trans\.shared", "x4.shared", 0),
    Mutation(
        "matrix read 16 bytes behind",
        "backward",
        r"(ldmatrix\S* \{[^}]*\}, \[%r\d+)\]",
        r"\1+16]",
        0,
    ),
    Mutation("left factor exchanged", "forward", MMA + LEFT, r"\1{\2, \4, \3, \5}", 0),
    Mutation(
        "right factor exchanged",
        "backward",
        MMA + r"(\{[^}]*\}, \s*)\{(%r\d+), (%r\d+)\}",
        r"\1\2{\4, \3}",
        0,
    ),
    Mutation(
        "rows beyond the last one read",
        "forward",
        r"(cp\.async\.cg\S* \[%r\d+\], \[%rd\d+\], 16), %r\d+;",
        r"\1, 16;",
    ),
    Mutation("copy 16 bytes behind", "backward", r"(cp\.async\.cg\S* \[%r\d+)\]", r"\1+16]", 0),
    Mutation(
        "shuffle of another distance",
        "forward",
        r"(shfl\.sync\.bfly\.b32\s+%r\d+\|%p\d+, %r\d+), %r\d+,",
        r"\1, 4,",
        0,
    ),
]
PAGED_MUTATIONS = [
    Mutation("first wait for cp.async removed", "paged_", r"cp\.async\.wait_all;", GONE, 0),
    Mutation("second wait for cp.async removed", "paged_", r"cp\.async\.wait_all;", GONE, 1),
    Mutation("first barrier removed", "paged_", r"bar\.sync\s+0;", GONE, 0),
    Mutation("second barrier removed", "paged_", r"bar\.sync\s+0;", GONE, 1),
    Mutation("third barrier removed", "paged_", r"bar\.sync\s+0;", GONE, 2),
    Mutation("fourth barrier removed", "paged_", r"bar\.sync\s+0;", GONE, 3),
    Mutation("last barrier removed", "paged_", r"bar\.sync\s+0;", GONE, -1),
    Mutation("values not read transposed", "paged_", r"x4\.trans\.shared", "x4.shared", 0),
    Mutation(
        "next entry of a page table",
        "paged_",
        r"(ld\.shared\.s32\s+%rd\d+, \[%r\d+)\+4\]",
        r"\1+12]",
        0,
    ),
    Mutation("maxima of warps not stored", "paged_", r"st\.shared\.f32[^;]*;", GONE, 0),
]
ROWS_MUTATIONS = [
    Mutation(
        "result stored 4 bytes behind", "rows_merge", r"(st\.global\S*\s+\[%rd\d+)\]", r"\1+4]", 0
    ),
    Mutation("row that is one too many", "rows_", r"setp\.ge\.s32", "setp.gt.s32", 0),
    Mutation("sum of doubles subtracted", "rows_", r"add\.rn\.f64", "sub.rn.f64", 0),
]
MUTATIONS = {
    "wgmma": WGMMA_MUTATIONS,
    "mma": MMA_MUTATIONS,
    "paged": PAGED_MUTATIONS,
    "rows": ROWS_MUTATIONS,
}


def kernels_of(text):
    """Parts of a module: (name or None, text), each kernel with its body."""
    at = 0
    for entry in re.finditer(r"\.visible \.entry (\w+)\(", text):
        open_at = end = text.index("{", text.index(")", entry.end()))
        depth = 0
        while True:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
            if depth == 0:
                break
        yield None, text[at:open_at]
        yield entry[1], text[open_at:end]
        at = end
    yield None, text[at:]


def changed(body, mutation):
    found = list(re.finditer(mutation.pattern, body))
    if mutation.which is not None:
        found = found[mutation.which :][:1] if -len(found) <= mutation.which < len(found) else []
    for match in reversed(found):
        if mutation.replacement == FLIP:
            body = flipped(body, match)
            continue
        new = (
            mutation.replacement(match)
            if callable(mutation.replacement)
            else match.expand(mutation.replacement)
        )
        body = body[: match.start()] + new + body[match.end() :]
    return body


def flipped(body, match):
    """The body with a wait for the other parity, which has a register of its own."""
    line = body.rindex("\n", 0, match.start()) + 1
    wait = body[line : match.end()].replace(f", {match[1]};", ", %flipped0;")
    return body[:line] + f"xor.b32 %flipped0, {match[1]}, 1;\n" + wait + body[match.end() :]


def mutated(text, mutation):
    """The module with the mutation, or None if no kernel has such an instruction."""
    parts, is_changed = [], False
    for name, part in kernels_of(text):
        if name is not None and name.startswith(mutation.prefix):
            new = changed(part, mutation)
            is_changed |= new != part
            part = new.replace("{", "{\n.reg .b32 %flipped<1>;", 1)
        parts.append(part)
    return "".join(parts) if is_changed else None


def run(build, folder, suite, timing, seed):
    """How the tests ended: None if they passed, or what noticed."""
    environment = dict(
        os.environ,
        CONTEXTILE_TEST_GPU="0",
        CONTEXTILE_CUDA_KERNELS=str(folder),
        CONTEXTILE_PTX_TIMING=timing,
        CONTEXTILE_PTX_SEED=str(seed),
        LD_LIBRARY_PATH=str(folder),
    )
    command = [
        build / suite.program,
        f"--gtest_filter={suite.filter}",
        "--gtest_fail_fast",
        "--gtest_brief=1",
    ]
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no end within {SECONDS} s"
    output = ended.stdout + ended.stderr
    if not re.search(r"ptx: \d+ launches", output) and ended.returncode == 0:
        sys.exit(f"ptx_mutations: expected tests that run PTX, found {output[-500:]}")
    if ended.returncode == 0:
        return None
    if ended.returncode < 0:
        sys.exit(
            f"ptx_mutations: expected tests that end, found signal {-ended.returncode}: "
            f"{output[-500:]}"
        )
    messages = [
        line
        for line in output.splitlines()
        if line.startswith("ptx: ") and not re.match(r"ptx: \d+ launches", line)
    ]
    return shortened(messages[0]) if messages else "wrong results"


def shortened(message):
    """A message without operands of instructions, which are long."""
    message = re.sub(r"\s+", " ", re.sub(r"[\[{][^:]*[\]}]", "…", message.removeprefix("ptx: ")))
    return message if len(message) < 160 else f"{message[:60]} … {message[-95:]}"


def prepare(arguments):
    """Compiles, and makes the folder of a device whose other modules run in loops."""
    ptx = arguments.build / "cuda"
    folder = arguments.build / "ptx_mutations"
    for path in (ptx, folder):
        path.mkdir(exist_ok=True)
    subprocess.run(
        [ROOT / "scripts/cuda-kernels", "--nvcc", arguments.nvcc, "--ptx", "--output", ptx],
        check=True,
    )
    library = folder / "libcuda.so.1"
    library.unlink(missing_ok=True)
    library.symlink_to(next(arguments.build.glob("**/libcontextile_fake_libcuda.so")))
    return ptx, folder


def put_modules(folder, module, text):
    for old in folder.glob("*.cubin"):
        old.unlink()
    for name in ("mma", "paged", "rows"):
        (folder / f"{name}.sm_90a.cubin").write_text(f"// {name}")
    (folder / f"{module}.sm_90a.cubin").write_text(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    if shutil.which(arguments.nvcc) is None:
        print("ptx_mutations: skipped: expected nvcc to compile the kernels with, found none")
        sys.exit(77)
    ptx, folder = prepare(arguments)
    counts = collections.Counter()
    for module, mutations in MUTATIONS.items():
        text = next(ptx.glob(f"{module}.compute_*.ptx")).read_text()
        chosen = [m for m in mutations if arguments.only in f"{module} {m.prefix}: {m.what}"][
            :: arguments.every
        ]
        put_modules(folder, module, text)
        unchanged = run(arguments.build, folder, SUITES[module], "late", 1) if chosen else None
        if unchanged is not None:
            sys.exit(f"ptx_mutations: expected that {module} passes unchanged, found {unchanged}")
        for mutation in chosen:
            started = time.monotonic()
            new = mutated(text, mutation)
            how = "no such instruction"
            if new is not None:
                put_modules(folder, module, new)
                found = (
                    run(arguments.build, folder, SUITES[module], *attempt) for attempt in ATTEMPTS
                )
                how = next((end for end in found if end is not None), "PASSED")
            kind = how if how in ("PASSED", "no such instruction", "wrong results") else "message"
            counts["by a " + kind if kind == "message" else kind] += 1
            print(
                f"{module} {mutation.prefix}*: {mutation.what}: {how} "
                f"({time.monotonic() - started:.1f} s)",
                flush=True,
            )
    print(
        f"ptx_mutations: {sum(counts.values())} mutations: "
        + ", ".join(f"{number} {how}" for how, number in sorted(counts.items()))
    )
    sys.exit(1 if counts["PASSED"] or counts["no such instruction"] else 0)


if __name__ == "__main__":
    main()
