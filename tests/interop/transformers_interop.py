#!/usr/bin/env python3
"""Models out to transformers and in from it: tokenizers, logits, gradients, greedy text and loss on both sides.

Usage: transformers_interop.py REDLINE WORK_FOLDER

transformers, safetensors, sentencepiece, protobuf and numpy are installed into a virtual environment in WORK_FOLDER,
when the interpreter does not have them. torch is not: without it only tokenizers are compared (exit 77: the rest is
skipped). Everything runs on the CPU.

Checkpoints as they are: AutoTokenizer loads them and gives redline's ids. Out: redline trains a model of each
family for some steps and exports them; transformers loads them. In: transformers makes random models, saved in several
types, tied and untied, in one file and in shards; redline reads, imports, exports and continues them. What is compared
is printed; exit status 1 when anything differs.
"""
import glob
import importlib.util
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment, skip

PROMPTS = ["ka tertion", "un", "lo lo 12 "]
NEW_TOKENS = 32


class Check:
    """Counts what differs, and prints a line for each thing that was compared."""

    def __init__(self):
        self.bad = self.done = 0

    def __call__(self, holds, what):
        self.done += 1
        self.bad += not holds
        print(f"  {'ok  ' if holds else 'FAIL'} {what}", flush=True)


class Redline:
    def __init__(self, program):
        self.program = program

    def run(self, *words):
        return subprocess.run([self.program, *map(str, words)], capture_output=True, text=True)

    def must(self, *words):
        result = self.run(*words)
        if result.returncode != 0:
            said = result.stderr + result.stdout
            raise SystemExit(f"redline {' '.join(map(str, words))}: exit {result.returncode}: {said}")
        return result.stdout

    def json(self, *words):
        return json.loads(self.must(*words, "--json"))


