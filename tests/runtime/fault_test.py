#!/usr/bin/env python3
"""Brings faults to one rank of groups of processes that run a plan: every other rank must end in
one error, within its timeout, and the flight records must name the rank.

  fault_test.py --program build/fault_ranks --contextile build/contextile [--gloo ON|OFF]
                [--mpi ON|OFF] [--all] [--table FILE]

Without --all a selection. --table writes what was found as Markdown. Ends with 77, and a line that
says what is missing, where there is neither gloo nor MPI.
"""

import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

RANKS = 4
FAULTY = 2  # it has instructions of every kind in both directions (copies are added)
LIMIT_S = 120  # a hang, even on a machine that is busy with other things
TIMEOUT_MS = 1500
STEPS = [
    (op, direction)
    for direction in ("forward", "backward")
    for op in ("rows", "launch", "wait", "attention", "reduce", "copy")
]
PLACES = [("exchange", None), ("prepare", None), *STEPS, ("between", None)]
SELECTION = {
    ("kill", "attention", "forward"),
    ("stop", "wait", "backward"),
    ("throw", "reduce", "backward"),
    ("slow", "attention", "backward"),
    ("kill", "prepare", None),
    ("stop", "between", None),
}


class Case:
    """One fault at one place, and its outcome."""

    def __init__(self, fault, at, direction):
        self.fault, self.at, self.direction = fault, at, direction
        self.error, self.seconds, self.verdict = "", None, ""

    @property
    def key(self):
        return self.fault, self.at, self.direction

    @property
    def place(self):
        if not self.at:
            return "prepare" if self.fault == "plan" else "the call, forward"
        return f"{self.at}, {self.direction}" if self.direction else self.at

    def options(self):
        options = ["--on", str(FAULTY), "--fault", self.fault]
        if self.at:
            options += ["--at", self.at]
        if self.direction:
            options += ["--direction", self.direction]
        return options


