#!/usr/bin/env python3
"""Makes docs/claims.md: what five guides to fast training say, row by row, beside what redline measured or plans.

  bench/claims.py --redline build/redline            writes the page anew
  bench/claims.py --redline build/redline --check    fails where the page differs

Figures come from bench/results and from `redline plan` and `redline data stats`, which need no card; none is typed here
but those of the guides. Verdicts on figures are computed (judged, at_most, within, holds, all_of); those on features
are words of their rows.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import shlex
import subprocess
import sys

import long_run
import result_files

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "claims.md")
VERDICTS = ("met", "beaten", "refuted", "not seen")
GIB, MB = 2**30, 1e6

# Every command of redline that the page rests on, by a short name.
COMMANDS = {
    "ping": "plan ping-95m --card a100-80",
    "ping grow": "plan ping-95m --card a100-80 --grow",
    "ping end": "plan ping-95m-256 --card a100-80",
    "ping parts": "doctor ping-95m --card a100-80",
    "ping gqa": "plan ping-95m --card a100-80 model.kv_heads=2",
    "ping gqa parts": "doctor ping-95m --card a100-80 model.kv_heads=2",
    "ping pad": "plan ping-95m --card a100-80 data.packing=pad",
    "ping pad 192": "plan ping-95m --card a100-80 data.packing=pad train.batch_size=192",
    "ping pad 512": "plan ping-95m --card a100-80 data.packing=pad train.seq_len=512",
    "ping buckets": "plan ping-95m --card a100-80 data.packing=bucket data.buckets=[300,500]",
    "documents": "data stats ping --seq-len 1024 --batch-size 128",
    "documents 8": "data stats ping --seq-len 1024 --batch-size 8",
    "documents 512": "data stats ping --seq-len 512 --batch-size 128",
    "documents buckets": "data stats ping --seq-len 1024 --batch-size 128 data.buckets=[300,500]",
    "gqa fp8": "plan gqa-180m-adamw --card h100 train.recompute=none",
    "gqa bf16": "plan gqa-180m-adamw --card h100 train.recompute=none precision.matmul=bf16",
    "gqa fp32": "plan gqa-180m-adamw --card h100 train.recompute=none precision.matmul=fp32",
    "gqa 16": "plan gqa-180m-adamw --card h100 train.recompute=none train.batch_size=16 train.accumulate=4",
    "gqa 8bit": "plan gqa-180m-adamw --card h100 train.recompute=none optim.moments=8bit",
    "gqa mha": "plan gqa-180m-adamw --card h100 train.recompute=none model.kv_heads=12",
    "gqa untied": "plan gqa-180m-adamw --card h100 train.recompute=none model.tied=false",
    "gqa small": "plan gqa-180m-adamw --card h100 train.recompute=block optim.moments=8bit train.batch_size=16 "
                 "train.accumulate=6",
    "gqa a100": "plan gqa-180m-adamw --card a100-80 train.recompute=none precision.matmul=bf16 train.batch_size=16 "
                "train.accumulate=4",
    "gqa a100 4": "plan gqa-180m-adamw --card a100-80 train.recompute=none precision.matmul=bf16 train.batch_size=4 "
                  "train.accumulate=16",
    "gqa a100-40": "plan gqa-180m-adamw --card a100-40 train.recompute=none precision.matmul=bf16 train.batch_size=8 "
                   "train.accumulate=8",
    "cs336": "plan cs336-350m-adamw --card h100 train.recompute=none precision.matmul=bf16",
    "cs336 fp8": "plan cs336-350m-adamw --card h100 train.recompute=none",
    "cs336 own": "plan cs336-350m-adamw --card h100 precision.matmul=bf16 train.batch_size=8 train.accumulate=16",
    "cs336 8": "plan cs336-350m-adamw --card h100 train.recompute=none precision.matmul=bf16 train.batch_size=8 "
               "train.accumulate=16",
    "cs336 32": "plan cs336-350m-adamw --card h100 train.recompute=none precision.matmul=bf16 train.batch_size=32 "
                "train.accumulate=16",
    "cs336 24": "plan cs336-350m-adamw --card rtx-4090 train.recompute=none precision.matmul=bf16",
    "cs336 40": "plan cs336-350m-adamw --card a100-40 train.recompute=none precision.matmul=bf16",
    "90min": "plan cs336-350m-90min --card h100",
    "llama a6000": "plan llama-1.36b --card a6000",
    "llama b200": "plan llama-1.36b --card b200",
    "qwen b200": "plan qwen3-1.8b --card b200",
    "llama 8": "plan llama-1.36b --card b200 --gpus 8",
    "llama 8 fp8": "plan llama-1.36b --card b200 --gpus 8 precision.matmul=fp8",
    "qwen 8": "plan qwen3-1.8b --card b200 --gpus 8",
}


class BadClaim(Exception):
    """One sentence: which figure is not there, or which command failed."""


class Figures:
    """What was measured (bench/results) and what the program says now."""

    def __init__(self, program, results=result_files.FOLDER):
        self.results = results
        self.ladder_rows = self.table("ladder_h200.csv")
        self.single_rows = {row["name"]: row for row in self.table("h200_figures.csv")}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = pool.map(lambda words: answer_of(program, words), COMMANDS.values())
            self.said = dict(zip(COMMANDS, said))

    def table(self, name):
        with open(os.path.join(self.results, name), newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def optional(self, name):
        """Rows of a file of measurements that may not have been made."""
        path = os.path.join(self.results, name + ".json")
        return result_files.read(path)["rows"] if os.path.exists(path) else None

    def measured(self, file, **where):
        """The first row of a file that has these values."""
        for row in result_files.read(os.path.join(self.results, file + ".json"))["rows"]:
            if all(row.get(key) == value for key, value in where.items()):
                return row
        raise BadClaim(f"bench/results/{file}.json has no row with {where}")

    def longer(self, model, setting):
        """By how much a step takes longer with a setting."""
        rows = [self.measured("h200_settings", model=model, setting=of) for of in (setting, None)]
        return rows[0]["step_ms"] / rows[1]["step_ms"] - 1

    def rung(self, model, rung, column="over_before"):
        for row in self.ladder_rows:
            if (row["model"], row["rung"]) == (model, rung) and row[column]:
                return float(row[column])
        raise BadClaim(f"bench/results/ladder_h200.csv has no {column} of {model}, {rung}")

    def single(self, name):
        if name not in self.single_rows:
            raise BadClaim(f"bench/results/h200_figures.csv has no {name}")
        return float(self.single_rows[name]["value"])

    def fp8(self, model, column):
        """fp8 and bf16 of a model, from one call on one card."""
        rows = {row["precision"]: float(row[column]) for row in self.table("fp8_models.csv") if row["model"] == model}
        return rows["fp8"], rows["bf16"]

    def held_out(self, arm):
        """Held-out losses of the small model by learning rate: {5e-4: 6.0647, ...}."""
        rows = [row for row in self.table("recipes_h200.csv") if row["arm"].startswith(arm + " ")]
        return {float(row["arm"].split()[-1]): float(row["held_out"]) for row in rows if row["seed"] == "0"}

    def paired(self, arm, base):
        """Mean difference of the held-out losses of two arms with the same seeds, as a share."""
        of = {}
        for row in self.table("recipes_h200.csv"):
            if row["arm"] in (arm, base):
                of.setdefault((row["model"], row["seed"]), {})[row["arm"]] = float(row["held_out"])
        pairs = [losses[arm] / losses[base] - 1 for losses in of.values() if len(losses) == 2]
        if not pairs:
            raise BadClaim(f"bench/results/recipes_h200.csv has no pair of {arm} and {base}")
        return sum(pairs) / len(pairs), len(pairs)


def answer_of(program, words):
    command = [program, *shlex.split(words), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BadClaim(f"{program}: {error.strerror}; --redline names the program") from error
    if done.returncode not in ((0, 1) if words.startswith("doctor") else (0,)):  # 1: doctor found something
        raise BadClaim(f"redline {words}: {done.stderr.strip()}")
    return json.loads(done.stdout)


class Row:
    """A claim: what the guide says, what redline has, the verdict with its reason, what prints it."""

    def __init__(self, says, here, verdict, command):
        if not verdict.startswith(VERDICTS):
            raise BadClaim(f"'{says}': a verdict begins with one of {', '.join(VERDICTS)}")
        if verdict in ("refuted", "not seen"):
            raise BadClaim(f"'{says}': {here}: '{verdict}' needs its reason")
        self.cells = [says, here, verdict, command]


def with_reason(word, why):
    """Only what is refuted has its reason behind it."""
    return f"{word}: {why}" if word == "refuted" and why else word


def judged(value, low, high=None, why=""):
    """The verdict on a figure that is better the larger it is: low to high is what the guide says."""
    high = low if high is None else high
    return with_reason("beaten" if value > high else "met" if value >= low else "refuted", why)


def at_most(value, low, high=None, why=""):
    """The verdict on a figure that is better the smaller it is."""
    high = low if high is None else high
    return with_reason("beaten" if value < low else "met" if value <= high else "refuted", why)


def within(value, low, high, why=""):
    """The verdict on a figure that is neither good nor bad: it lies where the guide says, or not."""
    return with_reason("met" if low <= value <= high else "refuted", why)


def holds(true, why="", word="met"):
    """The verdict on a comparison of figures."""
    return with_reason(word if true else "refuted", why)


def all_of(*verdicts):
    """The verdict on a claim of several figures: it is as good as its worst part."""
    refuted = [verdict for verdict in verdicts if verdict.startswith("refuted")]
    if refuted:
        reasons = [verdict.removeprefix("refuted: ") for verdict in refuted if verdict != "refuted"]
        return with_reason("refuted", "; ".join(dict.fromkeys(reasons)))
    return "met" if "met" in verdicts else "beaten"


def percent(share, digits=1):
    return f"{100 * share:.{digits}f}%"


def rate(tokens_per_s):
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if tokens_per_s >= size:
            return f"{tokens_per_s / size:.3g}{unit} tok/s"
    return f"{tokens_per_s:.3g} tok/s"


def gib(byte_count):
    return f"{byte_count / GIB:.1f} GiB"


def plan_of(name):
    return f"`redline {COMMANDS[name]}`"


def speed(said):
    return said["expected"]["tokens_per_s"]


def mfu(said):
    return said["expected"]["mfu"]


def fast(said):
    return f"{rate(speed(said))}, {percent(mfu(said))} MFU"


def of_peak(said, tokens_per_s, gpus=1):
    """The share of the card's peak that so many tokens a second of this model are."""
    return tokens_per_s * said["flops_per_token"] / (said["peak_flops"] * gpus)


