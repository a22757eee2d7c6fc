#!/usr/bin/env python3
"""What a user would write for a mixture of experts: PyTorch, compiled, in bf16 with fused AdamW and cuDNN attention.
A router's softmax is over all experts in fp32, tokens are sorted by expert, and experts are grouped products. No token
is dropped. Prints one JSON row a run, as bench/torch_peer.py does; shapes are those of configs/.

  bench/torch_moe.py --runs olmoe-8l:8:learned:default:4 --seconds 20
  bench/torch_moe.py --runs olmoe-8l:8:even:default:4,moe-1b:64:learned:default:8

A run is MODEL:BATCH:ROUTER:MODE:CHUNKS. `olmoe-8l` is olmoe-1b-7b with 8 of its 16 layers, which fits on a card with
fp32 masters and moments. ROUTER is `learned`, or `even`: every expert gets as many tokens. FLOPs a token are 6 for each
weight of a product that it takes (its experts, the router, the head), and 6 layers heads head_dim T.
"""
import argparse
import json
import os
import statistics
import time
import tomllib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")
CUT = {"olmoe-8l": ("olmoe-1b-7b", 8)}
TINY = {"layers": 2, "hidden": 64, "heads": 4, "kv": 2, "head_dim": 16, "experts": 4, "per_token": 2, "width": 32,
        "vocab": 128, "length": 64, "whole_norm": False, "normalise": True, "tied": False, "aux": 0.01}
PEAK = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12, "B200": 2250e12}
grouped_product = getattr(F, "grouped_mm", None) or torch._grouped_mm


def shape_of(name):
    if name == "tiny":
        return dict(TINY)
    preset, layers = CUT.get(name, (name, None))
    with open(os.path.join(CONFIGS, f"{preset}.toml"), "rb") as file:
        config = tomllib.load(file)
    m = config["model"]
    return {"layers": layers or m["layers"], "hidden": m["hidden"], "heads": m["heads"],
            "kv": m.get("kv_heads", m["heads"]), "head_dim": m["head_dim"], "experts": m["experts"],
            "per_token": m["experts_per_token"], "width": m.get("expert_ffn", m["ffn"]), "vocab": m["vocab"],
            "length": config["train"]["seq_len"], "whole_norm": m["family"] == "olmoe",
            "normalise": m.get("norm_topk", False), "tied": m.get("tied", False), "aux": m.get("router_aux", 0.01)}


def matrix(*extents):
    weight = nn.Parameter(torch.empty(*extents))
    nn.init.normal_(weight, std=0.02)
    return weight


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = matrix(c["experts"], c["hidden"])
        self.gate_up = matrix(c["experts"], c["hidden"], 2 * c["width"])
        self.down = matrix(c["experts"], c["width"], c["hidden"])

    def forward(self, x, even):
        """The sum over a token's experts, and the balance loss."""
        experts, k, n = self.c["experts"], self.c["per_token"], x.shape[0]
        probabilities = F.linear(x.float(), self.router).softmax(-1)
        weights, chosen = probabilities.topk(k, -1)
        if even:  # token after token takes the next k experts
            chosen = torch.arange(n * k, device=x.device).view(n, k) % experts
            weights = probabilities.gather(1, chosen)
        if self.c["normalise"]:
            weights = weights / weights.sum(-1, keepdim=True)
        chosen = chosen.reshape(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=experts)
        ends, tokens = counts.cumsum(0).to(torch.int32), order // k
        gate, up = grouped_product(x[tokens], self.gate_up.to(x.dtype), offs=ends).chunk(2, -1)
        y = grouped_product(F.silu(gate) * up, self.down.to(x.dtype), offs=ends)
        y = y * weights.reshape(-1)[order, None].to(y.dtype)
        balance = experts * (counts.float() / n * probabilities.mean(0)).sum()
        return torch.zeros_like(x).index_add(0, tokens, y), balance


def rotated(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        queries, keys = c["heads"] * c["head_dim"], c["kv"] * c["head_dim"]
        self.attention_norm, self.mlp_norm = nn.RMSNorm(c["hidden"]), nn.RMSNorm(c["hidden"])
        whole = c["whole_norm"]
        self.q_norm = nn.RMSNorm(queries if whole else c["head_dim"])
        self.k_norm = nn.RMSNorm(keys if whole else c["head_dim"])
        self.qkv, self.out = matrix(queries + 2 * keys, c["hidden"]), matrix(c["hidden"], queries)
        self.experts = Experts(c)

    def normed(self, x, norm):
        x = norm(x.flatten(2)).view_as(x) if self.c["whole_norm"] else norm(x)
        return x.to(torch.bfloat16)

    def forward(self, x, cos, sin, even):
        c, (rows, length, wide) = self.c, x.shape
        qkv = F.linear(self.attention_norm(x).to(x.dtype), self.qkv.to(x.dtype)).view(rows, length, -1, c["head_dim"])
        q, k, v = qkv.split([c["heads"], c["kv"], c["kv"]], 2)
        q = rotated(self.normed(q, self.q_norm), cos, sin)
        k = rotated(self.normed(k, self.k_norm), cos, sin)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=c["heads"] != c["kv"])
        x = x + F.linear(y.transpose(1, 2).reshape(rows, length, -1), self.out.to(x.dtype))
        y, balance = self.experts(self.mlp_norm(x).to(x.dtype).view(-1, wide), even)
        return x + y.view_as(x), balance


