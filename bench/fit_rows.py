#!/usr/bin/env python3
"""Runs models that are larger than their memory, and holds each against its plan: docs/memory.md.

For each row `redline plan` says what moves and how long a step takes, then the run makes --steps steps of random tokens
and is ended by force, so that nothing is saved. The first step does not count. What fails is a row with its words, and
the next one runs. Rows go to the screen as Markdown and, with --results, to a file as bench/results has them.

  bench/fit_rows.py --results bench/results/h200_fit.json
  bench/fit_rows.py 14b 14b-bf16-masters --steps 3
  bench/fit_rows.py small --device cpu --redline build/redline      what it does, on a CPU
"""
import argparse
import json
import os
import statistics
import sys
import time

import gpu_models
import result_files

GIB = 2**30
LLAMA_8B = ["llama-1.36b", "data.train=random:128256", "model.vocab=128256", "model.hidden=4096", "model.layers=32",
            "model.heads=32", "model.kv_heads=8", "model.head_dim=128", "model.ffn=14336", "train.seq_len=8192",
            "train.batch_size=1", "precision.matmul=fp8", "optim.name=adamw"]
QWEN3_14B = ["qwen3-1.8b", "data.train=random:151936", "model.vocab=151936", "model.hidden=5120", "model.layers=40",
             "model.heads=40", "model.kv_heads=8", "model.head_dim=128", "model.ffn=17408", "model.tied=false",
             "train.seq_len=4096", "train.batch_size=1", "train.accumulate=64", "precision.matmul=fp8",
             "optim.name=adamw", "optim.moments=8bit"]
QWEN3_06B = ["qwen3-1.8b", "data.train=random:151936", "model.vocab=151936", "model.hidden=1024", "model.layers=28",
             "model.heads=16", "model.kv_heads=8", "model.head_dim=128", "model.ffn=3072", "model.tied=true",
             "train.batch_size=1", "train.accumulate=1", "precision.matmul=fp8", "optim.name=adamw"]
FP32_8B = [*LLAMA_8B, "train.accumulate=16"]

# name: the words of `redline train`, and what was asked for.
RUNS = {
    "8b": ([*LLAMA_8B, "train.accumulate=8", "optim.moments=8bit"], "84%"),
    "8b-fp32-moments": (FP32_8B, "80%"),
    "8b-fp32-moments-bf16-gradients": ([*FP32_8B, "precision.gradients=bf16"], "80%"),
    "8b-fp32-moments-bf16-masters": ([*FP32_8B, "precision.masters=bf16"], "80%"),
    "14b": (QWEN3_14B, "9.5k tokens/s"),
    "14b-bf16-masters": ([*QWEN3_14B, "precision.masters=bf16"], "9.5k tokens/s"),
    "8b-24gib": ([*LLAMA_8B, "train.accumulate=8", "optim.moments=8bit", "memory.limit=24GiB"],
                 "within 5% of the plan"),
    "1.36b-8gib": (["llama-1.36b", "data.train=random:32000", "train.batch_size=1", "train.accumulate=8",
                    "memory.limit=8GiB", "optim.name=adamw"], "trains"),
    "0.6b-131072": ([*QWEN3_06B, "train.seq_len=131072"], "48%"),
    "8b-65536": ([*LLAMA_8B, "train.accumulate=1", "optim.moments=8bit", "train.seq_len=65536"], "57%"),
    "small": (["quick", "train.batch_size=2", "train.accumulate=2", "memory.limit=96MiB"], "trains"),
}
KEYS = ["train.max_steps=1000000", "train.eval_every=0", "checkpoint.every=0", "model.dropout=0"]
HEAD = ["run", "moves", "a step", "planned", "tokens/s", "mfu / palm, %", "card", "planned", "host", "first step",
        "asked"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="default: all but small; " + ", ".join(RUNS))
    parser.add_argument("--steps", type=int, default=4, help="of each run, the first of which does not count")
    parser.add_argument("--seconds", type=float, default=300, help="of a run, at most")
    parser.add_argument("--redline", default="build/redline")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--keys", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of all runs")
    parser.add_argument("--results", metavar="FILE", help="a JSON file of all rows; written anew after each of them")
    parser.add_argument("--commit", help="of the program, for that file (default: what git says of this folder)")
    given = parser.parse_args()
    given.runs = given.runs or [name for name in RUNS if name != "small"]
    unknown = [name for name in given.runs if name not in RUNS]
    if unknown:
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(RUNS)}")
    if given.steps < 2:
        parser.error("--steps: 2 or more, since the first does not count")
    given.peer = None
    return given


