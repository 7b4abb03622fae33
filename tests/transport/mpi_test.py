#!/usr/bin/env python3
"""Runs the conformance cases of transports over MPI, then kills and stops ranks of running groups.

  mpi_test.py --program build/transport_ranks [--mpi ON|OFF]

Ends with status 77 and a line that says what is missing if there is no MPI.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from group_tests import run_all

RANKS = 4
LAUNCH = ["mpirun", "-n", str(RANKS), "--oversubscribe"]
LIMIT_S = 120  # a hang, even on a machine that is busy with other things


def environment(layers):
    """Returns the environment of a group whose ranks talk over these layers of Open MPI.

    Other MPIs ignore it.
    """
    return os.environ | {
        "OMPI_MCA_btl": layers,
        "OMPI_MCA_btl_tcp_if_include": "lo",  # others may lead elsewhere
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def run_cases(program, layers, *options):
    """Runs every conformance case. Returns what is wrong, or nothing."""
    command = ["timeout", "-k", "5", str(LIMIT_S), *LAUNCH, program, "mpi", *options]
    done = subprocess.run(
        command, env=environment(layers), capture_output=True, text=True, check=False
    )
    passed = re.findall(r"^rank \d of \d: \d+ cases, 0 failed$", done.stdout, re.MULTILINE)
    if done.returncode == 0 and len(passed) == RANKS:
        return None
    return f"status {done.returncode}\n{done.stdout}{done.stderr}"


def start_endless(program, layers, timeout_ms):
    """Starts a group that sends messages without end.

    Returns the group, the thread that reads its output, the lines read so far and rank -> process.
    """
    group = subprocess.Popen(
        ["timeout", "-k", "5", str(LIMIT_S), *LAUNCH, program, "mpi", "--endless", str(timeout_ms)],
        env=environment(layers),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(group.stdout), daemon=True)
    reader.start()
    processes = {}
    end = time.monotonic() + LIMIT_S / 2
    while len(processes) < RANKS and time.monotonic() < end and group.poll() is None:
        time.sleep(0.02)
        found = (re.search(r"rank (\d+) is process (\d+)", line) for line in list(lines))
        processes = {int(match[1]): int(match[2]) for match in found if match}
    return group, reader, lines, processes


def runs(process):
    """Returns True if a process exists and is no zombie, after a moment in which it may end."""
    for _ in range(100):
        try:
            state = (
                pathlib.Path(f"/proc/{process}/stat")
                .read_text(encoding="utf-8")
                .rpartition(")")[2]
                .split()[0]
            )
        except OSError:
            return False
        if state in "ZX":
            return False
        time.sleep(0.02)
    return True


def lose_rank(program, layers, how, timeout_ms, expected):
    """Sends a signal to rank 2 of a running group.

    Every other rank must end in one error with one of the expected texts. Returns what is wrong, or
    nothing.
    """
    group, reader, lines, processes = start_endless(program, layers, timeout_ms)
    if len(processes) < RANKS:
        group.kill()
        return f"expected {RANKS} ranks to start, found {processes}\n{''.join(lines)}"
    time.sleep(0.3)  # until messages flow
    started = time.monotonic()
    os.kill(processes[2], how)
    try:
        group.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        group.kill()
    took_s = time.monotonic() - started
    reader.join(10)
    wrong = []
    for rank, process in processes.items():
        if runs(process):  # the launcher kills the rest of its job
            wrong.append(f"rank {rank}: its process still runs")
            os.kill(process, signal.SIGKILL)
        said = [line for line in lines if line.startswith(f"transport_ranks: rank {rank}, ")]
        if rank != 2 and (len(said) != 1 or not any(text in said[0] for text in expected)):
            wrong.append(f"rank {rank}: expected one error with any of {expected}, found {said}")
    if group.returncode == 0 or took_s >= LIMIT_S:
        wrong.append(
            f"expected a failure in less than {LIMIT_S} s, found status {group.returncode}"
        )
    print(f"  survivors ended after {took_s:.2f} s")
    return "\n".join(wrong + lines) if wrong else None


def stop_before_init(program, layers):
    """Rank 2 stops before MPI is initialised: the others must not wait for it for ever.

    Each of them must say so, and the job must end in failure. Returns what is wrong, or nothing.
    """
    script = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 2 ]; then kill -STOP $$; fi; exec "$@"'
    command = [
        "timeout",
        "-k",
        "5",
        str(LIMIT_S),
        *LAUNCH,
        "bash",
        "-c",
        script,
        "bash",
        program,
        "mpi",
        "--endless",
        "2000",
    ]
    done = subprocess.run(
        command, env=environment(layers), capture_output=True, text=True, check=False
    )
    said = [
        line
        for line in done.stderr.splitlines()
        if line.startswith(
            "transport_ranks: MPI_Init: expected all processes of the job in 2000 ms"
        )
    ]
    if done.returncode in (0, 124, 137) or len(said) != RANKS - 1:
        return (
            f"expected {RANKS - 1} errors of MPI_Init, found status "
            f"{done.returncode}\n{done.stdout}{done.stderr}"
        )
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--mpi", default="ON", help="whether the program was built with MPI")
    options = parser.parse_args()
    if options.mpi.upper() not in ("ON", "TRUE", "1"):
        print(
            "skipped: built without MPI (packages libopenmpi-dev and openmpi-bin, CONTEXTILE_MPI)"
        )
        return 77
    if shutil.which("mpirun") is None:
        print("skipped: expected mpirun on the path, found none (package openmpi-bin)")
        return 77
    probe = subprocess.run(
        ["timeout", "-k", "5", "60", *LAUNCH, "true"],
        env=environment("self,vader"),
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode != 0:
        print(f"mpirun starts no processes here:\n{probe.stderr}")
        return 77
    stalled = ["nothing moved to or from this rank for 1000 ms"]
    tests = [
        ("cases, shared memory", lambda: run_cases(options.program, "vader,self")),
        ("cases, tcp", lambda: run_cases(options.program, "tcp,self")),
        (
            "cases, small pieces",
            lambda: run_cases(options.program, "vader,self", "--piece-bytes", "1000"),
        ),
    ]
    for layers in ("vader,self", "tcp,self"):
        tests.append(
            (
                f"a killed rank, {layers}",
                lambda layers=layers: lose_rank(
                    options.program, layers, signal.SIGKILL, 20000, ["received SIGTERM"]
                ),
            )
        )
        tests.append(
            (
                f"a stopped rank, {layers}",
                lambda layers=layers: lose_rank(
                    options.program, layers, signal.SIGSTOP, 1000, stalled
                ),
            )
        )
        tests.append(
            (
                f"a rank that stops before MPI_Init, {layers}",
                lambda layers=layers: stop_before_init(options.program, layers),
            )
        )
    return run_all(tests)


if __name__ == "__main__":
    sys.exit(main())
