#!/usr/bin/env python3
"""The soak test finds what it is there to find: programs that are planted with one fault each fail it, and the real one
passes. Usage: soak_test.py REDLINE"""
import contextlib
import io
import json
import os
import pathlib
import random
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

import damaged
import interrupted
import runs
import soak
import trial as trials
import wear
from program import Ended, Failure, Program

REDLINE = None
# The first whose trial is a run that is resumed, and not a folder that is made.
SEED = next(s for s in range(100) if random.Random(f"killed:{s}").choice(interrupted.KILLED) is interrupted.killed_run)

# A program around the real one. It does its mischief when it is asked to go on with a run.
PLANTED = """#!{python} -IS
import glob, os, signal, subprocess, sys, time
resumes = "--resume" in sys.argv
def real():
    return subprocess.call([{redline!r}] + sys.argv[1:])
{body}
sys.exit(real())
"""
ALTERS_A_BYTE = """
if resumes:
    status = real()
    run = sys.argv[sys.argv.index("--out") + 1]
    for path in sorted(glob.glob(run + "/checkpoints/step_*/" + "NAME"))[-1:]:
        with open(path, "r+b") as f:
            f.seek(-1, 2)
            last = f.read(1)[0]
            f.seek(-1, 2)
            f.write(bytes([last ^ 1]))
    sys.exit(status)
"""
DOES_NOTHING = "if resumes: sys.exit(0)"
THROWS = """
if resumes:
    sys.stderr.write("terminate called after throwing an instance of 'std::out_of_range'\\n  what():  map::at\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
"""
ASSERTS = """
if resumes:
    sys.stderr.write("redline: step_loop.cpp:12: Assertion `step > 0' failed.\\n")
    sys.exit(1)
"""
HANGS = "if resumes: time.sleep(1000)"
SAYS_NOTHING = "if resumes: sys.exit(2)"


def ended(status, err="", out="", hung=False):
    return Ended("redline train", status, out, err, 0.1, hung)


