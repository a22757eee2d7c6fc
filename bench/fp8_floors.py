#!/usr/bin/env python3
"""Adds up the rates of an H200 for a step of each model, in bf16 and in fp8: products at the rates that the
library sustains on their shapes, attention at cuDNN's, and all else moving its bytes once at the rate of a large copy.
Prints the table of docs/fp8.md. The rates were measured apart from any step, so this is no bound: steps in bf16 are up
to 5% faster.

In fp8 every kernel casts what it makes: a norm writes its output by rows alone, its gradient makes the columns of it
again; the output of attention is cast by a pass of its own; the head's logits are of bf16.
"""
import os
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COPY = 4.30e12  # bytes a second, read and written
PEAK = 989.5e12  # dense bf16, of the datasheet: mfu is counted against it in fp8 as well

# Sustained TFLOP/s at the power cap, 0.7 s each: bf16, fp8 with fast sums, fp8 without; forward, input gradient, weight
# gradient. The product behind attention has none of its own: it is taken as fast as that of qkv.
RATES = {
    "ping-95m": {"qkv": [(561, 874, 815), (616, 1119, 1071), (612, 1179, 1053)],
                 "gate_up": [(592, 957, 888), (642, 1205, 1158), (655, 1300, 1250)],
                 "down": [(618, 1107, 1063), (587, 956, 878), (651, 1206, 1090)]},
    "gqa-180m": {"qkv": [(582, 931, 883), (612, 1055, 988), (613, 1148, 973)],
                 "gate_up": [(607, 996, 929), (659, 1254, 1193), (673, 1328, 1187)],
                 "down": [(641, 1180, 1127), (604, 982, 922), (655, 1269, 1211)]},
    "cs336-350m": {"qkv": [(620, 1027, 979), (655, 1209, 1125), (651, 1241, 1122)],
                   "gate_up": [(607, 1009, 952), (666, 1260, 1183), (659, 1275, 1139)],
                   "down": [(648, 1145, 1069), (617, 1049, 962), (657, 1257, 1106)]},
    "llama-1.29b": {"qkv": [(671, 1209, 1155), (667, 1259, 1242), (653, 1272, 1241)],
                    "gate_up": [(663, 1205, 1150), (675, 1287, 1228), (675, 1314, 1218)],
                    "down": [(660, 1254, 1237), (660, 1202, 1156), (676, 1321, 1214)]},
    "qwen3-1.8b": {"qkv": [(641, 1163, 1119), (671, 1256, 1139), (686, 1270, 1193)],
                   "gate_up": [(656, 1162, 1121), (671, 1303, 1198), (675, 1265, 1186)],
                   "down": [(673, 1269, 1165), (653, 1160, 1118), (671, 1272, 1182)]},
}
# A head's three products are taken as fast as those of gate_up, which have as wide a result and the same sum.
ROWS = {"ping-95m": 128, "gqa-180m": 64, "cs336-350m": 32, "llama-1.29b": 24, "qwen3-1.8b": 8}
# cuDNN's TFLOP/s, forward and backward, of the scores that the mask keeps; the backward pass does 2.5 times the work.
# Rates of heads of 64 were measured with 10 heads and rows of 1024, and are taken for all three models with such heads.
ATTENTION = {"ping-95m": (334, 250), "gqa-180m": (334, 250), "cs336-350m": (334, 250), "llama-1.29b": (498, 397),
             "qwen3-1.8b": (501, 376)}


def step(name, fp8):
    """Milliseconds of a step, by what takes them, and its mfu."""
    with open(os.path.join(ROOT, "configs", f"{name}.toml"), "rb") as file:
        config = tomllib.load(file)
    m, seq_len = config["model"], config["train"]["seq_len"]
    layers, d, heads, hd, f, vocab = (m[key] for key in ["layers", "hidden", "heads", "head_dim", "ffn", "vocab"])
    kv = m.get("kv_heads", heads)
    qk_norm = m["family"] == "qwen3"
    n = ROWS[name] * seq_len
    q, qkv, qk = heads * hd, (heads + 2 * kv) * hd, (heads + kv) * hd
    linears = {"qkv": qkv * d, "out": d * q, "gate_up": 2 * f * d, "down": d * f}

    def products(linear, size, in_fp8):
        rates = RATES[name]["qkv" if linear == "out" else "gate_up" if linear == "head" else linear]
        kinds = [1, 2, 2] if in_fp8 else [0, 0, 0]  # sums are fast in the forward pass alone
        if linear == "head":
            kinds[0] = 0
        return sum(2 * n * size / (1e12 * rate[kind]) for rate, kind in zip(rates, kinds))

    pairs = n * (seq_len + 1) / 2
    forward = 4 * pairs * q * layers
    attention = (forward / ATTENTION[name][0] + 2.5 * forward / ATTENTION[name][1]) / 1e12

    # Bytes a token and layer. bf16: what is read and written once, and gradients of norms add to the stream in place.
    moved = 2 * 8 * d + 2 * 8 * d + 6 * f + 10 * f + 2 * 4 * qk
    if fp8:
        norms = 2 * (7 + 11) * d  # forward to rows; backward the stream both ways, and the norm's output by columns
        swiglu = (5 + 11) * f  # backward dgate_up both ways and swiglu's output by columns
        moved = norms + swiglu + 4 * q + 4 * qk + 4 * qkv
    if qk_norm:
        moved += 2 * 2 * qk  # what was before the norm, out and in
    head_bytes = 4 * vocab + 2 * 8 * d  # logits in, their gradient out; the final norm
    embedding = 8 * d
    block = layers * sum(linears.values())
    parameters = block + vocab * d * (1 if m.get("tied") else 2)
    update = 34 * parameters + (6 * block if fp8 else 0)  # weights to fp8: read twice, written both ways

    times = {
        "products": layers * sum(products(linear, size, fp8) for linear, size in linears.items()),
        "attention": attention,
        "head": products("head", vocab * d, fp8),
        "moved": n * (layers * moved + head_bytes + embedding) / COPY,
        "update": update / COPY,
    }
    flops = 6 * (block + vocab * d) * n + 3 * forward
    total = sum(times.values())
    ms = {key: 1e3 * seconds for key, seconds in times.items()}
    return ms | {"sum": 1e3 * total, "mfu": 100 * flops / total / PEAK}


def main():
    print("| model | precision | linears | attention | head | bytes | update | sum, ms | mfu |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, rows in ROWS.items():
        for fp8 in [False, True]:
            t = step(name, fp8)
            print(f"| {name if not fp8 else ''} | {'fp8' if fp8 else 'bf16'} | " +
                  " | ".join(f"{t[key]:.1f}" for key in ["products", "attention", "head", "moved", "update", "sum"]) +
                  f" | {t['mfu']:.1f}% |")


if __name__ == "__main__":
    main()
