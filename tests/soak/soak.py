#!/usr/bin/env python3
"""Runs of random configurations that are killed, stopped, starved, damaged and raced, for a given time. Each ends with
the bits of an undisturbed run or with one sentence. Not a part of `make test`; CONTRIBUTING.md has what each kind does.

  tests/soak/soak.py --redline build/redline --minutes 60
  tests/soak/soak.py --redline build/redline --only killed stopped --minutes 5 --jobs 2
  tests/soak/soak.py --redline build/redline --wear
"""
import argparse
import collections
import concurrent.futures
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback

from damaged import damaged
from fed import fed
from interrupted import killed, stopped
from program import Failure, Program
from raced import raced
from starved import disk, memory
from trial import OUTCOMES, Trial
from wear import INTERVAL, wear

KINDS = {"killed": killed, "stopped": stopped, "disk": disk, "memory": memory, "damaged": damaged, "raced": raced,
         "fed": fed}


class Progress:
    """One line: over itself on a terminal, every half minute elsewhere."""

    def __init__(self, ends_at):
        self.ends_at, self.told_at, self.terminal = ends_at, 0.0, sys.stdout.isatty()

    def tell(self, counts, failures):
        now = time.monotonic()
        if now - self.told_at < (0.5 if self.terminal else 30):
            return
        self.told_at = now
        left = max(0, self.ends_at - now)
        kinds = "  ".join(f"{kind} {sum(c.values())}" for kind, c in counts.items())
        line = (f"{sum(sum(c.values()) for c in counts.values())} trials: {kinds}  failures {failures}  "
                f"{left // 60:.0f}m {left % 60:02.0f}s left")
        print(f"\r{line}\x1b[K" if self.terminal else line, end="" if self.terminal else "\n", flush=True)


class Soak:
    def __init__(self, options, program):
        self.options, self.program = options, program
        self.kinds = options.only or list(KINDS)
        self.counts = {kind: collections.Counter() for kind in self.kinds}
        self.failures, self.done = [], collections.Counter()
        self.lock = threading.Lock()
        self.ends_at = time.monotonic() + options.minutes * 60
        self.progress = Progress(self.ends_at)
        self.next, self.stopped = 0, False

    def take(self):
        """The number of the next trial, or nothing when the time is over."""
        with self.lock:
            over = self.next >= self.options.trials if self.options.trials else time.monotonic() >= self.ends_at
            if over or self.stopped:
                return None
            self.next += 1
            return self.next - 1

    def work(self):
        while (n := self.take()) is not None:
            self.one(self.kinds[n % len(self.kinds)], self.options.seed + n)

    def one(self, kind, seed):
        folder = pathlib.Path(self.options.folder) / f"{kind}_{seed}"
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        trial, problem = Trial(self.program, kind, seed, folder), None
        try:
            outcome = KINDS[kind](trial)
        except Failure as e:
            outcome, problem = "failure", str(e)
        except Exception:  # one trial's surprise is told with its seed and does not end the others
            outcome, problem = "failure", "the trial itself broke:\n" + traceback.format_exc()
        with self.lock:
            if self.stopped:
                return
            self.counts[kind][outcome] += 1
            self.done += trial.done
            if problem:
                self.failures.append((trial, problem))
                print(f"\n{self.in_words(trial, problem)}", flush=True)
            self.progress.tell(self.counts, len(self.failures))
        if not (problem and self.options.keep_failures):
            shutil.rmtree(folder, ignore_errors=True)

    def in_words(self, trial, problem):
        kept = f"\n  kept: {trial.folder}" if self.options.keep_failures else ""
        notes = "\n    ".join(trial.notes)
        return (f"FAILURE of {trial.kind}, seed {trial.seed}: {problem}\n  again: {self.again(trial)}{kept}\n"
                f"  commands:\n    {notes}")

    def again(self, trial):
        return (f"tests/soak/soak.py --redline {self.options.redline} --only {trial.kind} --seed {trial.seed} "
                f"--trials 1 --keep-failures")

    def table(self):
        heads = ("trials", *OUTCOMES, "failure")
        lines = [f"{'kind':<10}" + "".join(f"{h:>{len(h) + 2}}" for h in heads)]
        for kind, counts in self.counts.items():
            row = (sum(counts.values()), *(counts[o] for o in OUTCOMES), counts["failure"])
            lines.append(f"{kind:<10}" + "".join(f"{n:>{len(h) + 2}}" for h, n in zip(heads, row)))
        lines.append(", ".join(f"{n} {what}" for what, n in sorted(self.done.items())))
        return "\n".join(lines)

    def run(self):
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            working = [pool.submit(self.work) for _ in range(self.options.jobs)]
            try:
                for done in working:
                    done.result()
            except BaseException:  # Ctrl-C: nothing is left running
                self.stopped = True
                self.program.kill_all()
                raise


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--redline", required=True, metavar="PATH", help="the program")
    parser.add_argument("--minutes", type=float, default=60, metavar="N", help="new trials begin so long (default: 60)")
    parser.add_argument("--trials", type=int, default=0, metavar="N", help="so many trials instead of a time")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first trial; each next has one more")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="trials at the same time (default: 1)")
    parser.add_argument("--folder", metavar="DIR", help="where trials write (default: a temporary folder)")
    parser.add_argument("--keep-failures", action="store_true", help="leave the folders of failed trials")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--time-limit", type=float, default=60, metavar="S", help="a process hangs that takes longer")
    parser.add_argument("--wear", action="store_true", help="one long run; memory, open files, threads do not grow")
    parser.add_argument("--steps", type=int, default=20000, metavar="N", help="of --wear (default: 20000)")
    parser.add_argument("--interval", type=float, default=INTERVAL, metavar="S",
                        help=f"of --wear, seconds between two looks (default: {INTERVAL})")
    return parser.parse_args(words)


def wear_out(options):
    trial = Trial(Program(options.redline, max(options.time_limit, 3600)), "wear", options.seed,
                  pathlib.Path(options.folder) / "wear")
    lines, passed = wear(trial, options.steps, options.interval)
    print("\n".join(lines))
    shutil.rmtree(trial.folder)
    return 0 if passed else 1


def let_programs_hear():
    """What this process was started to ignore (by nohup, or behind a shell) its programs would ignore too, and stop for
    nothing. A handler is not inherited: it leaves us deaf, and lets them hear."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def main(words):
    options = parse(words)
    let_programs_hear()
    own = options.folder is None
    options.folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="redline_soak_")).resolve()
    try:
        if options.wear:
            return wear_out(options)
        soak = Soak(options, Program(options.redline, options.time_limit))
    except Failure as e:
        print(f"FAILURE: {e}")
        return 1
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        soak.run()
    except KeyboardInterrupt:
        print("\nstopped by a signal; what was done:")
    print(f"\n{soak.table()}\n{sum(sum(c.values()) for c in soak.counts.values())} trials in "
          f"{(time.monotonic() - began) / 60:.1f} minutes, {len(soak.failures)} failures")
    for trial, problem in soak.failures:
        print(f"{trial.kind} {trial.seed}: {problem.splitlines()[0]}\n  {soak.again(trial)}")
    if own and not (soak.failures and options.keep_failures):
        shutil.rmtree(options.folder, ignore_errors=True)
    return 1 if soak.failures or soak.stopped else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
