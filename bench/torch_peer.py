#!/usr/bin/env python3
"""What a user would pick instead: the presets trained with PyTorch (bf16 or fp8 linears, compiled, fused AdamW, flash
or cuDNN attention, the loss in chunks), the median step after warm-up. Prints one JSON row a run. Shapes are those of
configs/, so that both programs train the same model.

  bench/torch_peer.py --runs llama-1.36b:24:bf16:default:cudnn:4
  bench/torch_peer.py --runs gqa-180m:64:bf16:default:cudnn:8:three:loop     with slow twins

A run is MODEL:BATCH:PRECISION:MODE:ATTENTION:CHUNKS[:QKV[:ADAMW]]. MODE is one of torch.compile's, or eager; QKV is
`one` product or `three`; ADAMW is `fused`, `foreach` (torch's own choice) or `loop`. FLOPs a token are 6 for each
weight of a product, the head's too, and 6 layers heads head_dim T (causal) or twice that (palm); MFU is against the
dense bf16 peak, in fp8 as well.
"""
import argparse
import json
import os
import time
import tomllib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")
PEAK = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12, "B200": 2250e12}
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
ADAMW = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}


def shape_of(name):
    """L layers, d wide, H query and K key heads of hd, ff, V tokens, rows of T."""
    with open(os.path.join(CONFIGS, f"{name}.toml"), "rb") as file:
        config = tomllib.load(file)
    m = config["model"]
    heads = m["heads"]
    return {"L": m["layers"], "d": m["hidden"], "H": heads, "K": m.get("kv_heads", heads),
            "hd": m.get("head_dim", m["hidden"] // heads), "ff": m["ffn"], "V": m.get("vocab", 267),
            "T": config["train"]["seq_len"], "qk": m.get("qk_norm", False), "tied": m.get("tied", False)}


def cast(values, dtype):
    largest = torch.finfo(dtype).max
    scale = largest / values.abs().amax().float().clamp(min=1e-12)
    return (values.float() * scale).clamp(-largest, largest).to(dtype), 1.0 / scale


@torch._dynamo.allow_in_graph
class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        x8, x_scale = cast(x, torch.float8_e4m3fn)
        w8, w_scale = cast(w, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return torch._scaled_mm(x8, w8.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=torch.bfloat16,
                                use_fast_accum=True)

    @staticmethod
    def backward(ctx, dy):
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        dy8, dy_scale = cast(dy, torch.float8_e5m2)
        dx = torch._scaled_mm(dy8, w8.t().contiguous().t(), scale_a=dy_scale, scale_b=w_scale,
                              out_dtype=torch.bfloat16, use_fast_accum=False)
        dw = torch._scaled_mm(dy8.t().contiguous(), x8.t().contiguous().t(), scale_a=dy_scale, scale_b=x_scale,
                              out_dtype=torch.float32, use_fast_accum=False)
        return dx, dw


class Linear(nn.Linear):
    fp8 = False

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x):
        if not self.fp8:
            return F.linear(x, self.weight.to(x.dtype))
        return Fp8Product.apply(x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.out_features)


def rotated(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c, qkv):
        super().__init__()
        self.c = c
        self.attention_norm, self.mlp_norm = nn.RMSNorm(c["d"]), nn.RMSNorm(c["d"])
        widths = [heads * c["hd"] for heads in (c["H"], c["K"], c["K"])]
        self.qkv = nn.ModuleList(Linear(c["d"], width) for width in ([sum(widths)] if qkv == "one" else widths))
        self.o = Linear(c["H"] * c["hd"], c["d"])
        self.up, self.down = Linear(c["d"], 2 * c["ff"]), Linear(c["ff"], c["d"])
        if c["qk"]:
            self.q_norm, self.k_norm = nn.RMSNorm(c["hd"]), nn.RMSNorm(c["hd"])

    def linears(self):
        return [*self.qkv, self.o, self.up, self.down]

    def forward(self, x, cos, sin):
        c = self.c
        rows, length, _ = x.shape
        normed = self.attention_norm(x).to(torch.bfloat16)
        parts = [linear(normed).view(rows, length, -1, c["hd"]) for linear in self.qkv]
        q, k, v = parts if len(parts) == 3 else parts[0].split([c["H"], c["K"], c["K"]], 2)
        if c["qk"]:
            q, k = self.q_norm(q).to(torch.bfloat16), self.k_norm(k).to(torch.bfloat16)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                           enable_gqa=c["H"] != c["K"])
        x = x + self.o(y.transpose(1, 2).reshape(rows, length, -1))
        gate, up = self.up(self.mlp_norm(x).to(torch.bfloat16)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, c, qkv):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c["V"], c["d"])
        self.blocks = nn.ModuleList(Block(c, qkv) for _ in range(c["L"]))
        self.norm, self.head = nn.RMSNorm(c["d"]), Linear(c["d"], c["V"])
        if c["tied"]:
            self.head.weight = self.emb.weight
        frequencies = 10000.0 ** (-torch.arange(0, c["hd"], 2).float() / c["hd"])
        angles = torch.outer(torch.arange(c["T"]).float(), frequencies)
        self.register_buffer("cos", angles.cos()[:, None, :])
        self.register_buffer("sin", angles.sin()[:, None, :])

    def forward(self, tokens, targets, chunks):
        x = self.emb(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x, targets = self.norm(x).to(torch.bfloat16).view(-1, self.c["d"]), targets.view(-1)
        if chunks == 1:
            return F.cross_entropy(self.head(x).float(), targets)
        losses = [checkpoint(self.loss_of, part, wanted, use_reentrant=False)
                  for part, wanted in zip(x.chunk(chunks), targets.chunk(chunks))]
        return sum(losses) / targets.numel()

    def loss_of(self, x, targets):
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")


def flops_per_token(c, model):
    """palm, causal."""
    weights = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith("emb"))
    weights += c["V"] * c["d"] if c["tied"] else 0
    scores = c["L"] * c["H"] * c["hd"] * c["T"]
    return 6 * weights + 12 * scores, 6 * weights + 6 * scores


