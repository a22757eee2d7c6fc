#!/usr/bin/env python3
"""What casts to eight bits do to gradients, by another program than redline: loads cases of `redline verify` into
transformers, casts what redline casts (inputs and weights of a layer's linears to e4m3, gradients to e5m2, one scale a
tensor), and compares gradients with those of fp32 by direction, 1 - cos. Scales from 1 down to 0.58 of the largest that
fits are draws of the same noise: other roundings, as coarse. Of each case the noisiest tensors: mean, least and largest
of twelve draws beside the tolerance of `redline verify --precision fp8`.

  bench/fp8_noise.py tests/fixtures/olmo3-window tests/fixtures/olmo2-gqa tests/fixtures/gemma3-text
"""
import argparse
import os
import statistics

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SCALES = [1, .97, .93, .89, .86, .82, .78, .74, .7, .66, .62, .58]
OF_E4M3, OF_E5M2 = 0.027**2, 0.053**2  # mean squares of what a cast leaves, as in src/infer/verify.cpp


def tolerance(layers, elements):
    """That of redline: the squares of all casts on a path, and two deviations of a mean of so many squares."""
    squares = layers * (8 * OF_E4M3 + 4 * (OF_E4M3 + OF_E5M2)) + OF_E4M3 + OF_E5M2
    return squares * (1 + (8 / elements) ** 0.5)


def cast(x, dtype, scale):
    largest = torch.finfo(dtype).max
    factor = scale * largest / x.abs().amax().clamp(min=1e-12)
    return (x * factor).clamp(-largest, largest).to(dtype).float() / factor


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, scale):
        ctx.scale = scale
        x, weight = cast(x, torch.float8_e4m3fn, scale), cast(weight, torch.float8_e4m3fn, scale)
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dy = cast(dy, torch.float8_e5m2, ctx.scale)
        return dy @ weight, dy.flatten(0, -2).T @ x.flatten(0, -2), None


class Case:
    def __init__(self, folder):
        oracle = load_file(os.path.join(folder, "oracle.safetensors"))
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.tokens, ends = oracle["tokens"].long(), oracle["doc_offsets"].tolist()
        n = len(self.tokens)
        document, self.positions = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
        self.targets = torch.full((n,), -100)
        for i, (begin, end) in enumerate(zip(ends, ends[1:])):
            document[begin:end], self.positions[begin:end] = i, torch.arange(end - begin)
            self.targets[begin:max(end - 1, begin)] = self.tokens[begin + 1:end]
        at = torch.arange(n)
        seen = (document[:, None] == document[None, :]) & (at[:, None] >= at[None, :])
        window = getattr(self.model.config, "sliding_window", None)
        near = seen & (at[:, None] - at[None, :] < window) if window else seen
        masks = {kind: torch.where(kept, 0.0, -1e30)[None, None]
                 for kind, kept in (("full_attention", seen), ("sliding_attention", near))}
        self.mask = masks if getattr(self.model.config, "layer_types", None) else masks["sliding_attention"]
        self.scale = None  # none: fp32
        for name, linear in self.model.named_modules():
            if isinstance(linear, torch.nn.Linear) and ".layers." in name:
                linear.forward = lambda x, linear=linear: self.product(x, linear)

    def product(self, x, linear):
        if self.scale is None:
            return F.linear(x, linear.weight, linear.bias)
        y = Product.apply(x, linear.weight, self.scale)
        return y if linear.bias is None else y + linear.bias

    def gradients(self, scale):
        self.scale = scale
        self.model.zero_grad()
        logits = self.model(input_ids=self.tokens[None], attention_mask=self.mask, position_ids=self.positions[None],
                            use_cache=False).logits[0]
        F.cross_entropy(logits, self.targets, ignore_index=-100).backward()
        return {name: p.grad.clone() for name, p in self.model.named_parameters()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE_DIR")
    parser.add_argument("--rows", type=int, default=4, help="of each case (default: 4)")
    given = parser.parse_args()
    print("| case | gradient of | elements | mean | least | largest | tolerance |\n|---|---|---|---|---|---|---|")
    for folder in given.cases:
        case = Case(folder)
        exact = case.gradients(None)
        errors = {name: [] for name in exact}
        for scale in SCALES:
            for name, grad in case.gradients(scale).items():
                cosine = (grad * exact[name]).sum() / (grad.norm() * exact[name].norm())
                errors[name].append(1 - cosine.item())
        noisiest = sorted(errors, key=lambda name: -max(errors[name]))[:given.rows]
        for name in noisiest:
            e, elements = errors[name], exact[name].numel()
            limit = tolerance(case.model.config.num_hidden_layers, elements)
            print(f"| {os.path.basename(os.path.normpath(folder))} | {name.removeprefix('model.')} | {elements} | "
                  f"{statistics.mean(e):.4f} | {min(e):.4f} | {max(e):.4f} | {limit:.4f} |")


if __name__ == "__main__":
    main()