def of_memory(said):
    return said["memory"]["total"] / said["memory_bytes"]


def sustained(f):
    """The shares of an H200's peak that large products hold, which an H100 has as well."""
    return [f.single(name) * 1e12 / f.said["cs336"]["peak_flops"] for name in ("products_low", "products_high")]


LADDER = "`redline ladder {} data.train=ping`, `bench/results/ladder_h200.csv`"
SETTINGS = "`bench/results/h200_settings.json`"
MODELS = "`bench/gpu_models.py`"
LOADER = "`build/loader_bench`"
LLAMA = "`bench/results/h200_models_136b.json`"


def loader_room(f, tokens_per_s):
    """How many times what the card takes the loader makes, at least."""
    return f.measured("loader", packing="pack")["mtokens_per_s_by_workers"][0] * 1e6 / tokens_per_s


def grown(f, rows):
    """What the plan says of ping-95m with so many rows."""
    return next(row for row in f.said["ping grow"]["growth"]["rows"] if row["batch_size"] == rows)


def part(f, name, of):
    """Milliseconds of a part of a step, as doctor has it."""
    return next(part["ms"] for part in f.said[name]["parts"] if part["part"] == of)


def guide_000(f):
    ping, end = f.said["ping"], f.said["ping end"]
    rows = {count: grown(f, count) for count in (128, 192, 256, 384)}
    most = f.said["ping grow"]["growth"]["filling"]
    tokens = ping["tokens_per_step"]
    of_h200 = f.measured("h200_models", model="ping-95m")
    tflops = mfu(ping) * ping["peak_flops"] / 1e12
    wide = f.measured("h200_models_136b", precision="bf16")
    larger = rows[256]["tokens_per_s"] / rows[128]["tokens_per_s"]
    points = 100 * (rows[256]["mfu"] - rows[128]["mfu"])
    filled = rows[192]["tokens_per_s"] / rows[128]["tokens_per_s"]
    parts = f.said["ping parts"]["parts"]
    computing = sum(p["share"] for p in parts if p["part"] in ("products", "attention", "head"))
    launches = sum(p["share"] for p in parts if p["part"] in ("launches", "data"))
    room = loader_room(f, 1e3 * of_h200["ktokens_per_s"])
    no_dropout = f.rung("ping-95m", "no dropout", "mfu") - f.rung("ping-95m", "packing", "mfu")
    tuned, proposals = f.rung("ping-95m", "tuned products") - 1, f.rung("ping-95m", "all proposals") - 1
    auto = [f.measured("h200_auto_batch", model="gqa-180m", batch_size=count)["ktokens_per_s"] for count in (96, 32)]
    hours = ping["expected"]["hours"]
    least_hours = 10000 * tokens * ping["flops_per_token"] / ping["peak_flops"] / 3600
    real = f.said["documents"]["modes"]["pack"]["utilisation"] * tokens
    low, high = sustained(f)
    full = "128 rows of 1024 fill the card already"

    def sum_of(what, least, most):
        return Row(f"then {what}: {100 * least:.0f}–{100 * most:.0f}% in all",
                   f"plan: {percent(mfu(ping))} with dropout, whatever the rows",
                   judged(mfu(ping), least, most, "the steps before it give nothing here, and so their sum does not"),
                   plan_of("ping"))

    return [
        Row("30% MFU, 93.6 TFLOP/s on an A100 today",
            f"plan: {percent(mfu(ping))}, {tflops:.0f} TFLOP/s; measured on an H200: {of_h200['mfu_percent']:.1f}%",
            judged(mfu(ping), 0.30), plan_of("ping")),
        Row("the target: 40–50%, 125–156 TFLOP/s", f"plan: {percent(mfu(ping))}, {tflops:.0f} TFLOP/s",
            all_of(judged(mfu(ping), 0.40, 0.50), judged(tflops, 125, 156)), plan_of("ping")),
        Row("1.33–1.67 times is to be gained", f"plan: {mfu(ping) / 0.30:.2f} times its 30%",
            judged(mfu(ping) / 0.30, 1.33, 1.67), plan_of("ping")),
        Row("the model is bound by computing, not by memory",
            f"plan: products, attention and head take {percent(computing, 0)} of a step", holds(computing > 0.5),
            plan_of("ping parts")),
        Row("a 95M model does not saturate a large card",
            f"an H200 reaches {of_h200['mfu_percent']:.1f}% with it and {wide['mfu_percent']:.1f}% with llama-1.36b",
            holds(of_h200["mfu_percent"] < wide["mfu_percent"]), MODELS),
        Row("launches, compiling and data weigh more in a small model",
            f"plan: launches and data take {percent(launches)} of a step; {f.single('gaps_ping'):.2f}% of a run on an "
            "H200 lies between kernels",
            holds(f.single("gaps_ping") >= 1, "a captured graph launches, and nothing is compiled in a step"),
            plan_of("ping parts") + ", `libkernel_gaps.so` ([how](experiments.md))"),
        Row("128 → 256 rows: 1.4–1.6 times the tokens a second",
            f"plan: {larger:.2f} times; measured: gqa-180m {auto[1]}k tok/s with 32 rows at a time, {auto[0]}k with "
            "96", judged(larger, 1.4, 1.6, full), plan_of("ping grow")),
        Row("256 rows: +8–12 points of MFU, elsewhere +20–30%: 30% → 38–42%",
            f"plan: {points:+.1f} points, to {percent(rows[256]['mfu'])}",
            all_of(judged(points, 8, 12, full), judged(rows[256]["mfu"], 0.38, 0.42)), plan_of("ping grow")),
        Row("192, 256 and 384 rows fit until memory ends",
            "plan: " + ", ".join(f"{count} rows take {gib(row['memory'])}" for count, row in rows.items()) +
            f" of {gib(ping['memory_bytes'])}",
            holds(all(row["fits"] for row in rows.values()),
                  "192 rows fit; 256 take two micro-batches, or layers computed again"), plan_of("ping grow")),
        Row("70% of the memory is idle", f"plan: {percent(1 - of_memory(ping), 0)} with 128 rows",
            within(1 - of_memory(ping), 0.65, 0.75, "rows take what they take; idle memory alone is no loss"),
            plan_of("ping")),
        Row("85–95% of the memory in use is ideal",
            f"plan: 192 rows take {percent(rows[192]['of_memory'], 0)} and give {filled:.3f} times the tokens a second "
            "of 128",
            holds(filled > 1.01, "a step that keeps the card busy gains nothing by filling memory"),
            plan_of("ping grow")),
        Row("256 rows: memory from 70% to 85–95%",
            f"plan: from {percent(rows[128]['of_memory'], 0)} to {percent(rows[256]['of_memory'], 0)}",
            within(rows[256]["of_memory"], 0.85, 0.95, f"256 rows do not fit; {most['batch_size']} take "
                   f"{percent(most['of_memory'], 0)}"),
            plan_of("ping grow")),
        Row("the rate follows the root of the rows: 1.225, 1.414 and 1.732e-4",
            "plan: " + ", ".join(f"{rows[count]['lr']:.4g}" for count in (192, 256, 384)) +
            "; `train.batch_size=auto` does it where rows must change",
            all_of(*(within(rows[count]["lr"], 0.9995 * lr, 1.0005 * lr)
                     for count, lr in ((192, 1.225e-4), (256, 1.414e-4), (384, 1.732e-4)))), plan_of("ping grow")),
        Row("the GPU should be busy above 90%", f"{f.single('gaps_ping'):.2f}% of a run lies between kernels",
            judged(100 - f.single("gaps_ping"), 90), "`libkernel_gaps.so` ([how](experiments.md))"),
        Row("XLA flags: +3–8%, or +5–10%; Triton for all products",
            "fused softmax, overlap and the choice of algorithms are not switches here; measuring the algorithms "
            f"gives {1 + tuned:.3f} times",
            judged(tuned, 0.03, 0.08, "what the flags switch on is always on, and first proposals are good ones"),
            LADDER.format("ping-95m")),
        sum_of("the flags", 0.41, 0.50),
        Row("overlap of computing with loading",
            f"the loader makes {room:.0f} times what an H200 takes, in threads beside the step", holds(room > 1),
            LOADER),
        Row("asynchronous collectives for several cards",
            f"plan: of 8 B200 all but {f.said['llama 8']['modes'][0]['exposed_ms']:.1f} ms of communication is "
            "hidden", "not seen: one card; ranks on one H200 and on CPUs were", plan_of("llama 8")),
        Row("a better data pipeline: +2–5% MFU; buffers of 16, 32 GB for it",
            f"two CPU cores make {room:.0f} times the tokens that an H200 takes, from 1 GiB: {percent(1 / room)} of a "
            "step at most", judged(1 / room, 0.02, 0.05, "there is nothing to wait for"), LOADER),
        sum_of("the pipeline", 0.43, 0.55),
        Row("log the pipeline every 60 s, and draw it",
            "`data.debug=true`: every stage, every few seconds, and the slowest by name", "met",
            "`redline train quick data.debug=true`"),
        Row("profile-guided scheduling (PGLE): +3–5%",
            f"every algorithm timed (`kernels.tuning=max`): {1 + proposals:.3f} times",
            judged(proposals, 0.03, 0.05, "the fastest of a few proposals is the fastest of all"),
            LADDER.format("ping-95m")),
        sum_of("PGLE", 0.46, 0.60),
        Row("verify that nothing is upcast to fp32",
            "types are decided in one place when the step is lowered: products bf16, statistics and sums fp32",
            "met", "`redline profile ping-95m`"),
        Row("profile with `nsys`", "programs and nodes are named ranges for it (NVTX)", "met",
            "`redline profile ping-95m`"),
        Row("no dropout: +1–2% MFU", f"{no_dropout * 100:+.1f} points", judged(round(no_dropout, 3), 0.01, 0.02),
            LADDER.format("ping-95m")),
        Row("accumulation: twice the rows in the memory of one",
            f"plan: 128 x 2 rows take {gib(end['memory']['total'])}, 256 x 1 {gib(rows[256]['memory'])}",
            holds(end["memory"]["total"] < 1.01 * ping["memory"]["total"]), plan_of("ping end")),
        Row("all of it together: 47–62%, 50–60% at best", f"plan: {percent(mfu(end))} with 256 rows and no dropout",
            judged(mfu(end), 0.47, 0.62,
                   f"sustained products reach {low:.0%} to {high:.0%} of a datasheet, and they are not all of a step"),
            plan_of("ping end")),
        Row("120k–125k real tokens of 131,072 a step", f"{real:,.0f}", judged(real, 120e3, 125e3),
            plan_of("documents")),
        Row("before: 180k tok/s, 0.4 s a step",
            f"0.4 s are {rate(tokens / 0.4)} and {percent(of_peak(ping, tokens / 0.4), 0)} of the card; 93.6 "
            f"TFLOP/s are {rate(93.6e12 / ping['flops_per_token'])}",
            all_of(within(180e3, 0.9 * tokens / 0.4, 1.1 * tokens / 0.4, "the three figures do not agree"),
                   within(180e3, 0.9 * 93.6e12 / ping["flops_per_token"], 1.1 * 93.6e12 / ping["flops_per_token"],
                          "the three figures do not agree")), plan_of("ping")),
        Row("after: 250k–320k tok/s", f"plan: {rate(speed(end))}",
            judged(speed(end), 250e3, 320e3, f"320k are {percent(of_peak(ping, 320e3), 0)} of the card"),
            plan_of("ping end")),
        Row("after: 0.25–0.30 s a step", f"plan: {ping['expected']['step_ms'] / 1e3:.2f} s; 0.25 s are "
            f"{percent(of_peak(ping, tokens / 0.25), 0)} of the card's peak, 0.30 s "
            f"{percent(of_peak(ping, tokens / 0.3), 0)}",
            at_most(ping["expected"]["step_ms"] / 1e3, 0.25, 0.30, "more than the card can do"), plan_of("ping")),
        Row("10,000 steps: 1.1 hours before, 0.7–0.8 after", f"plan: {hours:.2f} hours; at 100% of the peak "
            f"{least_hours:.2f}", at_most(hours, 0.7, 0.8, "a card at its peak would take as long"), plan_of("ping")),
        Row("after: 30–40% less time", f"plan: {1 - 0.30 / mfu(ping):.0%} less than at its 30%",
            judged(1 - 0.30 / mfu(ping), 0.30, 0.40), plan_of("ping")),
        Row("four phases by hand, 65 minutes",
            f"`redline tune` took {f.single('tune_seconds'):.0f} s for gqa-180m and found "
            f"{f.single('tune_gain'):.2f} times", at_most(f.single("tune_seconds") / 60, 65),
            "`redline tune gqa-180m data.train=ping --allow fp8`"),
        Row("watch utilisation, memory and temperature, which stays below 85 °C",
            "metrics, report and Prometheus have them, with clocks, power and what holds them down", "met",
            "`redline train ...`, [monitoring.md](monitoring.md#metrics)"),
    ]


