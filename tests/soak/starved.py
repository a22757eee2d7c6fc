"""Runs with too little disk or memory: they end with a sentence or go on, and leave nothing torn that a later resume
takes for whole."""
import os
import shutil
import subprocess
import time

import makers
import runs
from program import Failure
from trial import REFUSED, SAME, SKIPPED, Reference

MIB = 1 << 20


class SmallDisk:
    """A tmpfs of so many bytes, or with room for so many files. Needs the right to mount."""

    def __init__(self, folder, size, files=100000):
        self.folder = folder
        folder.mkdir()
        room = f"size={max(4096, int(size))},nr_inodes={files}"
        self.mounted = self._mount(["-t", "tmpfs", "-o", room, "redline_soak", str(folder)])

    def _mount(self, words):
        try:
            return subprocess.run(["mount", *words], capture_output=True).returncode == 0
        except FileNotFoundError:
            return False

    def grow(self):
        if not self._mount(["-o", "remount,size=256m,nr_inodes=100000", str(self.folder)]):
            raise OSError(f"{self.folder} cannot be mounted again with more room")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


def bytes_in(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def largest_file(folder):
    return max(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def file_limit(trial):
    """No file may become longer than a random size: checkpoints, metrics, all of it."""
    reference, run = Reference(trial), trial.folder / "run"
    limit = int(trial.rng.uniform(0.005, 1.1) * largest_file(reference.run))
    first = trial.run(reference.train(run), (0, 1), limits={"FSIZE": limit})
    again = first.status
    if trial.rng.random() < 0.5 and run.exists():
        again = trial.run(reference.resume(run), (0, 1), limits={"FSIZE": limit}).status
    reference.complete(run, gaps=True)
    return SAME if first.status == again == 0 else REFUSED


def full_disk(trial):
    """The run's folder on a disk that is too small, or that others fill while it runs, and has room again later."""
    reference = Reference(trial)
    one = max(bytes_in(p) for p in (reference.run / "checkpoints").iterdir())
    size = trial.rng.uniform(0.02, 1.3) * (bytes_in(reference.run) + one)
    filled_later, few_files = trial.rng.random() < 0.4, trial.rng.random() < 0.2
    if filled_later or few_files:
        size = 64 * MIB
    files = trial.rng.randint(3, 60) if few_files else 100000
    with SmallDisk(trial.folder / "disk", size, files) as disk:
        if not disk.mounted:
            return SKIPPED
        run = disk.folder / "run"
        running = trial.start(reference.train(run))
        if filled_later:
            fill_for_a_while(trial, reference, disk.folder, running)
        first = trial.finish(running, (0, 1))
        again = first.status
        if trial.rng.random() < 0.5 and again == 1 and not filled_later:
            again = trial.run(reference.resume(run), (0, 1)).status
        disk.grow()
        trial.note(f"# {disk.folder} (a tmpfs of {int(size)} bytes and {files} files) has room again")
        reference.complete(run, gaps=True)
    return SAME if first.status == again == 0 else REFUSED


def fill_for_a_while(trial, reference, folder, running):
    time.sleep(trial.rng.random() * reference.seconds)
    filler = folder / "filler"
    try:
        with open(filler, "wb", buffering=0) as f:
            while f.write(b"x" * MIB) == MIB:
                pass
    except OSError:
        pass
    time.sleep(trial.rng.random() * reference.seconds)
    filler.unlink()
    trial.note("# the disk was full for a while")


def other_commands(trial):
    """What makes a folder or a file on a disk that is too small, then with room: what a large disk gives."""
    reference = Reference(trial, source="text")
    make = makers.draw(trial, reference)
    expected = trial.folder / "expected"
    trial.must(make(expected))
    with SmallDisk(trial.folder / "disk", trial.rng.uniform(0.02, 1.2) * (bytes_in(expected) if expected.is_dir()
                                                                        else expected.stat().st_size)) as disk:
        if not disk.mounted:
            return SKIPPED
        out = disk.folder / "made"
        first = trial.run(make(out), (0, 1))
        if first.status == 1:
            makers.require_nothing_made(out, first)
            disk.grow()
            trial.must(make(out))
        if expected.is_dir():
            makers.require_same_files(expected, out)
    return SAME if first.status == 0 else REFUSED


def disk(trial):
    return trial.rng.choice((file_limit, full_disk, full_disk, other_commands))(trial)


def memory(trial):
    """A limit somewhere between what the program needs to start and what it needs to train."""
    reference, run = Reference(trial), trial.folder / "run"
    name = trial.rng.choice(("AS", "DATA"))
    limit = trial.program.least(name) + int(trial.rng.random() ** 2 * 300 * MIB)
    if trial.rng.random() < 0.4:
        reference.half_done(run)
    way = trial.rng.choice(("train", "train", "train", "other"))
    if way == "train":
        arguments = reference.resume(run) if run.exists() else reference.train(run)
        status = trial.run(arguments, (0, 1, 2), limits={name: limit}, threads=trial.threads()).status
        if status == 0:
            runs.require_same(reference.run, run)
        reference.complete(run)
        return REFUSED if status else SAME
    out = trial.folder / "made"
    command = trial.rng.choice((["eval", "--checkpoint", reference.run, "--device", "cpu"],
                                ["sample", "--checkpoint", reference.run, "--prompt", "a", "--device", "cpu"],
                                ["export", "--checkpoint", reference.run, "--out", out],
                                ["report", reference.run, "--out", out]))
    ended = trial.run(command, (0, 1, 2), limits={name: limit}, threads=trial.threads())
    if ended.status:
        makers.require_nothing_made(out, ended)
    if out.is_dir():
        shutil.rmtree(out)
    again = trial.must(command)
    if command[0] in ("eval", "sample") and ended.status == 0 and ended.out != again.out:
        raise Failure(f"another result under a limit of memory: {ended.out} and {again.out}: {ended.in_words()}")
    return REFUSED if ended.status else SAME
