#!/usr/bin/env python3
"""Tests the tools for machines with a GPU: cuda-kernels, gpu_check and gpu_peers.

Compilers, devices and PyTorch are stand-ins that note how they are called.
"""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Runs a script where there is no nvdisasm.
WITHOUT_NVDISASM = """
import pathlib, runpy, shutil, sys
which = shutil.which
shutil.which = lambda name: None if name == "nvdisasm" else which(name)
pathlib.Path.glob = lambda *_: []
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def loaded(path, name):
    """The module of a script, whatever its suffix."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    with unittest.mock.patch.object(sys, "dont_write_bytecode", True):
        loader.exec_module(module)
    return module


class Toolkit:
    """A folder with an nvcc that knows some architectures, and reports spills of one kernel."""

    def __init__(self, folder, architectures, spills=0):
        self.output = folder / "kernels"
        self.nvcc = folder / "nvcc"
        self.calls = folder / "calls"
        known = "".join(f"{name}\n" for name in architectures)
        report = (
            "ptxas info : Compiling entry function 'rows_fill' for 'sm_80'\n"
            f"    0 bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads\n"
            "ptxas info : Used 24 registers\n"
        )
        self.nvcc.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"if sys.argv[1] == '--list-gpu-code':\n    sys.exit(print({known!r}))\n"
            f"open({str(self.calls)!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"
            f"print({report!r}, file=sys.stderr)\n",
            encoding="utf-8",
        )
        self.nvcc.chmod(0o755)

    def compile(self, *options):
        command = [
            sys.executable,
            "-c",
            WITHOUT_NVDISASM,
            ROOT / "scripts/cuda-kernels",
            "--nvcc",
            self.nvcc,
            "--output",
            self.output,
            *options,
        ]
        return subprocess.run(
            [str(word) for word in command], text=True, capture_output=True, check=False
        )

    def compiled(self):
        """The architectures that cubins were made for."""
        calls = self.calls.read_text(encoding="utf-8") if self.calls.exists() else ""
        return {
            word.removeprefix("-arch=")
            for line in calls.splitlines()
            if "-cubin" in line
            for word in line.split()
            if word.startswith("-arch=")
        }


class CudaKernels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_leaves_out_architectures_that_the_toolkit_does_not_know(self):
        toolkit = Toolkit(self.folder, ["sm_80", "sm_90"])
        run = toolkit.compile()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stderr, "warning: .* does not know sm_100, which is left out")
        self.assertEqual(toolkit.compiled(), {"sm_80", "sm_90a"})

    def test_refuses_an_unknown_architecture_that_is_asked_for(self):
        toolkit = Toolkit(self.folder, ["sm_80", "sm_90"])
        run = toolkit.compile("--architectures", "sm_100")
        self.assertEqual(run.returncode, 1)
        self.assertIn("found sm_100", run.stderr)

    def test_fails_on_spills_unless_they_are_allowed(self):
        toolkit = Toolkit(self.folder, ["sm_80", "sm_90"], spills=8)
        run = toolkit.compile()
        self.assertEqual(run.returncode, 1)
        self.assertIn("expected no spills", run.stderr)
        run = toolkit.compile("--allow-spills")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("slower, not wrong", run.stderr)


