#!/usr/bin/env python3
"""The Python package of python/ with a program: what it returns is what the program says, and its errors are the
program's sentences. numpy and pandas are used where they are installed; without, their tests are skipped.

Usage: redline_test.py PROGRAM
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python")
sys.path.insert(0, PYTHON)
import redline

TINY = {"model.layers": 1, "model.hidden": 16, "model.heads": 2, "model.head_dim": 8, "model.ffn": 16,
        "train.batch_size": 1, "train.seq_len": 32, "train.eval_every": 0}


def has(package):
    return importlib.util.find_spec(package) is not None


class Redline(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="redline_python_test_")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def train(self, **more):
        return redline.train("quick", TINY, out=self.path("run"), device="cpu", quiet=True, **more)

    def fails(self, status, part, function, *words, **more):
        with self.assertRaises(redline.Error) as caught:
            function(*words, **more)
        self.assertEqual(caught.exception.status, status)
        self.assertIn(part, str(caught.exception))
        self.assertNotIn("redline: error:", str(caught.exception))

    def test_libraries_in_another_folder_of_pythons_are_found(self):
        for name in ("cu13", "cudnn", "other"):
            os.makedirs(self.path("nvidia", name, "lib"))
        with mock.patch.object(sys, "path", [self.folder, *sys.path]), mock.patch.dict(os.environ):
            os.environ["LD_LIBRARY_PATH"] = "/before"
            folders = redline.environment()["LD_LIBRARY_PATH"].split(os.pathsep)
        self.assertEqual(folders[0], "/before")
        self.assertEqual([f for f in folders if f.startswith(self.folder)],
                         [self.path("nvidia", name, "lib") for name in ("cu13", "cudnn")])

    def test_libraries_beside_the_package_need_no_variable(self):
        spec = importlib.machinery.ModuleSpec("nvidia", None, is_package=True)
        spec.submodule_search_locations = [os.path.join(PYTHON, "nvidia")]
        with mock.patch.object(importlib.util, "find_spec", return_value=spec):
            self.assertEqual(redline.environment(), dict(os.environ))
        with mock.patch.object(importlib.util, "find_spec", return_value=None):
            self.assertEqual(redline.environment(), dict(os.environ))

    def test_train_takes_short_and_full_names_and_returns_the_end(self):
        end = self.train(max_steps=3, lr=1e-3)
        self.assertEqual((end["outcome"], end["steps"], end["folder"]), ("finished", 3, self.path("run")))
        with open(self.path("run", "config.toml"), encoding="utf-8") as file:
            text = file.read()
        self.assertRegex(text, r"(?m)^lr = 0\.001\b")
        self.assertRegex(text, r"(?m)^hidden = 16\b")
        end = redline.train(out=self.path("run"), resume=True, device="cpu", quiet=True, max_steps=5)
        self.assertEqual(end["steps"], 5)

    def test_what_the_program_says_is_shown(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            redline.train("quick", TINY, out=self.path("run"), device="cpu", max_steps=2)
        self.assertIn("step 2/2", said.getvalue())

    def test_values_are_written_as_the_program_reads_them(self):
        words = redline._config_words(None, {"data.train": ["a b.txt", "c"], "model.tied": True, "data.eval": "x y",
                                             "optim.lr": 1e-3, "train.max_steps": 7}, {})
        self.assertEqual(words, ['data.train=["a b.txt", "c"]', "model.tied=true", "data.eval=x y", "optim.lr=0.001",
                                 "train.max_steps=7"])
        self.fails(2, "no value", redline._config_words, None, {"optim.lr": None}, {})

    @unittest.skipUnless(has("numpy"), "numpy is not installed")
    def test_values_of_numpy_are_values(self):
        import numpy
        words = redline._config_words(None, {"model.tied": numpy.bool_(True), "optim.lr": numpy.float64(0.5),
                                             "train.max_steps": numpy.int32(7)}, {})
        self.assertEqual(words, ["model.tied=true", "optim.lr=0.5", "train.max_steps=7"])
        self.fails(2, "no value", redline._config_words, None, {"optim.lr": numpy.array([1.0, 2.0])}, {})

    def test_errors_are_the_programs_sentences(self):
        self.fails(2, "none.toml", redline.train, self.path("none.toml"), quiet=True)
        self.fails(2, "no key 'learning_speed'", self.train, learning_speed=1)
        self.fails(2, "may be", self.train, every=4)  # of checkpoint, and of others
        self.fails(2, "given twice", self.train, seq_len=64)
        self.fails(2, "optim.lr", self.train, lr="fast")
        self.fails(2, "abacus", redline.plan, "quick", card="abacus")
        self.fails(2, "no such folder", redline.call, "report", self.path("none"))
        self.fails(2, "metrics.jsonl", redline.metrics, self.path("none"))

    def test_metrics_are_the_rows_of_the_file(self):
        self.train(max_steps=3)
        path = self.path("run", "metrics.jsonl")
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        with mock.patch.dict(sys.modules, {"pandas": None}):
            table = redline.metrics(self.path("run"))
        self.assertEqual(table["step"], [1, 2, 3])
        self.assertEqual(table["loss"], [row["loss"] for row in rows])
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"step": 4, "lo')  # a row that is being written
        with mock.patch.dict(sys.modules, {"pandas": None}):
            self.assertEqual(redline.metrics(self.path("run"))["step"], [1, 2, 3])
        with open(path, "a", encoding="utf-8") as file:
            file.write("\n")
        self.fails(2, "metrics.jsonl:4", redline.metrics, self.path("run"))
        for line, what in ((b"7\n", "metrics.jsonl:1"), (b"\xff\n", "metrics.jsonl")):
            with open(path, "wb") as file:
                file.write(line)
            self.fails(2, what, redline.metrics, self.path("run"))

    @unittest.skipUnless(has("pandas"), "pandas is not installed")
    def test_metrics_are_a_frame_where_pandas_is(self):
        self.train(max_steps=3)
        table = redline.metrics(self.path("run"))
        self.assertEqual(list(table["step"]), [1, 2, 3])
        self.assertEqual(str(table["loss"].dtype), "float64")

    def test_a_plan_is_a_dict(self):
        plan = redline.plan("quick", card="h200", batch_size=4)
        self.assertEqual((plan["batch_size"], plan["config"]), (4, "quick"))
        self.assertGreater(plan["memory"]["total"], 0)
        self.assertIn("gpus", json.dumps(redline.plan("gqa-180m", card="h200", gpus=8)))

    @unittest.skipUnless(has("numpy"), "numpy is not installed")
    def test_tokens_are_memmaps(self):
        texts = ["a few words", "and a few more", "the end"]
        with open(self.path("text.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        redline.call("data", "prepare", "--tokenizer", "bytes", "--out", self.path("shards"), self.path("text.jsonl"))
        shard, = redline.tokens(self.path("shards"))
        documents = [bytes(int(t) for t in shard.ids[a:b] if t < 256).decode()
                     for a, b in zip(shard.offsets[:-1], shard.offsets[1:])]
        self.assertEqual(documents, texts)
        self.assertIsNone(shard.mask)
        self.fails(2, "no split 'test'", redline.tokens, self.path("shards"), "test")
        self.fails(2, "manifest.json", redline.tokens, self.path("none"))
        with open(self.path("shards", "train-00000.tokens"), "ab") as file:
            file.write(b"??")
        self.fails(2, "prepare the folder again", redline.tokens, self.path("shards"))
        with open(self.path("shards", "manifest.json"), "w", encoding="utf-8") as file:
            file.write("[]")
        self.fails(2, "manifest.json", redline.tokens, self.path("shards"))

    def until(self, holds):
        end = time.monotonic() + 60
        while not holds() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertTrue(holds())

    def signalled(self, number):
        """What a Python that trains prints where a signal comes after the first step."""
        script = "import redline, sys\n" \
                 "try: redline.train('quick', {}, out=sys.argv[1], device='cpu', max_steps=100000, eval_every=0)\n" \
                 "except KeyboardInterrupt: print('interrupted')"
        with subprocess.Popen([sys.executable, "-c", script, self.path("run")], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True,
                              env={**os.environ, "PYTHONPATH": PYTHON}) as process:
            metrics = self.path("run", "metrics.jsonl")
            self.until(lambda: os.path.exists(metrics) and os.path.getsize(metrics))
            process.send_signal(number)
            return process.communicate(timeout=60)[0]

    def test_an_interrupt_saves_the_run(self):
        self.assertEqual(self.signalled(signal.SIGINT), "interrupted\n")
        self.assertTrue(os.listdir(self.path("run", "checkpoints")))

    def test_a_run_ends_in_good_order_where_its_python_is_killed(self):
        self.signalled(signal.SIGKILL)
        checkpoints = self.path("run", "checkpoints")
        self.until(lambda: os.path.isdir(checkpoints) and any(n.startswith("step_") and n[-1].isdigit()
                                                              for n in os.listdir(checkpoints)))

    def test_the_command_becomes_the_program(self):
        run = [sys.executable, "-m", "redline"]
        env = {**os.environ, "PYTHONPATH": PYTHON}
        self.assertEqual(subprocess.run([*run, "--version"], env=env, capture_output=True, text=True).stdout,
                         f"redline {redline.version()}\n")
        self.assertEqual(subprocess.run([*run, "frobnicate"], env=env, capture_output=True).returncode, 2)
        lost = subprocess.run([*run, "--version"], env={**env, "REDLINE_PROGRAM": self.path("none")},
                              capture_output=True, text=True)
        self.assertEqual((lost.returncode, lost.stderr.count("\n")), (2, 1))
        self.assertIn("REDLINE_PROGRAM", lost.stderr)
        with open(self.path("plain"), "w", encoding="utf-8"):
            pass
        for mode in (0o600, 0o700):  # may not be run; cannot
            os.chmod(self.path("plain"), mode)
            with mock.patch.dict(os.environ, {"REDLINE_PROGRAM": self.path("plain")}):
                self.fails(2, "run", redline.call, "info")
                self.assertEqual(subprocess.run([*run, "--version"], env={**env, **os.environ},
                                                capture_output=True).stderr.count(b"\n"), 1)

    def test_a_script_does_not_start_itself_for_ever(self):
        script = self.path("redline")
        with open(script, "w", encoding="utf-8") as file:  # as pip makes it
            file.write(f"#!{sys.executable}\nimport sys\nfrom redline import main\nsys.exit(main())\n")
        os.chmod(script, 0o700)
        variables = {name: value for name, value in os.environ.items() if name != "REDLINE_PROGRAM"}
        ran = subprocess.run(["redline", "--version"], capture_output=True, text=True, timeout=60, env={
            **variables, "PYTHONPATH": PYTHON, "PATH": self.folder + os.pathsep + os.environ["PATH"]})
        self.assertEqual((ran.returncode, ran.stderr.count("\n")), (2, 1))
        self.assertIn("PYTHONPATH", ran.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: redline_test.py PROGRAM [unittest's words]")
    os.environ["REDLINE_PROGRAM"] = os.path.abspath(sys.argv.pop(1))
    unittest.main()
