#!/usr/bin/env python3
"""Tells whether runs in fp8 end where runs in bf16 do: paired differences of the final held-out loss with their 95%
interval, beside those of a control, which is bf16 with another attention kernel; then what a step's speed-up is worth
at equal loss. Runs that belong together have the same seed and the same order of data. Prints Markdown.

  bench/fp8_parity.py bench/results/fp8_gqa-180m.csv                     what bench/fp8_runs.py wrote
  bench/fp8_parity.py --bf16 runs/b0 runs/b1 --fp8 runs/f0 runs/f1 --control runs/c0 runs/c1

The slope of the loss, -dL/d ln(steps), comes from runs of half the length with their own whole schedule (`half` in the
file, --half), or where there are none from the second half of the bf16 runs: that is too steep where the learning rate
falls, and the table says so. speed-up at equal loss = step time of bf16 / step time of fp8 * exp(-difference / slope).
"""
import argparse
import csv
import json
import math
import os
import statistics
import sys

COLUMNS = ["arm", "seed", "step", "loss", "held_out", "step_ms"]
BASE, FP8, CONTROL, HALF = "bf16", "fp8", "control", "half"
WARM_UP = 5  # steps whose times do not count
PARITY = 0.005  # of the loss: what the upper bound of the difference may be
# The 97.5% quantiles of Student's t for 1, 2, ... degrees of freedom.
T_QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
               2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]


class Run:
    """Rows of a run, in the order of their steps: (step, loss, held out, step_ms), None where a row has none."""

    def __init__(self, rows, where):
        self.rows = sorted(rows)
        self.where = where

    @property
    def steps(self):
        return self.rows[-1][0]

    def held_out(self):
        """(step, loss) of each evaluation behind a step."""
        return [(step, held_out) for step, _, held_out, _ in self.rows if held_out is not None and step > 0]

    def final(self):
        """The held-out loss behind the last step."""
        step, _, held_out, _ = self.rows[-1]
        if held_out is None:
            sys.exit(f"{self.where}: no held-out loss behind its last step, {step}")
        return held_out

    def losses(self):
        return {step: loss for step, loss, _, _ in self.rows if loss is not None}

    def step_ms(self):
        times = [ms for step, _, _, ms in self.rows if ms is not None and step > WARM_UP]
        return statistics.median(times) if times else None


def read_run(folder):
    """From a run folder's metrics.jsonl."""
    path = os.path.join(folder, "metrics.jsonl")
    rows = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                rows.append((row["step"], row.get("loss"), row.get("eval_loss"), row.get("step_ms")))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{path}: {error}")
    if not rows:
        sys.exit(f"{path}: no steps")
    return Run(rows, folder)


def read_file(path):
    """{arm: {seed: Run}} of a file of bench/fp8_runs.py."""
    rows = {}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                number = lambda key: float(row[key]) if row[key] else None
                rows.setdefault((row["arm"], int(row["seed"])), []).append(
                    (int(row["step"]), number("loss"), number("held_out"), number("step_ms")))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{path}: {error}")
    arms = {}
    for (arm, seed), of_run in rows.items():
        arms.setdefault(arm, {})[seed] = Run(of_run, f"{path}, {arm} {seed}")
    return arms


def paired(arms, arm):
    """Final held-out losses of an arm less those of bf16, for the seeds that both have."""
    seeds = sorted(arms.get(arm, {}).keys() & arms[BASE].keys())
    for seed in seeds:
        if arms[arm][seed].steps != arms[BASE][seed].steps:
            sys.exit(f"{arms[arm][seed].where} has {arms[arm][seed].steps} steps, {arms[BASE][seed].where} "
                     f"{arms[BASE][seed].steps}: no pair")
    return [arms[arm][seed].final() - arms[BASE][seed].final() for seed in seeds]


def interval(differences):
    """Mean and half the width of its 95% interval; None for the latter where there is one only."""
    mean = statistics.fmean(differences)
    n = len(differences)
    if n < 2:
        return mean, None
    if n - 1 > len(T_QUANTILES):
        sys.exit(f"{n} pairs are more than the table of quantiles knows")
    return mean, T_QUANTILES[n - 2] * statistics.stdev(differences) / math.sqrt(n)


