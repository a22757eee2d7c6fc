#!/usr/bin/env python3
"""A model with experts beside a dense one of its active size, at equal seconds of steps: reads runs, keeps their curves
in bench/results/expert_curves.csv, prints a table of held-out losses in Markdown and draws them.

  bench/expert_curves.py --gather RUNS     the folders RUNS/ARM-SEED, with metrics.jsonl and, of experts, router.jsonl
  bench/expert_curves.py --out curves.svg  the table and the picture of what the file has

Runs of one arm have the same number of steps, or nearly: as many as fit into the seconds of the others. Seconds are
those of steps alone; held-out losses between two evaluations are not guessed, so a row of the table is an evaluation of
each run, and its seconds stand beside it. "As if" is the least number of experts with equal loads that would be as
uneven as those of any layer: experts / mean(load^2), with loads in units of an even one.
"""
import argparse
import csv
import json
import os
import sys

import fp8_runs
import loss_curves

FILE = os.path.join(fp8_runs.ROOT, "bench/results/expert_curves.csv")
COLUMNS = ["arm", "seed", "step", "seconds", "million_tokens", "loss", "held_out", "largest_load", "smallest_load",
           "as_if"]


def as_if(layers):
    """The least over layers; loads have a mean of 1."""
    return min(len(layer["loads"]) / (sum(x * x for x in layer["loads"]) / len(layer["loads"])) for layer in layers)


def lines(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")


def curve(arm, seed, metrics, routers):
    """A row for each evaluation behind a step; its loss is the mean since the one before, its loads are of that step,
    or of the last look at them."""
    rows, seconds, tokens, losses, looked = [], 0.0, 0, [], None
    looks = {row["step"]: as_if(row["layers"]) for row in routers}
    for row in metrics:
        if "step_ms" not in row:
            continue
        seconds += row["step_ms"] / 1e3
        tokens += row["tokens"]
        losses.append(row["loss"])
        looked = looks.get(row["step"], looked)
        if "eval_loss" not in row:
            continue
        rows.append({"arm": arm, "seed": seed, "step": row["step"], "seconds": f"{seconds:.2f}",
                     "million_tokens": f"{tokens / 1e6:.3f}", "loss": f"{sum(losses) / len(losses):.4f}",
                     "held_out": f"{row['eval_loss']:.4f}",
                     "largest_load": f"{row['largest_load']:.3f}" if "largest_load" in row else "",
                     "smallest_load": f"{row['smallest_load']:.3f}" if "smallest_load" in row else "",
                     "as_if": "" if looked is None else f"{looked:.1f}"})
        losses = []
    if not rows or rows[-1]["step"] != metrics[-1]["step"]:
        sys.exit(f"{arm}-{seed}: no held-out loss behind its last step, {metrics[-1]['step']}")
    return rows


def gather(folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        arm, dash, seed = name.rpartition("-")
        if not dash or not seed.isdigit():
            continue
        path = os.path.join(folder, name)
        routers = os.path.join(path, "router.jsonl")
        rows += curve(arm, int(seed), lines(os.path.join(path, "metrics.jsonl")),
                      lines(routers) if os.path.exists(routers) else [])
    if not rows:
        sys.exit(f"{folder}: no folders ARM-SEED in it")
    return rows


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [{**row, "seed": int(row["seed"]), "step": int(row["step"])} for row in csv.DictReader(file)]


def by_run(rows):
    runs = {}
    for row in rows:
        runs.setdefault((row["arm"], row["seed"]), []).append(row)
    return runs


def table(rows):
    """A line an evaluation of every run, the last ones aligned: a run may have one more at its start."""
    runs = by_run(rows)
    fewest = min(map(len, runs.values()))
    head = "| " + " | ".join(f"{arm}, seed {seed}" for arm, seed in runs) + " |"
    out = [head, "|" + "---|" * len(runs)]
    for i in range(-fewest, 0):
        out.append("| " + " | ".join(f"{run[i]['held_out']} ({float(run[i]['seconds']):.0f} s, "
                                     f"{float(run[i]['million_tokens']):.1f}M)" for run in runs.values()) + " |")
    for (arm, seed), run in runs.items():
        if run[-1]["largest_load"]:
            out += ["", f"{arm}, seed {seed}, largest and smallest load, and as if: " + "; ".join(
                f"step {row['step']}: {row['largest_load']}, {row['smallest_load']}, {row['as_if']}" for row in run)]
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gather", metavar="RUNS", help="writes the file anew")
    parser.add_argument("--out", metavar="FILE", help="the picture")
    parser.add_argument("--file", default=FILE, help="of the curves")
    given = parser.parse_args()
    if given.gather:
        rows = gather(given.gather)
        with open(given.file, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    rows = read(given.file)
    print(table(rows))
    if given.out:
        drawn = {f"{arm}, seed {seed}": [(float(row["seconds"]), float(row["held_out"])) for row in run]
                 for (arm, seed), run in by_run(rows).items()}
        with open(given.out, "w", encoding="utf-8") as file:
            file.write(loss_curves.draw("Held-out loss of experts and of a dense model", drawn))


if __name__ == "__main__":
    main()
