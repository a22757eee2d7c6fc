#!/usr/bin/env python3
"""What casts to eight bits do to gradients, by another program than redline: loads cases of `redline verify` into
transformers, casts what redline casts (inputs and weights of a layer's linears and experts to e4m3, gradients to e5m2,
one scale a tensor, of experts' weights one a matrix), and compares gradients with those of fp32 by direction, 1 - cos,
and by length. Scales from 1 down to 0.58 of the largest that fits are draws of the same noise: other roundings, as
coarse. Tokens keep the experts that they have in fp32, as in `redline verify`. Of each case and measure the tensors
that come nearest to the tolerance of `redline verify --precision fp8`, or go farthest beyond it: mean, least and
largest of twelve draws, and how many of them are outside.

  bench/fp8_noise.py tests/fixtures/olmo3-window tests/fixtures/olmo2-gqa tests/fixtures/gemma3-text
  bench/fp8_noise.py tests/fixtures/qwen3-moe-dense --balance
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
MULTIPLE = 16  # that products in eight bits ask of every extent


def tolerances(layers, elements, rows):
    """Those of redline: the squares of all casts on a path, of the length half a root of them, and the scatter of means
    over so many elements and rows."""
    squares = layers * (8 * OF_E4M3 + 4 * (OF_E4M3 + OF_E5M2)) + OF_E4M3 + OF_E5M2
    scatter = (1 + (8 / elements) ** 0.5) * (1 + (8 / rows) ** 0.5)
    return {"direction": squares * scatter, "length": squares**0.5 / 2 * scatter}


def cast(x, dtype, scale):
    largest = torch.finfo(dtype).max
    factor = scale * largest / x.abs().amax().clamp(min=1e-12)
    return (x * factor).clamp(-largest, largest).to(dtype).float() / factor


class Product(torch.autograd.Function):
    """Of rows by one matrix, or of groups of rows, each by a matrix of its own."""

    @staticmethod
    def forward(ctx, x, weight, groups, scale):
        ctx.groups, ctx.scale = groups, scale
        x = cast(x, torch.float8_e4m3fn, scale)
        matrices = [weight] if groups is None else weight.unbind()
        matrices = [cast(matrix, torch.float8_e4m3fn, scale) for matrix in matrices]
        ctx.save_for_backward(x, *matrices)
        if groups is None:
            return x @ matrices[0].T
        return torch.cat([rows @ matrix.T for rows, matrix in zip(x.split(groups), matrices)])

    @staticmethod
    def backward(ctx, dy):
        x, *matrices = ctx.saved_tensors
        dy = cast(dy, torch.float8_e5m2, ctx.scale)
        if ctx.groups is None:
            return dy @ matrices[0], dy.flatten(0, -2).T @ x.flatten(0, -2), None, None
        parts = list(zip(dy.split(ctx.groups), x.split(ctx.groups), matrices))
        return torch.cat([d @ m for d, _, m in parts]), torch.stack([d.T @ r for d, r, _ in parts]), None, None


class Case:
    def __init__(self, folder, balance):
        oracle = load_file(os.path.join(folder, "oracle.safetensors"))
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        ends = oracle["doc_offsets"].tolist()[:2 if balance else None]  # the balance is of a case's first document
        self.tokens = oracle["tokens"].long()[:ends[-1]]
        self.balance = self.model.config.router_aux_loss_coef if balance else 0
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
        self.probs = []  # of each router
        for name, part in self.model.named_modules():
            if isinstance(part, torch.nn.Linear) and ".layers." in name:
                part.forward = lambda x, part=part: self.linear(x, part)
            elif type(part).__name__.endswith("TopKRouter"):
                part.forward = lambda x, part=part: self.route(x, part)
            elif type(part).__name__.endswith("Experts"):
                part.forward = lambda x, index, weights, part=part: self.experts(x, index, weights, part)

    def product(self, x, weight, groups=None):
        if self.scale is not None and all(extent % MULTIPLE == 0 for extent in weight.shape[-2:]):
            return Product.apply(x, weight, groups, self.scale)
        if groups is None:
            return F.linear(x, weight)
        return torch.cat([rows @ matrix.T for rows, matrix in zip(x.split(groups), weight)])

    def linear(self, x, linear):
        y = self.product(x, linear.weight)
        return y if linear.bias is None else y + linear.bias

    def route(self, x, router):
        logits = F.linear(x.reshape(-1, x.shape[-1]), router.weight)
        probs = logits.softmax(-1)
        self.probs.append(probs)
        if self.scale is None:
            router.held = probs.topk(router.top_k).indices
        weights = probs.gather(1, router.held)
        if getattr(router, "norm_topk_prob", True):  # Mixtral's does not ask
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, router.held

    def experts(self, x, index, weights, experts):
        count = experts.gate_up_proj.shape[0]
        order = index.flatten().argsort(stable=True)
        token, groups = order // index.shape[1], torch.bincount(index.flatten(), minlength=count).tolist()
        gate, up = self.product(x[token], experts.gate_up_proj, groups).chunk(2, -1)
        y = self.product(F.silu(gate) * up, experts.down_proj, groups)
        return torch.zeros_like(x).index_add(0, token, y * weights.flatten()[order, None])

    def gradients(self, scale):
        self.scale, self.probs = scale, []
        self.model.zero_grad()
        logits = self.model(input_ids=self.tokens[None], attention_mask=self.mask, position_ids=self.positions[None],
                            use_cache=False, output_router_logits=False).logits[0]
        loss = F.cross_entropy(logits, self.targets, ignore_index=-100)
        if self.balance:
            loss = loss + self.balance * self.imbalance()
        loss.backward()
        found = {}
        for name, p in self.model.named_parameters():
            if p.dim() < 3:
                found[name] = p.grad.clone()
                continue
            for i, matrix in enumerate(p.grad):  # as files have them
                if "gate_up" in name:
                    found[f"{name} {i} gate"], found[f"{name} {i} up"] = (m.clone() for m in matrix.chunk(2))
                else:
                    found[f"{name} {i}"] = matrix.clone()
        return {name: g for name, g in found.items() if g.norm() > 0}

    def rows(self, name):
        """That the gradient of a weight is a sum over."""
        pairs, config = (self.targets >= 0).sum().item(), self.model.config
        return pairs * config.num_experts_per_tok / self.probs[0].shape[1] if ".experts." in name else pairs

    def imbalance(self):
        """As transformers has it: over all layers together."""
        routers = [m for m in self.model.modules() if type(m).__name__.endswith("TopKRouter")]
        count = self.probs[0].shape[1]
        taken = torch.cat([F.one_hot(r.held, count).float() for r in routers]).mean(0)  # [k, experts]
        return count * (taken * torch.cat(self.probs).mean(0)).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="CASE_DIR")
    parser.add_argument("--rows", type=int, default=4, help="of each case and measure (default: 4)")
    parser.add_argument("--balance", action="store_true", help="the loss has the balance of experts' loads, too")
    given = parser.parse_args()
    print("| case | gradient of | elements | measure | mean | least | largest | tolerance | outside |\n"
          "|---|---|---|---|---|---|---|---|---|")
    for folder in given.cases:
        case = Case(folder, given.balance)
        exact = case.gradients(None)
        errors = {(name, measure): [] for name in exact for measure in ("direction", "length")}
        for scale in SCALES:
            for name, grad in case.gradients(scale).items():
                cosine = (grad * exact[name]).sum() / (grad.norm() * exact[name].norm())
                errors[name, "direction"].append(1 - cosine.item())
                errors[name, "length"].append(abs((grad.norm() / exact[name].norm()).item() - 1))
        limits = {key: tolerances(case.model.config.num_hidden_layers, exact[key[0]].numel(), case.rows(key[0]))[key[1]]
                  for key in errors}
        outside = sum(x > limits[key] for key in errors for x in errors[key])
        for measure in ("direction", "length"):
            of_measure = [key for key in errors if key[1] == measure]
            for key in sorted(of_measure, key=lambda key: -max(errors[key]) / limits[key])[:given.rows]:
                e, limit = errors[key], limits[key]
                print(f"| {os.path.basename(os.path.normpath(folder))} | {key[0].removeprefix('model.')} | "
                      f"{exact[key[0]].numel()} | {measure} | {statistics.mean(e):.4f} | {min(e):.4f} | {max(e):.4f} | "
                      f"{limit:.4f} | {sum(x > limit for x in e)} |")
        print(f"\n{os.path.basename(os.path.normpath(folder))}: {outside} of {len(errors) * len(SCALES)} outside\n")


if __name__ == "__main__":
    main()
