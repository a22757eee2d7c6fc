#!/usr/bin/env python3
"""Tests fp8_parity.py on runs that were made up, and fp8_runs.py with a program that stands in for redline."""
import json
import math
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH))
import fp8_parity  # noqa: E402


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_folder(self, name, steps=100, offset=0.0, step_ms=200.0, slope=0.5):
        """A run whose loss falls by `slope` for each e-fold of its steps, moved by `offset`."""
        run = self.folder / name
        run.mkdir()
        lines = [{"step": 0, "time": 1.0, "eval_loss": 10.0}]
        for step in range(1, steps + 1):
            loss = 8 - slope * math.log(step) + offset
            row = {"step": step, "loss": loss, "step_ms": 900.0 if step == 1 else step_ms}
            if step % 10 == 0 or step == steps:
                row["eval_loss"] = loss + 0.1
            lines.append(row)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(run)

    def output(self, script, *words):
        return subprocess.run([sys.executable, "-B", str(BENCH / script), *words], capture_output=True, text=True,
                              check=False)


class ParityTest(Case):
    def arms(self, **given):
        """Arms of (milliseconds of a step, offsets of the runs)."""
        return {arm: {i: fp8_parity.read_run(self.run_folder(f"{arm}{i}", offset=offset, step_ms=step_ms))
                      for i, offset in enumerate(offsets)} for arm, (step_ms, offsets) in given.items()}

    def test_differences_are_paired(self):
        arms = self.arms(bf16=(200, [0, 1, 2]), fp8=(160, [0.01, 1.02, 2.03]))
        differences = fp8_parity.paired(arms, "fp8")
        for got, want in zip(differences, [0.01, 0.02, 0.03]):
            self.assertAlmostEqual(got, want)
        mean, width = fp8_parity.interval(differences)
        self.assertAlmostEqual(mean, 0.02)
        self.assertAlmostEqual(width, 4.303 * 0.01 / math.sqrt(3))

    def test_slope_of_the_second_half(self):
        steep, source = fp8_parity.slope(self.arms(bf16=(200, [0])))
        self.assertAlmostEqual(steep, 0.5)
        self.assertIn("second half", source)

    def test_slope_of_two_lengths(self):
        arms = self.arms(bf16=(200, [0]))
        arms["half"] = {0: fp8_parity.read_run(self.run_folder("half0", steps=50, offset=0.02))}
        steep, source = fp8_parity.slope(arms)
        self.assertAlmostEqual(steep, 0.5 + 0.02 / math.log(2))
        self.assertIn("50 and 100", source)

    def test_speed_up_at_equal_loss(self):
        arms = self.arms(bf16=(200, [0, 0]), fp8=(160, [0.05, 0.05]), control=(210, [0.001, -0.001]))
        text = fp8_parity.report(arms)
        self.assertIn("A step is 1.250 times as fast.", text)
        self.assertIn(f"Speed-up at equal loss: {1.25 * math.exp(-0.05 / 0.5):.3f}", text)
        self.assertIn("| fp8 | 2 | +0.0500 | +0.0500 to +0.0500 |", text)
        self.assertIn("| control | 2 | +0.0000 |", text)
        self.assertIn("NOT below 0.5%", text)

    def test_parity_is_an_upper_bound_below_half_a_percent(self):
        self.assertIn("; below 0.5%", fp8_parity.report(self.arms(bf16=(200, [0, 0]), fp8=(160, [0, 0.001]))))

    def test_one_pair_has_no_interval(self):
        self.assertIn("one pair gives no interval", fp8_parity.report(self.arms(bf16=(200, [0]), fp8=(160, [0.01]))))

    def test_command_line(self):
        words = ["--bf16", self.run_folder("b"), "--fp8", self.run_folder("f", offset=0.01)]
        done = self.output("fp8_parity.py", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| fp8 | 1 | +0.0100 | one pair |", done.stdout)
        (self.folder / "b" / "metrics.jsonl").write_text("no json\n")
        done = self.output("fp8_parity.py", *words)
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("Traceback", done.stderr)

    def test_pairs_have_the_same_steps(self):
        done = self.output("fp8_parity.py", "--bf16", self.run_folder("b"), "--fp8", self.run_folder("f", steps=90))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no pair", done.stderr)


# Writes metrics as redline does, and the words it was given beside them.
PROGRAM = """#!{python}
import json, os, sys
words = sys.argv[1:]
run = words[words.index("--out") + 1]
os.makedirs(run)
steps = int(next(w for w in words if w.startswith("train.max_steps=")).split("=")[1])
with open(os.path.join(run, "metrics.jsonl"), "w") as file:
    for step in range(1, steps + 1):
        row = {{"step": step, "loss": 5 / step + ("precision.matmul=fp8" in words) * 0.01, "step_ms": 100.0}}
        if step == steps:
            row["eval_loss"] = row["loss"]
        file.write(json.dumps(row) + "\\n")
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + "\\n")
"""


class RunsTest(Case):
    def setUp(self):
        super().setUp()
        self.log = self.folder / "log"
        program = self.folder / "redline"
        program.write_text(PROGRAM.format(python=sys.executable, log=str(self.log)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run_it(self, *words):
        done = self.output("fp8_runs.py", *words, "--redline", str(self.folder / "redline"), "--results",
                           str(self.folder))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def calls(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def test_every_arm_and_seed_is_run_once(self):
        text = self.run_it("ping-95m", "--million-tokens", "1", "--seeds", "2", "optim.clip=2")
        self.assertEqual(len(self.calls()), 6)
        self.assertTrue(all("optim.clip=2" in call for call in self.calls()))
        self.assertIn("| fp8 | 2 | +0.0100 |", text)
        self.assertEqual(self.run_it("ping-95m", "--million-tokens", "1", "--seeds", "2").splitlines()[0],
                         text.splitlines()[6])
        self.assertEqual(len(self.calls()), 6, "what stands in the file is not made again")
        self.run_it("ping-95m", "--million-tokens", "1", "--seeds", "3", "--half", "--only", "bf16", "half")
        self.assertEqual(len(self.calls()), 6 + 1 + 3)
        self.assertIn("train.max_steps=4", self.calls()[-1])

    def test_one_batch_is_as_large_as_a_batch(self):
        kept = self.folder / "kept"
        self.run_it("ping-95m", "--one-batch", "4", "--keep", str(kept), "--arm",
                    "other:precision.matmul=fp8 kernels.graphs=off")
        self.assertEqual(len(self.calls()), 4)
        self.assertIn("kernels.graphs=off", self.calls()[-1])
        self.assertTrue(os.path.isdir(kept / "ping-95m-other-0"))
        import fp8_runs
        recipe = fp8_runs.RECIPES["ping-95m"]
        fp8_runs.write_batch(self.folder / "batch.bin", recipe)
        self.assertEqual((self.folder / "batch.bin").stat().st_size, 2 * (128 * 1024 + 1))


if __name__ == "__main__":
    unittest.main()