def guide_001(f):
    ping, docs, docs_512 = f.said["ping"], f.said["documents"]["modes"], f.said["documents 512"]["modes"]
    end, pad, pad_512, bucket = (f.said[name] for name in ("ping end", "ping pad", "ping pad 512", "ping buckets"))
    by_length = f.said["documents buckets"]["modes"]["bucket"]
    tokens = ping["tokens_per_step"]
    packed = f.measured("h200_packed", rows="pack")["ktokens_per_s"]
    padded = f.measured("h200_packed", rows="pad", program="redline")["ktokens_per_s"]
    measured_bucket = f.rung("ping-95m", "buckets")
    gqa = speed(f.said["ping gqa"]) / speed(ping)
    gqa_attention = part(f, "ping parts", "attention") / part(f, "ping gqa parts", "attention") - 1
    more_rows = speed(f.said["ping pad 192"]) / speed(pad)
    more_points = 100 * (mfu(f.said["ping pad 192"]) - mfu(pad))
    half = speed(pad_512) / speed(pad)
    real = {name: docs[name]["utilisation"] * tokens for name in docs}
    real_512 = docs_512["pad"]["utilisation"] * pad_512["tokens_per_step"]
    flash = f.longer("llama-1.29b", "kernels.attention=flash")
    attention = f.measured("h200_attention", case="16, 18, 2048, 128")
    there = f.measured("h200_attention", case="128, 10, 1024, 64 in documents of 200")
    shares = [rate_ * 1e12 / f.said["cs336"]["peak_flops"] for rate_ in attention["cudnn_tflops_per_s"]]
    own = there["hopper_tflops_per_s"][0] / there["cudnn_tflops_per_s"][0]
    of_cudnn = [ours / cudnn for ours, cudnn in zip(attention["flash_tflops_per_s"], attention["cudnn_tflops_per_s"])]
    ping_h200 = f.measured("h200_models", model="ping-95m")
    room = loader_room(f, 1e3 * ping_h200["ktokens_per_s"])
    recompute = f.rung("ping-95m", "recompute mlp")
    memory = [f.rung("ping-95m", rung, "memory_gib") for rung in ("recompute mlp", "fp8 products")]
    packed_mfu = f.rung("ping-95m", "packing", "mfu")
    padded_mfu = f.rung("ping-95m", "tuned products", "mfu")
    least_hours = 10000 * tokens * ping["flops_per_token"] / ping["peak_flops"] / 3600
    llama = f.measured("h200_models_136b", precision="bf16")["mfu_percent"]
    short = (f"most documents have {f.said['documents']['mean']:.0f} tokens, which fill "
             f"{percent(docs_512['pad']['utilisation'], 0)} of 512")
    first = [line for line in f.said["documents"]["histogram"] if line["to"] <= 304]
    in_first = sum(line["tokens"] for line in first) / sum(line["documents"] for line in first)
    edges = f"its three lengths leave {percent(by_length['wasted'], 0)} of a batch of 128 rows to padding"
    return [
        Row("11.2% MFU, 34–35 TFLOP/s with padded rows on an A100",
            f"plan: {percent(mfu(pad))} of real tokens, palm {percent(pad['expected']['mfu_palm'])}; an H200 has "
            f"{percent(padded_mfu)}",
            within(pad["expected"]["mfu_palm"], 0.10, 0.12), plan_of("ping pad")),
        Row("88.8% of the peak unused, 277 TFLOP/s",
            f"plan: {percent(1 - mfu(ping))} with packed rows, "
            f"{(1 - mfu(ping)) * ping['peak_flops'] / 1e12:.0f} TFLOP/s",
            at_most(1 - mfu(ping), 0.888), plan_of("ping")),
        Row("40–60% is good: 3.5 times, 28.8 points more", f"plan: {percent(mfu(ping))}, {mfu(ping) / 0.112:.1f} times "
            "its 11.2%", all_of(judged(mfu(ping), 0.40, 0.60), judged(mfu(ping) / 0.112, 3.5),
                                judged(100 * mfu(ping) - 11.2, 28.8)), plan_of("ping")),
        Row("45k–47k tok/s at 1.4 s a step and 24k–33k real tokens",
            f"33k in 1.4 s are {rate(33e3 / 1.4)}; all 131,072 are {rate(tokens / 1.4)}",
            all_of(*(within(46e3, 0.9 * count / 1.4, 1.1 * count / 1.4, "the figures do not agree")
                     for count in (33e3, tokens))), plan_of("ping pad")),
        Row("24k–33k real tokens of 131,072 a step, 98k–107k wasted",
            f"{real['pad']:,.0f} and {tokens - real['pad']:,.0f}",
            all_of(within(real["pad"], 24e3, 33e3), within(tokens - real["pad"], 98e3, 107e3)), plan_of("documents")),
        Row("18–25% of a batch is real", percent(docs["pad"]["utilisation"]),
            within(docs["pad"]["utilisation"], 0.18, 0.25), plan_of("documents")),
        Row("75–82% of the work is padding", percent(docs["pad"]["wasted"]),
            within(docs["pad"]["wasted"], 0.75, 0.82), plan_of("documents")),
        Row("documents of 190–260 tokens in rows of 1024",
            f"{f.said['documents']['mean']:.0f} in the mean, in `ping`",
            within(f.said["documents"]["mean"], 190, 260), plan_of("documents")),
        Row("cards are made for models beyond 1B",
            f"on an H200 llama-1.36b reaches {llama:.1f}%, ping-95m {ping_h200['mfu_percent']:.1f}%",
            holds(llama > ping_h200["mfu_percent"]), LLAMA + ", " + MODELS),
        Row("packing leaves less than 5% padding", percent(docs["pack"]["wasted"]),
            at_most(docs["pack"]["wasted"], 0.05), plan_of("documents")),
        Row("packing: 120k–125k tokens a step, 92–95% of a batch",
            f"{real['pack']:,.0f}, {percent(docs['pack']['utilisation'])}",
            all_of(judged(real["pack"], 120e3, 125e3), judged(docs["pack"]["utilisation"], 0.92, 0.95)),
            plan_of("documents")),
        Row("packing: 3.6–5.2 times the tokens a second, 3–4 and 3–6 elsewhere",
            f"{packed / padded:.1f} times on an H200 ({padded:.0f}k → {packed:.0f}k), plan for the A100 "
            f"{pad['filling']['packed']['gain']:.1f}",
            all_of(judged(packed / padded, 3.6, 5.2), judged(pad["filling"]["packed"]["gain"], 3.6, 5.2)),
            "`bench/gpu_models.py ping-95m:128`, " + plan_of("ping pad")),
        Row("packing: 40–55% MFU", f"{percent(packed_mfu)} on an H200, plan for the A100 {percent(mfu(ping))}",
            all_of(judged(packed_mfu, 0.40, 0.55), judged(mfu(ping), 0.40, 0.55)), LADDER.format("ping-95m")),
        Row("at most 8 documents a row", "`data.max_segments` is 32 in the mean of a batch, and never binds", "met",
            "`redline config ping-95m`"),
        Row("packing takes 1–2 hours of work, batches by length 1–2 days",
            "`data.packing=pack` is the default, `bucket` one key", "beaten", "`redline config ping-95m`"),
        Row("cuDNN's attention is the fastest, 50–73% of the peak, in packed rows too",
            f"{shares[0]:.0%} forward and {shares[1]:.0%} backward in full rows of an H200 with heads of 128; in "
            f"packed documents of 200 tokens, as here, redline's own is {own:.1f} times as fast forward",
            all_of(judged(shares[1], 0.50, 0.73, "backward it is below"),
                   holds(own <= 1, "in packed documents it is the slower one")), "`cuda_attention_bench`"),
        Row("another flash attention is 10–20% slower",
            f"redline's own flash kernels run at {of_cudnn[0]:.0%} of cuDNN's rate forward and {of_cudnn[1]:.0%} "
            f"backward; a step of llama-1.29b takes {flash:.0%} longer",
            all_of(within(1 - of_cudnn[0], 0.10, 0.20, "kernels differ by more"),
                   within(flash, 0.10, 0.20, "a step by less")), SETTINGS + ", `cuda_attention_bench`"),
        Row("batches by length, of 300, 500 and 1024: 20–30% padding",
            f"{percent(by_length['wasted'])}; with powers of two {percent(docs['bucket']['wasted'])}, in batches of 8 "
            f"rows {percent(f.said['documents 8']['modes']['bucket']['wasted'])}",
            at_most(by_length["wasted"], 0.20, 0.30,
                    f"a document of up to 300 tokens has {in_first:.0f} in the mean"), plan_of("documents buckets")),
        Row("batches by length: 80k–100k tokens a step, 60–75% of a batch",
            f"{by_length['utilisation'] * tokens:,.0f}, {percent(by_length['utilisation'])}",
            all_of(judged(by_length["utilisation"] * tokens, 80e3, 100e3, edges),
                   judged(by_length["utilisation"], 0.60, 0.75, edges)), plan_of("documents buckets")),
        Row("batches by length: 2.4–4.2 times the tokens a second",
            f"plan: {speed(bucket) / speed(pad):.2f} times; measured on an H200 with powers of two: "
            f"{measured_bucket:.2f}",
            all_of(judged(speed(bucket) / speed(pad), 2.4, 4.2), judged(measured_bucket, 2.4, 4.2)),
            plan_of("ping buckets")),
        Row("batches by length: 27–42% MFU",
            f"plan: {percent(mfu(bucket))}; measured on an H200 with powers of two: "
            f"{percent(f.rung('ping-95m', 'buckets', 'mfu'))}", judged(mfu(bucket), 0.27, 0.42, edges),
            plan_of("ping buckets")),
        Row("rows of 512: 40–50% padding", percent(docs_512["pad"]["wasted"]),
            at_most(docs_512["pad"]["wasted"], 0.40, 0.50, short), plan_of("documents 512")),
        Row("rows of 512: 55k–65k tokens a step, 85–100% of a batch",
            f"{real_512:,.0f} of {pad_512['tokens_per_step']:,}, {percent(docs_512['pad']['utilisation'])}",
            all_of(judged(real_512, 55e3, 65e3, short), judged(docs_512["pad"]["utilisation"], 0.85, 1, short)),
            plan_of("documents 512")),
        Row("rows of 512: 1.7–2.7 times the tokens a second",
            f"plan: {half:.2f} times; packing has {pad['filling']['packed']['gain']:.1f}", judged(half, 1.7, 2.7),
            plan_of("ping pad 512")),
        Row("rows of 512: 19–30% MFU", f"plan: {percent(mfu(pad_512))}",
            judged(mfu(pad_512), 0.19, 0.30, f"{percent(docs_512['pad']['wasted'], 0)} of it is padding still"),
            plan_of("ping pad 512")),
        Row("rows of 512 may need twice the steps for the same data",
            f"a step of 128 rows has {real_512:,.0f} real tokens for {real['pad']:,.0f}: "
            f"{real['pad'] / real_512:.2f} times the steps",
            within(real["pad"] / real_512, 1.5, 2.5, "a row holds one document in both"), plan_of("documents 512")),
        Row("a larger batch: 1.2–1.5 times the tokens a second", f"plan, 192 padded rows: {more_rows:.3f} times",
            judged(more_rows, 1.2, 1.5, "128 rows keep the card busy, padded or not"), plan_of("ping pad 192")),
        Row("192 rows: +50% throughput, +2–3 points of MFU",
            f"plan: {more_rows - 1:+.1%}, {more_points:+.1f} points",
            all_of(judged(more_rows, 1.5, None, "half as many rows more take half as much time more"),
                   judged(more_points, 2, 3)), plan_of("ping pad 192")),
        Row("rows until memory ends, then 10–20% fewer",
            "`--grow` says before a step how many rows fill the memory: "
            f"{f.said['ping grow']['growth']['filling']['batch_size']}", "beaten: nothing has to fail first",
            plan_of("ping grow")),
        Row("32 workers for 16, larger buffers: 1.1–1.2 times",
            f"two cores make {room:.0f} times what an H200 takes; batches are the same for any number of workers",
            judged(1 + 1 / room, 1.1, 1.2, "nothing waits"), LOADER),
        Row("2 key heads for 10: the step 1.05–1.1 times as fast", f"plan: {gqa:.2f} times", judged(gqa, 1.05, 1.10),
            plan_of("ping gqa")),
        Row("2 key heads for 10: attention 5–10% faster",
            f"plan: {gqa_attention:+.1%}; the projections are what shrinks",
            judged(gqa_attention, 0.05, 0.10, "as many scores are computed"), plan_of("ping gqa parts")),
        Row("2 key heads for 10 cost a small model hardly any accuracy", "any number of key heads can be trained",
            "not seen: it takes pairs of runs on a card", "`redline config ping-95m model.kv_heads=2`"),
        Row("recomputing little trades time for memory",
            f"`train.recompute=mlp`: {recompute:.2f} times as fast, {memory[0]:.1f} GiB for {memory[1]:.1f}",
            holds(recompute < 1 and memory[0] < memory[1]), LADDER.format("ping-95m")),
        Row("a small model should reach 30–40% with a good pipeline", f"{percent(packed_mfu)} on an H200",
            judged(packed_mfu, 0.30, 0.40), LADDER.format("ping-95m")),
        Row("the target: 200k–300k tok/s", f"plan: {rate(speed(ping))}", judged(speed(ping), 200e3, 300e3),
            plan_of("ping")),
        Row("in the end: 45–55%, 140–170 TFLOP/s",
            f"plan: {percent(mfu(end))}, {mfu(end) * ping['peak_flops'] / 1e12:.0f} TFLOP/s without dropout",
            all_of(judged(mfu(end), 0.45, 0.55), judged(mfu(end) * ping["peak_flops"] / 1e12, 140, 170)),
            plan_of("ping end")),
        Row("in the end: 220k–280k tok/s",
            f"plan: {rate(speed(ping))}, without dropout {rate(speed(end))}",
            judged(speed(ping), 220e3, 280e3), plan_of("ping")),
        Row("in the end: 4.0–4.9 times the MFU", f"plan: {mfu(end) / mfu(pad):.2f} times its padded rows",
            judged(mfu(end) / mfu(pad), 4.0, 4.9), plan_of("ping pad")),
        Row("in the end: 4.9–6.2 times the tokens a second", f"plan: {speed(end) / speed(pad):.2f} times",
            judged(speed(end) / speed(pad), 4.9, 6.2, "attention passes over padding, so that padded rows cost less "
                   "than full ones"), plan_of("ping pad")),
        Row("in the end: 120k–140k real tokens a step, 3.6–5.8 times",
            f"{real['pack']:,.0f}, {real['pack'] / real['pad']:.1f} times; 140k are more than 128 rows of 1024 have",
            all_of(judged(real["pack"], 120e3, 140e3), judged(real["pack"] / real["pad"], 3.6, 5.8)),
            plan_of("documents")),
        Row("10,000 steps: 3.0 hours before", f"1.4 s a step are {1.4 * 10000 / 3600:.1f} hours; plan: "
            f"{pad['expected']['hours']:.2f}",
            within(3.0, 0.9 * 1.4 * 10000 / 3600, 1.1 * 1.4 * 10000 / 3600, "its hours and its seconds do not agree"),
            plan_of("ping pad")),
        Row("10,000 steps: 0.5–0.75 hours after, 4–6 times faster",
            f"plan: {ping['expected']['hours']:.2f}; at 100% of the peak {least_hours:.2f}",
            at_most(ping["expected"]["hours"], 0.5, 0.75, "more than the card can do"), plan_of("ping")),
        Row("an A100 has 312 TFLOP/s and 80 GB",
            f"{ping['peak_flops'] / 1e12:.0f} TFLOP/s, {gib(ping['memory_bytes'])} as CUDA shows it",
            all_of(within(ping["peak_flops"] / 1e12, 311, 313), within(ping["memory_bytes"] / 1e9, 80, 86)),
            "`redline peaks`"),
        Row("a script of one's own finds the padding", "a command, for any data", "met", plan_of("documents")),
    ]


