#!/usr/bin/env python3
"""Slow twins of what redline always fuses, in PyTorch, on one card in one call: three products for queries, keys and
values instead of one, and AdamW as torch chooses it or in a loop instead of fused. redline itself has no such twins.
Prints rows for bench/results/h200_figures.csv, from which bench/claims.py makes docs/claims.md.

  bench/torch_twins.py >> bench/results/h200_figures.csv
"""
import argparse
import datetime
import sys

import torch

import torch_peer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gqa-180m")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--mode", default="default", help="of torch.compile, or eager (default: %(default)s)")
    parser.add_argument("--attention", default="cudnn", choices=torch_peer.ATTENTION)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rows, stdout = {}, sys.stdout
    sys.stdout = sys.stderr  # the peer's own rows
    # The usual step comes first and last, as cards grow warm: the mean of both counts.
    for twin in (("one", "fused"), ("three", "fused"), ("one", "foreach"), ("one", "loop"), ("one", "fused")):
        rows.setdefault(twin, []).append(
            torch_peer.run(given.model, given.batch, False, given.mode, torch_peer.ATTENTION[given.attention],
                           given.chunks, given.steps, *twin, device=given.device))
    sys.stdout = stdout

    def of(twin, key):
        return sum(row[key] for row in rows[twin]) / len(rows[twin])

    usual = ("one", "fused")
    machine = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    command = f"bench/torch_twins.py --model {given.model} --batch {given.batch}"
    figures = (("twin_qkv", ("three", "fused"), "ms"), ("twin_adamw", ("one", "foreach"), "update_ms"),
               ("twin_adamw_step", ("one", "foreach"), "ms"), ("twin_adamw_loop", ("one", "loop"), "update_ms"),
               ("twin_adamw_loop_step", ("one", "loop"), "ms"))
    for name, twin, key in figures:
        print(f"{name},{of(twin, key) / of(usual, key):.4g},times,{datetime.date.today()},{machine},{command}")


if __name__ == "__main__":
    main()
