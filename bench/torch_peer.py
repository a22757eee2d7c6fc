#!/usr/bin/env python3
"""What a user would pick instead: the presets trained with PyTorch (bf16 or fp8 linears, compiled, fused AdamW, flash
or cuDNN attention, the loss in chunks), the median step after warm-up. Prints one JSON row a run. Shapes are those of
configs/, so that both programs train the same model: LLaMA, Qwen3, Mistral and Gemma-3.

  bench/torch_peer.py --runs llama-1.36b:24:bf16:default:cudnn:4
  bench/torch_peer.py --runs gqa-180m:64:bf16:default:cudnn:8:three:loop     with slow twins
  bench/torch_peer.py --runs gemma3-1b:8:bf16:default:cudnn:fused8           a large vocabulary

A run is MODEL:BATCH:PRECISION:MODE:ATTENTION:CHUNKS[:QKV[:ADAMW[:WINDOWS]]]. MODE is one of torch.compile's, or eager.
ATTENTION is that of layers without a window, or whose rows are no longer than it; where that kernel does not take the
heads, flash does. WINDOWS is that of the others: `flex` (flex_attention with a mask by blocks), `flash` (PyTorch's own
flash kernel, which takes a window) or `mask` (any kernel with a mask of T x T). CHUNKS is in how many the loss is made:
`8` makes each chunk's logits again for its gradient, `fused8` makes gradients at once and needs no second product. QKV
is `one` product or `three`; ADAMW is `fused`, `foreach` (torch's own choice) or `loop`. FLOPs a token are 6 for each
weight of a product, the head's too, and of attention 12 heads head_dim for each pair that the mask keeps (causal), or
for as many as a row or a window has tokens (palm); MFU is against the dense bf16 peak, in fp8 as well.
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
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs")
PEAK = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12, "B200": 2250e12}
ATTENTION = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
ADAMW = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}


FAMILIES = {"llama": {}, "qwen3": {"qk": True}, "mistral": {"window": True},
            "gemma3": {"qk": True, "window": True, "full_every": 6, "gemma": True}}


def shape_of(name):
    """L layers, d wide, H query and K key heads of hd, ff, V tokens, rows of T, a window of w or none in each layer."""
    with open(os.path.join(CONFIGS, f"{name}.toml"), "rb") as file:
        config = tomllib.load(file)
    m = config["model"]
    if m.get("family", "llama") not in FAMILIES:
        raise RuntimeError(f"there is no PyTorch model of the family {m['family']} here")
    family = FAMILIES[m.get("family", "llama")]
    heads, row, every = m["heads"], config["train"]["seq_len"], family.get("full_every", 0)
    window = m.get("window", 0)
    if window and ("window" not in family or "layer_types" in m):
        raise RuntimeError(f"{name}: such windows are not in this program")
    windows = [window if window and window < row and not (every and (i + 1) % every == 0) else None
               for i in range(m["layers"])]
    theta = m.get("rope_theta", 1e4)
    return {"L": m["layers"], "d": m["hidden"], "H": heads, "K": m.get("kv_heads", heads),
            "hd": m.get("head_dim", m["hidden"] // heads), "ff": m["ffn"], "V": m.get("vocab", 267), "T": row,
            "qk": family.get("qk", False), "tied": m.get("tied", False), "windows": windows, "theta": theta,
            "local_theta": m.get("rope_local_theta", theta), "gemma": family.get("gemma", False),
            # of layers with a window, also where rows are no longer than it
            "local": [bool(window) and not (every and (i + 1) % every == 0) for i in range(m["layers"])]}


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


class Norm1p(nn.RMSNorm):
    """Gemma's: the weight is 1 + w."""

    def __init__(self, width):
        super().__init__(width)
        nn.init.zeros_(self.weight)

    def forward(self, x):
        return F.rms_norm(x.float(), self.normalized_shape, 1 + self.weight, self.eps).to(x.dtype)


def windowed_mask(window):
    return lambda b, h, i, j: (i >= j) & (i - j < window)


class FusedLoss(torch.autograd.Function):
    """Sum of the cross entropies of x @ weight.T: each chunk's logits become their gradient at once, so that nothing
    is multiplied twice and no more than one chunk of logits exists."""

    @staticmethod
    def forward(ctx, x, weight, targets, chunks):
        w = weight.to(x.dtype)
        losses, dx, dw = [], [], torch.zeros_like(weight, dtype=torch.float32)
        for part, wanted in zip(x.chunk(chunks), targets.chunk(chunks)):
            logits = (part @ w.t()).float()
            log_sums = logits.logsumexp(-1, keepdim=True)
            losses.append((log_sums.squeeze(-1) - logits.gather(1, wanted[:, None]).squeeze(-1)).sum())
            columns = torch.arange(logits.shape[1], device=logits.device)
            grad = ((logits - log_sums).exp() - (columns == wanted[:, None]).float()).to(x.dtype)
            dx.append(grad @ w)
            dw = dw + (grad.t() @ part).float()
        ctx.save_for_backward(torch.cat(dx), dw)
        return sum(losses)

    @staticmethod
    def backward(ctx, upstream):
        dx, dw = ctx.saved_tensors
        return (dx * upstream).to(dx.dtype), dw * upstream, None, None