def environment():
    return os.environ | {
        "OMPI_MCA_btl": "vader,self",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


class Group:
    """The processes of one case, their lines as they come, and the times when they ended."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines = []
        self.ended_at = None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def wait(self, limit_s):
        try:
            self.process.wait(limit_s)
            self.ended_at = time.time()
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.reader.join(10)


class Runner:
    def __init__(self, options, transport, folder):
        self.options, self.transport, self.folder = options, transport, pathlib.Path(folder)
        self.plans = [self.plan("3600\n300\n100\n"), self.plan("2500\n1400\n100\n")]

    def plan(self, lengths):
        path = self.folder / f"{len(list(self.folder.iterdir()))}.plan"
        source = self.folder / f"{path.stem}.txt"
        source.write_text(lengths, encoding="utf-8")
        subprocess.run(
            [
                self.options.contextile,
                "plan",
                "-o",
                path,
                "--lengths",
                source,
                "--heads",
                "4",
                "--kv-heads",
                "2",
                "--head-dim",
                "32",
                "--cluster",
                "local:2x2",
                "--strategy",
                "dcp",
                "--block-size",
                "256",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return path

    def start(self, case, flight):
        common = [
            "--plan",
            self.plans[0],
            "--other",
            self.plans[1],
            "--flight",
            flight,
            "--timeout",
            str(TIMEOUT_MS),
            *case.options(),
        ]
        if self.transport == "mpi":
            return [
                Group(
                    [
                        "timeout",
                        "-k",
                        "5",
                        str(LIMIT_S),
                        "mpirun",
                        "-n",
                        str(RANKS),
                        "--oversubscribe",
                        self.options.program,
                        "mpi",
                        *common,
                    ]
                )
            ]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return [
            Group(
                [
                    self.options.program,
                    "gloo",
                    "--rank",
                    str(rank),
                    "--size",
                    str(RANKS),
                    "--rendezvous",
                    f"tcp://127.0.0.1:{port}",
                    *common,
                ]
            )
            for rank in range(RANKS)
        ]

    def run(self, case):
        """Runs the case and returns what is wrong, or nothing."""
        flight = self.folder / "flight"
        shutil.rmtree(flight, ignore_errors=True)
        groups = self.start(case, flight)
        survivors = (
            groups
            if self.transport == "mpi"
            else [g for rank, g in enumerate(groups) if rank != FAULTY]
        )
        for group in survivors:
            group.wait(LIMIT_S)
        if self.transport == "gloo":
            if case.fault == "stop":
                groups[FAULTY].process.send_signal(signal.SIGKILL)
            groups[FAULTY].wait(LIMIT_S)
        lines = [line for group in groups for line in group.lines]
        wrong = [
            f"expected an end within {LIMIT_S} s" for group in survivors if group.ended_at is None
        ]
        for rank in range(RANKS):
            if case.fault == "plan":  # all ranks look before one of them speaks, in the same words
                said = [
                    line
                    for line in lines
                    if line.startswith(
                        "fault_ranks: prepare: expected one plan on all ranks, found digest"
                    )
                ]
                said = said[:1] if len(said) == RANKS and len(set(said)) == 1 else said
            else:
                said = [line for line in lines if line.startswith(f"fault_ranks: rank {rank}, ")]
            if rank != FAULTY and len(said) != 1:
                wrong.append(f"rank {rank}: expected one error, found {said}")
            elif rank != FAULTY:
                case.error = case.error or said[0].removeprefix("fault_ranks: ").strip()
        for group in survivors if self.transport == "gloo" else []:
            if group.process.returncode != 3:
                wrong.append(f"expected status 3, found {group.process.returncode}")
        struck = [
            float(match[1]) for line in lines if (match := re.match(r"struck at ([\d.]+)", line))
        ]
        if not struck and case.at:
            wrong.append(f"expected rank {FAULTY} to come to {case.place}")
        if struck and all(group.ended_at for group in survivors):
            case.seconds = max(group.ended_at for group in survivors) - struck[0]
        return "\n".join(wrong + self.judge(case, flight) + (lines if wrong else []))

    def judge(self, case, flight):
        done = subprocess.run(
            [self.options.contextile, "report", flight, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            return [f"report: status {done.returncode}: {done.stderr}"]
        document = json.loads(done.stdout)
        case.verdict = document["summary"]
        if [culprit["rank"] for culprit in document["culprits"]] == [FAULTY]:
            return []
        return [f"expected rank {FAULTY} to be named, found: {document['summary']}"]


def cases_of(options):
    cases = [
        Case(fault, *place)
        for fault, place in itertools.product(("kill", "stop", "slow", "throw"), PLACES)
    ]
    if not options.all:
        cases = [case for case in cases if case.key in SELECTION]
    return [*cases, Case("plan", "", None), Case("batch", "", None)]


def table_of(results):
    """Markdown: seconds until the others had ended, a row for each place, a column for each fault
    and transport; then one of the errors of each."""
    found = {(case.fault, transport, case.place): case for transport, case in results}
    columns = sorted({(fault, transport) for fault, transport, _ in found})
    places = list(dict.fromkeys(case.place for _, case in results))
    lines = [
        "| the fault comes at | "
        + " | ".join(f"{fault}, {transport}" for fault, transport in columns)
        + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for place in places:
        cells = [found.get((*column, place)) for column in columns]
        shown = [
            "" if case is None else "yes" if case.seconds is None else f"{case.seconds:.2f}"
            for case in cells
        ]
        lines.append(f"| {place} | " + " | ".join(shown) + " |")
    lines += ["", "| fault, transport | what another rank says |", "|---|---|"]
    for column in columns:
        errors = [case.error for key, case in found.items() if key[:2] == column and case.error]
        lines.append(f"| {column[0]}, {column[1]} | {max(errors, key=len, default='')} |")
    return "\n".join(lines) + "\n"


def transports_of(options):
    transports = ["gloo"] if options.gloo.upper() in ("ON", "TRUE", "1") else []
    if options.mpi.upper() in ("ON", "TRUE", "1") and shutil.which("mpirun"):
        probe = subprocess.run(
            ["timeout", "-k", "5", "60", "mpirun", "-n", str(RANKS), "--oversubscribe", "true"],
            env=environment(),
            capture_output=True,
            check=False,
        )
        if probe.returncode == 0:
            transports.append("mpi")
    return transports


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", required=True, type=os.path.abspath)
    parser.add_argument("--contextile", required=True, type=os.path.abspath)
    parser.add_argument("--gloo", default="ON", help="whether the program was built with gloo")
    parser.add_argument("--mpi", default="ON", help="whether the program was built with MPI")
    parser.add_argument("--all", action="store_true", help="every fault at every place")
    parser.add_argument("--table", help="where what was found goes, as Markdown")
    options = parser.parse_args()
    transports = transports_of(options)
    if not transports:
        print(
            "skipped: expected gloo or a working mpirun, found neither (libgloo-dev; "
            "libopenmpi-dev, openmpi-bin)"
        )
        return 77
    status, results = 0, []
    for transport in transports:
        with tempfile.TemporaryDirectory() as folder:
            runner = Runner(options, transport, folder)
            for attempted in cases_of(options):
                # Timeouts are of seconds, which a busy machine may not give a rank.
                for attempt in range(2):
                    case = Case(*attempted.key)
                    wrong = runner.run(case)
                    if not wrong:
                        break
                    if attempt == 0:
                        print(
                            f"{transport}, {case.fault} at {case.place}: once more, for\n{wrong}",
                            flush=True,
                        )
                took = "" if case.seconds is None else f": {case.seconds:.2f} s"
                print(f"{transport}, {case.fault} at {case.place}{took}", flush=True)
                if wrong:
                    print(f"failed\n{wrong}", flush=True)
                    status = 1
                results.append((transport, case))
    if options.table:
        pathlib.Path(options.table).write_text(table_of(results), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