class InFolder(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="redline_soak_test_")
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def soak(self, redline, *more):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            status = soak.main(["--redline", str(redline), "--folder", str(self.folder / "trials"), "--trials", "1",
                                "--time-limit", "60", *more])
        return status, shown.getvalue()

    def planted(self, body):
        path = self.folder / "planted"
        path.write_text(PLANTED.format(python=sys.executable, redline=REDLINE, body=body), encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def expect_found(self, body, words, *more):
        status, shown = self.soak(self.planted(body), "--only", "killed", "--seed", str(SEED), *more)
        self.assertEqual(status, 1, shown)
        self.assertIn(words, shown)
        self.assertIn(f"--only killed --seed {SEED} --trials 1", shown)


class PlantedPrograms(InFolder):
    def test_the_real_one_passes(self):
        status, shown = self.soak(REDLINE, "--only", "killed", "stopped", "--trials", "2", "--seed", str(SEED))
        self.assertEqual(status, 0, shown)
        self.assertIn("2 trials in", shown)
        self.assertEqual(list((self.folder / "trials").iterdir()), [])

    def test_altered_weights(self):
        self.expect_found(ALTERS_A_BYTE.replace("NAME", "model.safetensors"), "model.safetensors")

    def test_altered_moments_are_kept_to_look_at(self):
        self.expect_found(ALTERS_A_BYTE.replace("NAME", "optimizer.safetensors"), "optimizer.safetensors",
                          "--keep-failures")
        self.assertTrue((self.folder / "trials" / f"killed_{SEED}" / "reference").is_dir())

    def test_silence(self):
        self.expect_found(DOES_NOTHING, f"killed_{SEED}/run")

    def test_a_crash(self):
        self.expect_found(THROWS, "a signal ended it")

    def test_an_assertion(self):
        self.expect_found(ASSERTS, "it said 'Assertion'")

    def test_a_status_without_a_sentence(self):
        self.expect_found(SAYS_NOTHING, "exit status 2, where [0] are right")

    def test_a_hang(self):
        self.expect_found(HANGS.replace("resumes", "'train' in sys.argv"), "it hung for 1 s", "--time-limit", "1")

    def test_no_program_at_all(self):
        status, shown = self.soak(self.planted("sys.exit(0)"))
        self.assertEqual(status, 1)
        self.assertIn("--help names no exit statuses", shown)


class Signals(unittest.TestCase):
    def test_programs_hear_what_we_ignore(self):
        asks = "import signal; print(*(signal.getsignal(n) != signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP)))"
        before = [(n, signal.signal(n, signal.SIG_IGN)) for n in (signal.SIGINT, signal.SIGHUP)]
        try:
            self.assertEqual(subprocess.check_output([sys.executable, "-c", asks]).split(), [b"False", b"False"])
            soak.let_programs_hear()
            self.assertEqual(subprocess.check_output([sys.executable, "-c", asks]).split(), [b"True", b"True"])
        finally:
            for number, handler in before:
                signal.signal(number, handler)


class Sentences(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.program = Program(REDLINE)

    def refused(self, found, words):
        with self.assertRaises(Failure) as raised:
            self.program.require_orderly(found, (0, 1, 2))
        self.assertIn(words, str(raised.exception))

    def test_one_is_right(self):
        self.program.require_orderly(ended(2, "redline: warning: a\nredline: error: x.toml: line 1 is no key\n"), (2,))
        self.program.require_orderly(ended(0, ""), (0,))

    def test_everything_else_is_not(self):
        self.refused(ended(1, ""), "0 lines begin")
        self.refused(ended(1, "redline: error: a b c\nredline: error: a b c\n"), "2 lines begin")
        self.refused(ended(1, "redline: error: a b c\nand more\n"), "not the last line")
        self.refused(ended(1, "redline: error: Cannot allocate memory\n"), "does not say of what")
        self.refused(ended(1, "redline: error: it is vector::_M_range_check again\n"), "a library's")
        self.refused(ended(7, "redline: error: a b c\n"), "which --help does not name")
        self.refused(ended(-11), "a signal ended it")
        self.refused(ended(-9, hung=True), "it hung")
        self.refused(ended(2, "AddressSanitizer: heap-use-after-free\nredline: error: a b c\n"), "Sanitizer")

    def test_statuses_are_those_of_the_help(self):
        self.assertEqual(self.program.statuses, {0, 1, 2, 3})


class Comparison(InFolder):
    def run_folder(self, name, losses, weights=b"w", step=4):
        run = self.folder / name
        checkpoint = run / "checkpoints" / f"step_{step:08d}"
        checkpoint.mkdir(parents=True)
        for file in ("model.safetensors", "optimizer.safetensors"):
            (checkpoint / file).write_bytes(weights)
        (checkpoint / "state.json").write_text(json.dumps({"step": step, "data": {"contents": "a", "stamp": name}}))
        (checkpoint / "manifest.json").write_text(name)
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps({"step": n, "time": hash(name), "loss": loss}) + "\n" for n, loss in losses))
        return run

    def setUp(self):
        super().setUp()
        self.rows = [(1, 3.5), (2, 3.25), (3, 3.0), (4, 2.5)]
        self.reference = self.run_folder("reference", self.rows)

    def test_times_do_not_matter_and_losses_do(self):
        runs.require_same(self.reference, self.run_folder("a", self.rows), stamps=False)
        with self.assertRaisesRegex(Failure, "row 3"):
            other = self.run_folder("b", [*self.rows[:2], (3, 3.1), self.rows[3]])
            runs.require_same(self.reference, other, stamps=False)
        with self.assertRaisesRegex(Failure, "state.json differs"):
            runs.require_same(self.reference, self.run_folder("c", self.rows))
        with self.assertRaisesRegex(Failure, "model.safetensors differs"):
            runs.require_same(self.reference, self.run_folder("d", self.rows, b"v"), stamps=False)

    def test_what_a_signal_leaves(self):
        row = {"step": 2, "loss": 3.25, "eval_loss": 3.0}
        self.assertEqual(runs.without_left([row], [{"step": 2, "loss": 3.25}], {2}), [{"step": 2, "loss": 3.25}])
        self.assertEqual(runs.without_left([row], [{"step": 2, "loss": 3.25}], {1}), [row])
        self.assertEqual(runs.without_left([row], [{"step": 2, "eval_loss": 9.0}], {2}), [row])
        self.assertEqual(runs.without_left([{"step": 2, "samples": []}], [], {2}), [])
        self.assertEqual(runs.without_left([{"step": 2, "samples": []}], [], {3}), [{"step": 2, "samples": []}])

    def test_gaps_where_they_are_allowed(self):
        short = self.run_folder("a", [self.rows[0], self.rows[3]])
        runs.require_same(self.reference, short, gaps=True, stamps=False)
        with self.assertRaises(Failure):
            runs.require_same(self.reference, short, stamps=False)
        twice = self.run_folder("b", [self.rows[0], *self.rows])
        with self.assertRaises(Failure):
            runs.require_same(self.reference, twice, gaps=True, stamps=False)

    def test_leftovers(self):
        run = self.run_folder("a", self.rows)
        (run / "checkpoints" / "step_00000003.partial").mkdir()
        with self.assertRaisesRegex(Failure, "still holds"):
            runs.require_same(self.reference, run, stamps=False)

    def test_a_stop_loses_no_step(self):
        run = self.run_folder("a", [*self.rows, (5, 2.0)])
        with self.assertRaisesRegex(Failure, "stopped after step 5"):
            interrupted.require_nothing_lost(run, ended(3))
        with self.assertRaisesRegex(Failure, "stopped after step 5"):
            interrupted.require_nothing_lost(run, ended(3), before=b"{}\n")
        interrupted.require_nothing_lost(run, ended(3), before=(run / "metrics.jsonl").read_bytes())
        interrupted.require_nothing_lost(self.reference, ended(3))

    def test_signals_in_the_other_order(self):
        both = ["SIGINT", "SIGTERM"]
        told = "stopping: the unfinished step is dropped and the state before it saved; again: without saving\n"
        self.assertEqual(interrupted.ended_at_once(both, ended(-2, told)), {-2})
        for way, err in ((both, ""), (both, "stopping after this step; again: at once\n" + told),
                         (["SIGINT", "SIGINT"], told), (["SIGTERM"], told), ([], told)):
            self.assertEqual(interrupted.ended_at_once(way, ended(-2, err)), set(), (way, err))

    def test_other_weights_are_told_of(self):
        reference = type("", (), {"run": self.reference})()
        other, path = self.run_folder("a", self.rows, b"v"), pathlib.Path("/data/part0.txt")
        judge = lambda found: damaged.judge(None, reference, other, found, [path])
        with self.assertRaisesRegex(Failure, "no warning names"):
            judge(ended(0, out="warning: /data/part1.txt changed\n"))
        self.assertEqual(judge(ended(0, out="warning: /data/part0.txt changed\n")), trials.WARNED)
        self.assertEqual(judge(ended(2)), trials.REFUSED)
        self.assertEqual(damaged.judge(None, reference, self.reference, ended(0), [path]), trials.SAME)