def twin(f, name, text):
    """A slow twin that bench/torch_twins.py timed, in words; nothing where it was not."""
    return text.format(f.single(name)) if name in f.single_rows else ""


def guide_002(f):
    fp8, bf16, fp32 = f.said["gqa fp8"], f.said["gqa bf16"], f.said["gqa fp32"]
    small, small_base = f.fp8("gqa-180m", "step_ms")
    step = f.measured("h200_models", model="gqa-180m")
    copy = result_files.read(os.path.join(f.results, "h200_models.json"))["ceilings"]["copy_gbytes_per_s"] * 1e9
    qkv = f.single("fused_qkv_saves") * GIB / copy * 1e3 / step["step_ms"]
    adamw = f.single("fused_adamw_saves") * GIB / copy * 1e3 / step["step_ms"]
    update = f.single("update_gqa") / step["step_ms"]
    norms = next(row for row in result_files.read(os.path.join(f.results, "h200_step_ops.json"))["rows"]
                 if row["op"].startswith("add_norm"))["share_percent"]
    without_flash = f.single("full_step_reference_attention") / f.single("full_step")
    with_norm, without_norm = f.held_out("adamw qk"), f.held_out("adamw noqk")
    best = [min(losses, key=losses.get) for losses in (with_norm, without_norm)]
    moments = fp8["memory"]["moments"], f.said["gqa 8bit"]["memory"]["moments"]
    activations = fp8["memory"]["activations"], bf16["memory"]["activations"]
    parity, pairs = f.paired("8bit", "fp32")
    block = f.measured("h200_settings", model="gqa-180m", setting="train.recompute=block")
    mlp = f.measured("h200_settings", model="gqa-180m", setting="train.recompute=mlp")
    plain = f.measured("h200_settings", model="gqa-180m", setting=None)
    first = step["first_step_s"], step["peer"]["first_step_s"]
    warm = f.single("first_step_warm")
    llama = [f.measured("h200_models_136b", precision=name)["step_ms"] for name in ("bf16", "fp8")]
    state = sum(fp8["memory"][part_] for part_ in ("masters", "working_copies", "gradients", "moments"))
    saved = moments[0] - moments[1]
    rows_8bit = 8 + saved / (activations[0] / 8)
    untied = f.said["gqa untied"]
    loop = f.single("full_step_without_graphs") / f.single("full_step")
    precision = {name: f.measured("h200_precisions", precision=name)["step_ms"] for name in ("bf16", "tf32", "fp32")}
    mha = f.said["gqa mha"]
    speed_8bit = f.rung("ping-95m", "8-bit moments")
    weights = bf16["parameters"] * 2 / MB
    return [
        Row("fp8: 1.6–1.8 times, elsewhere 1.36, 1.4 and 1.5",
            f"measured: {small_base / small:.2f} times, llama-1.36b {llama[0] / llama[1]:.2f}; plan for an H100: "
            f"{speed(fp8) / speed(bf16):.2f}",
            judged(small_base / small, 1.36, 1.8,
                   f"linears are {f.single('linears_gqa'):.0f}% of a step at this width"),
            "`bench/gpu_models.py --precision bf16,fp8`, " + LLAMA + ", " + plan_of("gqa fp8")),
        Row("fused QKV: +15–20%, elsewhere 1.12 times",
            f"by its bytes {percent(qkv)} of a step at the rate of a large copy, as planned; redline has no slow twin" +
            twin(f, "twin_qkv", "; PyTorch with three products takes {:.3f} times as long"),
            judged(f.single("twin_qkv") - 1 if "twin_qkv" in f.single_rows else qkv, 0.12, 0.20,
                   "two more reads of the input and two more sums of its gradient are all that three products add"),
            "`redline ladder gqa-180m data.train=ping`" + twin(f, "twin_qkv", ", `bench/torch_twins.py`")),
        Row("fp8 attention: +5–10%, 1.06 times, elsewhere +8%",
            f"cuDNN's for heads of 128: {f.single('attention_fp8'):.2f} ms a layer, bf16 "
            f"{f.single('attention_bf16'):.2f}; none for heads of 64",
            judged(f.single("attention_bf16") / f.single("attention_fp8"), 1.05, 1.10,
                   "slower, at twice the error of a cast; redline keeps bf16"), "`cuda_fp8_attention_bench`"),
        Row("fused AdamW: +20–30% of the optimizer, 1.04 or 1.05 times the step",
            f"the whole update is {percent(update)} of a step; one pass saves {percent(adamw)} of it by the plan" +
            twin(f, "twin_adamw", "; PyTorch's own choice takes {:.2f} times the update of its fused one") +
            twin(f, "twin_adamw_step", " and {:.3f} times the step") +
            twin(f, "twin_adamw_loop_step", ", a loop over tensors {:.3f} times the step"),
            judged(update, 0.04, 0.05, "an update that small cannot give 4%"),
            "`cuda_update_bench`, `redline ladder gqa-180m data.train=ping`" +
            twin(f, "twin_adamw", ", `bench/torch_twins.py`")),
        Row("torch.compile: 1.08–1.16 times, elsewhere +10–20% and +10–15%",
            f"tuned products {f.rung('gqa-180m', 'tuned products'):.2f} times; beside compiled PyTorch a step is "
            f"{step['ktokens_per_s'] / step['peer']['ktokens_per_s']:.2f} times as fast",
            judged(f.rung("gqa-180m", "tuned products"), 1.08, 1.20,
                   "kernels are fused when they are written, and nothing is left to compile"),
            LADDER.format("gqa-180m") + ", " + MODELS),
        Row("its mode `default`: 1.10–1.15 times",
            f"`kernels.tuning=on`: {f.rung('gqa-180m', 'tuned products'):.3f} times",
            judged(f.rung("gqa-180m", "tuned products"), 1.10, 1.15, "first proposals are nearly the fastest"),
            LADDER.format("gqa-180m")),
        Row("its mode `reduce-overhead`: 1.12–1.18 times",
            f"`kernels.graphs=auto`: {f.rung('gqa-180m', 'CUDA graphs'):.3f} times; left out of the full step "
            f"{loop:.2f} times its time",
            judged(f.rung("gqa-180m", "CUDA graphs"), 1.12, 1.18, "there is no Python between kernels"),
            LADDER.format("gqa-180m") + ", `redline ladder gqa-180m --without`"),
        Row("its mode `max-autotune`: 1.15–1.22 times, worth it beyond 10 hours",
            f"`kernels.tuning=max`: {f.rung('gqa-180m', 'all proposals'):.3f} times",
            judged(f.rung("gqa-180m", "all proposals"), 1.15, 1.22,
                   "the fastest of a few proposals is the fastest of all, however long the run"),
            LADDER.format("gqa-180m")),
        Row("compiling takes 30 s, 1 min or 5–10 min",
            f"the first step ends {first[0]:.1f} s after the command; compiled PyTorch {first[1]:.0f} s",
            at_most(first[0], 30, 600), MODELS),
        Row("later runs find it compiled and start at once", f"{warm} s to the first step at most",
            at_most(warm, first[0]), MODELS),
        Row("70–80% of a model can be compiled beside fp8", "all of a step is one program, in fp8 too", "beaten",
            "`redline profile gqa-180m-adamw`"),
        Row("flash attention: attention 2–3 times, the step 1.2 times, elsewhere +120%",
            f"left out of the full step it costs {without_flash:.1f} times; put into padded rows with nothing else it "
            f"gives {f.rung('gqa-180m', 'flash attention'):.2f}",
            judged(without_flash, 1.2, 2.2), "`redline ladder gqa-180m --without`"),
        Row("tf32: +10–20% of products",
            f"a step {precision['fp32'] / precision['tf32']:.1f} times as fast as in fp32",
            judged(precision["fp32"] / precision["tf32"], 1.1, 1.2), "`bench/results/h200_precisions.json`"),
        Row("bf16: 1.8 times fp32",
            f"{precision['fp32'] / precision['bf16']:.1f} times, {precision['tf32'] / precision['bf16']:.1f} times "
            "tf32", judged(precision["fp32"] / precision["bf16"], 1.8), "`bench/results/h200_precisions.json`"),
        Row("RMSNorm: 15% faster than LayerNorm",
            f"norms with the residual add are {norms:.1f}% of a step of llama-1.29b and move memory; a LayerNorm "
            "would read and write the same bytes",
            holds(0.15 * norms >= 1, f"15% of {norms:.1f}% would be {0.15 * norms:.1f}% of a step. There is no "
                  "LayerNorm here: no family of redline has one"), "`redline profile llama-1.29b`"),
        Row("grouped queries, 3 to 1, save memory",
            f"plan: {gib(fp8['memory']['total'])} for {gib(mha['memory']['total'])} with 12 key heads, "
            f"{speed(fp8) / speed(mha):.2f} times as fast", holds(fp8["memory"]["total"] < mha["memory"]["total"]),
            plan_of("gqa mha")),
        Row("SwiGLU, RoPE and a norm on queries and keys",
            "the preset and its family, qwen3, have all three", "met", "`redline config gqa-180m`"),
        Row("QK-norm: five times the learning rate",
            f"best rate {best[0]:g} with it and {best[1]:g} without; at 16 times {best[1]:g} it has lost "
            f"{with_norm[0.016] - min(with_norm.values()):.2f}, without it "
            f"{without_norm[0.016] - min(without_norm.values()):.2f}",
            judged(best[0] / best[1], 5, None, "it bears a larger rate and does not want one"),
            "`bench/results/recipes_h200.csv` "
            "([more](results.md#does-a-norm-on-queries-and-keys-bear-five-times-the-rate))"),
        Row("a tied head saves 25M parameters, 100 MB",
            f"{(untied['parameters'] - fp8['parameters']) / 1e6:.1f}M, "
            f"{(untied['parameters'] - fp8['parameters']) * 4 / MB:.0f} MB in fp32; with gradient and moments "
            f"{(untied['memory']['total'] - fp8['memory']['total']) / MB:.0f} MB",
            all_of(within((untied["parameters"] - fp8["parameters"]) / 1e6, 24.5, 25.5),
                   judged((untied["memory"]["total"] - fp8["memory"]["total"]) / MB, 100)), plan_of("gqa untied")),
        Row("fp32: 25k tok/s on an H100", f"plan: {rate(speed(fp32))}", judged(speed(fp32), 25e3), plan_of("gqa fp32")),
        Row("bf16 45k, with flash 55k, with fused AdamW 58k tok/s on an H100", f"plan: {fast(bf16)} with all three",
            judged(speed(bf16), 58e3), plan_of("gqa bf16")),
        Row("fp8 75k, fused 84k–93k, compiled 100k–108k tok/s on an H100",
            f"plan: {fast(fp8)}; 108k are {percent(of_peak(fp8, 108e3), 0)}",
            judged(speed(fp8), 100e3, 108e3), plan_of("gqa fp8")),
        Row("110k–120k tok/s with 16 rows x 4 and max-autotune", f"plan: {fast(f.said['gqa 16'])}",
            judged(speed(f.said["gqa 16"]), 110e3, 120e3), plan_of("gqa 16")),
        Row("60k–68k tok/s on an A100 with 16 rows x 4", f"plan: {fast(f.said['gqa a100'])}",
            judged(speed(f.said["gqa a100"]), 60e3, 68e3), plan_of("gqa a100")),
        Row("60k–65k tok/s on an A100 with 4 rows x 16", f"plan: {fast(f.said['gqa a100 4'])}",
            judged(speed(f.said["gqa a100 4"]), 60e3, 65e3), plan_of("gqa a100 4")),
        Row("60k–65k tok/s on an A100 of 40 GB with 8 rows x 8",
            f"plan: {rate(speed(f.said['gqa a100-40']))}, {gib(f.said['gqa a100-40']['memory']['total'])}",
            judged(speed(f.said["gqa a100-40"]), 60e3, 65e3), plan_of("gqa a100-40")),
        Row("4.0–4.3 times fp32, all together",
            f"plan: {speed(fp8) / speed(fp32):.1f} times; measured from fp32 with plain attention and padding to "
            f"all of it: {f.rung('gqa-180m', 'fp8 products', 'over_first'):.0f} times",
            judged(speed(fp8) / speed(fp32), 4.0, 4.3), plan_of("gqa fp32")),
        Row("1.53, 1.62 and 1.7–1.96 times bf16 with fp8, fusion and compilation",
            f"plan: {speed(fp8) / speed(bf16):.2f} times",
            judged(speed(fp8) / speed(bf16), 1.53, 1.96, "the bf16 step is not slow to begin with"),
            plan_of("gqa bf16")),
        Row("weights 360 MB, optimizer 1,440 MB, activations 10 GB: 11.8 GB",
            f"plan: bf16 weights {weights:.0f} MB, moments {moments[0] / MB:.0f} MB, activations "
            f"{activations[0] / 1e9:.1f} GB, all {fp8['memory']['total'] / 1e9:.1f} GB with "
            "masters and gradients", at_most(fp8["memory"]["total"] / 1e9, 11.8), plan_of("gqa fp8")),
        Row("the optimizer has 60% of what is not activations",
            f"1,440 of 1,800 MB are {1440 / 1800:.0%}; plan: {moments[0] / state:.0%} of masters, copies, gradients "
            "and moments",
            all_of(within(1440 / 1800, 0.55, 0.65, "its own figures say otherwise"),
                   within(moments[0] / state, 0.55, 0.65, "masters and gradients take as much")),
            plan_of("gqa fp8")),
        Row("8-bit optimizer: 360 MB, 1,080 MB saved, 10.7 GB in all",
            f"plan: {moments[1] / MB:.0f} MB, {saved / MB:.0f} MB saved, "
            f"{f.said['gqa 8bit']['memory']['total'] / 1e9:.1f} GB in all",
            all_of(judged(saved / MB, 1080, None, "the embedding's moments stay in fp32, and blocks have scales"),
                   at_most(f.said["gqa 8bit"]["memory"]["total"] / 1e9, 10.72)), plan_of("gqa 8bit")),
        Row("8-bit optimizer: 5–10% slower",
            f"{speed_8bit:.3f} times as fast; held-out loss {parity:+.2%} in {pairs} pairs",
            at_most(1 - speed_8bit, 0.05, 0.10), LADDER.format("ping-95m")),
        Row("8-bit moments: 10–12 rows for 8",
            f"plan: {saved / MB:.0f} MB hold {rows_8bit - 8:.1f} rows more; 8 take {percent(of_memory(fp8), 0)} of an "
            "H100", judged(rows_8bit, 10, 12, "it saves less than that, and the rows are not bound by memory"),
            plan_of("gqa 8bit")),
        Row("8-bit moments and checkpointing: twice the rows",
            f"plan: 16 rows take {gib(f.said['gqa small']['memory']['total'])} with both, 8 without "
            f"{gib(fp8['memory']['total'])}",
            at_most(f.said["gqa small"]["memory"]["total"], fp8["memory"]["total"]), plan_of("gqa small")),
        Row("fp8 halves activations",
            f"plan: {activations[0] / GIB:.2f} GiB for {activations[1] / GIB:.2f} in bf16, "
            f"{percent(1 - activations[0] / activations[1], 0)} less",
            judged(1 - activations[0] / activations[1], 0.5, None,
                   "attention, norms and the residual stream stay in bf16"), plan_of("gqa fp8")),
        Row("fp8 costs less than 1% of accuracy",
            f"llama-1.29b ended {f.single('fp8_loss_llama'):.3f}% above bf16 in one pair; smaller models within the "
            "noise of their runs", at_most(f.single("fp8_loss_llama"), 1),
            "`bench/fp8_runs.py` ([more](fp8.md#results-so-far))"),
        Row("checkpointing saves 60–80% of activations for 20–30% of speed",
            f"`block`: {block['memory_gib']:.1f} GiB for {plain['memory_gib']:.1f}, all counted, "
            f"{plain['step_ms'] / block['step_ms'] - 1:.0%}; `mlp`: {mlp['memory_gib']:.1f} GiB, "
            f"{plain['step_ms'] / mlp['step_ms'] - 1:.0%}",
            all_of(judged(1 - block["memory_gib"] / plain["memory_gib"], 0.6, 0.8),
                   judged(plain["step_ms"] / block["step_ms"], 0.7, 0.8)), SETTINGS),
        Row("checkpointing allows 4 times the batch",
            f"{plain['memory_gib'] / block['memory_gib']:.1f} times less memory for the same rows",
            judged(plain["memory_gib"] / block["memory_gib"], 4), SETTINGS),
        Row("streaming data, nothing on the disk",
            "`data.train` takes `.jsonl`, Parquet and compressed text as they are", "met",
            "`redline train quick data.train=web.jsonl.zst`"),
        Row("workers that share no data",
            "batches are the same for any number of workers, ranks read parts of one order", "met",
            "`redline train quick data.workers=4`"),
        Row("a buffer of tokens instead of padding", "`data.packing=stream` or `pack`, with exact masks", "met",
            plan_of("documents")),
        Row("persistent workers, transfers beside the step", "always", "met", "`redline profile quick`"),
        Row("a shuffle buffer", "`data.shuffle_buffer` where data are streamed; else the whole is shuffled", "met",
            "`redline config --keys shuffle`"),
        Row("FSDP beyond 1B parameters",
            "`parallel.mode=fsdp`, on CPUs and on ranks of one H200; several cards were planned only",
            "not seen: one card", "`redline plan llama-1.36b --card h100 --gpus 8`"),
        Row("12 GB, right for a card of 32 GB", f"plan: {fp8['memory']['total'] / 1e9:.1f} GB",
            at_most(fp8["memory"]["total"] / 1e9, 12), plan_of("gqa fp8")),
        Row("95–98% of what is possible", f"their 108k tok/s are {percent(of_peak(fp8, 108e3), 0)} MFU; plan: "
            f"{percent(mfu(fp8), 0)}",
            judged(108e3 / speed(fp8), 0.95, 0.98, f"{percent(108e3 / speed(fp8), 0)} of what the plan has"),
            plan_of("gqa fp8")),
    ]