def slope(arms):
    """-dL/d ln(steps), and where it is from."""
    base, half = arms[BASE], arms.get(HALF, {})
    seeds = sorted(base.keys() & half.keys())
    if seeds:
        slopes = [(half[s].final() - base[s].final()) / math.log(base[s].steps / half[s].steps) for s in seeds]
        return statistics.fmean(slopes), f"runs of {half[seeds[0]].steps} and {base[seeds[0]].steps} steps"
    slopes = []
    for run in base.values():
        points = [(math.log(step), loss) for step, loss in run.held_out() if step >= run.steps / 2]
        if len(points) < 2:
            return None, "too few evaluations"
        x, y = statistics.fmean(p[0] for p in points), statistics.fmean(p[1] for p in points)
        slopes.append(-sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points))
    return statistics.fmean(slopes), "the second half of the bf16 runs: too steep where the rate falls"


def step_ratio(arms, arm):
    """How many times faster a step is: of the medians of the runs that both have."""
    pairs = [(arms[BASE][s].step_ms(), arms[arm][s].step_ms()) for s in arms.get(arm, {}).keys() & arms[BASE].keys()]
    pairs = [p for p in pairs if all(p)]
    return statistics.fmean(a / b for a, b in pairs) if pairs else None


def apart(arms, arm):
    """Root mean square and largest difference of the training losses, step by step, over the pairs."""
    differences = []
    for seed in arms.get(arm, {}).keys() & arms[BASE].keys():
        mine, base = arms[arm][seed].losses(), arms[BASE][seed].losses()
        differences += [mine[step] - base[step] for step in mine.keys() & base.keys()]
    if not differences:
        return None
    return math.sqrt(statistics.fmean(d * d for d in differences)), max(map(abs, differences))


def report(arms):
    if BASE not in arms:
        sys.exit("no runs in bf16")
    finals = [run.final() for run in arms[BASE].values()]
    loss = statistics.fmean(finals)
    steps = next(iter(arms[BASE].values())).steps
    lines = [f"bf16 ends at {loss:.4f} after {steps} steps ({len(finals)} seed{'s' if len(finals) > 1 else ''}).", "",
             "| against bf16 | pairs | difference of the held-out loss | 95% interval | of the loss "
             "| training loss apart, rms / most |",
             "|---|---|---|---|---|---|"]
    for arm in [FP8, CONTROL, *sorted(arms.keys() - {BASE, FP8, CONTROL, HALF})]:
        differences = paired(arms, arm)
        if not differences:
            continue
        mean, width = interval(differences)
        between = f"{mean - width:+.4f} to {mean + width:+.4f}" if width is not None else "one pair"
        rms, most = apart(arms, arm) or (math.nan, math.nan)
        lines.append(f"| {arm} | {len(differences)} | {mean:+.4f} | {between} | {100 * mean / loss:+.2f}% "
                     f"| {rms:.4f} / {most:.4f} |")
    differences = paired(arms, FP8)
    if not differences:
        return "\n".join(lines)
    mean, width = interval(differences)
    if width is None:
        lines += ["", "Parity: one pair gives no interval."]
    else:
        bound = mean + width
        lines += ["", f"Parity: the upper bound {bound:+.4f} is {100 * bound / loss:+.2f}% of the loss; "
                      f"{'below' if bound < PARITY * loss else 'NOT below'} {100 * PARITY:.1f}%."]
    ratio, (steep, source) = step_ratio(arms, FP8), slope(arms)
    if ratio is None:
        return "\n".join(lines)
    lines += ["", f"A step is {ratio:.3f} times as fast."]
    if steep is None or steep <= 0:
        lines[-1] += f" No slope of the loss ({source}), so no speed-up at equal loss."
        return "\n".join(lines)
    worth = lambda difference: ratio * math.exp(-difference / steep)
    between = f" ({worth(mean + width):.3f} to {worth(mean - width):.3f})" if width is not None else ""
    lines[-1] += f" Speed-up at equal loss: {worth(mean):.3f}{between}; slope {steep:.4f} ({source})."
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="of bench/fp8_runs.py")
    for arm in [BASE, FP8, CONTROL, HALF]:
        parser.add_argument(f"--{arm}", nargs="+", default=[], metavar="FOLDER",
                            help="run folders, paired by their places")
    given = parser.parse_args()
    folders = {arm: getattr(given, arm) for arm in [BASE, FP8, CONTROL, HALF] if getattr(given, arm)}
    if bool(given.file) == bool(folders):
        parser.error("give one file, or the folders of the runs")
    print(report(read_file(given.file) if given.file else
                 {arm: dict(enumerate(map(read_run, names))) for arm, names in folders.items()}))


if __name__ == "__main__":
    main()
