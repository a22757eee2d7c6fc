#!/usr/bin/env python3
"""Prints what communication costs by mode, network and number of GPUs, as redline plans it: the table of docs/ranks.md.

Each figure is a part of the planned step: the time in which the computing waits for collectives, and in brackets all
of their time. Rows of a step are those of one GPU, times the GPUs. Nothing is measured.
"""
import json
import os
import subprocess
import sys

REDLINE = os.environ.get("REDLINE", "build/redline")
EIGHT_BILLION = ("model.layers=32 model.hidden=4096 model.heads=32 model.kv_heads=8 model.head_dim=128 "
                 "model.ffn=14336 model.vocab=128256 model.tied=false train.seq_len=8192 train.batch_size=1 "
                 "train.accumulate=1 optim.name=adamw")
MODELS = [("llama-1.36b, 4 x 2048", "train.batch_size=4 train.accumulate=1"), ("8B, 1 x 8192", EIGHT_BILLION),
          ("8B, 1 x 8192, 4 micro-batches", EIGHT_BILLION.replace("train.accumulate=1", "train.accumulate=4"))]
PLACES = [(8, "nvlink"), (64, "ndr"), (64, "hdr"), (64, "ethernet"), (512, "ndr")]


def planned(keys, gpus, network, matmul):
    words = [REDLINE, "plan", "llama-1.36b", "--card", "h200", "--gpus", str(gpus), "--network", network, "--json"]
    out = subprocess.run(words + keys.split() + [f"precision.matmul={matmul}"], check=True, capture_output=True)
    return {(mode["mode"], mode["shards"]): mode for mode in json.loads(out.stdout)["modes"]}


def cell(plan, rows):
    if plan is None:
        return "one node"
    if not plan["fits"]:
        return "does not fit"
    if plan["batch_size"] * plan["accumulate"] != rows:
        sys.exit(f"{plan['mode']} was planned for other rows")
    share = 100 / plan["step_ms"]
    return f"{share * plan['exposed_ms']:.1f}% ({share * sum(c['ms'] for c in plan['collectives']):.0f}%)"


def main():
    print("| model, rows of a GPU | products | GPUs, network | `ddp` | `zero1` | `fsdp` | `fsdp` of 8 |\n"
          "|---|---|---|---|---|---|---|")
    for name, keys in MODELS:
        rows = int(keys.split("train.batch_size=")[1].split()[0]) * int(keys.split("accumulate=")[1].split()[0])
        for matmul in ("bf16", "fp8"):
            for gpus, network in PLACES:
                plans = planned(keys, gpus, network, matmul)
                ways = (("ddp", 0), ("zero1", 0), ("fsdp", 0), ("fsdp", 8))
                cells = " | ".join(cell(plans.get(way), rows) for way in ways)
                print(f"| {name} | {matmul} | {gpus}, `{network}` | {cells} |")


if __name__ == "__main__":
    main()
