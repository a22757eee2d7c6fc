#!/usr/bin/env python3
"""Measures what a save costs training: trains a model with a small checkpoint.every and compares the steps around each
save with the median of the others. Right after it, as many bytes are written to the same disk with a plain write and a
sync. Prints Markdown.

  bench/save_steps.py gqa-180m:64 --every 50 --saves 3 data.train=.cache/text/train.bin
  bench/save_steps.py llama-1.36b:24 --every 30 --saves 2 data.train=random:32000 --results saves.json

`held` is the time in which training stood still for the copy, by the host's clock. `slower` is all that a save cost: by
how much the time from some steps before it to some steps behind it is longer than as many steps of the median, in parts
of a step.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import result_files

WARM_UP = 5  # steps that do not count
AROUND = 8   # steps on each side of a save that are looked at


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="MODEL:BATCH")
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--every", type=int, default=50, help="steps between saves")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="at most")
    parser.add_argument("--redline", default="build/redline")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", help="on the disk in question (default: the system's for temporary files)")
    parser.add_argument("--copy", default="card", help="where the copy of the state lies, for that file: card or host")
    parser.add_argument("--results", metavar="FILE", help="a JSON file that gets the rows as well")
    parser.add_argument("--commit", help="of the program, for that file")
    return parser.parse_intermixed_args()


def lines_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]  # the last one may be cut
    except OSError:
        return []


def train(given, folder):
    """Steps and saves of a run, which is ended by force: its last save would be one more."""
    model, batch = given.run.split(":")
    run = os.path.join(folder, "run")
    command = [given.redline, "train", "--preset", model, "--device", given.device, "--out", run,
               f"train.batch_size={batch}", "train.accumulate=1", "train.max_steps=1000000", "train.eval_every=0",
               "data.train=ping", "model.dropout=0", "optim.name=adamw",
               "checkpoint.keep=1", f"checkpoint.every={given.every}",
               *given.keys]
    log = os.path.join(folder, "log")
    begin = time.time()
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.time() - begin < given.seconds:
                time.sleep(0.5)
                steps = [row for row in lines_of(os.path.join(run, "metrics.jsonl")) if "step_ms" in row]
                saves = [row for row in lines_of(os.path.join(run, "events.jsonl")) if row["kind"] == "checkpoint"]
                if len(saves) >= given.saves and steps[-1]["step"] > saves[given.saves - 1]["step"] + AROUND:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    if not saves:
        with open(log, encoding="utf-8") as file:
            sys.exit(f"no save in {given.seconds:g} s\n{file.read()[-1500:]}")
    folders = [entry.path for entry in os.scandir(os.path.join(run, "checkpoints")) if entry.is_dir()]
    # one may be half written
    size = max(sum(os.path.getsize(os.path.join(f, name)) for name in os.listdir(f)) for f in folders)
    warnings = [row["text"] for row in lines_of(os.path.join(run, "events.jsonl")) if row["kind"] == "warning"]
    return steps, saves[:given.saves], size, warnings


def plain_write(folder, size):
    """Seconds of a write with a sync."""
    block = os.urandom(64 << 20)
    path = os.path.join(folder, "plain")
    begin = time.time()
    with open(path, "wb", buffering=0) as file:
        left = size
        while left > 0:
            left -= file.write(block[:min(left, len(block))])
        os.fsync(file.fileno())
    took = time.time() - begin
    os.remove(path)
    return took


def longer(by_step, at, usual):
    """How many steps of the usual length the steps around one took more than there are of them."""
    first, last = by_step.get(at - AROUND), by_step.get(at + AROUND)
    return (last["time"] - first["time"]) * 1e3 / usual - 2 * AROUND if first and last else None


def main():
    given = arguments()
    model, _, batch = given.run.partition(":")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        steps, saves, size, warnings = train(given, folder)
        subprocess.run(["rm", "-rf", os.path.join(folder, "run")], check=True)
        plain = plain_write(folder, size)
    by_step = {row["step"]: row for row in steps}
    near = {n for save in saves for n in range(save["step"], save["step"] + 3)}
    usual = statistics.median(row["step_ms"] for row in steps if row["step"] > WARM_UP and row["step"] not in near)
    print(f"{given.run}: a step {usual:.1f} ms, a checkpoint {size / 1e9:.2f} GB; written plainly with a sync in "
          f"{plain:.1f} s, {size / 1e9 / plain:.2f} GB/s\n")
    print("| behind step | held, ms | the next steps, ms | slower, parts of a step | written in | GB/s |")
    print("|---|---|---|---|---|---|")
    rows = []
    for save in saves:
        at = save["step"]
        next_ms = [by_step[at + i]["step_ms"] for i in (1, 2, 3) if at + i in by_step]
        whole = longer(by_step, at, usual)
        rows.append({"model": model, "batch_size": int(batch), "copy": given.copy, "step": at,
                     "step_ms": round(usual, 2), "held_ms": round(1e3 * save["held_seconds"], 2),
                     "next_step_ms": [round(ms, 2) for ms in next_ms], "slower_steps": whole and round(whole, 3),
                     "seconds": round(save["seconds"], 2), "gbytes": round(size / 1e9, 3),
                     "gbytes_per_s": round(size / 1e9 / save["seconds"], 2),
                     "plain_gbytes_per_s": round(size / 1e9 / plain, 2)})
        print(f"| {at} | {1e3 * save['held_seconds']:.1f} | {', '.join(f'{ms:.1f}' for ms in next_ms)} "
              f"| {'' if whole is None else f'{whole:+.3f}'} | {save['seconds']:.1f} s "
              f"| {size / 1e9 / save['seconds']:.2f} |")
    quiet = [longer(by_step, at, usual) for at in by_step if at > WARM_UP + AROUND and all(
        abs(at - save["step"]) > 2 * AROUND for save in saves)]
    quiet = [whole for whole in quiet if whole is not None]
    if quiet:
        print(f"\nsteps without a save: {min(quiet):+.3f} to {max(quiet):+.3f}")
    for text in warnings:
        print(f"warning: {text}")
    if given.results:
        result = {"date": time.strftime("%Y-%m-%d"), "machine": None, "versions": {"redline": given.commit},
                  "command": " ".join(sys.argv), "rows": []}
        if os.path.exists(given.results):
            result = result_files.read(given.results)
        result["rows"] += rows
        result_files.write(given.results, result)


if __name__ == "__main__":
    main()