def guide_003(f):
    bf16, fp8, own, eight = (f.said[name] for name in ("cs336", "cs336 fp8", "cs336 own", "cs336 8"))
    small, small_base = f.fp8("cs336-350m", "step_ms")
    bf16_mfu, fp8_mfu = f.fp8("cs336-350m", "mfu_percent")[::-1]
    h200 = f.measured("h200_models", model="cs336-350m")
    room = loader_room(f, 1e3 * h200["ktokens_per_s"])
    choice = {name: f.said[name]["choice"] for name in ("cs336", "cs336 40", "cs336 24")}
    tokens = [count * 1024 for count in (8 * 16, 64 * 4)]
    config = "`redline config cs336-350m-adamw`"
    low, high = sustained(f)
    block = f.rung("cs336-350m", "recompute block")
    return [
        Row("29–32% MFU at 60k–70k tok/s on an H100", f"65k tok/s are {percent(of_peak(bf16, 65e3), 0)}; 30% are "
            f"{rate(0.3 * bf16['peak_flops'] / bf16['flops_per_token'])}",
            within(of_peak(bf16, 65e3), 0.29, 0.32, "the two figures are a factor of two apart"), plan_of("cs336")),
        Row("11% of the memory, 9.5 GB, with 8 rows",
            f"plan: {own['memory']['total'] / 1e9:.1f} GB with layers computed again, "
            f"{eight['memory']['total'] / 1e9:.1f} GB without",
            within(9.5e9, own["memory"]["total"], eight["memory"]["total"]), plan_of("cs336 own")),
        Row("8 rows x 16 are 131k tokens; 32–64 x 2–4 are more than 500k",
            f"8 x 16 rows of 1024 are {tokens[0]:,}, 64 x 4 {tokens[1]:,}; 500k take 64 x 8",
            all_of(within(tokens[0], 130.5e3, 131.5e3),
                   judged(tokens[1], 500e3, None, "half of it at most; the presets have 64 x 8")), config),
        Row("larger batches: 4–8 times the utilisation",
            f"plan: {rate(speed(eight))} with 8 rows, {rate(speed(bf16))} with 64: {speed(bf16) / speed(eight):.2f} "
            "times",
            judged(speed(bf16) / speed(eight), 4, 8, "8 rows of 1024 are 8,192 tokens, enough for large products"),
            plan_of("cs336 8")),
        Row("fp8: 2 times on an H100",
            f"measured on an H200: {small_base / small:.2f} times; plan for the H100: {speed(fp8) / speed(bf16):.2f}",
            judged(small_base / small, 2, None,
                   f"linears are {f.single('linears_cs336'):.0f}% of a step, and casts take a part back"),
            plan_of("cs336 fp8")),
        Row("8 workers, prefetch of 4, memory-mapped files against starvation",
            f"two cores make {room:.0f} times what an H200 takes",
            holds(room < 1, "nothing starves; `data_wait_ms` of a run shows it"), LOADER),
        Row("rate 4e-4 → 6e-4, warm-up 2000 → 1000",
            "the preset cs336-350m-adamw; Muon at 2e-3 in fp8 ends where AdamW in PyTorch does after "
            f"{f.single('seconds_to_loss'):.0f} s instead of {f.single('seconds_to_loss_torch'):.0f}, on other text",
            at_most(f.single("seconds_to_loss"), f.single("seconds_to_loss_torch")),
            "`bench/time_to_loss.py cs336-350m`"),
        Row("evaluation every 500 steps, to stop early",
            "the preset has `train.eval_every=500`; `train.patience` and `train.target_loss` stop", "met", config),
        Row("tf32, flash attention, expandable segments, `empty_cache`",
            "keys of their own; memory is planned, so nothing fragments", "met", "`redline config --keys matmul`"),
        Row("logs say that fp8 and flash attention are on",
            "`redline profile` names the type and the kernel of every node", "met", "`redline profile cs336-350m`"),
        Row("max-autotune, one whole graph",
            f"every algorithm timed: {f.rung('cs336-350m', 'all proposals'):.3f} times; graphs "
            f"{f.rung('cs336-350m', 'CUDA graphs'):.3f}",
            holds(max(f.rung("cs336-350m", rung) for rung in ("all proposals", "CUDA graphs")) > 1.01,
                  "nothing gained here"), LADDER.format("cs336-350m")),
        Row("gradient checkpointing, always on",
            f"it costs {1 - block:.0%} and saves memory that is not short: 64 rows without take "
            f"{gib(bf16['memory']['total'])}",
            holds(of_memory(bf16) > 1, "slower for nothing: they fit without"), LADDER.format("cs336-350m")),
        Row("60–70% of the memory, 50–60 GB, with 32–64 rows",
            f"plan: {f.said['cs336 32']['memory']['total'] / 1e9:.0f} GB, {percent(of_memory(f.said['cs336 32']), 0)} "
            f"with 32 rows, {bf16['memory']['total'] / 1e9:.0f} GB, {percent(of_memory(bf16), 0)} with 64",
            holds(of_memory(f.said["cs336 32"]) <= 0.60 and of_memory(bf16) >= 0.70), plan_of("cs336 32")),
        Row("more than 500k tok/s, 7 times",
            f"plan: {rate(speed(fp8))} in fp8, {rate(speed(bf16))} in bf16; 500k are "
            f"{percent(of_peak(bf16, 500e3), 0)} of the card's bf16 peak",
            judged(speed(fp8), 500e3, None, "more than the card can do in bf16"), plan_of("cs336 fp8")),
        Row("70–80% MFU, 2.5 times",
            f"measured on an H200: {bf16_mfu:.1f}% in bf16, {fp8_mfu:.1f}% in fp8; large products alone sustain "
            f"{low:.0%} to {high:.0%}",
            judged(fp8_mfu, 70, 80, f"linears are {f.single('linears_cs336'):.0f}% of a step at this width"),
            "`bench/gpu_models.py cs336-350m:32`"),
        Row("the batch is found by itself: 32–64 rows in 80 GB, 16–32 in 40 GB, 8–16 in less",
            "`train.batch_size=auto`; plan: " + ", ".join(
                f"{choice[name]['batch_size']} rows x {choice[name]['accumulate']} in {size} GB"
                for name, size in (("cs336", 80), ("cs336 40", 40), ("cs336 24", 24))),
            all_of(within(choice["cs336"]["batch_size"], 32, 64), within(choice["cs336 40"]["batch_size"], 16, 32),
                   within(choice["cs336 24"]["batch_size"], 8, 16)), plan_of("cs336 40")),
        Row("out of memory: 16 rows, accumulate 8, checkpointing",
            "`memory.fit` finds the fastest way to fit before the first step, and says it", "beaten",
            "`redline plan cs336-350m --card rtx-4090`"),
        *long_run_rows(f, bf16["expected"], f.said["90min"]["expected"]),
    ]


