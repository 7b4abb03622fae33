"""Compares steps of a pipeline with a pool, predicted by contextile iterate and measured on hosts.

  python predicted.py PROGRAM FOLDER [--ranks 4 8] [--rates 50mbit 200mbit] [--cores 0.25]

PROGRAM is build/contextile. Ranks are hosts of scripts/hosts, with links of that rate and a share
of a core each. PROGRAM profiles them, and the prediction takes kernel and latencies from that
profile, the links' rate as given, and the rate of work outside attention from one rank's layers.
Stages have a context parallelism of 2, and a pool of all ranks balances their attention. Times are
medians over steps, each as long as its slowest rank. Needs root, like scripts/hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

CONTEXT, LAYERS = 2, 8
HEADS, KV_HEADS, DIM = 4, 2, 64
HIDDEN, FEED_FORWARD, VOCABULARY = 64, 64, 64
# Documents of every micro-batch: as many tokens, other work.
LENGTHS = [[1024], [256] * 4, [512, 512], [128] * 8]
STRATEGY = "distca:nano_batches=1,resend=on,backward=own,granularity=8,tolerance=0.05,cost=pairs"
FORMS = [(1, 1), (2, 1), (1, 2), (2, 2)]  # chunks of a stage, nano-batches
PROFILED = 4  # hosts; all of them have equal shares and links
HOSTS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "hosts"


def run_rank(steps: int) -> None:
    """Runs steps on this rank, and prints the seconds of each on rank 0."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from contextile.torch import Executor, Pool, SamePhasePipeline

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.feed_norm = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)
            self.project = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, bias=False)
            self.out = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
            self.up = nn.Linear(HIDDEN, 2 * FEED_FORWARD, bias=False)
            self.down = nn.Linear(FEED_FORWARD, HIDDEN, bias=False)

        def pre_attention(self, x, positions):
            return (
                self.project(self.norm(x))
                .unflatten(1, (-1, DIM))
                .split([HEADS, KV_HEADS, KV_HEADS], dim=1)
            )

        def post_attention(self, attended, x, positions):
            x = x + self.out(attended.flatten(1))
            gate, up = self.up(self.feed_norm(x)).chunk(2, dim=1)
            return x + self.down(nn.functional.silu(gate) * up)

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    dist.init_process_group("gloo")
    executor = Executor(plans_kept=64)
    stages = executor.size // CONTEXT
    pool = Pool(
        executor,
        neighbourhoods=stages,
        heads=(HEADS, KV_HEADS),
        head_dim=DIM,
        strategy=STRATEGY,
        cluster=f"local:1x{executor.size}",
    )
    lengths = [[documents] for documents in LENGTHS]
    embed, head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
    found = {
        "layer_s": layer_seconds(Layer(), sum(LENGTHS[0]) // CONTEXT),
        "steps_s": {},
        "attention_s": {},
        "cpu_s": {},
    }
    for chunks, nano_batches in FORMS:
        layers = [[Layer() for _ in range(LAYERS // stages // chunks)] for _ in range(chunks)]
        pipeline = SamePhasePipeline(
            layers,
            pool,
            stages=stages,
            hidden=HIDDEN,
            hidden_dtype=torch.bfloat16,
            nano_batches=nano_batches,
        )
        seconds, cpu_seconds = [], []
        for _ in range(steps + 1):
            executor.transport.barrier()
            begun, cpu_begun = time.perf_counter(), time.process_time()
            pipeline.step(
                lengths,
                embed=lambda i, rows: embed(rows.tokens % VOCABULARY),
                loss=lambda i, rows, x: head(x).float().logsumexp(1).sum(),
            )
            slowest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            seconds.append(slowest.item())
            cpu_seconds.append(time.process_time() - cpu_begun)
        times = pipeline.times.values()
        found["steps_s"][f"{chunks}, {nano_batches}"] = seconds[1:]  # the first one plans
        found["attention_s"][f"{chunks}, {nano_batches}"] = sum(
            one.attention_s for one in times
        ) / (steps + 1)
        found["cpu_s"][f"{chunks}, {nano_batches}"] = cpu_seconds[1:]
    if executor.rank == 0:
        print("found " + json.dumps(found))
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


def layer_seconds(layer, rows: int) -> float:
    """Time of a layer's work outside attention, forward, on one rank."""
    import torch

    x, attended = torch.zeros(rows, HIDDEN), torch.zeros(rows, HEADS, DIM)
    seconds = []
    for _ in range(30):
        begun = time.perf_counter()
        layer.pre_attention(x, None)
        layer.post_attention(attended, x, None)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


class Comparison:
    def __init__(self, options: argparse.Namespace, ranks: int, rate: str) -> None:
        self.options, self.ranks, self.rate = options, ranks, rate
        self.folder = pathlib.Path(options.folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def kept(self, name: str, ranks: int, make) -> str:
        path = self.folder / f"{name}-{ranks}-{self.rate}.txt"
        if not path.exists():
            path.write_text(make())
        return path.read_text()

    def on_hosts(self, ranks: int, *words: str) -> str:
        options = [
            "--hosts",
            str(ranks),
            "--rate",
            self.rate,
            "--cores",
            str(self.options.cores),
            "--timeout",
            "900",
        ]
        done = subprocess.run(
            [str(HOSTS), *options, *words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"predicted: {' '.join(words)}\n{done.stdout}{done.stderr}")
        return done.stdout

    def measured(self) -> dict:
        ranks = (
            "env RANK={rank} WORLD_SIZE={ranks} MASTER_ADDR=10.77.0.1 MASTER_PORT=29600 "
            "GLOO_SOCKET_IFNAME=eth0"
        )
        words = [
            *ranks.split(),
            "OMP_NUM_THREADS=1",
            sys.executable,
            __file__,
            "--steps",
            str(self.options.steps),
        ]
        text = self.kept(
            "run", self.ranks, lambda: self.on_hosts(self.ranks, "--", *words, "rank", "-")
        )
        return json.loads(text.split("found ", 1)[1].splitlines()[0])

    def cluster(self, layer_s: float) -> pathlib.Path:
        shape = ["--heads", str(HEADS), "--kv-heads", str(KV_HEADS), "--head-dim", str(DIM)]
        words = [self.options.program, "profile", "--ranks", str(PROFILED), *shape, "--json"]
        text = self.kept(
            "profile", PROFILED, lambda: self.on_hosts(PROFILED, "--gloo", "--", *words)
        )
        text = "\n".join(
            line.split(": ", 1)[-1] if line.startswith("host") else line
            for line in text.splitlines()
        )
        cluster = json.loads(text)["cluster"] | {"nodes": self.ranks}
        flops = (
            2
            * HIDDEN
            * ((2 * HEADS + 2 * KV_HEADS) * DIM + 3 * FEED_FORWARD)
            * sum(LENGTHS[0])
            / CONTEXT
        )
        for link in ("intra_gbytes_per_s", "inter_gbytes_per_s_per_node"):
            cluster[link] = float(self.rate.removesuffix("mbit")) / 8e3
        cluster["peak_tflops"] = 1e-12 * flops / layer_s / 0.5  # of which iterate takes a half
        path = self.folder / f"cluster-{self.ranks}-{self.rate}.json"
        path.write_text(json.dumps(cluster, indent=1))
        return path

    def predicted(self, cluster: pathlib.Path, chunks: int, nano_batches: int) -> float:
        lengths, model = self.folder / "lengths.txt", self.folder / "model.json"
        lengths.write_text("".join(f"{length}\n" for documents in LENGTHS for length in documents))
        model.write_text(
            json.dumps(
                {
                    "name": "small",
                    "layers": LAYERS,
                    "hidden": HIDDEN,
                    "heads": HEADS,
                    "kv_heads": KV_HEADS,
                    "head_dim": DIM,
                    "ffn": FEED_FORWARD,
                    "vocabulary": VOCABULARY,
                }
            )
        )
        words = [self.options.program, "iterate", "--json", "--cluster", cluster, "--model", model]
        words += [
            "--lengths",
            lengths,
            "--tokens",
            sum(LENGTHS[0]),
            "--micro-batches",
            len(LENGTHS),
        ]
        words += [
            "--pp",
            self.ranks // CONTEXT,
            "--schedule",
            "same_phase",
            "--chunks",
            chunks,
            "--strategy",
            STRATEGY,
        ]
        words += ["--ping-pong"] if nano_batches == 2 else []
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"predicted: {done.stdout}{done.stderr}")
        step = json.loads(done.stdout)["steps"][0]
        # SamePhasePipeline sums no gradients and has no optimizer.
        without = step["stages"][0]
        return step["time_s"] - without["gradients_s"] - without["optimizer_s"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rates", nargs="+", default=["50mbit", "200mbit"])
    parser.add_argument("--cores", type=float, default=0.25, help="of a host")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    if options.program == "rank":
        run_rank(options.steps)
    print(
        "| ranks | links | chunks | nano-batches | predicted, ms | measured, ms | predicted / "
        "measured |"
    )
    print("|---|---|---|---|---|---|---|")
    for ranks in options.ranks:
        for rate in options.rates:
            comparison = Comparison(options, ranks, rate)
            measured = comparison.measured()
            cluster = comparison.cluster(measured["layer_s"])
            for chunks, nano_batches in FORMS:
                found_s = statistics.median(measured["steps_s"][f"{chunks}, {nano_batches}"])
                predicted_s = comparison.predicted(cluster, chunks, nano_batches)
                print(
                    f"| {ranks} | {rate} | {chunks} | {nano_batches} | {1e3 * predicted_s:.0f} | "
                    f"{1e3 * found_s:.0f} | {predicted_s / found_s:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
