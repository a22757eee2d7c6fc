#!/usr/bin/env python3
"""Trains a recipe in bf16, in fp8 and as a control (bf16 with another attention kernel), seed after seed, and keeps of
every run its losses: RESULTS/fp8_RECIPE.csv, from which bench/fp8_parity.py judges. A run that stands in the file is
not made again, so a recipe can be spread over several calls (--minutes).

  bench/fp8_runs.py gqa-180m --train shards/ --eval held_out/          30M tokens, 3 seeds; more keys before --train
  bench/fp8_runs.py ping-95m                                           30M tokens of ping, 5 seeds
  bench/fp8_runs.py llama-1.36b --train shards/ --eval held_out/       20M tokens, one pair
  bench/fp8_runs.py gqa-180m --one-batch 50                            the same batch over and over, 50 steps
  bench/fp8_runs.py gqa-180m --one-batch 50 --arm "bf16 weights:precision.matmul=fp8 precision.fp8_products=[...]"

--one-batch takes random tokens, of which few are frequent: as many as a batch has, so that every step sees the same
ones.
"""
import argparse
import array
import csv
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import fp8_parity

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# All that can be in eight bits, whatever a card would choose: parity of this is parity of any part of it.
IN_FP8 = ["precision.matmul=fp8", "precision.fp8=all", "precision.head=fp8"]
ARMS = {fp8_parity.BASE: [], fp8_parity.FP8: IN_FP8, fp8_parity.CONTROL: ["kernels.attention=flash"]}


class Recipe:
    """A preset, the rows of a micro-batch, micro-batches of a step, and what is trained."""

    def __init__(self, rows, accumulate, seq_len, vocabulary, million_tokens, seeds, keys):
        self.rows, self.accumulate, self.seq_len, self.vocabulary = rows, accumulate, seq_len, vocabulary
        self.million_tokens, self.seeds, self.keys = million_tokens, seeds, keys

    def steps(self, million_tokens):
        return max(1, round(million_tokens * 1e6 / (self.rows * self.accumulate * self.seq_len)))