class Model(nn.Module):
    def __init__(self, c, even):
        super().__init__()
        self.c, self.even = c, even
        self.emb = nn.Embedding(c["vocab"], c["hidden"])
        nn.init.normal_(self.emb.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.norm = nn.RMSNorm(c["hidden"])
        self.head = self.emb.weight if c["tied"] else matrix(c["vocab"], c["hidden"])
        frequencies = 10000.0 ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angles = torch.outer(torch.arange(c["length"]).float(), frequencies)
        self.register_buffer("cos", angles.cos()[:, None, :])
        self.register_buffer("sin", angles.sin()[:, None, :])

    def forward(self, tokens, targets, chunks):
        x, balance = self.emb(tokens).to(torch.bfloat16), 0.0
        for block in self.blocks:
            x, of_layer = block(x, self.cos, self.sin, self.even)
            balance = balance + of_layer
        x, targets = self.norm(x).to(torch.bfloat16).view(-1, self.c["hidden"]), targets.reshape(-1)
        losses = [checkpoint(self.loss_of, part, wanted, use_reentrant=False)
                  for part, wanted in zip(x.chunk(chunks), targets.chunk(chunks))]
        return sum(losses) / targets.numel() + self.c["aux"] * balance / self.c["layers"]

    def loss_of(self, x, targets):
        return F.cross_entropy(F.linear(x, self.head.to(x.dtype)).float(), targets, reduction="sum")


def weights_of_a_token(c):
    heads = c["hidden"] * c["head_dim"] * (2 * c["heads"] + 2 * c["kv"])
    experts = c["hidden"] * (c["experts"] + 3 * c["per_token"] * c["width"])
    return c["layers"] * (heads + experts) + c["vocab"] * c["hidden"]


def run(name, batch, even, mode, chunks, seconds, device):
    """Trains for some seconds and prints the row."""
    c, card = shape_of(name), device == "cuda"
    torch.manual_seed(0)
    torch._dynamo.reset()
    if card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.device(device):
        model = Model(c, even)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=card)
    forward = model if mode == "eager" else torch.compile(model, mode=mode)
    tokens = torch.randint(0, c["vocab"], (batch, c["length"] + 1), device=device)

    def step():
        begin = time.time()
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if card else SDPBackend.MATH):
            loss = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), chunks)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item(), time.time() - begin  # item() waits

    first = step()[1]
    for _ in range(3):
        step()
    timed, until = [], time.time() + seconds
    while time.time() < until or len(timed) < 5:
        timed.append(step())
    step_s = statistics.median(took for _, took in timed)
    tokens_per_s = batch * c["length"] / step_s
    peak = next((v for k, v in PEAK.items() if card and k in torch.cuda.get_device_name()), 989.5e12)
    flops = 6 * weights_of_a_token(c) + 6 * c["layers"] * c["heads"] * c["head_dim"] * c["length"]
    print(json.dumps({
        "model": name, "params_m": round(sum(p.numel() for p in model.parameters()) / 1e6, 1),
        "active_m": round((weights_of_a_token(c) + (0 if c["tied"] else c["vocab"] * c["hidden"])) / 1e6, 1),
        "B": batch, "router": "even" if even else "learned", "mode": mode, "chunks": chunks, "steps": len(timed),
        "ms": round(1e3 * step_s, 2), "ktok_s": round(tokens_per_s / 1e3, 1),
        "mfu_causal": round(100 * flops * tokens_per_s / peak, 1), "first_step_s": round(first, 1),
        "mem_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if card else None,
        "loss": round(timed[-1][0], 3)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True, metavar="RUN,...", help="see above")
    parser.add_argument("--seconds", type=float, default=10, help="of each run, after four steps")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    for words in given.runs.split(","):
        try:
            name, batch, router, mode, chunks = words.split(":")
            if router not in ("learned", "even"):
                raise ValueError(f"a router is learned or even, not {router}")
            run(name, int(batch), router == "even", mode, int(chunks), given.seconds, given.device)
        except (RuntimeError, OSError, KeyError, ValueError) as error:  # memory, a kernel that is not there, a name
            print(json.dumps({"run": words, "error": str(error)[:300].replace("\n", " ")}), flush=True)


if __name__ == "__main__":
    main()
