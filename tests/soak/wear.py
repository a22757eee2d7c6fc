"""One process over many steps: after its first tenth, resident memory, open files and threads do not grow."""
import json
import os
import time

from configurations import quoted
from program import Failure

INTERVAL = 0.2  # seconds between two looks: 20,000 steps are over in 7 s where disks are fast
# How far the largest value behind the first tenth may lie above the median of the second, and how far a straight line
# through the values may rise from there to the end. Memory moves by pages of files that are mapped and by the
# allocator; files are opened for a save and closed again; threads are all made at the start.
# What is read ahead stands in chunks that are used again, and 16 wait for their next use (data/ordered_workers.h). A
# small corpus is one chunk, so that each epoch adds one to them until all 17 are there: with 14,000 tokens and 17 times
# 94 KB that was 1.6 MB up to step 7,700, and more with other texts. They are all there in the first tenth where an
# epoch is a 20th of it: then the line rises by 155 to 193 KiB.
TOLERANCES = {"resident KiB": (4096, 1024), "open files": (12, 1), "threads": (2, 1)}


def look(pid):
    """One row of what a process holds; nothing where it has just ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            status = dict(line.split(":", 1) for line in f if ":" in line)
        return {"resident KiB": int(status["VmRSS"].split()[0]), "open files": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": len(os.listdir(f"/proc/{pid}/task"))}
    except (OSError, KeyError):
        return None


def median(values):
    return sorted(values)[len(values) // 2]


def rise(steps, values):
    """By how much the straight line of least squares rises from the first step to the last."""
    mean_x, mean_y = sum(steps) / len(steps), sum(values) / len(values)
    spread = sum((x - mean_x) ** 2 for x in steps)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(steps, values)) / spread if spread else 0.0
    return slope * (steps[-1] - steps[0])


def judge(samples, steps):
    """Rows of a table (what, first, median of the second tenth, largest after, rise, passed) and whether all passed.
    `samples` are pairs of a step and what was held then."""
    after = [(step, held) for step, held in samples if step >= steps / 10]
    early = [held for step, held in after if step < steps / 5] or [held for _, held in after[:1]]
    if len(after) < 10:
        raise Failure(f"only {len(after)} looks behind the first tenth of the steps: more steps, or a shorter interval")
    table = []
    for name, (above, slope) in TOLERANCES.items():
        base, most = median([held[name] for held in early]), max(held[name] for _, held in after)
        rose = rise([step for step, _ in after], [held[name] for _, held in after])
        table.append((name, samples[0][1][name], base, most, rose, most - base <= above and rose <= slope))
    return table, all(row[-1] for row in table)


def last_step_of(path, at):
    """The last step in a growing metrics.jsonl, reading only its end."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.path.getsize(path) - 4096))
            lines = f.read().split(b"\n")[:-1]
        return int(lines[-1].split(b'"step":', 1)[1].split(b",", 1)[0].rstrip(b"}"))
    except (OSError, IndexError, ValueError):
        return at


def watch(running, run, interval=INTERVAL):
    samples, step = [], 0
    while running.alive():
        step = last_step_of(run / "metrics.jsonl", step)
        held = look(running.process.pid)
        if held and step > 0:
            samples.append((step, held))
        time.sleep(interval)
    return samples


CHUNKS, ROW = 20, 32  # a few more than there are; tokens of a step


def write_small(rng, folder, steps):
    """A text whose tokens (bytes) are read CHUNKS times in the first tenth of the steps. Returns how many it has."""
    most, tokens, rows = steps // 10 // CHUNKS * ROW, 0, []
    while not rows or tokens + 40 < most:
        rows.append("".join(rng.choice("abcdefgh ") for _ in range(rng.randint(10, 38))))
        tokens += len(rows[-1]) + 1
    (folder / "small.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return tokens


CONFIGURATION = """[model]
family = "qwen3"
layers = 1
hidden = 16
heads = 2
kv_heads = 1
head_dim = 8
ffn = 32
vocab = 320
[data]
train = [{data}]
tokenizer = "bytes"
workers = 2
[train]
batch_size = 1
seq_len = {row}
max_steps = {steps}
eval_every = 10
eval_batches = 1
sample_every = 100
sample_tokens = 4
[checkpoint]
every = 20
keep = 2
[log]
every = 50
sinks = ["console", "jsonl", "tensorboard", "prometheus"]
"""


def wear(trial, steps, interval=INTERVAL):
    """Runs it and returns the table's lines and whether it passed."""
    text = trial.folder / "text"
    text.mkdir(parents=True)
    write_small(trial.rng, text, steps)
    path, run = trial.folder / "wear.toml", trial.folder / "run"
    path.write_text(CONFIGURATION.format(data=quoted(text / "small.jsonl"), steps=steps, row=ROW), encoding="utf-8")
    running = trial.start(["train", path, "--out", run, "--device", "cpu"])
    samples = watch(running, run, interval)
    ended = trial.finish(running, (0,))
    table, passed = judge(samples, steps)
    lines = [f"{steps} steps, {steps // 20} checkpoints, {steps // 10} evaluations in {ended.seconds:.0f} s, "
             f"{len(samples)} looks",
             f"{'':<14}{'first':>10}{'2nd tenth':>11}{'largest':>10}{'rise':>10}  allowed above, rise"]
    for name, first, base, most, rose, ok in table:
        above, slope = TOLERANCES[name]
        lines.append(f"{name:<14}{first:>10}{base:>11}{most:>10}{rose:>10.1f}  {above}, {slope}: "
                     f"{'holds' if ok else 'GROWS'}")
    return lines, passed
