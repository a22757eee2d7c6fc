#!/usr/bin/env python3
"""How many GPU-seconds a loss costs: trains a model by several arms (an engine and an optimizer), at several lengths
each with its own whole schedule, and says when each arm would reach the loss that the base arm ends with. Prints
Markdown; runs stand in RESULTS/time_to_loss_MODEL.csv, and one that stands there is not made again, so that a table can
be spread over several calls.

  bench/time_to_loss.py gqa-180m --train train.bin --eval val.bin --arms adamw muon "muon fp8"
  bench/time_to_loss.py gqa-180m --train train.bin --eval val.bin --torch torch_text.py \\
                        --text train.jsonl.zst val.jsonl.zst --tokenizer tokenizer.json --arms "torch adamw" adamw muon
  bench/time_to_loss.py gqa-180m --table                                what the file says so far
  bench/loss_curves.py gqa-180m --out curves.svg                        the losses of the longest runs over seconds

All arms train on the same tokens: full rows of one stream, as a script that knows no documents has them. The slope of
an arm is -dL/d ln(tokens) between its shortest and its longest run. Seconds to the base's loss are counted from the run
of the arm that ends nearest to it: seconds of its steps * exp((its loss - the base's) / slope). Each optimizer has a
rate of its own: search it on the shorter length first, with as many trials for each (`redline sweep`).
"""
import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import fp8_parity
import fp8_runs

COLUMNS = ["arm", "million_tokens", "seed", "lr", "warmup_steps", "steps", "step_ms", "held_out"]
CURVE_COLUMNS, CURVE_EVERY = ["arm", "million_tokens", "seed", "step", "loss"], 5
# The engine and what is set; keys of redline, flags of the script in PyTorch.
ARMS = {
    "torch adamw": ("torch", ["--optimizer", "adamw"]),
    "torch muon": ("torch", ["--optimizer", "muon"]),
    "torch adamw fp8": ("torch", ["--optimizer", "adamw", "--precision", "fp8"]),
    "adamw": ("redline", ["optim.name=adamw"]),
    "adamw fp8": ("redline", ["optim.name=adamw", "precision.matmul=fp8"]),
    "muon": ("redline", ["optim.name=muon", "optim.muon_beta2=0"]),
    "muon fp8": ("redline", ["optim.name=muon", "optim.muon_beta2=0", "precision.matmul=fp8"]),
}
BASE, SYSTEM = "torch adamw", "adamw"  # what all is held against, and what the engine alone gives


def files(folder, model):
    """Of the ends of runs, and of their curves."""
    return [os.path.join(folder, f"time_to_loss_{model}{part}.csv") for part in ("", "_curves")]


class Recipe:
    """Rows of a micro-batch, micro-batches of a step, the length of a row, the rate of each optimizer, and keys."""

    def __init__(self, rows, accumulate, seq_len, *keys, **rates):
        self.rows, self.accumulate, self.seq_len, self.rates = rows, accumulate, seq_len, rates
        self.keys = keys

    def steps(self, million_tokens):
        return max(1, round(million_tokens * 1e6 / (self.rows * self.accumulate * self.seq_len)))


