"""Files that were changed, cut short, emptied, removed or filled with other bytes: a run goes on as if nothing had
been, says what is wrong, or warns of it. It never ends with other weights in silence."""
import os
import shutil
import time

import runs
from program import Failure
from trial import REFUSED, SAME, WARNED, Reference, fresh

SMALL = 4096


def flip(rng, path):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 8, 200))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    write_in_place(path, data)


def cut(rng, path):
    os.truncate(path, rng.randrange(path.stat().st_size))


def empty(rng, path):
    os.truncate(path, 0)


def remove(rng, path):
    path.unlink()


def zero(rng, path):
    """A piece of zeros, as a disk leaves that lost its power."""
    data = bytearray(path.read_bytes())
    first = rng.randrange(len(data))
    last = min(len(data), first + rng.choice((1, 16, 512, SMALL)))
    data[first:last] = bytes(last - first)
    write_in_place(path, data)


def lengthen(rng, path):
    with open(path, "ab") as f:
        f.write(rng.choice((b"\0", b"\n", b"}\n", rng.randbytes(64))))


def folder_instead(rng, path):
    path.unlink()
    path.mkdir()


WAYS = (flip, flip, flip, cut, cut, empty, remove, zero, lengthen, folder_instead)


def write_in_place(path, data):
    with open(path, "r+b") as f:
        f.write(data)


def files_in(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file()) if folder and folder.exists() else []


def damage(trial, path):
    way = trial.rng.choice(WAYS)
    if path.stat().st_size == 0:
        way = trial.rng.choice((remove, lengthen))
    way(trial.rng, path)
    trial.done["files damaged"] += 1
    trial.note(f"# damaged: {way.__name__} {path}")


def candidates(trial, reference, run, data):
    """The files of one room, so that rooms are met alike whatever the number of their files."""
    newest = run / "checkpoints" / runs.checkpoints(run)[-1]
    rooms = {
        "newest checkpoint": files_in(newest),
        "all checkpoints": files_in(run / "checkpoints"),
        "tokenizer": files_in(run / "tokenizer"),
        "configuration": [run / "config.toml"],
        "rows": [p for p in files_in(run) if p.parent == run and p.name != "config.toml"],
        "data": files_in(data / "shards") or [p for p in files_in(data)] if data else [],
    }
    return rooms[trial.rng.choice([name for name, files in rooms.items() if files])]


def judge(trial, reference, run, ended, damaged):
    """What the end means. Other weights are told of: a warning names the file, or the checkpoint that it belongs to."""
    if ended.status in (1, 2):
        return REFUSED
    if runs.same_weights(reference.run, run):
        check_last_checkpoint(reference, run)
        return SAME
    told = ended.told() + read_lossy(run / "events.jsonl")
    if any("warning" in line and str(path) in line for line in told.splitlines() for path in damaged):
        return WARNED
    raise Failure(f"other weights than the reference's, and no warning names {[str(p) for p in damaged]}: "
                  f"{ended.in_words()}")


def read_lossy(path):
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def check_last_checkpoint(reference, run):
    """All but the tokenizer's files, which are the run's own and may be what was damaged."""
    last = runs.checkpoints(reference.run)[-1]
    for name in ("config.json", "fp8.safetensors", "state.json"):
        a, b = (r / "checkpoints" / last / name for r in (reference.run, run))
        if a.exists() != b.exists():
            raise Failure(f"{b} is there, or is not, other than the reference's")
        read = runs.state_without_stamp if name == "state.json" else bytes
        if a.exists() and read(a.read_bytes()) != read(b.read_bytes()):
            raise Failure(f"{b} differs from the reference's")


def before_resume(trial, reference):
    """Several times from the same half-done run, damaged each time otherwise."""
    half, outcomes = trial.folder / "half", []
    reference.half_done(half)
    data = reference.configuration.data_folder
    kept = trial.folder / "data_kept"
    if data:
        shutil.copytree(data, kept, copy_function=shutil.copy2)
    for _ in range(3):
        run = fresh(trial.folder / "run")
        shutil.copytree(half, run)
        damaged = []
        for _ in range(trial.rng.choice((1, 1, 2))):
            files = [p for p in candidates(trial, reference, run, data) if p.is_file()]
            if files:
                damaged.append(trial.rng.choice(files))
                damage(trial, damaged[-1])
        ended = trial.run(reference.resume(run), (0, 1, 2), threads=trial.threads())
        outcomes.append(judge(trial, reference, run, ended, damaged))
        if data:
            for path in kept.rglob("*"):  # in place, so that inodes stay
                back = data / path.relative_to(kept)
                if back.is_dir() and path.is_file():
                    back.rmdir()
                if path.is_file() and (not back.exists() or back.read_bytes() != path.read_bytes()):
                    shutil.copy2(path, back)
    return max(outcomes, key=(SAME, REFUSED, WARNED).index)


def before_start(trial, reference):
    """A new run over shards that are not as they were prepared."""
    run, path = trial.folder / "run", trial.rng.choice(files_in(reference.configuration.data_folder / "shards"))
    damage(trial, path)
    ended = trial.run(reference.train(run), (0, 1, 2))
    return judge(trial, reference, run, ended, [path])


def under_the_run(trial, reference):
    """Data that change in place while they are read. Text is what it is when it is read, so that other weights are
    right where a warning names the file."""
    data = reference.configuration.data_folder
    path = trial.rng.choice(files_in(data / "shards") or files_in(data / "text"))
    run = trial.folder / "run"
    running = trial.start(reference.train(run))
    while running.alive() and not (run / "config.toml").exists():  # before, it would be other data from the start
        time.sleep(0.001)
    time.sleep(trial.rng.random() * reference.seconds / 2)
    damage(trial, path)
    return judge(trial, reference, run, trial.finish(running, (0, 1, 2)), [path])


def damaged(trial):
    way = trial.rng.choice((before_resume, before_resume, before_resume, before_start, under_the_run))
    source = {before_resume: None, before_start: "prepared"}.get(way, trial.rng.choice(("text", "prepared", "jsonl")))
    return way(trial, Reference(trial, source))