def run(name, batch, fp8, mode, backend, chunks, steps, qkv="one", adamw="fused", device="cuda"):
    """Trains some steps and prints the row, which it returns as well."""
    c = shape_of(name)
    torch.manual_seed(0)
    torch._dynamo.reset()
    card = device == "cuda"
    if card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.device(device):
        model = Model(c, qkv)
    for p in model.parameters():
        if p.ndim == 2:
            nn.init.normal_(p, std=0.02)
    for block in model.blocks:
        for linear in block.linears():
            linear.fp8 = fp8
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **ADAMW[adamw])
    forward = model if mode == "eager" else torch.compile(model, mode=mode)
    tokens = torch.randint(0, c["V"], (batch, c["T"] + 1), device=device)

    def now():
        if not card:
            return time.time()
        event = torch.cuda.Event(True)
        event.record()
        return event

    def ms(begin, end):
        return begin.elapsed_time(end) if card else 1e3 * (end - begin)

    def step():
        """Begin of the step and of the update, and their end."""
        begin = now()
        with sdpa_kernel(backend):
            loss = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), chunks)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        update = now()
        optimizer.step()
        end = now()
        optimizer.zero_grad(set_to_none=True)
        if card:
            torch.cuda.synchronize()
        return ms(begin, end), ms(update, end), loss.item()

    start = time.time()
    step()
    first = time.time() - start
    for _ in range(4):
        step()
    timed = [step() for _ in range(steps)]
    step_ms, update_ms = (sorted(one[i] for one in timed)[steps // 2] for i in (0, 1))
    tokens_per_s = batch * c["T"] / step_ms * 1e3
    peak = next((v for k, v in PEAK.items() if card and k in torch.cuda.get_device_name()), 989.5e12)
    palm, causal = flops_per_token(c, model)
    parameters = sum(p.numel() for p in model.parameters())
    row = {"model": name, "params_m": round(parameters / 1e6, 1), "B": batch, "fp8": fp8, "mode": mode,
           "sdpa": str(backend).rsplit(".", maxsplit=1)[-1], "chunks": chunks, "qkv": qkv, "adamw": adamw,
           "ms": round(step_ms, 2), "update_ms": round(update_ms, 3), "ktok_s": round(tokens_per_s / 1e3, 1),
           "mfu_palm": round(100 * palm * tokens_per_s / peak, 1),
           "mfu_causal": round(100 * causal * tokens_per_s / peak, 1), "first_step_s": round(first, 1),
           "mem_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if card else None,
           "loss": round(timed[-1][2], 3)}
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True, metavar="RUN,...", help="see above")
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    for words in given.runs.split(","):
        name, batch, precision, mode, attention, chunks, *twins = words.split(":")
        try:
            run(name, int(batch), precision == "fp8", mode, ATTENTION[attention], int(chunks), given.steps, *twins)
        except (RuntimeError, OSError, KeyError) as error:  # memory, a kernel that is not there, a name
            print(json.dumps({"run": words, "error": str(error)[:300].replace("\n", " ")}), flush=True)


if __name__ == "__main__":
    main()
