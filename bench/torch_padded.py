#!/usr/bin/env python3
"""A PyTorch program's step on rows that are one document each and padding behind it, where it otherwise trains on full
rows.

The program (--peer of gpu_models.py) has run(model, batch, fp8, mode, backend, chunks, steps) and draws its tokens with
one call of torch.randint; here each row's tail becomes one token, from the end of a document on. Lengths lie evenly
around the mean that makes the given share of all tokens padding. Nothing is masked, and the loss counts all tokens:
rows cost what full rows do, but for what power equal tokens save. Prints the program's own line with the real tokens a
second in place of all.

  bench/torch_padded.py torch_peer.py ping-95m 128 --padding 0.805
"""
import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", metavar="FILE")
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("--padding", type=float, required=True, help="share of all tokens, 0 to 1")
    given = parser.parse_args()
    if not 0 < given.padding < 1:
        parser.error("--padding is a share between 0 and 1")
    if not (given.peer.endswith(".py") and os.path.isfile(given.peer)):
        parser.error(f"{given.peer}: no such Python program")

    spec = importlib.util.spec_from_file_location("peer", given.peer)
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    torch = peer.torch
    torch.set_float32_matmul_precision("high")
    draw, real = torch.randint, []

    def padded(low, high, shape, **how):
        torch.randint = draw
        tokens = draw(low, high, shape, **how)
        rows, row = shape
        share = 1 - given.padding
        even = (torch.randperm(rows, device=tokens.device) + 0.5) / rows * 2 - 1
        lengths = (row * (share + even * min(share, given.padding))).round().clamp(1, row)
        tokens[torch.arange(row, device=tokens.device)[None, :] >= lengths[:, None]] = low
        real.append(lengths.sum().item() / (rows * row))
        return tokens

    torch.randint = padded
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        peer.run(given.model, given.batch, False, "default", peer.SDPBackend.CUDNN_ATTENTION, 8, 10)
    line = json.loads(said.getvalue().strip().splitlines()[-1])
    if not real:
        sys.exit(f"{given.peer} did not draw its tokens with torch.randint")
    line.update(ktok_s=round(line["ktok_s"] * real[0], 1), padding=round(1 - real[0], 3))
    for key in ("mfu_palm", "mfu_causal"):  # of full rows
        del line[key]
    print(json.dumps(line))


if __name__ == "__main__":
    main()