class Warnings(logging.Handler):
    """What transformers warns of while it loads."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def documents(count, seed, longest=12):
    rng = random.Random(seed)
    syllables = "ka lo mi ter an der ing tion ver un re pro con th he in er st ou al".split()
    words = ["".join(random.Random(s).choices(syllables, k=1 + s % 3)) for s in range(60)]
    for _ in range(count):
        yield " ".join(rng.choice(words) if rng.random() < 0.9 else str(rng.randrange(100))
                       for _ in range(rng.randint(2, longest)))


def write_jsonl(path, texts):
    with open(path, "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def load(folder, check):
    """The model in fp32, after it loaded without a word about its keys."""
    import torch
    from transformers import AutoModelForCausalLM

    listener, logger = Warnings(), logging.getLogger("transformers")
    logger.addHandler(listener)
    # Experts one at a time: the other way of computing them knows no float64.
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, experts_implementation="eager")
    logger.removeHandler(listener)
    keys = {kind: info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info.get(kind)}
    check(not keys and not listener.said,
          f"from_pretrained without a warning{'' if not (keys or listener.said) else f': {keys} {listener.said}'}")
    return model.to(torch.float32).eval()


def saved_gradients(model, prefix):
    """By the names and in the pieces that files have, which are not those of the model where it has experts."""
    import torch
    from safetensors.torch import load_file

    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        gradients = load_file(os.path.join(folder, "model.safetensors"))
    for name, parameter in model.named_parameters():
        parameter.data = weights[name]
    return {prefix + name: gradient.float().contiguous() for name, gradient in gradients.items()}


def write_oracle(model, folder, vocab):
    """oracle.safetensors of redline verify: documents of several lengths, computed one at a time in float64."""
    import torch
    from safetensors.torch import save_file

    model = model.double()
    generator = torch.Generator().manual_seed(5)
    lengths = [17, 1, 2, 40, 5]
    parts = [torch.randint(vocab, (1, n), generator=generator) for n in lengths]
    balance = {}
    if hasattr(model.config, "router_aux_loss_coef"):  # of the first document alone
        model.zero_grad()
        out = model(input_ids=parts[0], labels=parts[0], use_cache=False, output_router_logits=True)
        out.loss.backward()
        balance = {"aux.loss": out.aux_loss.detach().float().reshape(1),
                   "aux.total": out.loss.detach().float().reshape(1), **saved_gradients(model, "aux.grad.")}
    model.zero_grad()
    logits, loss, pairs = [], 0, sum(n - 1 for n in lengths)
    for ids in parts:
        out = model(input_ids=ids, use_cache=False).logits[0]
        logits.append(out.detach())
        if len(out) > 1:
            loss = loss + torch.nn.functional.cross_entropy(out[:-1], ids[0, 1:], reduction="sum")
    (loss / pairs).backward()
    tensors = {
        "tokens": torch.cat([p[0] for p in parts]).int(),
        "doc_offsets": torch.tensor([0] + lengths).cumsum(0).int(),
        "logits": torch.cat(logits).float(),
        "loss": (loss.detach() / pairs).float().reshape(1),
        "train_losses": torch.zeros(0),
        "grad_norms": torch.zeros(0),
        **balance,
        **saved_gradients(model, "grad."),
    }
    save_file(tensors, os.path.join(folder, "oracle.safetensors"))
    model.float()


def compare_logits(redline, model, folder, check, what, at_most=1.0):
    """Within what verify tolerates, and logits within `at_most`."""
    write_oracle(model, folder, model.config.vocab_size)
    result = redline.run("verify", folder, "--device", "cpu", "--json")
    if result.returncode not in (0, 1):
        return check(False, f"{what}: redline verify: {result.stderr.strip()}")
    report = json.loads(result.stdout)
    errors = {t["name"]: t["error"] for t in report["tensors"]}
    worst = max((error for name, error in errors.items() if name.startswith("grad.")))
    check(report["within"] and errors["logits"] <= at_most,
          f"{what}: logits differ by {errors['logits']:.1e}, loss by {errors['loss']:.1e}, gradients by {worst:.1e} at "
          "most")
    os.remove(os.path.join(folder, "oracle.safetensors"))


def compare_text(redline, model, folder, encode, end, check, what, flags=()):
    """Greedy text, token for token in fp32. transformers keeps no cache: it is wrong with a window of one token."""
    import torch

    same = tokens = 0
    for prompt in PROMPTS:
        ours = redline.json("sample", "--checkpoint", folder, "--prompt", prompt, "--temperature", 0, "--tokens",
                            NEW_TOKENS, "--device", "cpu", *flags)["tokens"]
        ids = torch.tensor([encode(prompt)])
        with torch.no_grad():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                                 eos_token_id=end, pad_token_id=end, use_cache=False)
        theirs = out[0, ids.shape[1] :].tolist()
        theirs = theirs[: theirs.index(end)] if end in theirs else theirs
        same += ours == theirs
        tokens += len(theirs)
        if ours != theirs:
            print(f"       {prompt!r}: redline {ours}\n       transformers {theirs}")
    check(same == len(PROMPTS), f"{what}: greedy text of {len(PROMPTS)} prompts, {tokens} tokens, the same in {same}")


def compare_loss(redline, model, folder, data, ids_of_documents, check, what):
    import torch

    loss = pairs = 0
    with torch.no_grad():
        for ids in ids_of_documents:
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1].double()
            loss += torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
            pairs += len(ids) - 1
    ours = redline.json("eval", "--checkpoint", folder, "--data", data, "--batches", 0, "--device", "cpu")["loss"]
    check(abs(ours - loss / pairs) < 1e-4 * max(1, loss / pairs),
          f"{what}: loss of {len(ids_of_documents)} documents {ours:.6f}, transformers {loss / pairs:.6f}")


def same_weights(a, b):
    from safetensors import safe_open

    def tensors(folder):
        out = {}
        for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
            with safe_open(path, "pt") as file:
                for name in file.keys():
                    tensor = file.get_tensor(name)
                    out[name] = (tensor.dtype, tensor.shape,
                                 tensor.contiguous().view(-1).view(dtype=__import__("torch").uint8).numpy().tobytes())
        return out

    return tensors(a) == tensors(b)


TEXTS = ["ka tertion 12", "", "It's  two\n\n\tlines", "caf\u00e9 \u00fcber \u4f60\u597d \U0001f600",
         "<end> <begin> <|endoftext|> </s>"]


def checkpoints_as_they_are(redline, work, check):
    """AutoTokenizer on checkpoints of runs with every kind of tokenizer, whose data are gone by then."""
    from transformers import AutoTokenizer

    data = f"{work}/data"
    os.makedirs(data)
    with open(f"{data}/text.txt", "w") as file:
        file.write("\n\n\n".join(documents(400, 4, 60)))
    redline.must("tokenizer", "train", "--vocab-size", 400, "--special", "<|endoftext|>", "--out", f"{data}/bpe.json",
                 f"{data}/text.txt")
    shutil.copy(os.path.join(os.path.dirname(__file__), "..", "fixtures", "tokenizers", "pieces.model"),
                f"{data}/pieces.model")
    text = [f"data.train={data}/text.txt", f"data.eval={data}/text.txt"]
    runs = {
        "byte-level BPE": text + [f"data.tokenizer={data}/bpe.json", "model.vocab=512"],
        "sentencepiece": text + [f"data.tokenizer={data}/pieces.model", "model.vocab=512"],
        "bytes": text,
        "ping": [],
    }
    tiny = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16",
            "train.batch_size=2", "train.seq_len=64", "train.max_steps=1", "train.eval_batches=1", "--device", "cpu"]
    for name, keys in runs.items():
        redline.must("train", *tiny, *keys, "model.family=qwen3", "--out", f"{work}/run-{name}")
    os.rename(data, data + "-moved")
    for name in runs:
        print(f"a checkpoint as it is: {name}")
        folder = f"{work}/run-{name}/checkpoints/step_00000001"
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with open(f"{folder}/config.json") as file:
            end = json.load(file)["eos_token_id"]
        check(tokenizer.eos_token_id == tokenizer.pad_token_id == end is not None,
              f"eos_token_id and pad_token_id {end}: {tokenizer.eos_token!r}")
        check(tokenizer.model_max_length == 64, f"model_max_length {tokenizer.model_max_length}")
        lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
        result = subprocess.run([redline.program, "tokenize", "--tokenizer", folder, "--jsonl"], input=lines,
                                capture_output=True, text=True)
        ours = [json.loads(line)["ids"] for line in result.stdout.splitlines()]
        theirs = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        both = "" if ours == theirs else f": {ours} and {theirs}"
        check(ours == theirs, f"the ids of {len(TEXTS)} texts, {sum(map(len, theirs))} tokens{both}")


def out_of_redline(redline, work, check):
    from transformers import AutoTokenizer

    tokenizer_file = os.path.join(work, "tokenizer", "tokenizer.json")
    os.makedirs(os.path.dirname(tokenizer_file))
    train, held_out = list(documents(600, 1, 100)), list(documents(60, 2))
    for name, texts in (("train", train), ("held_out", held_out)):
        write_jsonl(f"{work}/{name}.jsonl", texts)
    redline.must("tokenizer", "train", "--vocab-size", 400, "--pattern", "llama3", "--special", "<|endoftext|>",
                 "--out", tokenizer_file, f"{work}/train.jsonl")
    for name in ("train", "held_out"):
        redline.must("data", "prepare", "--tokenizer", tokenizer_file, "--out", f"{work}/{name}",
                     f"{work}/{name}.jsonl")
    common = ["model.layers=2", "model.hidden=64", "model.heads=4", "model.kv_heads=2", "model.ffn=160",
              "model.vocab=416", "train.batch_size=4", "train.seq_len=64", "train.max_steps=60", "train.eval_batches=2",
              "optim.lr=1e-2", "optim.warmup_steps=5", f"data.train={work}/train"]
    families = {
        "llama": ["model.head_dim=16", "model.rope_scaling=llama3", "model.rope_factor=8", "model.rope_original_len=32",
                  "model.tied=false"],
        "qwen3": ["model.head_dim=32", "model.rope_theta=1e6", "model.tied=true"],
        "olmo2": ["model.head_dim=16", "model.rope_theta=5e5", "model.tied=false"],
        "qwen2": ["model.head_dim=16", "model.rope_theta=1e6", "model.tied=true", "model.rope_scaling=yarn",
                  "model.rope_factor=4", "model.rope_original_len=16"],
        "mistral": ["model.head_dim=32", "model.window=20", "model.tied=false"],
        "smollm3": ["model.head_dim=16", "model.rope_layers=[1, 0]", "model.tied=true"],
        "olmo3": ["model.head_dim=16", "model.window=20", "model.tied=false",
                  'model.layer_types=["sliding_attention", "full_attention"]', "model.rope_scaling=yarn",
                  "model.rope_factor=8", "model.rope_original_len=8"],
        "gemma3": ["model.head_dim=32", "model.window=20", "model.tied=true", "model.rope_theta=1e6",
                   "model.rope_local_theta=1e4", "model.query_pre_attn_scalar=24",
                   'model.layer_types=["sliding_attention", "full_attention"]'],
    }
    for family, keys in families.items():
        print(f"a {family} trained by redline")
        run, out = f"{work}/run-{family}", f"{work}/hf-{family}"
        redline.must("train", f"model.family={family}", *common, *keys, "--device", "cpu", "--out", run)
        redline.must("export", "--checkpoint", run, "--out", out)
        redline.must("export", "--checkpoint", run, "--out", out + "-bf16", "--dtype", "bf16", "--shard-size", 60000)
        model, tokenizer = load(out, check), AutoTokenizer.from_pretrained(out)
        name = {"llama": "Llama", "qwen3": "Qwen3", "olmo2": "Olmo2", "qwen2": "Qwen2", "mistral": "Mistral",
                "smollm3": "SmolLM3", "olmo3": "Olmo3", "gemma3": "Gemma3"}[family]
        check(type(model).__name__ == name + "ForCausalLM", f"the class is {type(model).__name__}")
        check(model.generation_config.eos_token_id == tokenizer.eos_token_id is not None,
              f"eos_token_id {tokenizer.eos_token_id} in the model and the tokenizer")
        encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
        compare_logits(redline, model, out, check, "exported")
        compare_text(redline, model, out, encode, tokenizer.eos_token_id, check, "exported")
        ids = [encode(text) + [tokenizer.eos_token_id] for text in held_out]
        compare_loss(redline, model, out, f"{work}/held_out", ids, check, "exported")
        compare_loss(redline, model, run, f"{work}/held_out", ids, check, "the run itself")
        compare_logits(redline, load(out + "-bf16", check), out + "-bf16", check, "exported as bf16, in shards")
        checkpoint = f"{run}/checkpoints/step_00000060"
        model, tokenizer = load(checkpoint, check), AutoTokenizer.from_pretrained(checkpoint)
        check(model.generation_config.eos_token_id == tokenizer.eos_token_id is not None,
              "the checkpoint as it is: eos_token_id")
        compare_logits(redline, model, checkpoint, check, "the checkpoint as it is")
        compare_text(redline, model, checkpoint, encode, tokenizer.eos_token_id, check, "the checkpoint as it is")


def made_by_transformers():
    """Name, class, settings, type, largest shard, and redline's name of the type."""
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    settings = lambda tied, kv_heads, **more: dict(tie_word_embeddings=tied, num_key_value_heads=kv_heads, **more)
    f32, bf16, f16 = ("float32", "f32"), ("bfloat16", "bf16"), ("float16", "f16")
    for name, family, of, shard, (dtype, flag) in (
            ("LLaMA, llama3 rope, untied, f32", "Llama", settings(False, 2, rope_parameters=llama3), None, f32),
            ("LLaMA, linear rope, tied, bf16 in shards", "Llama", settings(True, 1, rope_parameters=linear), "30KB",
             bf16),
            ("LLaMA, as many heads, untied, f16 in shards", "Llama", settings(False, 4), "30KB", f16),
            ("Qwen3, tied, bf16", "Qwen3", settings(True, 2, head_dim=32), None, bf16),
            ("Qwen3, untied, f32 in shards", "Qwen3", settings(False, 1, head_dim=8), "50KB", f32),
            ("Qwen3, tied, f16", "Qwen3", settings(True, 4, head_dim=16), None, f16),
            ("OLMo-2, untied, f32", "Olmo2", settings(False, 2), None, f32),
            ("OLMo-2, tied, bf16 in shards", "Olmo2", settings(True, 4, pad_token_id=None), "30KB", bf16),
            ("Qwen2, yarn, tied, bf16", "Qwen2", settings(True, 2, rope_parameters=yarn), None, bf16),
            ("Qwen2, windows above, untied, f32", "Qwen2",
             settings(False, 1, use_sliding_window=True, sliding_window=9, max_window_layers=1), None, f32),
            ("Mistral, window, untied, f32 in shards", "Mistral", settings(False, 2, sliding_window=11), "50KB", f32),
            ("SmolLM3, tied, f32", "SmolLM3", settings(True, 2, no_rope_layers=[1, 0, 1], pad_token_id=None), None,
             f32),
            ("OLMo-3, untied, f32", "Olmo3",
             settings(False, 2, sliding_window=9, layer_types=kinds, pad_token_id=None), None, f32),
            ("Gemma-3, heads of 256, tied, f32", "Gemma3",
             settings(True, 1, head_dim=256, sliding_window=9, layer_types=kinds, pad_token_id=None), None, f32),
            ("Gemma-3, tied, bf16 in shards", "Gemma3",
             settings(True, 2, head_dim=24, query_pre_attn_scalar=20, sliding_window=9, layer_types=kinds,
                      pad_token_id=None), "30KB", bf16)):
        yield name, family, of, dtype, shard, flag