def long_run_rows(f, bf16, ninety):
    """The board's losses: what the plan says and, where the long run was made, what it reached on other text."""
    at_1000 = f"1000 steps of 524,288 tokens take {bf16['step_ms'] / 60:.0f} minutes of an H100 by the plan"
    in_90 = (f"plan: {ninety['steps']:,.0f} steps of 262,144 tokens in 1.5 hours, "
             f"{ninety['steps'] * 262144 / 1e9:.2f} billion")
    made = [plan_of("cs336"), plan_of("90min")]
    rows = f.optional(long_run.NAME)
    if rows:
        long = long_run.of_arm(rows, "redline")
        there = next((row for row in long if row["step"] == 1000), None)
        if there is None:
            raise BadClaim(f"{long_run.NAME}.json has no held-out loss at step 1000 of the long run")
        said = long_run.forecast(rows)
        at_1000 += (f"; 1000 steps of 262,144 on an H200: {there['held_out']:.2f} on other text, "
                    f"{there['bits_per_byte']:.3f} bits a byte")
        in_90 += (f"; {long[-1]['seconds'] / 60:.0f} minutes of an H200 end at {long[-1]['bits_per_byte']:.3f} bits a "
                  f"byte of other text, and the curve carried to 90 at {said['law']:.3f} ({said['low']:.3f} to "
                  f"{said['high']:.3f})")
        made = [f"{one}, `bench/long_run.py`" for one in made]
    return [
        Row("validation loss 4.98 at step 1000 → 3.5", at_1000,
            "not seen: no H100 for as long, and the board's text and tokenizer are not here", made[0]),
        Row("3.0781 beaten within 1.5 hours of an H100, 2.8–2.9", in_90,
            "not seen: no H100 for 1.5 hours, and losses on other text do not compare", made[1]),
    ]


