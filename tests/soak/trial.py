"""One trial: its seed, its folder, the commands it gave, and the reference run that its others are held against."""
import collections
import pathlib
import random
import shutil

import configurations
import runs
from program import Failure

# The outcomes of a trial.
SAME = "bit-identical"
REFUSED = "refused with a sentence"
WARNED = "other, with a warning"
SKIPPED = "skipped"
OUTCOMES = (SAME, REFUSED, WARNED, SKIPPED)


class Trial:
    def __init__(self, program, kind, seed, folder):
        self.program, self.kind, self.seed = program, kind, seed
        self.folder = pathlib.Path(folder)
        self.rng = random.Random(f"{kind}:{seed}")
        self.notes = []  # commands and what was done between them, in order
        self.done = collections.Counter()  # of what was done, for the summary

    def note(self, words):
        self.notes.append(words)

    def start(self, arguments, **how):
        running = self.program.start(arguments, **how)
        self.note(running.shown)
        self.done["processes"] += 1
        return running

    def finish(self, running, allowed):
        ended = running.wait()
        if ended.status != 0:
            self.note(f"# exit status {ended.status}: {(ended.err.strip().splitlines() or [''])[-1][:300]}")
        return self.program.require_orderly(ended, allowed)

    def run(self, arguments, allowed=(0, 1, 2), **how):
        return self.finish(self.start(arguments, **how), allowed)

    def must(self, arguments, **how):
        return self.run(arguments, allowed=(0,), **how)

    def threads(self):
        """Results do not depend on their number."""
        return self.rng.choice((1, 2, 3))


class Reference:
    """The run without interruption."""

    def __init__(self, trial, source=None, steps=None):
        self.trial = trial
        self.configuration = configurations.make(trial, source, steps)
        self.run = trial.folder / "reference"
        self.seconds = trial.must(self.train(self.run), threads=trial.threads()).seconds

    def train(self, run, *more):
        return ["train", self.configuration.path, "--out", run, "--device", "cpu", *more]

    def resume(self, run, *more):
        """Bare where the run has its own configuration, else with it; sometimes with other threads for the data."""
        rng = self.trial.rng
        keys = [f"data.workers={rng.randint(0, 2)}", f"data.prefetch={rng.randint(1, 4)}"] if rng.random() < 0.3 else []
        if (run / "config.toml").exists() and rng.random() < 0.5:
            return ["train", "--resume", "--out", run, "--device", "cpu", *keys, *more]
        return self.train(run, "--resume", *keys, *more)

    def complete(self, run, gaps=False, left=()):
        """Resumes without interruption, and holds the end against the reference."""
        self.trial.must(self.resume(run), threads=self.trial.threads())
        runs.require_same(self.run, run, gaps, left=left)

    def half_done(self, run):
        """A run that was killed when it had some of its checkpoints: the one that damage and others are tried on."""
        wanted = self.trial.rng.randint(1, max(1, self.configuration.steps // self.configuration.every - 1))
        running = self.trial.start(self.train(run))
        while running.alive():
            steps = [runs.step_of(n) for n in runs.checkpoints(run)]
            if steps and max(steps) >= wanted * self.configuration.every:
                running.kill()
        ended = running.wait()
        if ended.status not in (0, -9):
            self.trial.program.require_orderly(ended, (0,))
        self.trial.note(f"# killed with the checkpoints {runs.checkpoints(run)}")
        if not runs.checkpoints(run):
            raise Failure(f"{run} has no checkpoint after a kill that waited for one")


def fresh(folder):
    if folder.exists():
        shutil.rmtree(folder)
    return folder