def into_redline(redline, work, check):
    import torch
    import transformers

    texts = list(documents(40, 3))
    write_jsonl(f"{work}/bytes.jsonl", texts)
    redline.must("data", "prepare", "--tokenizer", "bytes", "--out", f"{work}/bytes", f"{work}/bytes.jsonl")
    end = 256
    for number, (name, family, settings, dtype, shard, flag) in enumerate(made_by_transformers()):
        print(f"made by transformers: {name}")
        config = getattr(transformers, "Gemma3TextConfig" if family == "Gemma3" else family + "Config")(
            vocab_size=257, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=256, initializer_range=0.2, bos_token_id=None, eos_token_id=end, **settings)
        torch.manual_seed(number)
        model = getattr(transformers, family + "ForCausalLM")(config).to(getattr(torch, dtype)).eval()
        folder, checkpoint = f"{work}/made-{number}", f"{work}/in-{number}"
        model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        check(len(glob.glob(folder + "/*.safetensors")) > 1 if shard else True,
              f"{len(glob.glob(folder + '/*.safetensors'))} file(s) of weights")
        model = load(folder, check)  # read again: a cast of a living model rounds its rotary frequencies too
        redline.must("import", folder, "--out", checkpoint)
        redline.must("export", "--checkpoint", checkpoint, "--out", checkpoint + "-out", "--dtype", flag)
        check(same_weights(folder, checkpoint + "-out"), f"import and export --dtype {flag}: the same bytes")
        load(checkpoint + "-out", check)
        encode = lambda text: list(text.encode())
        ids = [encode(text) + [end] for text in texts]
        for what, place in (("read in place", folder), ("imported", checkpoint)):
            compare_logits(redline, model, place, check, what)
            compare_text(redline, model, place, encode, end, check, what, ["--tokenizer", "bytes"])
            compare_loss(redline, model, place, f"{work}/bytes", ids, check, what)
        continue_training(redline, folder, checkpoint, f"{work}/bytes", flag, check)