# 131,072 tokens a step, and half as many of the large model, so that it has some hundred steps.
RECIPES = {
    "gqa-180m": Recipe(64, 2, 1024, 32768, 30, 3, ["optim.lr=5e-4"]),
    "ping-95m": Recipe(128, 1, 1024, 267, 30, 5, ["optim.lr=4e-4"]),
    "llama-1.36b": Recipe(24, 1, 2048, 32000, 20, 1, ["optim.lr=3e-4"]),
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("keys", nargs="*", metavar="key=value", help="for every run")
    parser.add_argument("--train", nargs="+", metavar="DATA", default=["ping"], help="data.train (default: ping)")
    parser.add_argument("--eval", nargs="+", metavar="DATA", help="data.eval")
    parser.add_argument("--tokenizer", help="data.tokenizer")
    parser.add_argument("--million-tokens", type=float, help="of a run (default: the recipe's)")
    parser.add_argument("--seeds", type=int, help="how many (default: the recipe's)")
    parser.add_argument("--one-batch", type=int, metavar="STEPS", help="so many steps over one batch, of seed 0")
    parser.add_argument("--half", action="store_true",
                        help="bf16 with half the steps as well: what the loss gains by length")
    parser.add_argument("--arm", action="append", default=[], metavar="NAME:KEYS",
                        help="one more way to train, or a way anew")
    parser.add_argument("--only", nargs="+", metavar="ARM", help="these ways only")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no run is begun")
    parser.add_argument("--redline", default=os.path.join(ROOT, "build/redline"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", default=os.path.join(ROOT, "bench/results"), help="folder of the file")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the run folders there, with their checkpoints")
    return parser.parse_intermixed_args()


def write_batch(path, recipe):
    """One batch as nanoGPT writes tokens: uint16 without a head. The last token's target is one more."""
    draw = random.Random(1)
    numbers = range(recipe.vocabulary)
    weights = list(itertools.accumulate(1 / (n + 1) for n in numbers))
    tokens = draw.choices(numbers, cum_weights=weights, k=recipe.rows * recipe.accumulate * recipe.seq_len + 1)
    with open(path, "wb") as file:
        array.array("H", tokens).tofile(file)


def text_list(words):
    return "[" + ", ".join(f'"{os.path.abspath(w) if os.path.exists(w) else w}"' for w in words) + "]"


def keys_of(given, recipe, arm, seed, steps, folder):
    keys = [f"train.batch_size={recipe.rows}", f"train.accumulate={recipe.accumulate}",
            f"train.seq_len={recipe.seq_len}", f"train.seed={seed}", f"data.seed={seed}", f"train.max_steps={steps}",
            "checkpoint.every=0", 'log.sinks=["console", "jsonl"]', "optim.name=adamw", *recipe.keys]
    if given.one_batch:
        batch = os.path.join(folder, "batch.bin")
        if not os.path.exists(batch):
            write_batch(batch, recipe)
        keys += [f"data.train={text_list([batch])}", f"data.eval={text_list([batch])}", "data.shuffle=false",
                 "train.eval_every=0", "optim.schedule=constant", f"optim.warmup_steps={min(10, steps // 2)}",
                 "model.dropout=0"]
    else:
        keys += [f"train.eval_every={max(1, steps // 10)}", f"optim.warmup_steps={max(1, steps // 5)}",
                 "optim.schedule=cosine"]
        keys += [f"data.{name}={text_list(words)}" for name, words in [("train", given.train), ("eval", given.eval)]
                 if words]
        if given.tokenizer:
            keys.append(f"data.tokenizer={os.path.abspath(given.tokenizer)}")
    return keys + given.keys + arm


def train(given, recipe, name, arm, seed, steps, folder):
    run = os.path.join(given.keep or folder, f"{given.recipe}-{name}-{seed}".replace(" ", "-"))
    shutil.rmtree(run, ignore_errors=True)
    command = [given.redline, "train", "--preset", given.recipe, "--device", given.device, "--out", run,
               *keys_of(given, recipe, arm, seed, steps, folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}")
    rows = fp8_parity.read_run(run).rows
    if not given.keep:
        shutil.rmtree(run)
    return rows


def short(number, digits):
    return "" if number is None else f"{number:.{digits}g}"


def main():
    given = arguments()
    recipe = RECIPES[given.recipe]
    arms = dict(ARMS)
    for words in given.arm:
        name, _, keys = words.partition(":")
        arms[name] = keys.split()
    steps = given.one_batch or recipe.steps(given.million_tokens or recipe.million_tokens)
    seeds = 1 if given.one_batch else given.seeds or recipe.seeds
    wanted = [(name, seed, steps) for seed in range(seeds) for name in arms]
    if given.half:
        arms[fp8_parity.HALF] = []
        wanted += [(fp8_parity.HALF, seed, max(1, steps // 2)) for seed in range(seeds)]
    path = os.path.join(given.results, f"fp8_{given.recipe}{'_one_batch' if given.one_batch else ''}.csv")
    there = fp8_parity.read_file(path) if os.path.exists(path) else {}
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for name, seed, length in wanted:
            if seed in there.get(name, {}) or (given.only and name not in given.only):
                continue
            if time.time() - begin > 60 * given.minutes:
                print(f"{name} {seed} and what follows is left for another call")
                break
            rows = train(given, recipe, name, arms[name], seed, length, folder)
            new = not os.path.exists(path)
            with open(path, "a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if new:
                    writer.writerow(fp8_parity.COLUMNS)
                for step, loss, held_out, step_ms in rows:
                    writer.writerow([name, seed, step, short(loss, 6), short(held_out, 7), short(step_ms, 5)])
            print(f"{name} {seed}: {rows[-1][0]} steps, loss {short(rows[-1][1], 6)}, held out {short(rows[-1][2], 6)}",
                  flush=True)
    print(fp8_parity.report(fp8_parity.read_file(path)))


if __name__ == "__main__":
    main()
