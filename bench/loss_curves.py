#!/usr/bin/env python3
"""Draws the training losses that bench/time_to_loss.py wrote over seconds of the card: one line an arm, its longest run
of the first seed, and the held-out loss that PyTorch with AdamW ends with. An SVG for light and dark pages.

  bench/loss_curves.py gqa-180m --out docs/time_to_loss.svg
"""
import argparse
import csv
import os
import statistics
import sys

import fp8_runs
import time_to_loss

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 380, 56, 150, 16, 44
LIGHT = ["#c2571f", "#b8860b", "#2463c4", "#2e8b57", "#8a3fb0"]
DARK = ["#f08a55", "#e3b341", "#74a9ff", "#6fcf97", "#c792ea"]


def read_curves(path):
    """{arm: [(step, loss)]} of the longest run of the first seed."""
    runs = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["seed"] == "0":
                key = (row["arm"], float(row["million_tokens"]))
                runs.setdefault(key, []).append((int(row["step"]), float(row["loss"])))
    longest = {}
    for arm, length in sorted(runs):
        longest[arm] = runs[arm, length]
    return longest


def ticks(low, high, about):
    """Round values between two."""
    raw = (high - low) / about
    power = 10 ** len(str(int(1 / raw))) if raw < 1 else 1
    step = next(x / power for x in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if x / power >= raw)
    first = int(low / step) + (low % step > 0)
    return [round((first + i) * step, 6) for i in range(int((high - first * step) / step) + 1)]


def draw(title, lines, goal=None):
    """Of {arm: [(seconds, loss)]}; the goal is a loss and its words, and is dashed."""
    x_high = max(x for points in lines.values() for x, _ in points)
    low = min([*([goal[0]] if goal else []), *(y for points in lines.values() for _, y in points)]) - 0.1
    high = max(y for points in lines.values() for _, y in points)
    across = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / x_high
    down = lambda y: TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)
    colours = lambda values: " ".join(f"--c{i}: {value};" for i, value in enumerate(values))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="{title} over seconds of the card">', "<style>",
           f"  :root {{ --page: #fff; --text: #1b1f24; --quiet: #59616b; --line: #d8dce1; {colours(LIGHT)} }}",
           "  @media (prefers-color-scheme: dark) { :root { --page: #14171b; --text: #e6e9ed; --quiet: #9aa4af; "
           f"--line: #363d46; {colours(DARK)} }} }}",
           '  text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--text); }',
           "  .tick { fill: var(--quiet); } .grid { stroke: var(--line); } polyline { fill: none; stroke-width: 2; }",
           "</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="var(--page)"/>']
    for y in ticks(low, high, 6):
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>'
                   f'<text class="tick" x="{LEFT - 8}" y="{down(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in ticks(0, x_high, 8):
        out.append(f'<text class="tick" x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{x:g}</text>')
    out.append(f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" '
               'text-anchor="middle">seconds of the card, steps only</text>')
    if goal:
        y, words = down(goal[0]), goal[1]
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                   'stroke="var(--quiet)" stroke-dasharray="5 4"/>'
                   f'<text class="tick" x="{LEFT + 6}" y="{y - 6:.1f}">{words}</text>')
    for i, arm in enumerate(sorted(lines)):
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in lines[arm])
        out.append(f'<polyline points="{points}" stroke="var(--c{i % len(LIGHT)})"/>')
        out.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{TOP + 20 * i}" width="14" height="3" '
                   f'fill="var(--c{i % len(LIGHT)})"/>'
                   f'<text x="{WIDTH - RIGHT + 34}" y="{TOP + 20 * i + 6}">{arm}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=time_to_loss.RECIPES)
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--results", default=os.path.join(fp8_runs.ROOT, "bench/results"), help="folder of the files")
    given = parser.parse_args()
    ends, curves = time_to_loss.files(given.results, given.model)
    arms = time_to_loss.read(ends)
    if time_to_loss.BASE not in arms:
        sys.exit(f"{ends}: no runs of \"{time_to_loss.BASE}\" to hold the others against")
    base = arms[time_to_loss.BASE]
    goal = statistics.fmean(loss for _, _, loss in base[max(base)])
    ms = {arm: statistics.median(ms for runs in lengths.values() for _, ms, _ in runs) for arm, lengths in arms.items()}
    lines = {arm: [(step * ms[arm] / 1e3, loss) for step, loss in points]
             for arm, points in read_curves(curves).items() if arm in ms}
    words = f"{time_to_loss.BASE} ends at {goal:.3f} held out"
    with open(given.out, "w", encoding="utf-8") as file:
        file.write(draw(f"Training loss of {given.model}", lines, (goal, words)))


if __name__ == "__main__":
    main()