def continue_training(redline, folder, checkpoint, data, flag, check):
    """Training with steps too small to change a weight gives back the weights it began with, and needs the folder no
    more."""
    keys = ["train.batch_size=2", "train.seq_len=64", "train.eval_batches=1", f"data.train={data}", "optim.lr=1e-20",
            "optim.min_lr=0", "optim.warmup_steps=0", "--device", "cpu"]
    run = checkpoint + "-run"
    redline.must("train", f"model.init_from={folder}", "train.max_steps=1", *keys, "--out", run)
    os.rename(folder, folder + "-moved")
    redline.must("train", "--resume", "--out", run, "train.max_steps=2", "--device", "cpu")
    os.rename(folder + "-moved", folder)
    redline.must("export", "--checkpoint", run, "--out", run + "-out", "--dtype", flag)
    check(same_weights(folder, run + "-out"), "model.init_from, a step, resumed without the folder: the same bytes")


def main():
    redline, folder = Redline(os.path.abspath(sys.argv[1])), os.path.abspath(sys.argv[2])
    os.makedirs(folder, exist_ok=True)
    enter_environment(folder, ["transformers", "safetensors", "numpy", "sentencepiece", "google.protobuf"],
                      system_packages=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "warning")
    try:
        import transformers
    except Exception as error:  # packages that are there and do not go together
        skip(f"transformers cannot be imported: {error}")
    if int(transformers.__version__.split(".")[0]) < 5:
        skip(f"transformers is {transformers.__version__}; the comparison is with 5")
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, {redline.must('--version').strip()}")
    work = os.path.join(folder, "files")
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    check = Check()
    checkpoints_as_they_are(redline, work, check)
    if not importlib.util.find_spec("torch"):
        print(f"{check.done} comparisons, {check.bad} failed")
        return 1 if check.bad else skip("torch is not installed for this Python: nothing but tokenizers was compared")
    import torch

    torch.set_num_threads(1)
    print(f"torch {torch.__version__}")
    out_of_redline(redline, work, check)
    into_redline(redline, work, check)
    print(f"{check.done} comparisons, {check.bad} failed")
    return 1 if check.bad else 0


if __name__ == "__main__":
    sys.exit(main())