RECIPES = {
    "gqa-180m": Recipe(64, 2, 1024, adamw=2.5e-4, muon=4e-3),
    "cs336-350m": Recipe(64, 1, 1024, "model.tied=false", adamw=2.5e-4, muon=2e-3),  # as torch_peer.py has it
    "ping-95m": Recipe(128, 1, 1024, adamw=2.5e-4, muon=4e-3),
}
WARM_UP = 0.3  # of the steps: AdamW bears no less in runs so short


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=RECIPES)
    parser.add_argument("keys", nargs="*", metavar="key=value", help="for every run of redline")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=[SYSTEM, "muon"], metavar="ARM",
                        help=", ".join(ARMS))
    parser.add_argument("--lr", type=float, help="of every arm (default: what suits its optimizer)")
    parser.add_argument("--million-tokens", nargs="+", type=float, default=[15, 30])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--train", metavar="DATA")
    parser.add_argument("--eval", metavar="DATA")
    parser.add_argument("--torch", metavar="SCRIPT",
                        help="that trains in PyTorch and prints one JSON object at its end")
    parser.add_argument("--text", nargs=2, metavar="FILE", help="the same text for it, to train on and held out")
    parser.add_argument("--tokenizer", help="for it")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no run is begun")
    parser.add_argument("--redline", default=os.path.join(fp8_runs.ROOT, "build/redline"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", default=os.path.join(fp8_runs.ROOT, "bench/results"), help="folder of the file")
    parser.add_argument("--table", action="store_true", help="no runs: only what the file has")
    return parser.parse_intermixed_args()


def warm_up(steps):
    return max(1, round(WARM_UP * steps))


def run_or_end(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}")
    return done.stdout


def train_redline(given, recipe, keys, lr, steps, seed, folder):
    """Median ms of a step, the held-out loss, and training losses by their steps."""
    run = os.path.join(folder, "run")
    run_or_end([given.redline, "train", "--preset", given.model, "--device", given.device, "--out", run,
                f"train.batch_size={recipe.rows}", f"train.accumulate={recipe.accumulate}",
                f"train.seq_len={recipe.seq_len}", f"train.max_steps={steps}", f"train.seed={seed}",
                f"data.seed={seed}", "train.eval_every=0", "train.eval_batches=1000", "checkpoint.every=0",
                f"optim.lr={lr}", f"optim.min_lr={lr / 10}", f"optim.warmup_steps={warm_up(steps)}",
                "optim.schedule=cosine", f"data.train={os.path.abspath(given.train)}",
                f"data.eval={os.path.abspath(given.eval)}", 'log.sinks=["console", "jsonl"]', *recipe.keys,
                *given.keys, *keys])
    result = fp8_parity.read_run(run)
    shutil.rmtree(run)
    return result.step_ms(), result.final(), result.losses()


def train_torch(given, recipe, flags, lr, steps, seed, _):
    if not given.torch or not given.text or not given.tokenizer:
        sys.exit("the arms in PyTorch need --torch, --text and --tokenizer")
    words = run_or_end([sys.executable, given.torch, "--model", given.model, "--train", given.text[0], "--val",
                        given.text[1], "--tokenizer", given.tokenizer, "--batch", str(recipe.rows), "--accumulate",
                        str(recipe.accumulate), "--steps", str(steps), "--lr", str(lr), "--min-lr", str(lr / 10),
                        "--warmup", str(warm_up(steps)), "--seed", str(seed), "--device", given.device, *flags])
    *lines, result = [json.loads(line) for line in words.strip().split("\n") if line.startswith("{")]
    return result["step_ms"], result["held_out"], {line["step"]: line["loss"] for line in lines if "step" in line}


def add_rows(path, columns, rows):
    new = not os.path.exists(path)
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([columns, *rows] if new else rows)


def thinned(losses):
    """A loss every CURVE_EVERY steps: the mean of those since the last."""
    return [(step, round(statistics.fmean(loss for at, loss in losses.items() if step - CURVE_EVERY < at <= step), 4))
            for step in sorted(losses) if step % CURVE_EVERY == 0 or step == max(losses)]


def read(path):
    """{arm: {million tokens: [(steps, step_ms, held out), one a seed]}}"""
    arms = {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                arms.setdefault(row["arm"], {}).setdefault(float(row["million_tokens"]), []).append(
                    (int(row["steps"]), float(row["step_ms"]), float(row["held_out"])))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{path}: {error}")
    return arms


def slope(lengths):
    """-dL/d ln(tokens) between the shortest and the longest runs; None where there is one length."""
    short, long = min(lengths), max(lengths)
    if short == long:
        return None
    mean = lambda length: statistics.fmean(loss for _, _, loss in lengths[length])
    return (mean(short) - mean(long)) / math.log(long / short)


def seconds_to(loss, lengths):
    """Of steps alone, until an arm reaches a loss, from its runs that end nearest to it; None where that takes a slope
    and it has none that falls."""
    ends_at = lambda runs: statistics.fmean(held_out for _, _, held_out in runs)
    runs = min(lengths.values(), key=lambda runs: abs(ends_at(runs) - loss))
    seconds = statistics.fmean(steps * ms / 1e3 for steps, ms, _ in runs)
    if ends_at(runs) == loss:
        return seconds
    falls = slope(lengths)
    return seconds * math.exp((ends_at(runs) - loss) / falls) if falls and falls > 0 else None


def spread(losses):
    return f"{statistics.fmean(losses):.4f}" + (f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else "")


def table(arms):
    base = BASE if BASE in arms else SYSTEM
    if base not in arms:
        sys.exit(f"no runs of \"{BASE}\" or \"{SYSTEM}\" to hold the others against")
    lengths = sorted({length for of_arm in arms.values() for length in of_arm})
    goal = statistics.fmean(loss for _, _, loss in arms[base][max(arms[base])])
    from_start = seconds_to(goal, arms[base])
    lines = ["| arm | ms a step | " + " | ".join(f"held out, {x:g}M tokens" for x in lengths) +
             f" | GPU-seconds to {goal:.4f} | times faster than {base} |", "|---" * (len(lengths) + 4) + "|"]
    for arm in [name for name in ARMS if name in arms]:
        of_arm = arms[arm]
        ms = statistics.median(ms for runs in of_arm.values() for _, ms, _ in runs)
        needs = seconds_to(goal, of_arm)
        cells = [spread([loss for _, _, loss in of_arm[x]]) if x in of_arm else "" for x in lengths]
        lines.append(f"| {arm} | {ms:.1f} | " + " | ".join(cells) +
                     (f" | {needs:.0f} | {from_start / needs:.2f} |" if needs and from_start else " | | |"))
    return "\n".join(lines)


def main():
    given = arguments()
    recipe = RECIPES[given.model]
    path, curves = files(given.results, given.model)
    begin = time.time()
    if not given.table:
        if not given.train or not given.eval:
            sys.exit("give --train and --eval: tokens to train on, and those held out")
        there = read(path) if os.path.exists(path) else {}
        wanted = [(seed, length, arm) for seed in range(given.seeds) for length in given.million_tokens
                  for arm in given.arms]
        for seed, length, arm in wanted:
            if len(there.get(arm, {}).get(length, [])) > seed:
                continue
            if time.time() - begin > 60 * given.minutes:
                print(f"{arm}, {length:g}M tokens, seed {seed} and what follows is left for another call")
                break
            engine, settings = ARMS[arm]
            steps = recipe.steps(length)
            lr = given.lr or recipe.rates["muon" if "muon" in arm else "adamw"]
            with tempfile.TemporaryDirectory() as folder:
                train = train_redline if engine == "redline" else train_torch
                step_ms, held_out, losses = train(given, recipe, settings, lr, steps, seed, folder)
            add_rows(path, COLUMNS, [[arm, f"{length:g}", seed, f"{lr:g}", warm_up(steps), steps, f"{step_ms:.4g}",
                                      f"{held_out:.6g}"]])
            add_rows(curves, CURVE_COLUMNS, [[arm, f"{length:g}", seed, step, loss] for step, loss in thinned(losses)])
            print(f"{arm}, {length:g}M tokens, seed {seed}: {step_ms:.1f} ms a step, held out {held_out:.4f}",
                  flush=True)
    print(table(read(path)))


if __name__ == "__main__":
    main()