def planned(given, words):
    plan = json.loads(gpu_models.output_of([given.redline, "plan", *words, "--json", *device_of_plan(given)]))
    expected, way = plan.get("expected") or {}, (plan.get("fit") or {}).get("ways", [{}])[0]
    moves = [f"{name} on the host" for name in ("moments", "masters", "averages", "gradients", "weights", "residuals")
             if way.get(f"{name}_on_host")]
    if way.get("moment_layers"):
        moves[0] = f"moments of {way['moment_layers']} layers on the host"
    if way.get("copies_made"):
        moves.insert(0, "no working copies")
    if way.get("recompute_layers"):
        moves.append(f"{way['recompute']} of {way['recompute_layers']} layers again")
    return {"step_ms": expected.get("step_ms") and round(expected["step_ms"], 1),
            "memory_gib": round(plan["arena_bytes"] / GIB, 3), "total_gib": round(plan["memory"]["total"] / GIB, 3),
            "host_gib": round(plan["host_arena_bytes"] / GIB, 3), "moves": ", ".join(moves) or "nothing"}


def device_of_plan(given):
    return ["--card", "cpu"] if given.device == "cpu" else []


def measured(given, name):
    words, asked = RUNS[name]
    words = [*words, *given.keys]
    model, keys = words[0], [*words[1:], *KEYS]
    rows, first, used, said = gpu_models.train(given, model, keys, given.steps)
    steps = rows[1:]
    told = [line.strip() for line in said.splitlines() if line.startswith(("ready in", "made "))]
    return {"run": name, "words": " ".join([model, *keys]), "steps": len(steps),
            "step_ms": round(statistics.median(row["step_ms"] for row in steps), 1),
            "tokens_per_s": round(statistics.median(row["tokens_per_s"] for row in steps)),
            "mfu_percent": round(100 * statistics.median(row["mfu"] for row in steps), 2),
            "mfu_palm_percent": round(100 * statistics.median(row["mfu_palm"] for row in steps), 2),
            "memory_gib": round(rows[-1]["memory_gib"], 3), "nvidia_smi_gib": used and round(used, 3),
            "first_step_s": round(first, 2), "loss": rows[-1]["loss"], "asked": asked, "told": told,
            "plan": planned(given, [model, *keys])}


def cells_of(row):
    if "error" in row:
        return [row["run"], row["error"].splitlines()[-1], *[""] * (len(HEAD) - 3), row["asked"]]
    plan = row["plan"]
    expected = plan["step_ms"]
    held = f"{row['memory_gib']:.2f} GiB" + (f" ({row['nvidia_smi_gib']:.2f})" if row["nvidia_smi_gib"] else "")
    return [row["run"], plan["moves"], f"{row['step_ms']:,.0f} ms",
            f"{expected:,.0f} ms ({100 * (expected / row['step_ms'] - 1):+.1f}%)" if expected else "",
            f"{row['tokens_per_s']:,}", f"{row['mfu_percent']:.1f} / {row['mfu_palm_percent']:.1f}", held,
            f"{plan['memory_gib']:.2f} GiB", f"{plan['host_gib']:.2f} GiB", f"{row['first_step_s']:.1f} s",
            row["asked"]]


def main():
    given = arguments()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": gpu_models.card_says("name") or given.device,
              "versions": gpu_models.versions(given), "command": " ".join(sys.argv), "rows": []}
    print(gpu_models.Table.line(HEAD), gpu_models.Table.line(["---"] * len(HEAD)), sep="\n", flush=True)
    for name in given.runs:
        try:
            row = measured(given, name)
        except gpu_models.Failed as failed:
            print(failed, file=sys.stderr, flush=True)
            row = {"run": name, "asked": RUNS[name][1], "error": str(failed)}
        print(gpu_models.Table.line(cells_of(row)), flush=True)
        result["rows"].append(row)
        if given.results:
            result_files.write(given.results, result)
    if any("error" in row for row in result["rows"]):
        sys.exit("not every run gave figures")


if __name__ == "__main__":
    main()
