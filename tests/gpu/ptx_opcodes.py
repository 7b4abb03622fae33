#!/usr/bin/env python3
"""Checks that every PTX opcode of the compiled kernels is checked by something.

  tests/gpu/ptx_opcodes.py --build FOLDER [--update]

The table tests/gpu/ptx_opcodes.txt has a line for each opcode: the modules that use it and what
checks it. `unit` are the small programs of ptx_machine_test, `suites` the suites and plans of
ptx_device_test, `mutations` the changes of ptx_mutations.py to such an instruction, each of which a
suite notices. Needs what those two tests leave: FOLDER/cuda/*.ptx, FOLDER/ptx/*.opcodes. --update
writes the table.

Exit 1 if the kernels use an opcode that the table lacks, or if a check of the table is gone; 77 if
those tests have not run.
"""

import argparse
import pathlib
import re
import sys

import ptx_mutations

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "tests/gpu/ptx_opcodes.txt"
OPCODE = re.compile(r"(?:@!?%?\w+\s+)?([a-z][a-z0-9_]*(?:[.:]+\w+)*)(?=\s|$)")
LABEL = re.compile(r"^\$?\w+:(?!:)\s*")
CHECKS = ("unit", "suites", "mutations")


def opcodes_of(text):
    """The opcodes of a part of a module."""
    found = set()
    for statement in re.split(r"[;\n]", re.sub(r"//[^\n]*", "", text)):
        match = OPCODE.match(LABEL.sub("", statement.strip().lstrip("{").strip()))
        if match is not None:
            found.add(match[1])
    return found


def mutated_opcodes(module, text):
    """The opcodes of the first instructions that each mutation changes in a module's kernels."""
    found = set()
    kernels = [(name, body) for name, body in ptx_mutations.kernels_of(text) if name is not None]
    for mutation in ptx_mutations.MUTATIONS[module]:
        bodies = (body for name, body in kernels if name.startswith(mutation.prefix))
        for body in bodies:
            match = re.search(mutation.pattern, body)
            if match is not None:
                found |= opcodes_of(body[body.rfind("\n", 0, match.start()) + 1 : match.end()])
    return found


def listed(file):
    return set(file.read_text(encoding="utf-8").split()) if file.exists() else set()


def checks_now(build):
    """{opcode: (modules, checks)} of the kernels as they are compiled and as tests ran them."""
    ran = {
        "unit": listed(build / "ptx/unit.opcodes"),
        "suites": listed(build / "ptx/suites.opcodes"),
        "mutations": set(),
    }
    if not ran["unit"] or not ran["suites"]:
        print(
            f"ptx_opcodes: skipped: expected {build}/ptx/*.opcodes of ptx_machine_test and "
            "ptx_device_test, found none"
        )
        sys.exit(77)
    modules = {}
    for module in ptx_mutations.MUTATIONS:
        text = next((build / "cuda").glob(f"{module}.compute_*.ptx")).read_text(encoding="utf-8")
        for opcode in opcodes_of(text):
            modules.setdefault(opcode, []).append(module)
        ran["mutations"] |= mutated_opcodes(module, text)
    return {
        opcode: (used, [check for check in CHECKS if opcode in ran[check]])
        for opcode, used in sorted(modules.items())
    }


def table_text(checks):
    lines = [
        "# The PTX opcodes of the compiled kernels, the modules that use them, and what checks "
        "each.",
        "# Written by tests/gpu/ptx_opcodes.py --update, which says what the checks are.",
    ]
    for opcode, (modules, of) in checks.items():
        lines.append(
            f"{opcode:88} {','.join(sorted(modules)):22} {','.join(of) or 'unexecuted'}".rstrip()
        )
    return "\n".join(lines) + "\n"


def table():
    """{opcode: checks} of the table."""
    lines = (
        line.split()
        for line in TABLE.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return {opcode: checks.split(",") for opcode, _, checks in lines}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = checks_now(arguments.build)
    if arguments.update:
        TABLE.write_text(table_text(found), encoding="utf-8")
    known = table()
    failures = [
        f"{opcode}: expected a line in {TABLE.relative_to(ROOT)}, found none"
        for opcode in found
        if opcode not in known
    ]
    for opcode, checks in known.items():
        gone = [
            check
            for check in checks
            if check != "unexecuted" and opcode in found and check not in found[opcode][1]
        ]
        failures += [
            f"{opcode}: expected a check by {check}, as the table says, found none"
            for check in gone
        ]
    unexecuted = [opcode for opcode, (_, checks) in found.items() if not checks]
    for failure in failures:
        print(f"ptx_opcodes: {failure}")
    print(
        f"ptx_opcodes: {len(found)} opcodes, {len(unexecuted)} unexecuted, "
        + ", ".join(
            f"{sum(check in checks for _, checks in found.values())} by {check}" for check in CHECKS
        )
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