class Steps:
    """A report that notes the steps instead of running them. Those that contain a word fail."""

    def __init__(self, failing=()):
        self.failing = failing
        self.steps = []
        self.failed = []

    def say(self, text):
        pass

    def skip(self, title, reason):
        self.steps.append((f"skipped {title}", [], False))

    def run(self, title, command, env=None, required=True, limit_s=900):
        self.steps.append((title, [str(word) for word in command], required))
        if not any(word in title for word in self.failing):
            return "output"
        if required:
            self.failed.append(title)
        return None


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.module = loaded("bench/gpu_check", "gpu_check")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, failing=()):
        arguments = types.SimpleNamespace(
            gpu="0",
            nvcc="nvcc",
            out=self.folder,
            build=self.folder / "build",
            built=False,
            longest="1024",
            seconds="0.05",
            skip_engine=False,
            skip_peers=False,
            skip_sanitizer=False,
        )
        check = self.module.Check(arguments)
        for file in (check.report.text, check.report.log):
            file.close()
        check.report = Steps(failing)
        return check

    def command(self, check, word):
        return [command for title, command, _ in check.report.steps if word in title]

    def smi(self, capability):
        smi = self.folder / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\necho 'A GPU, 580.1, {capability}'\n", encoding="utf-8")
        smi.chmod(0o755)
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        with unittest.mock.patch.dict(os.environ, {"PATH": path}):
            return self.module.device_of("0")

    def test_compiles_for_the_device_alone_and_lets_kernels_spill(self):
        for capability, architecture in (
            ("8.6", "sm_80"),
            ("9.0", "sm_90a"),
            ("10.3", "sm_100"),
            ("12.0", None),
        ):
            self.assertEqual(self.smi(capability), ("A GPU", "580.1", architecture))
            check = self.check()
            self.assertTrue(check.build(architecture))
            (command,) = self.command(check, "compile the kernels")
            self.assertIn("--allow-spills", command)
            asked = (
                command[command.index("--architectures") + 1]
                if "--architectures" in command
                else None
            )
            self.assertEqual(asked, architecture)

    def test_compiles_nothing_where_everything_was_built_elsewhere(self):
        check = self.check()
        check.arguments.built = True
        self.assertTrue(check.build("sm_90a"))
        self.assertEqual([title for title, *_ in check.report.steps], ["skipped building"])

    def test_times_although_the_sanitizer_reports_errors(self):
        check = self.check(failing=["compute-sanitizer"])
        with unittest.mock.patch.object(self.module.shutil, "which", return_value="/bin/true"):
            check.sanitizers()
        self.assertEqual(check.report.failed, [])
        self.assertEqual(len(check.report.steps), 3)
        for title, command, required in check.report.steps:
            self.assertFalse(required, title)
            self.assertEqual(command[command.index("--report-api-errors") + 1], "no")
            if "racecheck" in title:
                self.assertIn("cuda:mma", command)

    def test_a_certificate_names_the_gpu_its_driver_and_the_version(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "contextile"
            program.write_text("#!/bin/sh\necho contextile 0.1.0\n", encoding="utf-8")
            program.chmod(0o755)
            file = pathlib.Path(folder) / "cache" / "passed.json"
            with unittest.mock.patch.dict(os.environ, CONTEXTILE_GPU_CERTIFICATE=str(file)):
                self.assertEqual(
                    self.module.certify(program.parent, "NVIDIA H200", "570.86.15"), file
                )
            found = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(found, {"gpu": "NVIDIA H200", "driver": "570.86.15", "version": "0.1.0"})

    def test_runs_the_engine_torch_where_it_is_installed(self):
        for code, title in ((0, "the engine torch"), (1, "skipped the engine torch")):
            check = self.check(failing=["the engine torch"])
            installed = types.SimpleNamespace(returncode=code)
            with unittest.mock.patch.object(self.module.subprocess, "run", return_value=installed):
                check.engine()
            self.assertEqual([title for title, *_ in check.report.steps], [title])
            # Plans that are wrong leave no certificate for any kernel.
            self.assertEqual(check.report.failed, ["the engine torch"] * (code == 0))

    def test_results_fail_if_a_suite_does(self):
        self.assertTrue(self.check().results())
        self.assertFalse(self.check(failing=["keys in pages"]).results())


class FakeTensor:
    """A tensor whose gradients may not be taken by backward()."""

    def transpose(self, *_):
        return self

    def backward(self, *_, **__):
        raise AssertionError("expected torch.autograd.grad, found backward(), which adds to .grad")


class FakeTorch:
    """PyTorch as gpu_peers uses it. A compiled function that meets a ninth shape runs unfused."""

    RECOMPILE_LIMIT = 8
    bfloat16 = "bfloat16"

    def __init__(self):
        self.num_compiled = 0
        self.num_gradients = 0
        self.unfused = 0
        self._dynamo = types.SimpleNamespace(reset=self.reset)
        self.autograd = types.SimpleNamespace(grad=self.gradients)

    def reset(self):
        self.num_compiled = 0

    def gradients(self, out, inputs, dout, retain_graph):
        assert retain_graph and len(inputs) == 3
        self.num_gradients += 1

    def compile(self, function):
        self.num_compiled += 1
        if self.num_compiled > self.RECOMPILE_LIMIT:
            self.unfused += 1
        return function

    def randn(self, *_, **__):
        return FakeTensor()

    def randn_like(self, _):
        return FakeTensor()

    def repeat_interleave(self, *_):
        return types.SimpleNamespace(cuda=lambda: [])

    def arange(self, *_):
        return None

    def tensor(self, _):
        return None


class FakeClock:
    def of(self, work):
        work()
        return 1.0


class GpuPeers(unittest.TestCase):
    def setUp(self):
        self.module = loaded("bench/gpu_peers.py", "gpu_peers")
        flex = types.SimpleNamespace(
            flex_attention=lambda *_, **__: FakeTensor(), create_block_mask=lambda *_, **__: None
        )
        stand_ins = {
            "torch": types.ModuleType("torch"),
            "torch.nn": types.ModuleType("torch.nn"),
            "torch.nn.attention": types.ModuleType("torch.nn.attention"),
            "torch.nn.attention.flex_attention": flex,
        }
        patch = unittest.mock.patch.dict(sys.modules, stand_ins)
        patch.start()
        self.addCleanup(patch.stop)

    def rows(self, torch):
        return [
            row for row in self.module.rows_of(torch, FakeClock(), 2048) if row["peer"] == "flex"
        ]

    def test_flex_attention_is_compiled_for_every_shape_again(self):
        torch = FakeTorch()
        rows = self.rows(torch)
        self.assertGreater(len(rows), FakeTorch.RECOMPILE_LIMIT)
        self.assertEqual([row for row in rows if "reason" in row], [])
        self.assertEqual(torch.unfused, 0)

    def test_backward_adds_to_no_gradients(self):
        torch = FakeTorch()
        rows = self.rows(torch)
        self.assertEqual(torch.num_gradients, len(rows))
        self.assertTrue(all("backward_tflops" in row for row in rows))

    def test_flash_attention_is_timed_where_it_is_installed(self):
        calls = []
        for name in ("flash_attn", "flash_attn_interface"):
            module = types.ModuleType(name)
            module.flash_attn_func = lambda *_, causal, name=name: (
                calls.append((name, causal)),
                FakeTensor(),
            )[1]
            patch = unittest.mock.patch.dict(sys.modules, {name: module})
            patch.start()
            self.addCleanup(patch.stop)
        for peer in ("fa2", "fa3"):
            call, _, reason = self.module.attention_of(
                FakeTorch(), peer, "causal", 64, FakeTensor(), FakeTensor(), FakeTensor()
            )
            self.assertIsNone(reason)
            call()
        self.assertEqual(calls, [("flash_attn", True), ("flash_attn_interface", True)])


if __name__ == "__main__":
    unittest.main()
