#!/usr/bin/env python3
"""llama.cpp's own converter takes exports of redline: three families, tokenizers of each split, bytes.

Usage: gguf_interop.py REDLINE WORK_FOLDER

LLAMA_CPP names a checkout of github.com/ggml-org/llama.cpp; without it, or where this Python lacks what the converter
needs (torch, transformers, gguf, sentencepiece), the test is skipped: exit status 77, and a line that says so.
"""
import importlib.util
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import skip

HERE = os.path.dirname(os.path.abspath(__file__))
TO_GGUF = os.path.join(HERE, "..", "..", "tools", "to_gguf.py")
CASES = [("llama", "gpt2", "gpt-2"), ("llama", "llama3", "llama-bpe"), ("qwen3", "qwen", "qwen2"),
         ("olmo2", "gpt2", "gpt-2"), ("llama", "bytes", "gpt-2"), ("qwen3", "bytes", "gpt-2"),
         ("olmo2", "bytes", "gpt-2")]
TINY = ["model.layers=1", "model.hidden=32", "model.heads=2", "model.head_dim=16", "model.ffn=32", "train.batch_size=1",
        "train.seq_len=32", "train.eval_batches=1", "train.max_steps=2", "--device", "cpu"]


def must(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"
    return result


def check(reader, hf, family, pattern, split):
    import json

    from safetensors import safe_open

    def field(name):
        found = reader.get_field(name)
        return found.contents() if found else None

    tokenizer = json.load(open(os.path.join(hf, "tokenizer.json"), encoding="utf-8"))
    assert field("general.architecture") == family
    assert field("tokenizer.ggml.pre") == split, field("tokenizer.ggml.pre")
    assert field("tokenizer.ggml.add_bos_token") is False, "no token is put before a text"
    tokens = field("tokenizer.ggml.tokens")
    for token, number in tokenizer["model"]["vocab"].items():
        assert tokens[number] == token, (number, token, tokens[number])
    end = tokenizer["added_tokens"][0]
    assert field("tokenizer.ggml.eos_token_id") == end["id"] and tokens[end["id"]] == end["content"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    assert field("tokenizer.ggml.merges") == (merges or [f"{end['content']} {end['content']}"])
    assert field(f"{family}.embedding_length") == 32 and field(f"{family}.block_count") == 1
    with safe_open(os.path.join(hf, "model.safetensors"), "numpy") as weights:
        embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
        assert (embedding.data == weights.get_tensor("model.embed_tokens.weight")).all()
        assert len(reader.tensors) >= len(weights.keys())


def main(redline, folder):
    checkout = os.environ.get("LLAMA_CPP", "")
    if not os.path.exists(os.path.join(checkout, "convert_hf_to_gguf.py")):
        skip("LLAMA_CPP names no checkout of llama.cpp")
    for package in ("torch", "transformers", "gguf", "sentencepiece", "safetensors"):
        if not importlib.util.find_spec(package):
            skip(f"this Python has no {package}")
    import gguf

    os.environ["HF_HUB_OFFLINE"] = "1"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    text = os.path.join(folder, "text.txt")
    shutil.copy(os.path.join(HERE, "..", "..", "README.md"), text)
    for family, pattern, split in CASES:
        name = os.path.join(folder, f"{family}-{pattern}")
        tokenizer, vocabulary = "bytes", "257"
        if pattern != "bytes":
            tokenizer, vocabulary = name + ".tokenizer.json", "400"
            must(redline, "tokenizer", "train", "--vocab-size", vocabulary, "--pattern", pattern, "--out", tokenizer,
                 text)
        must(redline, "train", "--out", name, *TINY, f"model.family={family}", f"model.vocab={vocabulary}",
             f"data.train={text}", f"data.eval={text}", f"data.tokenizer={tokenizer}")
        must(redline, "export", "--checkpoint", name, "--out", name + "-hf")
        must(sys.executable, TO_GGUF, "--llama-cpp", checkout, name + "-hf", "--outfile", name + ".gguf", "--outtype",
             "f32")
        check(gguf.GGUFReader(name + ".gguf"), name + "-hf", family, pattern, split)
        print(f"{family}, {pattern}: {split}", flush=True)
    bad = subprocess.run([sys.executable, TO_GGUF, "--llama-cpp", folder, name + "-hf"], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1, bad.stderr


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
