"""Two processes on one folder at the same time: one wins and ends as it would alone, the other says a sentence."""
import time

import makers
import runs
from program import Failure
from trial import REFUSED, SAME, Reference

ANOTHER = ("another process is", "already holds a run", "nothing is left to do")


def at_once(trial, commands, gap):
    running = []
    for n, command in enumerate(commands):
        if n:
            time.sleep(gap)
        running.append(trial.start(command, threads=trial.threads()))
    return [trial.finish(r, (0, 1, 2)) for r in running]


def trainers(trial):
    """Two that begin the same run, or two that go on with it."""
    reference, run = Reference(trial), trial.folder / "run"
    if trial.rng.random() < 0.5:
        reference.half_done(run)
        commands = [reference.resume(run), reference.resume(run)]
    else:
        commands = [reference.train(run), reference.train(run, *(["--resume"] if trial.rng.random() < 0.5 else []))]
    ended = at_once(trial, commands, trial.rng.random() * reference.seconds * 1.2 * trial.rng.choice((0, 1)))
    if all(e.status != 0 for e in ended):
        raise Failure(f"neither of two processes ended well: {ended[0].in_words()}; {ended[1].in_words()}")
    for e in ended:
        if e.status != 0 and not any(words in e.told() for words in ANOTHER):
            raise Failure(f"the loser does not say that another process is there: {e.in_words()}")
    runs.require_same(reference.run, run)
    return SAME if all(e.status == 0 for e in ended) else REFUSED


def readers(trial):
    """Commands that read a run, over and over, while it trains and removes what they read."""
    reference, run = Reference(trial, steps=trial.rng.randint(30, 60)), trial.folder / "run"
    running, n, refused = trial.start(reference.train(run)), 0, 0
    while running.alive():
        n += 1
        out = trial.folder / f"made{n}"
        command = trial.rng.choice((["eval", "--checkpoint", run, "--device", "cpu", "--batches", 1],
                                    ["sample", "--checkpoint", run, "--prompt", "a", "--tokens", 3, "--device", "cpu"],
                                    ["export", "--checkpoint", run, "--out", out],
                                    ["report", run, "--out", out], ["report", run, "--json"]))
        time.sleep(trial.rng.random() * 0.1)
        refused += trial.run(command, (0, 1, 2)).status != 0
    trial.finish(running, (0,))
    runs.require_same(reference.run, run)
    return REFUSED if refused else SAME


def two_makers(trial):
    """Two that make the same folder: it is one's, whole."""
    reference = Reference(trial, source="text")
    make = makers.draw(trial, reference, pages=False)
    expected, out = trial.folder / "expected", trial.folder / "made"
    trial.must(make(expected))
    ended = at_once(trial, [make(out)] * 2, trial.rng.choice((0, 0, trial.rng.random() * 0.2)))
    if sorted(e.status for e in ended) not in ([0, 2], [0, 1]):
        raise Failure(f"one of two ought to have won: {ended[0].in_words()}; {ended[1].in_words()}")
    makers.require_same_files(expected, out)
    return REFUSED


def raced(trial):
    return trial.rng.choice((trainers, trainers, readers, two_makers))(trial)
