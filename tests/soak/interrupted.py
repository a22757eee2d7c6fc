"""Runs that are killed, stopped and continued: each ends as the reference did, bit for bit."""
import os
import signal
import time

import makers
import runs
from program import Failure
from trial import SAME, Reference

LOOK = 0.0005  # seconds between two looks at a run
# The program's words for the two ways in which it stops a run.
BEHIND_THE_STEP, DROPPED = "stopping after this step", "stopping: the unfinished step is dropped"


def partial(run):
    """The folders of checkpoints that are being written or removed, or that a kill has left, each with its inode."""
    try:
        return {(entry.name, entry.inode()) for entry in os.scandir(run / "checkpoints") if "." in entry.name}
    except OSError:
        return set()


def wait_for_moment(trial, reference, run, running):
    """Waits for a moment of the run that was drawn: some time, a step, or the middle of a save. Says which."""
    rng, way = trial.rng, trial.rng.choice(("time", "step", "save", "save", "saved"))
    begun, seen = len(runs.checkpoints(run)), partial(run)
    after = rng.random() * reference.seconds * 1.1
    step = rng.randint(1, reference.configuration.steps)
    saves = rng.randint(1, 3)
    later = rng.choice((0, 0, rng.random() * 0.003, rng.random() * 0.02))
    while running.alive():
        if way == "time" and running.seconds() >= after:
            break
        if way == "step" and runs.last_step(run) >= step:
            break
        if way == "save":
            new = partial(run) - seen
            seen |= new
            saves -= len(new)
            if saves <= 0:
                break
        if way == "saved" and len(runs.checkpoints(run)) > begun:
            break
        time.sleep(LOOK)
    time.sleep(later)
    return f"{way} {after:.3f} s" if way == "time" else f"{way} {step}" if way == "step" else way


def killed_maker(trial):
    """A command that makes a folder, killed and given again: the folder of one that was left alone."""
    reference = Reference(trial, source="text")
    make = makers.draw(trial, reference, pages=False)
    expected, out = trial.folder / "expected", trial.folder / "made"
    seconds = trial.must(make(expected)).seconds
    for _ in range(trial.rng.randint(1, 4)):
        running = trial.start(make(out))
        begun = trial.rng.random() < 0.5
        while running.alive() and begun and not out.with_name("made.partial").exists():
            time.sleep(LOOK)
        time.sleep(trial.rng.random() * (0.01 if begun else seconds))
        running.kill()
        ended = running.wait()
        trial.note(f"# kill -9: {ended.status}")
        trial.done["kills"] += ended.status == -9
        if ended.status != -9:
            trial.program.require_orderly(ended, (0,))
        if out.exists():
            makers.require_same_files(expected, out)
            return SAME
    trial.must(make(out))
    makers.require_same_files(expected, out)
    return SAME


def killed_run(trial):
    reference, run = Reference(trial), trial.folder / "run"
    for _ in range(trial.rng.randint(1, 5)):
        arguments = reference.resume(run) if run.exists() else reference.train(run)
        before, running = partial(run), trial.start(arguments, threads=trial.threads())
        moment = wait_for_moment(trial, reference, run, running)
        running.kill()
        ended = running.wait()
        trial.note(f"# kill -9 ({moment}): {ended.status}; checkpoints {runs.checkpoints(run)}")
        if ended.status != -9:
            trial.program.require_orderly(ended, (0,))
            break
        trial.done["kills"] += 1
        trial.done["kills in the middle of a save"] += partial(run) != before
    reference.complete(run)
    return SAME


KILLED = (killed_run, killed_run, killed_run, killed_run, killed_maker)


def killed(trial):
    return trial.rng.choice(KILLED)(trial)


def written_rows(run):
    path = run / "metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def require_nothing_lost(run, ended, before=b""):
    """A run that put itself in order has its last step in a checkpoint, and says how it ended. A process that left the
    rows as they were `before` it made no step: they may be those of one that was ended at once."""
    if written_rows(run) == before:
        return
    steps, last = [runs.step_of(n) for n in runs.checkpoints(run)], runs.last_step(run)
    if last > 0 and (not steps or steps[-1] != last):
        raise Failure(f"{run}: stopped after step {last} with the checkpoints {steps}: {ended.in_words()}")
    events = runs.rows(run / "events.jsonl")
    if last > 0 and events and events[-1]["kind"] != "stopped":
        raise Failure(f"{run}: stopped, and events.jsonl ends with '{events[-1]['kind']}': {ended.in_words()}")


def has_ended(run):
    events = runs.rows(run / "events.jsonl")
    return bool(events) and events[-1]["kind"] in ("finished", "stopped")


def heard(ended):
    return BEHIND_THE_STEP in ended.err or DROPPED in ended.err


def ended_at_once(way, ended):
    """Signals that may have ended a run before it was in order. SIGTERM alone asks for all that a run can do, and the
    signal behind it ends the process. Two that are sent close together may be heard in the other order, and the
    program says which it heard first."""
    if way == ["SIGINT", "SIGTERM"] and DROPPED in ended.err and BEHIND_THE_STEP not in ended.err:
        return {-signal.SIGINT}
    return set()


def pause(trial, running):
    """SIGSTOP, and SIGCONT later."""
    for _ in range(trial.rng.randint(1, 3)):
        running.send(signal.SIGSTOP)
        time.sleep(trial.rng.random() * 0.2)
        running.send(signal.SIGCONT)
        time.sleep(trial.rng.random() * 0.05)
    trial.note("# SIGSTOP and SIGCONT")


def stopped(trial):
    reference, run = Reference(trial, steps=trial.rng.randint(20, 60)), trial.folder / "run"
    left = set()
    for _ in range(trial.rng.randint(1, 4)):
        new, before = not run.exists(), written_rows(run)
        running = trial.start(reference.train(run) if new else reference.resume(run), threads=trial.threads())
        moment = wait_for_moment(trial, reference, run, running)
        way = trial.rng.choice((["SIGINT"], ["SIGTERM"], ["SIGHUP"], ["SIGINT", "SIGINT"], ["SIGINT", "SIGTERM"], []))
        begun = (run / "config.toml").exists()
        if not way:
            pause(trial, running)
        for n, name in enumerate(way):
            if n > 0:  # the same signal again at once is the same signal
                time.sleep(trial.rng.choice((0, 0.1, 0.55)))
            running.send(getattr(signal, name))
            trial.done["signals to stop"] += 1
        ended = running.wait()
        trial.note(f"# {' '.join(way) or 'paused'} ({moment}): {ended.status}; checkpoints {runs.checkpoints(run)}")
        # Before the run has begun there is nothing to put in order, nor when it has ended: then the signal may end the
        # process. One that goes on with a run has begun when it heard a signal or made a step.
        begun = begun and (new or heard(ended) or written_rows(run) != before)
        in_order = begun and not has_ended(run)
        by_signal = ended_at_once(way, ended) if in_order else {-getattr(signal, name) for name in way}
        trial.program.require_orderly(ended, {0, 3 if way else 0} | by_signal)
        if way and ended.status in (0, 3):  # behind the last evaluation of a run that has ended, samples may be left
            left.add(runs.last_step(run))
        if ended.status == 0:
            break
        if ended.status == 3:
            require_nothing_lost(run, ended, before)
    reference.complete(run, left=left)
    return SAME
