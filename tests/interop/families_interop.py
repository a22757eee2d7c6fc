#!/usr/bin/env python3
"""Unusual models of every family, made at random by transformers, go through redline and back.

Usage: families_interop.py REDLINE WORK_FOLDER [--count N] [--seed S] [FAMILY ...]

Heads, sizes, windows, layers and RoPE of each are drawn from what a config.json may say: one head, prime numbers of
heads, heads that do not fill the width, windows of one token and beyond the row, every rope type, tied and untied. A
model is verified in place (logits, loss, gradients), imported, planned, sampled, trained for two steps by AdamW or
Muon and exported; transformers loads the export, whose logits must agree to 1e-5. Settings that redline cannot
have must be refused, with exit status 2 and a sentence that names the key. torch is not installed: without it the test
is skipped (exit 77). Exit status 1: something differs.
"""
import argparse
import importlib.util
import json
import os
import random
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment, skip
from transformers_interop import Check, Redline, compare_logits, compare_text, documents, load, same_weights, \
    write_jsonl

FAMILIES = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2", "qwen2": "Qwen2", "mistral": "Mistral",
            "smollm3": "SmolLM3", "olmo3": "Olmo3", "gemma3": "Gemma3", "olmoe": "Olmoe", "qwen3_moe": "Qwen3Moe",
            "mixtral": "Mixtral"}
WINDOWED = ["qwen3", "qwen2", "smollm3", "olmo3", "gemma3"]  # by layer; mistral, qwen3_moe and mixtral have it in all
EXPERTS = ["olmoe", "qwen3_moe", "mixtral"]
# Without a norm behind the MLP: it would take the size of a single neuron's output back, and gradients cancel.
BARE = ["llama", "qwen3", "qwen2", "mistral", "smollm3", "olmoe", "qwen3_moe", "mixtral"]
VOCABULARY, END = 259, 256
KINDS = ["full_attention", "sliding_attention"]


def rope(draw):
    """The parameters, and the key for which they are refused."""
    kind = draw.choice(["default", "default", "linear", "llama3", "yarn", "yarn", "yarn", "dynamic"])
    values = {"rope_type": kind, "rope_theta": draw.choice([100.0, 10000.0, 1e6])}
    if kind != "default":
        values["factor"] = draw.choice([1.0, 1.5, 4.0, 32.0])
    if kind == "llama3":
        values |= {"low_freq_factor": draw.choice([0.5, 1.0]), "high_freq_factor": draw.choice([2.0, 4.0])}
    if kind == "llama3" or (kind == "yarn" and draw.random() < 0.7):
        values["original_max_position_embeddings"] = draw.choice([8, 16, 64])
    if kind == "yarn":
        for key, choices in (("beta_fast", [4, 32.0]), ("beta_slow", [0.5, 2]), ("attention_factor", [0.7, 1.3]),
                             ("truncate", [True, False])):
            if draw.random() < 0.3:
                values[key] = draw.choice(choices)
        if "attention_factor" not in values and draw.random() < 0.3:
            values |= {"mscale": 0.7, "mscale_all_dim": draw.choice([0.9, 1.2])}
    return values, "rope type" if kind == "dynamic" else None


