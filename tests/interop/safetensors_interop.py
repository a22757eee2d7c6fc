#!/usr/bin/env python3
"""Compares redline's safetensors reader and writer with the Python `safetensors` package, both ways.

Usage: safetensors_interop.py REDLINE WORK_FOLDER

Files that the package wrote are imported and exported by redline, and read back by the package: the same tensors, byte
for byte. Files that are broken in one way each are refused by both. Where pip does not work the test is skipped: exit
77.
"""
import ctypes
import json
import os
import random
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment

SHAPE = dict(vocab=96, hidden=32, layers=2, heads=4, kv=2, head_dim=8, ffn=48)


def config(dtype):
    s = SHAPE
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": s["vocab"],
        "hidden_size": s["hidden"], "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"],
        "num_key_value_heads": s["kv"], "head_dim": s["head_dim"], "intermediate_size": s["ffn"], "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "tie_word_embeddings": False, "dtype": dtype,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }


def shapes():
    s = SHAPE
    d, q, kv, f = s["hidden"], s["heads"] * s["head_dim"], s["kv"] * s["head_dim"], s["ffn"]
    yield "model.embed_tokens.weight", (s["vocab"], d)
    yield "lm_head.weight", (s["vocab"], d)
    yield "model.norm.weight", (d,)
    for i in range(s["layers"]):
        layer = f"model.layers.{i}."
        for name, shape in {
            "input_layernorm": (d,), "post_attention_layernorm": (d,), "self_attn.q_proj": (q, d),
            "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, q),
            "mlp.gate_proj": (f, d), "mlp.up_proj": (f, d), "mlp.down_proj": (d, f),
        }.items():
            yield layer + name + ".weight", shape


def finite_halves(rng, dtype, count):
    """16-bit patterns of every kind but infinities and NaN, subnormals and signed zeros among them."""
    exponent = 0x7F80 if dtype == "bfloat16" else 0x7C00
    out = []
    while len(out) < count:
        bits = rng.randrange(0x10000) if rng.random() < 0.8 else rng.choice([0, 0x8000, 1, 0x8001, 0x0080, 0x03FF])
        if bits & exponent != exponent:
            out.append(bits)
    return struct.pack(f"<{count}H", *out)


def model_bytes(dtype):
    rng = random.Random(11)
    tensors = {}
    for name, shape in shapes():
        count = 1
        for extent in shape:
            count *= extent
        if dtype == "float32":
            data = struct.pack(f"<{count}f", *(rng.gauss(0, 1) * 10.0 ** rng.randint(-40, 3) for _ in range(count)))
        else:
            data = finite_halves(rng, dtype, count)
        tensors[name] = {"dtype": dtype, "shape": list(shape), "data": data}
    return tensors


def run(redline, *words):
    return subprocess.run([redline, *words], capture_output=True, text=True)


def must(redline, *words):
    result = run(redline, *words)
    if result.returncode != 0:
        raise SystemExit(f"redline {' '.join(words)}: exit {result.returncode}: {result.stderr}")


def read_folder(folder):
    from safetensors import deserialize

    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as file:
                for tensor, entry in deserialize(file.read()):
                    assert tensor not in tensors, f"{tensor} is in two files"
                    tensors[tensor] = (entry["shape"], bytes(entry["data"]))
    return tensors


def save(tensors, path):
    """With the package, whose raw interface takes bytes or, since 0.8, addresses."""
    import safetensors

    spec = getattr(safetensors, "TensorSpec", None)
    if spec:
        address = lambda data: ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
        tensors = {n: spec(dtype=t["dtype"], shape=t["shape"], data_ptr=address(t["data"]), data_len=len(t["data"]))
                   for n, t in tensors.items()}
    safetensors.serialize_file(tensors, path, {"format": "pt"})


def round_trips(redline, folder):
    """import and export of what the package wrote, in one file and in shards."""
    bad = 0
    for dtype, flag in (("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")):
        source, tensors = os.path.join(folder, dtype), model_bytes(dtype)
        os.makedirs(source)
        with open(os.path.join(source, "config.json"), "w") as file:
            json.dump(config(dtype), file)
        save(tensors, os.path.join(source, "model.safetensors"))
        expected = {name: (t["shape"], t["data"]) for name, t in tensors.items()}
        must(redline, "import", source, "--out", source + "-in")
        for name, words in (("one file", []), ("shards", ["--shard-size", "9000"])):
            out = f"{source}-out{len(words)}"
            must(redline, "export", "--checkpoint", source + "-in", "--out", out, "--dtype", flag, *words)
            same = read_folder(out) == expected
            shards = len([n for n in os.listdir(out) if n.endswith(".safetensors")])
            print(f"{dtype}, {name} ({shards}): {'the same bytes' if same else 'OTHER BYTES'}")
            bad += not same or (shards > 1) != bool(words)
        there = f"{source}-out0/model.safetensors"
        with open(os.path.join(source, "model.safetensors"), "rb") as a, open(there, "rb") as b:
            whole = a.read() == b.read()
        print(f"{dtype}, the whole file with its header: {'the same' if whole else 'another'}")
        bad += not whole
    return bad


