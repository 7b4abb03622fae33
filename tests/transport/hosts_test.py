#!/usr/bin/env python3
"""Runs commands on hosts that scripts/hosts makes, and looks for anything it leaves
behind, however it ends.

  hosts_test.py --hosts scripts/hosts

Ends with status 77 and a line that says why if no hosts can be made.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_S = 120  # a hang, even on a machine that is busy with other things
CPU_GROUPS = pathlib.Path("/sys/fs/cgroup/cpu")

LISTEN = """
import socket
server = socket.create_server(("{address}", 5000))
print(server.accept()[0].makefile().read())
"""
SEND = """
import socket, time
while True:
    try:
        socket.create_connection(("10.77.0.1", 5000)).sendall(b"from {address}")
        break
    except OSError:
        time.sleep(0.05)
"""


def hosts(program, *words):
    return subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def wait_until(condition, what):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, f"expected {what} within {LIMIT_S} s"
        time.sleep(0.02)


def namespaces_of(pid):
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.split("\n") if line.startswith(f"ctxhosts{pid}-")]


def left_of(pid, marks):
    """Returns namespaces, control groups and processes that a run of that process left."""
    alive = [
        mark.read_text()
        for mark in marks
        if pathlib.Path(f"/proc/{mark.read_text().strip()}").exists()
    ]
    return namespaces_of(pid) + list(CPU_GROUPS.glob(f"ctxhosts{pid}*")) + alive


def hosts_talk_to_each_other(program, folder):
    for name, text in (("0.py", LISTEN), ("1.py", SEND)):
        (folder / name).write_text(text.replace("{address}", "10.77.0." + str(int(name[0]) + 1)))
    done = hosts(
        program,
        "--hosts",
        "2",
        "--rate",
        "100mbit",
        "--",
        sys.executable,
        str(folder / "{rank}.py"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "host 0: from 10.77.0.2\n", done.stdout


def every_host_knows_itself_and_the_others(program, _):
    done = hosts(
        program, "--hosts", "3", "--", "echo", "{rank} of {ranks} at {address} by {rendezvous}"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == [
        f"host {r}: {r} of 3 at 10.77.0.{r + 1} by tcp://10.77.0.1:29500" for r in range(3)
    ], done.stdout


def first_failure_ends_the_others(program, _):
    done = hosts(program, "--", "sh", "-c", "[ {rank} = 0 ] && sleep 1000; exit 7")
    assert done.returncode == 7, (done.returncode, done.stderr)


def timeout_ends_all(program, _):
    done = hosts(program, "--timeout", "0.2", "--", "sleep", "1000")
    assert done.returncode == 124, (done.returncode, done.stderr)


def head_serves_the_hosts(program, folder):
    (folder / "head.py").write_text(LISTEN.replace("{address}", "10.77.0.254"))
    (folder / "send.py").write_text(SEND.replace("10.77.0.1", "{head}"))
    send = (folder / "send.py").read_text()
    mark = folder / "heard"
    done = hosts(
        program,
        "--hosts",
        "1",
        "--head",
        f"{sys.executable} {folder}/head.py > {mark}",
        "--",
        "sh",
        "-c",
        f"{sys.executable} -c '{send}' && while ! [ -s {mark} ]; do sleep 0.05; done",
    )
    assert done.returncode == 0, done.stderr
    assert mark.read_text() == "from 10.77.0.1\n", mark.read_text()


def cut_link_is_down(program, _):
    down = "while ! ip link show eth0 | grep -q 'state DOWN'; do sleep 0.05; done"
    done = hosts(
        program,
        "--cut",
        "1@0.1",
        "--timeout",
        str(LIMIT_S),
        "--",
        "sh",
        "-c",
        "[ {rank} = 0 ] || { " + down + "; echo cut; }",
    )
    assert (done.returncode, done.stdout) == (0, "host 1: cut\n"), (done.stdout, done.stderr)


def nothing_is_left_of(program, folder, end):
    """Starts two hosts that wait, and lets `end` end the script."""
    name = "mark"
    marks = [folder / f"{name}0", folder / f"{name}1"]
    for mark in marks:
        mark.unlink(missing_ok=True)
    cores = ["--cores", "0.5"] if os.access(CPU_GROUPS / "cgroup.procs", os.W_OK) else []
    process = subprocess.Popen(
        [
            program,
            *cores,
            "--",
            "sh",
            "-c",
            f"echo $$ > {folder}/new{{rank}}; mv {folder}/new{{rank}} {folder}/{name}{{rank}}; "
            "sleep 1000 & sleep 1000",
        ],
        start_new_session=True,
    )
    try:
        wait_until(lambda: all(mark.exists() for mark in marks), "both hosts to start")
        assert len(namespaces_of(process.pid)) == 3, namespaces_of(process.pid)
        end(process)
        code = process.wait(LIMIT_S)
        wait_until(lambda: not left_of(process.pid, marks), "nothing to be left")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        process.wait(LIMIT_S)
    return code


def nothing_is_left_behind_signals(program, folder):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        end = lambda process, number=number: process.send_signal(number)
        code = nothing_is_left_of(program, folder, end)
        assert code == 128 + number, code


def nothing_is_left_of_a_killed_run(program, folder):
    assert nothing_is_left_of(program, folder, lambda process: process.kill()) == -signal.SIGKILL


def nothing_is_left_of_a_run_that_cannot_start(program, _):
    process = subprocess.Popen([program, "--", "no-such-program"], stderr=subprocess.DEVNULL)
    assert process.wait(LIMIT_S) != 0
    assert not left_of(process.pid, [])


def two_runs_do_not_collide(program, _):
    results = []
    runs = [
        threading.Thread(target=lambda: results.append(hosts(program, "--", "sleep", "0.2")))
        for _ in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [done.returncode for done in results] == [0, 0], [done.stderr for done in results]


def ranks_of_mpirun_are_spread_over_the_cores(program, _):
    if shutil.which("mpirun") is None or not os.access(CPU_GROUPS / "cgroup.procs", os.W_OK):
        print(
            "hosts_test: no mpirun, or no control groups of version 1: shares of the processor "
            "are not tested"
        )
        return
    done = hosts(
        program,
        "--hosts",
        "2",
        "--cores",
        "0.5",
        "--mpi",
        "--",
        "sh",
        "-c",
        "hostname; grep Cpus_allowed_list /proc/self/status",
    )
    assert done.returncode == 0, done.stderr
    names = {line for line in done.stdout.split("\n") if line.startswith("ctxhosts")}
    cores = {line.split()[1] for line in done.stdout.split("\n") if line.startswith("Cpus")}
    assert len(names) == 2 and len(cores) == min(2, len(os.sched_getaffinity(0))), done.stdout


def bad_options_are_refused(program, _):
    command = ["--", "true"]
    for words, expected in (
        (["--rate", "fast", *command], "a rate such as"),
        (["--rate", "1000gbit", *command], "1kbit to 100gbit"),
        (["--rate", "0.001kbit", *command], "1kbit to 100gbit"),
        (["--hosts", "2"], "a command"),
        (["--hosts", "many", *command], "invalid int value"),
        (["--cores", "0", *command], "--cores"),
        (["--cores", "nan", *command], "--cores"),
        (["--cut", "9@1", *command], "--cut"),
        (["--cut", "1@99999999999", *command], "--cut"),
        (["--timeout", "nan", *command], "--timeout"),
        (["--timeout", "-1", *command], "--timeout"),
        (["--mpi", "--mpirun", "", *command], "--mpirun: expected a program"),
        (["--mpi", "--mpirun", "'", *command], "--mpirun: expected words"),
        (["--mpi", "--mpirun", "no-such-mpirun", *command], "'no-such-mpirun'"),
        (["--mpi", "--gloo", *command], "either --mpi or --gloo"),
        (["--no-such-option"], "--no-such-option"),
        (["--enter"], "--enter: expected"),
        (["--enter", "0", "ctxhosts1-0"], "--enter: expected"),
        (["--enter", "x", "../..", "true"], "--enter: expected"),
    ):
        done = hosts(program, *words)
        assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, (
            words,
            done.stderr,
        )


def readers_may_leave(program, _):
    """A reader may leave early, like head -1: the run ends without a message of Python."""
    for words in (["--help"], ["--", "sh", "-c", "while echo line; do sleep 0.01; done"]):
        process = subprocess.Popen(
            [program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        process.stdout.readline()
        process.stdout.close()
        code = process.wait(LIMIT_S)
        assert code == 128 + signal.SIGPIPE or (code == 0 and words == ["--help"]), code
        error = process.stderr.read()
        assert error == b"", error


def shares_of_control_groups_of_version_two(program, folder):
    """Uses files that look like these groups, because machines have either version."""
    loader = importlib.machinery.SourceFileLoader("hosts_script", program)
    script = importlib.util.module_from_spec(
        importlib.util.spec_from_loader("hosts_script", loader)
    )
    sys.dont_write_bytecode = True
    loader.exec_module(script)
    script.IS_VERSION_2, script.CPU_GROUPS = True, folder
    made = script.Hosts(argparse.Namespace(hosts=2, cores=0.5, head=[]))
    made.share_cores(made.names[1])
    group = folder / made.base / made.names[1]
    assert (group / "cpu.max").read_text() == "2000 4000"
    assert (folder / "cgroup.subtree_control").read_text() == "+cpu"
    assert (group.parent / "cgroup.subtree_control").read_text() == "+cpu"
    before = os.sched_getaffinity(0)
    try:
        script.join_group(made.names[1], sorted(before))
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)
    shutil.rmtree(group.parent)
    group.parent.write_text("no folder")
    try:
        made.share_cores(made.names[1])
        raise AssertionError("expected to be refused")
    except script.Refused as refused:
        assert "version 2" in str(refused), refused


CASES = (
    every_host_knows_itself_and_the_others,
    hosts_talk_to_each_other,
    first_failure_ends_the_others,
    timeout_ends_all,
    head_serves_the_hosts,
    cut_link_is_down,
    nothing_is_left_behind_signals,
    nothing_is_left_of_a_killed_run,
    nothing_is_left_of_a_run_that_cannot_start,
    two_runs_do_not_collide,
    ranks_of_mpirun_are_spread_over_the_cores,
    bad_options_are_refused,
    readers_may_leave,
    shares_of_control_groups_of_version_two,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", required=True)
    program = str(pathlib.Path(parser.parse_args().hosts).resolve())
    tried = hosts(program, "--", "true")
    if tried.returncode != 0:
        print(f"hosts_test: no hosts on this machine: {tried.stderr.strip()}")
        return 77
    failed = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                case(program, pathlib.Path(folder))
                print(f"ok      {case.__name__}", flush=True)
            except AssertionError as error:
                failed += 1
                print(f"FAILED  {case.__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