def settings(family, draw):
    """Of a configuration class, and the key for which redline must refuse them; None: it takes them."""
    heads = draw.choice([1, 2, 3, 4, 5, 6, 7, 8])
    kv_heads = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
    layers = draw.choice([1, 2, 3, 4, 5])
    head_dim = draw.choice([2, 6, 8, 10, 16, 24, 32, 80])
    hidden = heads * draw.choice([4, 8, 10, 14])
    if family not in ("llama", "gemma3") and draw.random() < 0.5:
        hidden = draw.choice([20, 36, 50, 66])
    of = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
          "num_hidden_layers": layers, "intermediate_size": draw.choice([1 if family in BARE else 5, 30, 37, 96, 130]),
          "vocab_size": VOCABULARY, "max_position_embeddings": draw.choice([64, 100, 256]),
          "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-2]), "tie_word_embeddings": draw.random() < 0.5,
          "pad_token_id": draw.choice([None, 3, 258]), "bos_token_id": None, "eos_token_id": END,
          "initializer_range": 0.2}
    if family == "olmoe":  # whose norms of queries and keys transformers makes as wide as the model
        of["hidden_size"] = hidden = heads * head_dim
    if hidden % heads == 0 and hidden // heads % 2 == 0 and family not in ("qwen3", "gemma3") and draw.random() < 0.3:
        del of["head_dim"]
    of["rope_parameters"], refused = rope(draw)
    if refused:  # transformers makes a dynamic rope of such heads alone
        of["head_dim"] = max(4, of.get("head_dim", hidden // heads))
    if family in ("olmo3", "gemma3") and of["rope_parameters"].get("truncate") is False:
        refused = "truncate"
    if family in ("olmo3", "gemma3"):
        local = {"rope_type": "default", "rope_theta": draw.choice([50.0, 10000.0])}
        if draw.random() < 0.1:
            local |= {"rope_type": "linear", "factor": 2.0}
            refused = refused or "sliding_attention"
        of["rope_parameters"] = {"full_attention": of["rope_parameters"], "sliding_attention": local}
    window = draw.choice([1, 2, 7, 16, 39, 40, 41, 1000])
    if family in WINDOWED:
        of["sliding_window"] = window
        if family not in ("olmo3", "gemma3"):
            of["use_sliding_window"] = draw.random() < 0.7
        if draw.random() < 0.7 and of.get("use_sliding_window", True):
            of["layer_types"] = [draw.choice(KINDS) for _ in range(layers)]
        elif family in ("qwen2", "qwen3"):
            of["max_window_layers"] = draw.randrange(layers + 1)
    if family in ("mistral", "mixtral", "qwen3_moe"):
        of["sliding_window"] = draw.choice([None, window])
    if family == "qwen3_moe":
        of["use_sliding_window"] = draw.random() < 0.5
    if family == "smollm3" and draw.random() < 0.7:
        of["no_rope_layers"] = [draw.randrange(2) for _ in range(layers)]
    elif family == "smollm3":
        of["no_rope_layer_interval"] = draw.choice([1, 2, 3])
    if family == "gemma3":
        of["query_pre_attn_scalar"] = draw.choice([1, 7, 64])
    if family in EXPERTS:
        experts = draw.choice([2, 3, 5, 8])
        of |= {"num_local_experts" if family == "mixtral" else "num_experts": experts,
               "num_experts_per_tok": draw.randint(1, experts)}
    if family in ("olmoe", "qwen3_moe"):
        of["norm_topk_prob"] = draw.random() < 0.5
    if family == "qwen3_moe":
        of |= {"moe_intermediate_size": draw.choice([5, 16, 33]), "decoder_sparse_step": draw.choice([1, 1, 2])}
        of["mlp_only_layers"] = [i for i in range(layers) if draw.random() < 0.2]
        if all(i in of["mlp_only_layers"] or (i + 1) % of["decoder_sparse_step"] for i in range(layers)):
            refused = refused or "mlp_only_layers"
    if family in ("llama", "qwen3", "olmo2", "olmo3", "smollm3", "gemma3", "olmoe", "qwen3_moe") and \
            draw.random() < 0.3:
        of["attention_bias"] = True
    if family in ("llama", "smollm3"):
        of["mlp_bias"] = draw.random() < 0.3
    return of, refused


def make(family, of, folder):
    """A model whose norms and biases are no ones and zeros."""
    import torch
    import transformers

    name = FAMILIES[family]
    config = getattr(transformers, "Gemma3TextConfig" if family == "gemma3" else name + "Config")(**of)
    model = getattr(transformers, name + "ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)


def one(redline, work, data, family, number, draw, check):
    of, refused = settings(family, draw)
    folder, checkpoint, run = (f"{work}/{name}" for name in ("made", "imported", "run"))
    for name in os.listdir(work):
        if name != os.path.basename(data):
            shutil.rmtree(f"{work}/{name}")
    print(f"{family} {number}: {json.dumps({k: v for k, v in of.items() if not k.endswith('token_id')})}", flush=True)
    make(family, of, folder)
    if refused:
        done = redline.run("import", folder, "--out", checkpoint)
        said = done.stderr.strip()
        return check(done.returncode == 2 and refused in said and said.count("\n") == 0,
                     f"refused: {said or done.stdout.strip()}")
    model = load(folder, check)
    compare_logits(redline, model, folder, check, "read in place")
    redline.must("import", folder, "--out", checkpoint)
    redline.must("export", checkpoint, "--out", checkpoint + "-out")
    check(same_weights(folder, checkpoint + "-out"), "import and export: the same bytes")
    redline.must("plan", f"model.init_from={folder}", "train.seq_len=64", "train.batch_size=2", "--card", "h200")
    compare_text(redline, model, folder, lambda text: list(text.encode()), END, check, "read in place",
                 ["--tokenizer", "bytes"])
    optimizer = draw.choice(["adamw", "muon"])
    redline.must("train", f"model.init_from={checkpoint}", f"data.train={data}", "train.max_steps=2",
                 "train.batch_size=2", "train.seq_len=60", "train.eval_every=0", "train.eval_batches=1",
                 "optim.lr=1e-2", "optim.warmup_steps=0", f"optim.name={optimizer}", "--device", "cpu", "--out", run)
    redline.must("export", run, "--out", run + "-out")
    check(not same_weights(folder, run + "-out"), f"two steps of {optimizer} change the weights")
    trained = load(run + "-out", check)
    compare_logits(redline, trained, run + "-out", check, f"trained by {optimizer} and exported", 1e-5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("redline")
    parser.add_argument("folder")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--count", type=int, default=3, help="models of each family (default: 3)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_intermixed_args()
    if not importlib.util.find_spec("torch"):
        skip("torch is not there, without which transformers computes nothing")
    redline, folder = Redline(os.path.abspath(given.redline)), os.path.abspath(given.folder)
    os.makedirs(folder, exist_ok=True)
    enter_environment(folder, ["transformers", "safetensors", "numpy"], system_packages=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers
    if int(transformers.__version__.split(".")[0]) < 5:
        skip(f"transformers is {transformers.__version__}; the comparison is with 5")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, {redline.must('--version').strip()}")
    work = os.path.join(folder, "files")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    data = f"{work}/bytes"
    write_jsonl(data + ".jsonl", documents(40, 3))
    redline.must("data", "prepare", "--tokenizer", "bytes", "--out", data, data + ".jsonl")
    os.remove(data + ".jsonl")
    check = Check()
    for family in given.families or FAMILIES:
        for number in range(given.seed, given.seed + given.count):
            torch.manual_seed(number)
            one(redline, work, data, family, number, random.Random(f"{family} {number}"), check)
    print(f"{check.done} comparisons, {check.bad} failed")
    return 1 if check.bad else 0


if __name__ == "__main__":
    sys.exit(main())