def guide_004(f):
    one = f.said["llama b200"]
    mode = {name: {m["mode"]: m for m in f.said[name]["modes"]} for name in ("llama 8", "llama 8 fp8", "qwen 8")}
    best = {name: max((m for m in mode[name].values() if m["fits"]), key=lambda m: m["mfu"]) for name in mode}
    a6000 = f.said["llama a6000"]
    choice = a6000["choice"]
    graphs = [f.rung(row["model"], "CUDA graphs") for row in f.ladder_rows if row["rung"] == "CUDA graphs"]
    flash = [f.longer(model, "kernels.attention=flash") for model in ("gqa-180m", "llama-1.29b")]
    of_card = {name: f.measured("h200_models_136b", precision=name) for name in ("bf16", "fp8")}
    peer = of_card["bf16"]["peer"]
    qwen = f.measured("h200_models", model="qwen3-1.8b")["mfu_percent"]
    room = loader_room(f, 1e3 * of_card["bf16"]["ktokens_per_s"])
    sharding = mode["llama 8"]["ddp"]["tokens_per_s"] / mode["llama 8"]["zero1"]["tokens_per_s"] - 1
    llama_mfu = percent(best["llama 8"]["mfu"])

    def tier(says, low, high, why=""):
        return Row(f"LLaMA on 8 B200, {says}",
                   f"plan: {llama_mfu}, in fp8 {percent(best['llama 8 fp8']['mfu'])} of the bf16 peak; measured on one "
                   f"H200: {of_card['bf16']['mfu_percent']:.1f}% and {of_card['fp8']['mfu_percent']:.1f}%, PyTorch in "
                   f"bf16 {peer['mfu_percent']:.1f}%", judged(best["llama 8"]["mfu"], low, high, why),
                   plan_of("llama 8") + ", " + LLAMA)

    return [
        Row("FlashAttention-3, else 2, else SDPA, else by hand",
            "`kernels.attention=auto` times cuDNN's, redline's two and takes the fastest, forward and backward "
            "apart", "beaten: it is measured, and said", "`redline profile llama-1.36b`"),
        Row("without FlashAttention 5–10% less",
            f"redline's flash kernels instead of the best: {flash[0]:.0%} and {flash[1]:.0%} of a step",
            at_most(max(flash), 0.05, 0.10), SETTINGS),
        Row("CUDA graphs: +8–15% MFU",
            f"{min(graphs) - 1:+.1%} to {max(graphs) - 1:+.1%} for five models on an H200; quick, with a step of "
            f"{f.single('quick_step')} ms, {f.single('quick_without_graphs') - 1:.0%}",
            judged(max(graphs) - 1, 0.08, 0.15, "kernels are long enough to hide their launches"),
            LADDER.format("MODEL")),
        Row("graphs of a whole step, captured after 10 steps", "captured after one, before the first step of a run",
            "beaten", "`redline train quick`"),
        Row("a loader with 4 workers: +2–5% MFU",
            f"two cores make {room:.0f} times what an H200 takes of this model",
            judged(1 / room, 0.02, 0.05, "nothing waits"), LOADER),
        Row("DDP is 3–5% faster than ZeRO-1", f"plan for 8 B200: {sharding:+.1%}",
            judged(sharding, 0.03, 0.05, "both hide what they send; several cards were not seen"),
            plan_of("llama 8")),
        Row("35–40%, 12k tok/s on an A6000 with ZeRO-1",
            f"plan: {percent(choice['mfu'])}, {rate(choice['tokens_per_s'])} on one with {choice['batch_size']} "
            f"rows x {choice['accumulate']}; 12k are {percent(of_peak(a6000, 12e3), 0)} of one card",
            "not seen: no A6000; by the plan about what one card does", plan_of("llama a6000")),
        tier("tier 1, DDP: 55–62%", 0.55, 0.62),
        tier("tier 2, with a loader: 58–65%", 0.58, 0.65, "a loader adds nothing, since nothing waits"),
        tier("tier 3, with graphs: 65–75%", 0.65, 0.75,
             "graphs add 1% at most, and products sustain two thirds of a datasheet; fp8 is what goes beyond"),
        Row("170k, 180k and 200k tok/s of the tiers",
            f"plan: {rate(best['llama 8']['tokens_per_s'])} of all eight; 200k are "
            f"{percent(of_peak(one, 200e3, 8))} of eight cards, {percent(of_peak(one, 200e3), 0)} of one",
            all_of(within(of_peak(one, 170e3, 8), 0.55, 0.62, "its tokens and its MFU do not agree"),
                   within(of_peak(one, 200e3, 8), 0.65, 0.75, "its tokens and its MFU do not agree")),
            plan_of("llama 8")),
        Row("Qwen3, tier 1: 50–58%", f"plan: {percent(best['qwen 8']['mfu'])}",
            judged(best["qwen 8"]["mfu"], 0.50, 0.58), plan_of("qwen 8")),
        Row("Qwen3, tier 3: 60–70%", f"plan: {percent(best['qwen 8']['mfu'])}",
            judged(best["qwen 8"]["mfu"], 0.60, 0.70, "neither loader nor graphs add to tier 1"), plan_of("qwen 8")),
        Row("Qwen3 with its 24 layers reaches less than LLaMA",
            f"plan: {percent(best['qwen 8']['mfu'])} and {llama_mfu}; measured on one H200: {qwen:.1f}% and "
            f"{of_card['bf16']['mfu_percent']:.1f}%",
            holds(best["qwen 8"]["mfu"] < best["llama 8"]["mfu"] and qwen < of_card["bf16"]["mfu_percent"]),
            plan_of("qwen 8") + ", " + LLAMA),
        Row("LLaMA of 1.36B: 40–50 GB a GPU with 24 rows",
            f"plan: {one['memory']['total'] / 1e9:.0f} GB without recompute",
            at_most(one["memory"]["total"] / 1e9, 40, 50, "activations of 24 rows of 2048 take most of it"),
            plan_of("llama b200")),
        Row("Qwen3 of 1.8B: 50–60 GB a GPU with 20 rows",
            f"plan: {f.said['qwen b200']['memory']['total'] / 1e9:.0f} GB without recompute",
            at_most(f.said["qwen b200"]["memory"]["total"] / 1e9, 50, 60,
                    "activations of 20 rows of 2048 take most of it"), plan_of("qwen b200")),
        Row("both fit a B200 of 192 GB without sharding",
            f"plan: {gib(one['memory']['total'])} and {gib(f.said['qwen b200']['memory']['total'])} of "
            f"{gib(one['memory_bytes'])}",
            holds(max(one["memory"]["total"], f.said["qwen b200"]["memory"]["total"]) < one["memory_bytes"]),
            plan_of("llama b200")),
        Row("every optimisation is optional and falls back",
            "three tiers (`--tier safe`, `fast`, `fastest`); what cannot run is said with its reason, never in "
            "silence", "met", "`redline config --tier safe`"),
        Row("logs that show which optimisation is active", "the header of a run, `config.toml` and `redline info`",
            "met", "`redline train quick --dry-run`"),
        Row("scripts for average and peak MFU, throughput, memory, time to go", "`redline report`, one page", "met",
            "`redline report RUN`"),
    ]


