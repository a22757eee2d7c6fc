#!/usr/bin/env python3
"""The longest run there is, and what 90 minutes would give: gathers held-out losses of runs of cs336-350m-90min and of
PyTorch on the same tokens into bench/results/h200_long_run.json, fits the curve and carries it to 90 minutes.

  bench/long_run.py --gather RUNS --machine "one H200 (700 W)" --cuda 13.0     writes the file anew
  bench/long_run.py                                                           what the file says

RUNS is a folder with long.jsonl (metrics.jsonl of the run), short.jsonl and middle.jsonl (shorter runs with whole
schedules of their own, where there are any), peer.jsonl (bench/torch_text.py), and train_manifest.json and
val_manifest.json of the prepared text. Seconds are of steps alone, for both programs. Where other programs had the card
for a part of a run (its median step is longer than its tenth percentile by a thirtieth), each step counts as long as
that percentile, and the file says so.

The law is that of curves under a falling rate: L = floor + A S1^-a - C S2. S1 is the sum of the rates so far; S2 sums
how far the rate has fallen, each fall felt over some hundred to a thousand steps. Given a and that memory it is linear,
so that both are searched and the rest is least squares. Errors: blocks of neighbouring residuals are drawn again 100
times. A second estimate needs no law: the straight line over ln(seconds) through the ends of two whole schedules, which
knows no floor and errs to the low side. The fit is also made with the first part of the run alone, to see what it
misses at the end.
"""
import argparse
import json
import math
import os
import random
import sys

import result_files

NAME, MODEL = "h200_long_run", "cs336-350m-90min"
LR, LEAST, DECAY = 2e-3, 1e-4, 0.65  # of the preset: the peak, the end, the share of steps that decays
SECONDS = 90 * 60
MEMORIES = (0.99, 0.995, 0.998, 0.999)
POWERS = [0.05 * 1.06**i for i in range(56)]  # 0.05 to 1.2
FROM = 150  # evaluations before this step stand in the warm-up or just behind it: no law
FEWEST = 8  # evaluations of a fit, which has five numbers
BLOCK, DRAWS = 3, 100
SHARED = 1 + 1 / 30


class BadRun(Exception):
    """One sentence: which file lacks what."""


def rates(steps, warm_up, peak=LR, least=LEAST, decay=DECAY):
    """Of every step of a wsd schedule, the first at [0]."""
    falls = max(1, round(decay * steps))
    stable = steps - falls

    def rate(step):
        if step <= warm_up:
            return peak * step / warm_up
        return peak if step <= stable else least + (peak - least) * (steps - step) / falls
    return [rate(step) for step in range(1, steps + 1)]


def sums(schedule, memory):
    """(S1, S2) behind each step."""
    out, total, felt, area = [], 0.0, 0.0, 0.0
    before = schedule[0]
    for rate in schedule:
        total += rate
        felt = memory * felt + max(0.0, before - rate)
        area += felt
        before = rate
        out.append((total, area))
    return out