def broken_files(good):
    """Name and bytes of files that are wrong in one way each."""
    size = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8 : 8 + size]), good[8 + size :]

    def frame(text, rest=data):
        text = text if isinstance(text, bytes) else text.encode()
        return struct.pack("<Q", len(text)) + text + rest

    def changed(change, rest=data):
        copy = json.loads(json.dumps(header))
        change(copy)
        return frame(json.dumps(copy), rest)

    first = "model.norm.weight"
    text = json.dumps(header)
    yield "empty", b""
    yield "seven bytes", good[:7]
    yield "cut in the header", good[: 8 + size // 2]
    yield "cut in the data", good[:-1]
    yield "a byte too many", good + b"\0"
    yield "header of 2^63 bytes", struct.pack("<Q", 1 << 63) + good[8:]
    yield "header above 100 MB", struct.pack("<Q", 100_000_001) + good[8:]
    yield "header is a list", frame("[" + text + "]")
    yield "header is not JSON", frame(text[:-1])
    yield "header is not UTF-8", frame(text.encode()[:-1] + b',"\xff":1}')
    yield "a space before the header", frame(" " + text)
    yield "text after the header", frame(text + "x")
    yield "a key twice", frame(text[:-1] + f', "{first}": {json.dumps(header[first])}}}')
    yield "metadata twice", frame('{"__metadata__": {}, "__metadata__": {}, '
                                  + json.dumps({k: v for k, v in header.items() if k != "__metadata__"})[1:])
    yield "metadata of numbers", changed(lambda h: h.update(__metadata__={"a": 1}))
    yield "metadata is a string", changed(lambda h: h.update(__metadata__="pt"))
    yield "unknown dtype", changed(lambda h: h[first].update(dtype="F31"))
    yield "no dtype", changed(lambda h: h[first].pop("dtype"))
    yield "no shape", changed(lambda h: h[first].pop("shape"))
    yield "no offsets", changed(lambda h: h[first].pop("data_offsets"))
    yield "negative extent", changed(lambda h: h[first].update(shape=[-32]))
    yield "extent with a fraction", changed(lambda h: h[first].update(shape=[32.5]))
    yield "product that overflows", changed(lambda h: h[first].update(shape=[1 << 32, 1 << 32, 32]))
    yield "another shape", changed(lambda h: h[first].update(shape=[31]))
    yield "offsets backwards", changed(lambda h: h[first].update(data_offsets=h[first]["data_offsets"][::-1]))
    yield "offsets past the end", changed(lambda h: h[first].update(data_offsets=[len(data), len(data) + 128]))
    yield "an overlap", changed(lambda h: h[first].update(data_offsets=[0, 128]))
    yield "a hole", changed(lambda h: [e.update(data_offsets=[o + 8 for o in e["data_offsets"]])
                                       for k, e in h.items() if k != "__metadata__"], b"\0" * 8 + data)


def refusals(redline, folder):
    from safetensors import SafetensorError, deserialize

    source = os.path.join(folder, "float32")
    with open(os.path.join(source, "model.safetensors"), "rb") as file:
        good = file.read()
    bad = count = 0
    for name, content in broken_files(good):
        count += 1
        place = os.path.join(folder, "broken")
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        shutil.copy(os.path.join(source, "config.json"), place)
        with open(os.path.join(place, "model.safetensors"), "wb") as file:
            file.write(content)
        try:
            deserialize(content)
            package = "accepts"
        except SafetensorError:
            package = "refuses"
        result = run(redline, "import", place, "--out", place + "-in")
        ours = result.returncode == 2 and result.stderr.count("\n") == 1 and not os.path.exists(place + "-in")
        # redline may be stricter (no space before the header), never laxer.
        if not ours:
            bad += 1
            print(f"{name}: the package {package} it, redline says {result.returncode}: {result.stderr.strip()}")
        elif package == "accepts":
            print(f"{name}: refused by redline alone")
    print(f"{count} broken files: {count - bad} refused in one sentence with exit 2")
    return bad


def main():
    redline, folder = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    enter_environment(folder, ["safetensors"])
    work = os.path.join(folder, "files")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    return 1 if round_trips(redline, work) + refusals(redline, work) else 0


if __name__ == "__main__":
    sys.exit(main())