class Block(nn.Module):
    def __init__(self, c, qkv, index, attend):
        super().__init__()
        self.c, self.window, self.local, self.attend = c, c["windows"][index], c["local"][index], attend
        norm = Norm1p if c["gemma"] else nn.RMSNorm
        self.attention_norm, self.mlp_norm = norm(c["d"]), norm(c["d"])
        if c["gemma"]:
            self.attention_end, self.mlp_end = norm(c["d"]), norm(c["d"])
        else:
            self.attention_end = self.mlp_end = nn.Identity()
        widths = [heads * c["hd"] for heads in (c["H"], c["K"], c["K"])]
        self.qkv = nn.ModuleList(Linear(c["d"], width) for width in ([sum(widths)] if qkv == "one" else widths))
        self.o = Linear(c["H"] * c["hd"], c["d"])
        self.up, self.down = Linear(c["d"], 2 * c["ff"]), Linear(c["ff"], c["d"])
        if c["qk"]:
            self.q_norm, self.k_norm = norm(c["hd"]), norm(c["hd"])

    def linears(self):
        return [*self.qkv, self.o, self.up, self.down]

    def forward(self, x, tables):
        c = self.c
        cos, sin = tables[self.local]
        rows, length, _ = x.shape
        normed = self.attention_norm(x).to(torch.bfloat16)
        parts = [linear(normed).view(rows, length, -1, c["hd"]) for linear in self.qkv]
        q, k, v = parts if len(parts) == 3 else parts[0].split([c["H"], c["K"], c["K"]], 2)
        if c["qk"]:
            q, k = self.q_norm(q).to(torch.bfloat16), self.k_norm(k).to(torch.bfloat16)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = self.attend(q, k, v, self.window)
        x = x + self.attention_end(self.o(y.reshape(rows, length, -1)))
        gate, up = self.up(self.mlp_norm(x).to(torch.bfloat16)).chunk(2, -1)
        gate = F.gelu(gate, approximate="tanh") if c["gemma"] else F.silu(gate)
        return x + self.mlp_end(self.down(gate * up))


class Attend:
    """q, k, v and the result are [rows, T, heads, hd]."""

    def __init__(self, c, windows, device):
        self.gqa, self.how = c["H"] != c["K"], windows
        self.masks = {}
        for window in {w for w in c["windows"] if w}:
            if windows == "flex":
                self.masks[window] = create_block_mask(windowed_mask(window), None, None, c["T"], c["T"], device=device)
            elif windows == "mask":
                i = torch.arange(c["T"], device=device)
                self.masks[window] = windowed_mask(window)(None, None, i[:, None], i[None, :])

    def __call__(self, q, k, v, window):
        if window and self.how == "flash":
            return torch.ops.aten._flash_attention_forward(
                q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, window_size_left=window - 1,
                window_size_right=0)[0]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if window and self.how == "flex":
            y = flex_attention(q, k, v, block_mask=self.masks[window], enable_gqa=self.gqa)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.masks.get(window), is_causal=not window,
                                               enable_gqa=self.gqa)
        return y.transpose(1, 2)


class Model(nn.Module):
    def __init__(self, c, qkv, windows="flex", device="cuda"):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c["V"], c["d"])
        attend = Attend(c, windows, device)
        self.blocks = nn.ModuleList(Block(c, qkv, i, attend) for i in range(c["L"]))
        self.norm, self.head = (Norm1p if c["gemma"] else nn.RMSNorm)(c["d"]), Linear(c["d"], c["V"])
        if c["tied"]:
            self.head.weight = self.emb.weight
        for name, theta in (("", c["theta"]), ("local_", c["local_theta"])):
            frequencies = theta ** (-torch.arange(0, c["hd"], 2).float() / c["hd"])
            angles = torch.outer(torch.arange(c["T"]).float(), frequencies)
            self.register_buffer(name + "cos", angles.cos()[:, None, :])
            self.register_buffer(name + "sin", angles.sin()[:, None, :])

    def forward(self, tokens, targets, chunks):
        x = self.emb(tokens).to(torch.bfloat16)
        if self.c["gemma"]:
            x = x * self.c["d"] ** 0.5
        tables = ((self.cos, self.sin), (self.local_cos, self.local_sin))
        for block in self.blocks:
            x = block(x, tables)
        x, targets = self.norm(x).to(torch.bfloat16).view(-1, self.c["d"]), targets.view(-1)
        if isinstance(chunks, str):
            return FusedLoss.apply(x, self.head.weight, targets, int(chunks.removeprefix("fused"))) / targets.numel()
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
    row, pairs = c["T"], [c["T"] if not w else w for w in c["windows"]]
    kept = sum(row / 2 if not w else w - w * w / (2 * row) for w in c["windows"])
    return 6 * weights + 12 * c["H"] * c["hd"] * sum(pairs), 6 * weights + 12 * c["H"] * c["hd"] * kept


def run(name, batch, fp8, mode, backend, chunks, steps, qkv="one", adamw="fused", windows="flex", device="cuda"):
    """Trains some steps and prints the row, which it returns as well."""
    c = shape_of(name)
    torch.manual_seed(0)
    torch._dynamo.reset()
    card = device == "cuda"
    if card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with torch.device(device):
        model = Model(c, qkv, windows, device)
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
        # A kernel that does not take heads of that size leaves them to flash.
        with sdpa_kernel([backend, SDPBackend.FLASH_ATTENTION] if c["hd"] > 128 and card else backend,
                         set_priority=True):
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
           "windows": windows if any(c["windows"]) else None,
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
            run(name, int(batch), precision == "fp8", mode, ATTENTION[attention],
                chunks if chunks.startswith("fused") else int(chunks), given.steps, *twins)
        except (RuntimeError, OSError, KeyError, ValueError) as error:  # memory, a kernel that is not there, a name
            print(json.dumps({"run": words, "error": str(error)[:300].replace("\n", " ")}), flush=True)


if __name__ == "__main__":
    main()