class Wear(unittest.TestCase):
    def table(self, **grow):
        held = {"resident KiB": 100000, "open files": 9, "threads": 5}
        samples = [(step, {k: v + int(grow.get(k.split()[0], 0) * step / 1000) for k, v in held.items()})
                   for step in range(10, 1001, 10)]
        return wear.judge(samples, 1000)

    def test_flat_passes(self):
        self.assertTrue(self.table()[1])

    def test_the_text_is_read_often_in_the_first_tenth(self):
        for seed in range(20):
            with tempfile.TemporaryDirectory() as folder:
                tokens = wear.write_small(random.Random(seed), pathlib.Path(folder), 20000)
                rows = (pathlib.Path(folder) / "small.jsonl").read_text(encoding="utf-8").splitlines()
            self.assertGreaterEqual(len(rows), 64)  # one is held out
            self.assertEqual(tokens, sum(len(json.loads(row)["text"]) + 1 for row in rows))
            self.assertLessEqual(17 * tokens, 20000 // 10 * 32)

    def test_growth_fails(self):
        for name, by in (("resident", 1500), ("open", 3), ("threads", 3)):
            table, passed = self.table(**{name: by})
            self.assertFalse(passed, name)
            self.assertEqual([row[0].split()[0] for row in table if not row[-1]], [name])

    def test_what_happens_at_the_start_does_not_count(self):
        samples = [(n, {"resident KiB": 50000 if n < 100 else 90000, "open files": 4, "threads": 3})
                   for n in range(1, 1001, 10)]
        self.assertTrue(wear.judge(samples, 1000)[1])

    def test_one_leap_fails(self):
        samples = [(n, {"resident KiB": 90000 + 9000 * (n == 501), "open files": 4, "threads": 3})
                   for n in range(1, 1001, 10)]
        self.assertFalse(wear.judge(samples, 1000)[1])

    def test_too_few_looks(self):
        with self.assertRaisesRegex(Failure, "only 2 looks"):
            wear.judge([(n, {"resident KiB": 1, "open files": 1, "threads": 1}) for n in (10, 500, 900)], 1000)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: soak_test.py REDLINE [unittest's words]")
    REDLINE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