GUIDES = (
    ("000", "A 95M model on an A100: from 30% to 40–50%", guide_000),
    ("001", "The same model before: padding", guide_001),
    ("002", "A 180M model with everything: fp8, fused kernels, compilation", guide_002),
    ("003", "A 350M model against the clock on an H100", guide_003),
    ("004", "LLaMA of 1.36B and Qwen3 of 1.8B on eight B200", guide_004),
)

ABOVE = """# What guides promise, and what holds

Five guides to fast training, claim by claim: what each says, what redline measured or plans, and a verdict: met,
beaten, refuted (with the reason), or not seen, where the hardware is not here. `bench/claims.py` makes this page from
`bench/results` and from the commands in its last column, and the test suite makes it again. A verdict on a figure is
computed from it, at the guide's own rows, lengths and card; a claim of several figures is as good as the worst of them.
Verdicts on features, which have no figure, and the reasons are words of the script.

"Plan" is `redline plan`: a step of the real programs, each node at the rate that its kind was measured to reach on an
H200 ([how good plans are](results.md#plan-against-reality)). A100, A6000, H100 and B200 were not seen. All else was
measured on one H200, or on two CPU cores where the loader is meant.

## The five guides
| guide | about | its own settings | beside them |
|---|---|---|---|
| 000, 001 | 95M on an A100 | `ping-95m` (001: with `data.packing=pad`) | `ping-95m-256`, where 000 wants to get |
| 002 | 180M on an H100 | `gqa-180m-adamw` | `gqa-180m`, with Muon |
| 003 | 350M in 1.5 hours of an H100 | `cs336-350m-adamw` | `cs336-350m` and `cs336-350m-90min`, with Muon |
| 004 | 1.36B and 1.8B on 8 B200 | `llama-1.36b`, `qwen3-1.8b` | nothing was tuned |
"""


def page(figures):
    out, counts = [ABOVE], dict.fromkeys(VERDICTS, 0)
    for number, title, rows_of in GUIDES:
        out.append(f"\n## {number}: {title}\n| the guide says | redline | verdict | printed by |\n|---|---|---|---|\n")
        for row in rows_of(figures):
            out.append(f"| {' | '.join(row.cells)} |\n")
            counts[next(word for word in VERDICTS if row.cells[2].startswith(word))] += 1
    total = ", ".join(f"{count} {word}" for word, count in counts.items())
    out.insert(1, f"\n{sum(counts.values())} claims: {total}.\n")
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redline", default=os.path.join(ROOT, "build", "redline"), help="the program")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the page differs")
    given = parser.parse_args()
    try:
        made = page(Figures(given.redline))
        with open(PAGE, encoding="utf-8") as file:
            there = file.read()
    except BadClaim as error:
        sys.exit(f"claims: {error}")
    except FileNotFoundError as error:
        if error.filename != PAGE:
            sys.exit(f"claims: {error.filename}: {error.strerror}")
        there = ""
    if given.check and made != there:
        old, new = there.splitlines(), made.splitlines()
        line = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        sys.exit(f"claims: docs/claims.md differs in line {line + 1}; run bench/claims.py --redline {given.redline}\n"
                 f"  there: {(old + [''] * (line + 1))[line]}\n  now:   {(new + [''] * (line + 1))[line]}")
    if not given.check:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(made)


if __name__ == "__main__":
    main()
