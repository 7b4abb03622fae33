#!/usr/bin/env python3
"""Runs the conformance cases of transports over gloo, kills and stops ranks of running groups, and
starts groups that cannot exist.

  gloo_test.py --program build/transport_ranks [--gloo ON|OFF]

Ends with status 77 and a line that says what is missing if there is no gloo.
"""

import argparse
import contextlib
import hashlib
import hmac
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

from group_tests import run_all

LIMIT_S = 120  # a hang, even on a machine that is busy with other things


class Groups:
    """Starts the ranks of groups as processes, each group with a rendezvous of its own."""

    def __init__(self, program, folder):
        self.program = program
        self.folder = pathlib.Path(folder)
        self.num_groups = 0

    def rendezvous(self, kind):
        self.num_groups += 1
        if kind == "folder":
            return ["--rendezvous", f"file://{self.folder}", "--run", f"run {self.num_groups}"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        return ["--rendezvous", f"tcp://127.0.0.1:{port}", "--run", f"run {self.num_groups}"]

    def start(self, kind, ranks, size, *options):
        """Starts one process per entry of `ranks`; `size` is a number or one number for each."""
        sizes = size if isinstance(size, list) else [size] * len(ranks)
        where = self.rendezvous(kind)
        return [
            subprocess.Popen(
                [
                    self.program,
                    "gloo",
                    "--rank",
                    str(rank),
                    "--size",
                    str(rank_size),
                    *where,
                    *options,
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, rank_size in zip(ranks, sizes, strict=True)
        ]


def ends_of(processes):
    """Returns (status, stdout, stderr) of each process; the status of one that hung is None."""
    limit = time.monotonic() + LIMIT_S
    ends = []
    for process in processes:
        try:
            out, error = process.communicate(timeout=max(limit - time.monotonic(), 0.1))
            ends.append((process.returncode, out, error))
        except subprocess.TimeoutExpired:
            process.kill()
            ends.append((None, *process.communicate()))
    return ends


def errors_unless(ends, texts):
    """Returns what is wrong unless each process ended in one error with all texts of its list."""
    wrong = []
    for (status, _, error), expected in zip(ends, texts, strict=True):
        one_line = error.startswith("transport_ranks: ") and error.count("\n") == 1
        if status != 3 or not one_line or not all(text in error for text in expected):
            wrong.append(
                f"expected status 3 and one error with {expected}, found {status}: {error}"
            )
    return "\n".join(wrong)


def public_name(run_id):
    """Returns how a folder calls a run, whose id it does not show."""
    parts = (b"contextile run", run_id.encode())
    text = b"".join(len(part).to_bytes(8, sys.byteorder) + part for part in parts)
    return f"run-{hmac.new(b'', text, hashlib.sha256).hexdigest()[:24]}"


def run_cases(groups, kind, size):
    """Runs every conformance case. Returns what is wrong, or nothing."""
    ends = ends_of(groups.start(kind, range(size), size))
    wrong = [
        f"rank {rank}: status {status}\n{out}{error}"
        for rank, (status, out, error) in enumerate(ends)
        if status != 0 or f"rank {rank} of {size}:" not in out or " 0 failed" not in out
    ]
    left = [path.name for path in groups.folder.iterdir()]
    if left:
        wrong.append(f"expected nothing in the folder, found {left}")
    return "\n".join(wrong)


def lose_rank(groups, how, timeout_ms, expected):
    """Sends a signal to rank 2 of a running group: every other rank must end in one error."""
    processes = groups.start("address", range(4), 4, "--endless", str(timeout_ms))
    for process in processes:
        process.stdout.readline()
    time.sleep(0.3)  # until messages flow
    started = time.monotonic()
    processes[2].send_signal(how)
    survivors = [process for rank, process in enumerate(processes) if rank != 2]
    ends = ends_of(survivors)
    print(f"  survivors ended after {time.monotonic() - started:.2f} s")
    processes[2].kill()
    processes[2].communicate()
    return errors_unless(ends, [[f"rank {rank}, ", *expected] for rank in (0, 1, 3)])


def miss_rank(groups, kind):
    ends = ends_of(groups.start(kind, [0, 1, 2], 5, "--connect", "1500"))
    return errors_unless(ends, [["rendezvous", "ranks 3, 4 of 5 did not come"]] * 3)


def miss_first_rank(groups):
    ends = ends_of(groups.start("address", [1, 2], 3, "--connect", "500"))
    return errors_unless(ends, [["rendezvous", "rank 0 did not come"]] * 2)


def take_number_twice(groups, kind):
    """The third process ends at once, and so do the others."""
    ends = ends_of(groups.start(kind, [0, 1, 1], 3, "--connect", "20000"))
    return errors_unless(ends, [["rendezvous", "two processes"]] * 3)


def disagree_on_size(groups, kind):
    ends = ends_of(groups.start(kind, [0, 1, 2], [3, 3, 4], "--connect", "20000"))
    return errors_unless(ends, [["rendezvous", "expected a group of one size"]] * 3)


def find_old_files(groups):
    """Files of other runs do not matter; a file that seems to be of this run is no peer."""
    old = "x" * 32 + "contextile gloo 2\n1\n2\n127.0.0.1\n9\n"
    (groups.folder / "old.rank-1").write_text(old, encoding="utf-8")
    (groups.folder / "old.failed").write_text("out of luck", encoding="utf-8")
    ends = ends_of(groups.start("folder", [0, 1], 2, "--case", "ATicketIsWaitedOnce"))
    wrong = [f"status {status}: {error}" for status, _, error in ends if status != 0]
    for path in groups.folder.iterdir():
        path.unlink()
    name = f"{public_name(f'run {groups.num_groups + 1}.0')}.rank-1"
    (groups.folder / name).write_text(old, encoding="utf-8")
    ends = ends_of(groups.start("folder", [1], 2, "--case", "ATicketIsWaitedOnce"))
    wrong.append(errors_unless(ends, [["rendezvous", name, "an earlier run"]]))
    return "\n".join(text for text in wrong if text)


def listening_ports(process):
    """Returns the ports at which a process listens."""
    folder = f"/proc/{process.pid}/fd"
    inodes = set()
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sorted(
        int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes
    )


def probe(port, how, stay):
    """Acts as a port scan, a health check or a mistaken client. Those that stay go into `stay`."""
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(
        {
            "closing": b"",
            "silent": b"",
            "garbage": os.urandom(5000),
            "half": b"contextile gloo2" + bytes(32),
            "quarter": b"context",
            "HTTP": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        }[how]
    )
    if how == "closing":
        stranger.close()
    else:
        stay.append(stranger)


def meet_strangers(groups, how):
    """Strangers connect to every port of the first rank while its group gathers.

    They change nothing. Once the group has met, no port is open."""
    where = groups.rendezvous("address")
    command = [groups.program, "gloo", "--size", "3", *where, "--endless", "60000"]

    def start(rank):
        return subprocess.Popen(
            [*command, "--rank", str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    stay, wrong = [], []
    processes = [start(0)]
    limit = time.monotonic() + LIMIT_S
    while not (ports := listening_ports(processes[0])) or len(ports) < 2:
        if time.monotonic() > limit:
            return f"expected two open ports, found {ports}"
        time.sleep(0.01)
    for port in ports * 3:
        probe(port, how, stay)
    processes.append(start(1))
    for port in ports * 3:
        with contextlib.suppress(ConnectionRefusedError):
            probe(port, how, stay)
    processes.append(start(2))
    for rank, process in enumerate(processes):
        line = process.stdout.readline()
        if not line.startswith(f"rank {rank} is process"):
            wrong.append(f"expected rank {rank} in its group, found {line!r}")
        elif ports := listening_ports(process):
            wrong.append(f"expected no open port of rank {rank}, found {ports}")
    for process in processes:
        if process.poll() is not None:
            wrong.append(f"expected a running group, found status {process.returncode}")
        process.kill()
        error = process.communicate()[1]
        if error:
            wrong.append(error)
    for stranger in stay:
        stranger.close()
    return "\n".join(wrong)


def check_secrets(groups, kind):
    """Ranks with the secret meet. One with another or none is turned away, and both say so."""
    secret, other = groups.folder / "secret", groups.folder / "other"
    secret.write_text("the secret of this group\n")
    other.write_text("the secret of another one\n")
    for path in (secret, other):
        path.chmod(0o600)

    def ends(*files, connect_ms):
        where = groups.rendezvous(kind)
        processes = []
        for rank, file in enumerate(files):
            options = ["--secret-file", str(file)] if file else []
            processes.append(
                subprocess.Popen(
                    [
                        groups.program,
                        "gloo",
                        "--rank",
                        str(rank),
                        "--size",
                        "2",
                        *where,
                        "--case",
                        "ATicketIsWaitedOnce",
                        "--connect",
                        str(connect_ms),
                        *options,
                    ],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return ends_of(processes)

    wrong = [
        f"status {status}: {error}"
        for status, _, error in ends(secret, secret, connect_ms=20000)
        if status != 0
    ]
    for theirs in (other, None):
        # A rank that turns another one away waits for its own peer all the time.
        found = ends(secret, theirs, connect_ms=8000)
        wrong.append(errors_unless(found, [["rendezvous", "secret"]] * 2))
        wrong += [
            f"expected no word of the run, found {error}"
            for _, _, error in found[:1]
            if "run " in error
        ]
    for path in list(groups.folder.iterdir()):
        path.unlink()
    return "\n".join(text for text in wrong if text)


def refuse_options(groups):
    """Impossible options are refused before any rank waits."""
    run = [groups.program, "gloo", "--run", "run"]
    url = f"file://{groups.folder}"
    wrong = []
    for options, expected in (
        (["--rank", "0", "--size", "0", "--rendezvous", url], "expected at least 1 rank, found 0"),
        (["--rank", "2", "--size", "2", "--rendezvous", url], "expected a rank of 0 … 1, found 2"),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "there"],
            "expected a rendezvous file:///folder",
        ),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "file:///no/such/folder"],
            "expected a folder",
        ),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "tcp://nowhere"],
            "expected a rendezvous tcp://host:port",
        ),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "tcp://localhost:70000"],
            "a port of 1 to 65535, found '70000'",
        ),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "tcp://localhost:0"],
            "a port of 1 to 65535, found '0'",
        ),
        (
            ["--rank", "0", "--size", "2", "--rendezvous", "tcp://[::1]:http"],
            "a port of 1 to 65535, found 'http'",
        ),
    ):
        done = subprocess.run(
            [*run, *options], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode != 2 or expected not in done.stderr:
            wrong.append(
                f"expected status 2 and '{expected}', found {done.returncode}: {done.stderr}"
            )
    return "\n".join(wrong)


def in_folder(program, test):
    """Runs the test on groups that meet in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        return test(Groups(program, folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True)
    parser.add_argument("--gloo", default="ON", help="whether the program was built with gloo")
    options = parser.parse_args()
    if options.gloo.upper() not in ("ON", "TRUE", "1"):
        print("skipped: built without gloo (package libgloo-dev, CONTEXTILE_GLOO)")
        return 77
    died = ["rank 2 died"]
    stalled = ["nothing moved in the group for 1000 ms", "no sign of life from rank 2"]
    tests = [
        (
            f"cases, folder, {size} ranks",
            lambda groups, size=size: run_cases(groups, "folder", size),
        )
        for size in (1, 2, 4)
    ]
    tests += [
        ("cases, address, 3 ranks", lambda groups: run_cases(groups, "address", 3)),
        ("a killed rank", lambda groups: lose_rank(groups, signal.SIGKILL, 20000, died)),
        ("a stopped rank", lambda groups: lose_rank(groups, signal.SIGSTOP, 1000, stalled)),
        ("no rank 0", miss_first_rank),
        ("files of old runs", find_old_files),
        ("options that cannot be", refuse_options),
    ]
    tests += [
        (f"strangers, {how}", lambda groups, how=how: meet_strangers(groups, how))
        for how in ("closing", "silent", "garbage", "half", "quarter", "HTTP")
    ]
    for kind in ("folder", "address"):
        tests += [
            (f"ranks that do not come, {kind}", lambda groups, kind=kind: miss_rank(groups, kind)),
            (
                f"a number taken twice, {kind}",
                lambda groups, kind=kind: take_number_twice(groups, kind),
            ),
            (f"secrets, {kind}", lambda groups, kind=kind: check_secrets(groups, kind)),
            (f"another size, {kind}", lambda groups, kind=kind: disagree_on_size(groups, kind)),
        ]
    program = os.path.abspath(options.program)
    return run_all((name, lambda test=test: in_folder(program, test)) for name, test in tests)


if __name__ == "__main__":
    sys.exit(main())
