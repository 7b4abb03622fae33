#!/usr/bin/env python3
"""plot-table draws tables as their "plots" say: lines, bars, level lines, published values."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "plot-table"
PROGRAM = None  # --program

LINES = {
    "source": "A paper, Fig. 1",
    "shows": "time by length",
    "rows": [
        {
            "mask": mask,
            "tokens": tokens,
            "strategy": strategy,
            "total_s": 1e-3 * tokens * factor / 512,
        }
        for mask in ("causal", "lambda")
        for strategy, factor in (("dcp", 1), ("ring", 3))
        for tokens in (512, 1024, 4096)
    ]
    + [
        {"mask": "causal", "strategy": "zigzag", "total_s": 0.004},
        {"mask": "causal", "tokens": 512, "strategy": "magi", "note": "magi skipped: no number"},
    ],
    "plots": [{"x": "tokens", "y": ["total_s"], "series": ["strategy"], "panels": ["mask"]}],
}
BARS = {
    "source": "Another paper, Table 2",
    "shows": "shares by step",
    "rows": [
        {"step": "base", "forward_share": 0.1, "forward_paper": 0.29},
        {"step": "+ pipelining", "forward_share": 0.2, "forward_paper": 0.48},
        {"step": "caller's layout", "forward_share": 0.3},
    ],
    "plots": [{"x": "step", "y": ["forward_share", "forward_paper"], "series": [], "panels": []}],
}


def script():
    """The script as a module, so that matplotlib is loaded once."""
    loader = importlib.machinery.SourceFileLoader("plot_table", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("plot_table", loader))
    loader.exec_module(module)
    return module


class PlotTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def picture(self, document, name="plot.svg"):
        table = self.folder / "table.json"
        table.write_text(json.dumps(document), encoding="utf-8")
        path = self.folder / name
        script().run(argparse.Namespace(table=str(table), output=str(path)))
        return path.read_bytes()

    def draw(self, document):
        return self.picture(document).decode()

    def run_script(self, text, *arguments, **environment):
        return subprocess.run(
            [sys.executable, "-B", SCRIPT, *arguments],
            input=text,
            text=True,
            capture_output=True,
            env={**os.environ, **environment},
        )

    def refused(self, document, *words, output="plot.svg", arguments=(), **environment):
        text = document if isinstance(document, str) else json.dumps(document)
        path = self.folder / output
        done = self.run_script(text, "-o", path, *arguments, **environment)
        self.assertEqual((done.returncode, path.exists()), (2, False), done.stderr)
        self.assertRegex(done.stderr, r"\Aplot-table: error: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)

    def texts(self, svg):
        return [
            text.replace("&#39;", "'").replace("&amp;", "&")
            for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)
        ]

    def test_draws_a_line_for_each_series_in_a_panel_for_each_mask(self):
        texts = self.texts(self.draw(LINES))
        self.assertIn("A paper, Fig. 1: time by length", texts)
        for panel in ("causal", "lambda"):
            self.assertEqual(texts.count(panel), 1)
        for series in ("dcp", "ring", "zigzag"):
            self.assertEqual(texts.count(series), 1, "once, in the legend")
        self.assertEqual(texts.count("total (ms)"), 2)
        for tick in ("512", "1K", "4K"):
            self.assertEqual(texts.count(tick), 2)

    def test_names_what_both_axes_show(self):
        self.assertEqual(self.texts(self.draw(LINES)).count("tokens"), 2)
        for columns, label in (
            (("total_s",), "total (ms)"),
            (("forward_s", "backward_s"), "time (ms)"),
            (("kept_latency", "again_latency"), "latency"),
            (("of_fastest", "of_bound"), "ratio"),
        ):
            rows = [{"devices": devices, **dict.fromkeys(columns, devices)} for devices in (2, 4)]
            plots = [{"x": "devices", "y": list(columns)}]
            texts = self.texts(self.draw({"rows": rows, "plots": plots}))
            self.assertIn(label, texts)
            self.assertIn("devices", texts)

    def test_paints_with_plain_colours(self):
        """Programs other than browsers do not know CSS variables and draw black."""
        kept = (SCRIPT.parents[1] / "docs" / "images").glob("*.svg")
        pictures = [path.read_text("utf-8") for path in kept]
        drawn_here = [svg for svg in pictures if "Written by scripts/readme-picture" not in svg]
        for svg in [self.draw(LINES), self.draw(BARS), *drawn_here]:
            self.assertIn("fill: #", svg)
        for svg in pictures:  # that of README has attributes instead of styles
            self.assertRegex(svg, 'fill(: |=")#')
        for svg in [self.draw(LINES), self.draw(BARS), *pictures]:
            self.assertNotIn("var(", svg)

    def test_leaves_out_rows_without_a_number(self):
        self.assertNotIn("magi", self.texts(self.draw(LINES)))

    def test_draws_a_row_without_x_as_a_level_line(self):
        without = {**LINES, "rows": [row for row in LINES["rows"] if row["strategy"] != "zigzag"]}
        dotted = "stroke-dasharray"
        self.assertGreater(self.draw(LINES).count(dotted), self.draw(without).count(dotted))

    def test_draws_bars_where_x_is_text(self):
        svg = self.draw(BARS)
        texts = self.texts(svg)
        for text in ("base", "+ pipelining", "caller's layout", "forward share", "forward paper"):
            self.assertIn(text, texts)
        # Three of our bars, filled; two published ones, dashed.
        self.assertGreaterEqual(
            len(re.findall(r'<path d="[^"]*" clip-path[^>]*fill: #0072b2', svg)), 3
        )
        self.assertGreaterEqual(len(re.findall(r"fill: none;[^>]*stroke-dasharray", svg)), 2)

    def test_takes_numbers_that_are_written_as_text_for_numbers(self):
        rows = [{"eps": eps, "moved_bytes": 1e6} for eps in ("0.02", "0.1", "0.8")]
        texts = self.texts(self.draw({"rows": rows, "plots": [{"x": "eps", "y": ["moved_bytes"]}]}))
        self.assertIn("moved (MB)", texts)
        self.assertIn("0.02", texts)

    def test_the_same_table_makes_the_same_file(self):
        for document in (LINES, BARS):
            self.assertEqual(self.draw(document), self.draw(document))

    def test_writes_png_and_pdf(self):
        self.assertEqual(self.picture(BARS, "plot.png")[:4], b"\x89PNG")
        self.assertEqual(self.picture(BARS, "plot.pdf")[:4], b"%PDF")

    def test_draws_what_the_program_writes(self):
        if PROGRAM is None:
            self.skipTest("no --program")
        table = subprocess.run(
            [PROGRAM, "table", "dcp-fig7", "--json"], check=True, capture_output=True, text=True
        ).stdout
        path = self.folder / "plot.svg"
        done = self.run_script(table, "-o", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        texts = self.texts(path.read_text(encoding="utf-8"))
        for text in ("ring", "zigzag", "transfers", "redundant transfers"):
            self.assertIn(text, texts)

    def test_says_what_is_wrong_in_one_line(self):
        self.refused("strategy,transfers\nring,48\n", "standard input", "expected JSON")
        self.refused({"command": "table", "tables": []}, '"rows"')
        self.refused({"rows": []}, '"plots"')
        self.refused({"rows": [{"a": 1}], "plots": [{"x": "a"}]}, '"x" and "y"')
        self.refused({"rows": [{"a": 1}], "plots": [{"x": "a", "y": ["b"]}]}, '"b"')
        self.refused(
            {"rows": [{"a": 1, "b": "c"}], "plots": [{"x": "a", "y": ["b"]}]}, "nothing to draw"
        )
        self.refused(BARS, "plot.gif'", ".svg", output="plot.gif")
        self.refused("", "no/such/file", arguments=["no/such/file"])

    def test_says_how_to_install_matplotlib(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError\n", encoding="utf-8")
        self.refused(BARS, "python3-matplotlib", PYTHONPATH=str(self.folder))


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    options, rest = parser.parse_known_args()
    PROGRAM = options.program
    if importlib.util.find_spec("matplotlib") is None:
        print("no matplotlib: skipped")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