def solved(matrix, right):
    """x of a small symmetric system, by elimination; None where it has no single answer."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda k: abs(rows[k][i]))
        if abs(rows[pivot][i]) < 1e-14:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(n):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [a - factor * b for a, b in zip(rows[k], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


class Law:
    """floor + A S1^-power - C S2."""

    def __init__(self, power, memory, floor, scale, gain):
        self.power, self.memory, self.floor, self.scale, self.gain = power, memory, floor, scale, gain

    def at(self, s1, s2):
        return self.floor + self.scale * s1**-self.power - self.gain * s2

    def end_of(self, schedule):
        return self.at(*sums(schedule, self.memory)[-1])


def fitted(points, losses, memory, powers=None):
    """The law of least squares to losses at (S1, S2), one that has no negative part; and its sum of squares."""
    best = None
    for power in powers or POWERS:
        terms = [(1.0, s1**-power, -s2) for s1, s2 in points]
        # without a part that came out negative, which is then nothing
        for used in ((0, 1, 2), (0, 1), (1, 2), (1,)):
            x = solved([[sum(t[i] * t[j] for t in terms) for j in used] for i in used],
                       [sum(t[i] * loss for t, loss in zip(terms, losses)) for i in used])
            if x is None or min(x) < 0:
                continue
            parts = [0.0, 0.0, 0.0]
            for i, value in zip(used, x):
                parts[i] = value
            law = Law(power, memory, *parts)
            squares = sum((law.at(*point) - loss)**2 for point, loss in zip(points, losses))
            if best is None or squares < best[1]:
                best = law, squares
            break
    return best


def fit(evaluations, schedule):
    """[(step, loss)] of one run under its schedule: the law, and points and residuals behind it."""
    used = [(step, loss) for step, loss in evaluations if step >= FROM]
    if len(used) < FEWEST:
        raise BadRun(f"{len(used)} evaluations from step {FROM} on: a curve takes {FEWEST}")
    losses = [loss for _, loss in used]
    found = []
    for memory in MEMORIES:
        behind = sums(schedule, memory)
        points = [behind[step - 1] for step, _ in used]
        law = fitted(points, losses, memory)
        if law:
            found.append((law[1], memory, law[0], points))
    if not found:
        raise BadRun("no law without negative parts fits: did the loss fall?")
    _, _, law, points = min(found, key=lambda one: one[0])
    return law, points, [loss - law.at(*point) for point, loss in zip(points, losses)]


def carried(evaluations, schedule, target, draws=DRAWS):
    """The loss behind the target schedule: as fitted, and the 2.5% and 97.5% quantiles of fits to redrawn residuals."""
    law, points, residuals = fit(evaluations, schedule)
    draw, ends = random.Random(7), []
    count = len(points)
    spread = math.sqrt(count / max(1, count - 4))  # four numbers were fitted
    near = [power for power in POWERS if law.power / 2 <= power <= law.power * 2]
    steps = [step for step, _ in evaluations if step >= FROM]
    felt = {memory: [behind[step - 1] for step in steps]
            for memory in MEMORIES for behind in [sums(schedule, memory)]}
    for _ in range(draws):
        redrawn = []
        while len(redrawn) < count:
            first = draw.randrange(count - BLOCK + 1)
            redrawn += residuals[first:first + BLOCK]
        losses = [law.at(*point) + spread * error for point, error in zip(points, redrawn)]
        again = [one for memory, behind in felt.items() if (one := fitted(behind, losses, memory, near))]
        if again:
            ends.append(min(again, key=lambda one: one[1])[0].end_of(target))
    ends.sort()
    return law, law.end_of(target), ends[int(0.025 * len(ends))], ends[int(0.975 * len(ends))]


def missed(evaluations, schedule, share=0.6):
    """What the fit to the first part of a run says of its end, less what was measured; None where that part has too
    few evaluations for a fit."""
    last, measured = evaluations[-1]
    first = [one for one in evaluations if one[0] <= share * last]
    if sum(step >= FROM for step, _ in first) < FEWEST:
        return None
    law, _, _ = fit(first, schedule)
    return law.end_of(schedule) - measured


def straight(ends, seconds):
    """The line over ln(seconds) through the last two (seconds, loss) of whole schedules."""
    (early, high), (late, low) = sorted(ends)[-2:]
    return low - (high - low) / math.log(late / early) * math.log(seconds / late)


# ---- gathering

def read_lines(path):
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise BadRun(f"{path}: {error}") from error


def read_whole(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError) as error:
        raise BadRun(f"{path}: {error}") from error


def of_redline(path, arm):
    """Rows of a run's metrics.jsonl; checks that its rates are those the law is told."""
    lines = [line for line in read_lines(path) if line["step"] > 0]
    steps = lines[-1]["step"]
    by_step = {line["step"]: line for line in lines}
    if len(by_step) != steps:
        raise BadRun(f"{path}: {len(by_step)} of {steps} steps: set log.every=1")
    warm_up = next((step for step in range(1, steps + 1) if by_step[step]["lr"] >= 0.9999 * LR), None)
    if warm_up is None:
        raise BadRun(f"{path}: the rate never reaches {LR:g}: that is not the recipe")
    for step, rate in enumerate(rates(steps, warm_up), 1):
        if abs(by_step[step]["lr"] - rate) > 0.01 * LR:
            raise BadRun(f"{path}: step {step} has the rate {by_step[step]['lr']:g}, the schedule {rate:g}")
    times = sorted(line["step_ms"] for line in lines)
    alone = times[len(times) // 10]
    shared = times[len(times) // 2] > SHARED * alone  # others had the card for a part of it
    out, seconds = [], 0.0
    for step in range(1, steps + 1):
        line = by_step[step]
        seconds += (alone if shared else line["step_ms"]) / 1e3
        if "eval_loss" in line:
            out.append({"arm": arm, "step": step, "of_steps": steps, "warm_up": warm_up, "seconds": round(seconds, 1),
                        "mtokens": round(line["tokens"] * step / 1e6, 1), "held_out": round(line["eval_loss"], 5)})
            if shared:
                out[-1].update(alone_ms=round(alone, 1), shared_seconds=round(sum(times) / 1e3, 1))
    if not out or out[-1]["step"] != steps:
        raise BadRun(f"{path}: no held-out loss behind its last step, {steps}")
    return out


def of_torch(path):
    lines = read_lines(path)
    if not lines or "tokens_per_step" not in lines[-1]:
        raise BadRun(f"{path}: its last line is no end of bench/torch_text.py")
    end = lines[-1]
    return [{"arm": "PyTorch, AdamW", "step": line["step"], "of_steps": end["step"], "warm_up": None,
             "seconds": round(line["seconds"], 1), "mtokens": round(line["step"] * end["tokens_per_step"] / 1e6, 1),
             "held_out": line["held_out"]} for line in lines], end["torch"]


def shared_words(rows):
    said = {row["arm"]: row for row in rows if "alone_ms" in row}
    return "".join(f" Other programs had the card for a part of \"{arm}\": its steps took "
                   f"{row['shared_seconds']:,.0f} s, and count as {row['alone_ms']:.0f} ms each, the tenth percentile."
                   for arm, row in said.items())


def gather(folder, machine, cuda, date):
    path = lambda name: os.path.join(folder, name)
    rows = of_redline(path("long.jsonl"), "redline")
    for name, arm in (("middle", "redline, a third of it"), ("short", "redline, as long as PyTorch")):
        if os.path.exists(path(name + ".jsonl")):
            rows += of_redline(path(name + ".jsonl"), arm)
    versions = {"cuda": cuda}
    if os.path.exists(path("peer.jsonl")):
        peer, versions["pytorch"] = of_torch(path("peer.jsonl"))
        rows += peer
    text = [read_whole(path(f"{part}_manifest.json")) for part in ("train", "val")]
    bits = text[1]["tokens"] / text[1]["source"]["bytes"] / math.log(2)  # a byte, for each nat a token
    for row in rows:
        row["bits_per_byte"] = round(row["held_out"] * bits, 5)
    million = text[0]["tokens"] / 1e6
    return {"date": date, "machine": machine, "versions": versions, "command": "bench/long_run.py",
            "about": f"{million:.0f}M tokens of text by {text[0]['documents']:,} documents, of which the long run saw "
                     f"{rows[0]['of_steps'] * 0.262144 / million:.2f} epochs; held out "
                     f"{text[1]['documents']:,} documents. Seconds are of steps alone.{shared_words(rows)}",
            "bits_per_nat": bits, "train_tokens": text[0]["tokens"], "rows": rows}


# ---- what it says

def of_arm(rows, arm):
    return [row for row in rows if row["arm"] == arm]


def forecast(rows):
    """What 90 minutes would give, in bits a byte: {steps, law, low, high, line, missed, loss}."""
    long = of_arm(rows, "redline")
    if not long:
        raise BadRun("no long run")
    per_nat = long[-1]["bits_per_byte"] / long[-1]["held_out"]
    step_s = long[-1]["seconds"] / long[-1]["step"]
    steps = round(SECONDS / step_s)
    evaluations = [(row["step"], row["held_out"]) for row in long]
    schedule = rates(long[-1]["of_steps"], long[-1]["warm_up"])
    target = rates(steps, long[-1]["warm_up"])
    law, loss, low, high = carried(evaluations, schedule, target)
    ends = [(of[-1]["seconds"], of[-1]["held_out"]) for arm in {row["arm"] for row in rows}
            if arm.startswith("redline") and (of := of_arm(rows, arm))]
    line = straight(ends, SECONDS) * per_nat if len(ends) > 1 else None
    miss = missed(evaluations, schedule)
    return {"steps": steps, "mtokens": steps * 0.262144, "loss": loss, "law": loss * per_nat, "low": low * per_nat,
            "high": high * per_nat, "line": line, "missed": None if miss is None else miss * per_nat,
            "floor": law.floor * per_nat, "power": law.power}


def at_seconds(rows, seconds):
    """Bits a byte of an arm after so many seconds, between its evaluations; None before the first. A run that ended
    up to a twentieth earlier counts with its end."""
    if rows and rows[-1]["seconds"] <= seconds <= 1.05 * rows[-1]["seconds"]:
        return rows[-1]["bits_per_byte"]
    for before, after in zip(rows, rows[1:]):
        if before["seconds"] <= seconds <= after["seconds"]:
            share = (seconds - before["seconds"]) / (after["seconds"] - before["seconds"])
            return before["bits_per_byte"] + share * (after["bits_per_byte"] - before["bits_per_byte"])
    return None


def shown(rows):
    """The rows for a page: each 200 steps of the long run, every evaluation of the short ones and of PyTorch."""
    return [row for row in rows if row["arm"] != "redline" or row["step"] % 200 == 0 or row["step"] == row["of_steps"]]


def equal_seconds(rows):
    """(seconds, bits a byte of PyTorch, of redline's run whose schedule is as long, of the long run) where PyTorch was
    evaluated; None where there is none."""
    short, long = of_arm(rows, "redline, as long as PyTorch"), of_arm(rows, "redline")
    return [(row["seconds"], row["bits_per_byte"], at_seconds(short, row["seconds"]),
             at_seconds(long, row["seconds"])) for row in of_arm(rows, "PyTorch, AdamW")]


def equal_lines(rows):
    cell = lambda bits: "" if bits is None else f"{bits:.4f}"
    return (["seconds of steps", "PyTorch, AdamW", "redline, as long as PyTorch", "redline, the long run on its way"],
            [[f"{seconds:.0f}", *map(cell, bits)] for seconds, *bits in equal_seconds(rows)])


def forecast_lines(rows):
    said = forecast(rows)
    long = of_arm(rows, "redline")[-1]
    lines = [["measured", f"{long['seconds'] / 60:.1f}", f"{long['step']:,}", f"{long['bits_per_byte']:.4f}", ""],
             ["the law", "90", f"{said['steps']:,}", f"{said['law']:.4f}",
              f"{said['low']:.4f} to {said['high']:.4f}" + ("" if said["missed"] is None else "; from 60% of the run "
              f"it missed its end by {said['missed']:+.4f}")]]
    if said["line"] is not None:
        lines.append(["a straight line", "90", f"{said['steps']:,}", f"{said['line']:.4f}",
                      "no floor: too low by what the curve bends"])
    return ["how", "minutes of steps", "steps", "bits a byte", "uncertainty"], lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gather", metavar="RUNS", help="folder of the runs' files; writes the result")
    parser.add_argument("--machine", default="one H200 (700 W)")
    parser.add_argument("--cuda", default="13.0")
    parser.add_argument("--date", default="2026-11-18")
    parser.add_argument("--results", default=result_files.FOLDER, help="folder of the file (default: bench/results)")
    given = parser.parse_args()
    path = os.path.join(given.results, NAME + ".json")
    try:
        if given.gather:
            result_files.write(path, gather(given.gather, given.machine, given.cuda, given.date))
        rows = result_files.read(path)["rows"]
        print("| run | minutes of steps | steps | million tokens | loss | bits a byte |\n|---|---|---|---|---|---|")
        for row in shown(rows):
            print(f"| {row['arm']} | {row['seconds'] / 60:.2f} | {row['step']:,} | {row['mtokens']:.1f} | "
                  f"{row['held_out']:.4f} | {row['bits_per_byte']:.4f} |")
        for head, lines in (equal_lines(rows), forecast_lines(rows)):
            print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
            for line in lines:
                print("| " + " | ".join(line) + " |")
    except (BadRun, OSError, ValueError, KeyError) as error:
        sys.exit(f"long_run: {error}")


if __name__ == "__main__":
    main()
