"""The `quick` model in PyTorch on the CPU, as a user would write it: what redline's step is measured against.

    python3 bench/torch_quick.py [--threads N] [--steps N] [--compile]

fp32, 8 full causal rows of 256, SDPA attention, fused AdamW, clipping to 1. Prints one JSON row with the median step.
"""
import argparse
import json
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, HEAD_DIM, FFN, VOCAB, ROWS, LENGTH = 6, 256, 4, 64, 704, 267, 8, 256


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, eps=1e-5), nn.RMSNorm(HIDDEN, eps=1e-5)
        self.qkv, self.out = linear(HIDDEN, 3 * HEADS * HEAD_DIM), linear(HEADS * HEAD_DIM, HIDDEN)
        self.gate_up, self.down = linear(HIDDEN, 2 * FFN), linear(FFN, HIDDEN)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm1(x)).view(ROWS, LENGTH, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(ROWS, LENGTH, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, HIDDEN), linear(HIDDEN, VOCAB)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.RMSNorm(HIDDEN, eps=1e-5)
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    forward = torch.compile(model) if args.compile else model
    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH + 1))

    def step():
        loss = forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    begin = time.time()
    step()
    first = time.time() - begin
    for _ in range(3):
        step()
    times = []
    for _ in range(args.steps):
        begin = time.time()
        loss = step()
        times.append(time.time() - begin)
    median = sorted(times)[len(times) // 2]
    print(json.dumps(dict(torch=torch.__version__, threads=args.threads, compiled=args.compile,
                          step_ms=round(1e3 * median, 1), tokens_per_s=round(ROWS * LENGTH / median),
                          first_step_s=round(first, 2), loss=round(loss, 3))))


if __name__ == "__main__":
    main()
