#!/usr/bin/env python3
"""What a user of PyTorch reaches on the same tokens in the same seconds: trains the shape of a preset (torch_peer.py)
with AdamW on a headerless file of uint16 ids for so many seconds of steps, and prints the held-out loss on the way.

  bench/torch_text.py --model cs336-350m-90min --train train.bin --eval val.bin --seconds 120 --held-out-at 30 60

Rows are whole and in random order, anew each epoch. The clock counts steps alone: compiling, the two steps before it
and evaluations stand still. The rate rises over the first 30% of the seconds and falls to a tenth with the last
(docs/results.md: AdamW bears no less in runs so short). One JSON object a line; the last is the end.
"""
import argparse
import json
import math
import time

import numpy
import torch
import torch.nn as nn
from torch.nn.attention import sdpa_kernel

import torch_peer


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a preset, for its shape")
    parser.add_argument("--train", required=True, metavar="FILE")
    parser.add_argument("--eval", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=120, help="of steps")
    parser.add_argument("--held-out-at", nargs="*", type=float, default=[], metavar="S", help="seconds, before the end")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=4, help="of the loss")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--warm-up", type=float, default=0.3, help="share of the seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attention", choices=torch_peer.ATTENTION, default="cudnn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eager", action="store_true", help="nothing is compiled")
    parser.add_argument("--shape", nargs="*", default=[], metavar="KEY=N", help="L, d, H, K, hd, ff, V, T of a trial")
    return parser.parse_args()


def rate(given, share):
    """Of learning, when this share of the seconds is over."""
    if share < given.warm_up:
        return given.lr * max(share / given.warm_up, 1e-3)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, (share - given.warm_up) / (1 - given.warm_up))))
    return given.lr * (0.1 + 0.9 * fall)


def main():
    given = arguments()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(given.seed)
    c = {**torch_peer.shape_of(given.model), **{key: int(n) for key, n in (one.split("=") for one in given.shape)}}
    card, length = given.device == "cuda", c["T"]
    train, held = (torch.from_numpy(numpy.fromfile(path, dtype=numpy.uint16).astype(numpy.int64))
                   for path in (given.train, given.eval))
    if max(int(train.max()), int(held.max())) >= c["V"]:
        raise SystemExit(f"{given.train}, {given.eval}: ids of {c['V']} and more; is that another tokenizer's text?")
    with torch.device(given.device):
        model = torch_peer.Model(c, "one")
    for name, p in model.named_parameters():
        if p.ndim == 2:  # smaller where a sum over the layers begins
            into = ".o." in name or ".down." in name
            nn.init.normal_(p, std=0.02 / (math.sqrt(2 * c["L"]) if into else 1))
    groups = [{"params": [p for p in model.parameters() if (p.ndim == 2) == matrices], "weight_decay": decay}
              for matrices, decay in ((True, 0.1), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=given.lr, betas=(0.9, 0.95), fused=card)
    forward = model if given.eager else torch.compile(model)
    backend = torch_peer.ATTENTION[given.attention]
    draw, rows = torch.Generator().manual_seed(given.seed + 1), (len(train) - 1) // length

    def order():
        while True:
            yield from torch.randperm(rows, generator=draw).tolist()

    def batch(source, starts):
        x = torch.stack([source[row * length:row * length + length + 1] for row in starts]).to(given.device)
        return x[:, :-1].contiguous(), x[:, 1:].contiguous()

    def held_out():
        count = (len(held) - 1) // length
        total = 0.0
        with torch.no_grad(), sdpa_kernel(backend):
            for first in range(0, count, given.batch):
                starts = range(first, min(count, first + given.batch))
                total += model(*batch(held, starts), given.chunks).item() * len(starts)
        return total / count

    at = order()

    def step(lr):
        for group in optimizer.param_groups:
            group["lr"] = lr
        total = 0.0
        for _ in range(given.accumulate):
            x, y = batch(train, [next(at) for _ in range(given.batch)])
            with sdpa_kernel(backend):
                loss = forward(x, y, given.chunks) / given.accumulate
            loss.backward()
            total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total.item()  # waits for the card

    begin = time.time()
    for _ in range(2):  # compile, at a rate of nothing
        step(0.0)
    compiled = time.time() - begin
    seconds, steps, loss, times = 0.0, 0, math.nan, []
    said = lambda: {"step": steps, "seconds": round(seconds, 2), "loss": round(loss, 4),
                    "held_out": round(held_out(), 5)}
    marks = sorted(second for second in given.held_out_at if second < given.seconds)
    while seconds < given.seconds:
        begin = time.time()
        loss = step(rate(given, seconds / given.seconds))
        times.append(time.time() - begin)
        seconds, steps = seconds + times[-1], steps + 1
        if marks and seconds >= marks[0]:
            marks = [second for second in marks if second > seconds]
            print(json.dumps(said()), flush=True)
    print(json.dumps({**said(), "model": given.model, "torch": torch.__version__, "lr": given.lr,
                      "tokens_per_step": given.batch * given.accumulate * length, "compile_s": round(compiled, 1),
                      "step_ms": round(1e3 * sorted(times)[len(times) // 2], 2)}), flush=True)


if __name__ == "__main__":
    main()
