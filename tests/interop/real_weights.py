#!/usr/bin/env python3
"""Takes a published model through everything: import, comparison with transformers on real text, 50 steps of training,
export, and transformers again. Nothing of the model is kept but what lies in WORK_FOLDER.

Usage: real_weights.py REDLINE MODEL_FOLDER TRAINING_TEXT HELD_OUT_TEXT WORK_FOLDER [--steps N] [--length N]

MODEL_FOLDER is a Hugging Face folder with a tokenizer; texts are what `data.train` takes. Python needs torch and
transformers 5. Exit status 1: something differs, or the held-out loss did not fall.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys

import torch
import transformers
from safetensors.torch import save_file

DOCUMENTS = 20  # whose beginnings are the held-out text


class Redline:
    def __init__(self, program, device):
        self.program, self.device = program, device

    def __call__(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise SystemExit(f"redline {' '.join(map(str, words))}: exit {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def json(self, *words):
        return json.loads(self(*words, "--json"))


def documents_of(path, count):
    """The first documents of a text."""
    if path.endswith(".zst"):
        lines = subprocess.run(["zstd", "-dcq", path], capture_output=True, text=True, check=True).stdout
    else:
        with open(path) as file:
            lines = file.read()
    if ".jsonl" in path:
        return [json.loads(line)["text"] for line in lines.splitlines()[:count]]
    return [lines]


def compare(redline, folder, held_out, work, name):
    """Logits of transformers and of redline for the first document: |a - b| / |b| over all of them. Returns whether
    they agree, and transformers' loss over all documents."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        every = [model(ids[None].long()).logits[0].contiguous() for ids in held_out]
    losses = [torch.nn.functional.cross_entropy(logits[:-1], ids[1:].long(), reduction="sum")
              for logits, ids in zip(every, held_out)]
    ids, logits, loss = held_out[0], every[0], (losses[0] / (len(held_out[0]) - 1)).view(1)
    mean = sum(losses).item() / sum(len(ids) - 1 for ids in held_out)
    case = os.path.join(work, f"case-{name}")
    shutil.rmtree(case, ignore_errors=True)
    os.makedirs(case)
    for file in os.listdir(folder):
        if file == "config.json" or ".safetensors" in file:
            shutil.copy(os.path.join(folder, file), case)
    save_file({"tokens": ids, "doc_offsets": torch.tensor([0, len(ids)], dtype=torch.int32), "logits": logits,
               "loss": loss, "train_losses": loss.clone(), "grad_norms": torch.ones(1)},
              os.path.join(case, "oracle.safetensors"))
    rows = redline.json("verify", case, "--device", redline.device, "--precision", "fp32")["tensors"]
    shutil.rmtree(case)
    errors = {row["name"]: row["error"] for row in rows}
    print(f"{name}: loss {loss.item():.4f} over {len(ids)} tokens by transformers; redline's logits are off by "
          f"{errors['logits']:.2e}, its loss by {errors['loss']:.2e}", flush=True)
    return errors["logits"] < 1e-4 and errors["loss"] < 1e-4, mean


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("redline", "model", "train", "held_out", "work"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--length", type=int, default=256, help="tokens of a step (default: 256)")
    parser.add_argument("--lr", type=float, default=3e-5, help="for steps of so few tokens (default: 3e-5)")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    redline = Redline(os.path.abspath(given.redline), given.device)
    shutil.rmtree(given.work, ignore_errors=True)
    os.makedirs(given.work)
    imported, run, exported = (os.path.join(given.work, name) for name in ("imported", "run", "exported"))
    holds = []

    print(redline("import", given.model, "--out", imported).strip(), flush=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    texts = documents_of(given.held_out, DOCUMENTS)
    same = 0
    for text in texts:
        with open(os.path.join(given.work, "text"), "w") as file:
            file.write(text)
        ours = redline("tokenize", "--tokenizer", given.model, os.path.join(given.work, "text")).split()
        same += list(map(int, ours)) == tokenizer(text, add_special_tokens=False)["input_ids"]
    print(f"tokenizer: {same} of {len(texts)} documents have transformers' ids", flush=True)
    holds.append(same == len(texts))
    held_out = [torch.tensor(tokenizer(text)["input_ids"][:given.length], dtype=torch.int32) for text in texts]
    agrees, before = compare(redline, given.model, held_out, given.work, "as published")
    holds.append(agrees)

    redline("train", f"model.init_from={imported}", f"data.train={given.train}", f"train.max_steps={given.steps}",
            f"train.seq_len={given.length}", "train.batch_size=1", "train.accumulate=1", "train.eval_every=0",
            f"train.eval_tokens={given.length}", f"optim.warmup_steps={given.steps // 10}", f"optim.lr={given.lr}",
            "--device", given.device, "--out", run)
    print(redline("export", run, "--out", exported).strip(), flush=True)
    agrees, after = compare(redline, exported, held_out, given.work, "exported")
    holds.append(agrees)
    print(f"training: transformers' loss over the beginnings of {len(texts)} held-out documents is {before:.4f} before "
          f"and {after:.4f} after {given.steps} steps of {given.length} tokens", flush=True)
    holds.append(after < before)
    print("all of it holds" if all(holds) else "something does not hold")
    return not all(holds)


if __name__ == "__main__":
    sys.exit(main())
