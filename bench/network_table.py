#!/usr/bin/env python3
"""Makes the table of what communication costs by mode, network and number of GPUs, as redline plans it: docs/ranks.md.

  bench/network_table.py [PROGRAM]            writes it anew
  bench/network_table.py --check [PROGRAM]    fails where it differs; without a program it is build/redline

Each figure is a part of the planned step: the time in which the computing waits for collectives, and in brackets all
of their time. Rows of a step are those of one GPU, times the GPUs. Nothing is measured.
"""
import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "ranks.md"
BEGIN, END = "<!-- table: networks -->\n", "<!-- end -->\n"
EIGHT_BILLION = ("model.layers=32 model.hidden=4096 model.heads=32 model.kv_heads=8 model.head_dim=128 "
                 "model.ffn=14336 model.vocab=128256 model.tied=false train.seq_len=8192 train.batch_size=1 "
                 "train.accumulate=1 optim.name=adamw")
MODELS = [("llama-1.36b, 4 x 2048", "train.batch_size=4 train.accumulate=1"), ("8B, 1 x 8192", EIGHT_BILLION),
          ("8B, 4 of 1 x 8192", EIGHT_BILLION.replace("train.accumulate=1", "train.accumulate=4"))]
PLACES = [(8, "nvlink"), (64, "ndr"), (64, "hdr"), (64, "ethernet"), (512, "ndr")]
WAYS = [("ddp", 0), ("zero1", 0), ("fsdp", 0), ("fsdp", 8)]
HEAD = ("| model, rows of a GPU | products | GPUs, network | `ddp` | `zero1` | `fsdp` | `fsdp` of 8 |\n"
        "|---|---|---|---|---|---|---|\n")


def planned(program, keys, gpus, network, matmul):
    words = [program, "plan", "llama-1.36b", "--card", "h200", "--gpus", str(gpus), "--network", network, "--json"]
    ran = subprocess.run(words + keys.split() + [f"precision.matmul={matmul}"], capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(words)} {keys}: exit status {ran.returncode}: {ran.stderr.strip()}")
    return {(mode["mode"], mode["shards"]): mode for mode in json.loads(ran.stdout)["modes"]}


def cell(plan, rows):
    if plan is None:
        return "one node"
    if not plan["fits"]:
        return "does not fit"
    if plan["batch_size"] * plan["accumulate"] != rows:
        raise SystemExit(f"{plan['mode']} was planned for other rows")
    share = 100 / plan["step_ms"]
    return f"{share * plan['exposed_ms']:.1f}% ({share * sum(c['ms'] for c in plan['collectives']):.0f}%)"


def line(program, name, keys, matmul, gpus, network):
    rows = int(keys.split("train.batch_size=")[1].split()[0]) * int(keys.split("accumulate=")[1].split()[0])
    plans = planned(program, keys, gpus, network, matmul)
    cells = " | ".join(cell(plans.get(way), rows) for way in WAYS)
    return f"| {name} | {matmul} | {gpus}, `{network}` | {cells} |\n"


def main():
    words = sys.argv[1:]
    check = "--check" in words
    program = ([word for word in words if word != "--check"] or [str(ROOT / "build" / "redline")])[0]
    asked = [(program, name, keys, matmul, gpus, network)
             for name, keys in MODELS for matmul in ("bf16", "fp8") for gpus, network in PLACES]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        table = HEAD + "".join(pool.map(lambda words: line(*words), asked))
    page = PAGE.read_text(encoding="utf-8")
    if BEGIN not in page:
        raise SystemExit(f"{PAGE} has no line {BEGIN.strip()}")
    before, rest = page.split(BEGIN, 1)
    was, behind = rest.split(END, 1)
    if check and was != table:
        old = set(was.splitlines())
        new = "\n".join(row for row in table.splitlines() if row not in old)
        raise SystemExit(f"docs/ranks.md is not what is planned; run bench/network_table.py. New rows:\n{new}")
    if not check:
        PAGE.write_text(before + BEGIN + table + END + behind, encoding="utf-8")


if __name__ == "__main__":
    main()
