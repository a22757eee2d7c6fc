"""Random configurations of tiny models that train in a fraction of a second on a CPU, and the data they read.
Everything follows from the generator that is given: the same seed makes the same files."""
import gzip
import json
import pathlib

WORDS = ("the model learns a token and another one from every step of its run while loss falls slowly down to what "
         "noise leaves größer weiß 猫 на été δοκιμή 🙂 1234 10.0.0.1 (so) \"quoted\" end. Then? Yes; no: "
         "perhaps!").split()


def document(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice((1, 3, 12, 40, 90))))


def write_texts(rng, folder):
    for n in range(rng.randint(1, 2)):  # 64 documents, of which one can be held out, or more
        documents = [document(rng) for _ in range(rng.randint(70, 100))]
        (folder / f"part{n}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return "*.txt"


def write_jsonl(rng, folder):
    for n in range(rng.randint(1, 2)):
        rows = "".join(json.dumps({"id": i, "text": document(rng)}, ensure_ascii=rng.random() < 0.5) + "\n"
                       for i in range(rng.randint(70, 100)))
        if rng.random() < 0.3:
            (folder / f"part{n}.jsonl.gz").write_bytes(gzip.compress(rows.encode(), mtime=0))
        else:
            (folder / f"part{n}.jsonl").write_text(rows, encoding="utf-8")
    return "*.jsonl*"


class Configuration:
    """A TOML file, what it reads, and the commands that made it."""

    def __init__(self, path, steps, every, source, data_folder):
        self.path, self.steps, self.every = path, steps, every
        self.source, self.data_folder = source, data_folder  # ping, text, jsonl or prepared; None for ping


def make_tokenizer(trial, folder, pattern):
    """A tokenizer.json of the texts for some, the built-in bytes for the others."""
    if trial.rng.random() < 0.5:
        return "bytes"
    path = folder / "tokenizer.json"
    trial.must(["tokenizer", "train", "--vocab-size", 300, "--out", path, "--separator", "\\n\\n",
                folder / "text" / pattern])
    return str(path)


def make_data(trial, folder, source):
    """Lines of [data] for one source."""
    if source == "ping":
        return ["train = [\"ping\"]", f"documents = {trial.rng.choice((0, 0, 400))}"]
    text = folder / "text"
    text.mkdir(parents=True)
    as_json = source == "jsonl" or (source == "prepared" and trial.rng.random() < 0.5)
    pattern = write_jsonl(trial.rng, text) if as_json else write_texts(trial.rng, text)
    tokenizer = make_tokenizer(trial, folder, pattern)
    if source != "prepared":
        return [f"train = [{quoted(text / pattern)}]", f"tokenizer = {quoted(tokenizer)}", "separator = \"\\n\\n\"",
                f"shuffle_buffer = {trial.rng.choice((8, 64, 2048))}"]
    shards = folder / "shards"
    trial.must(["data", "prepare", "--tokenizer", tokenizer, "--out", shards, "--separator", "\\n\\n",
                "--val-fraction", trial.rng.choice((0, 0.1)), "--shard-tokens", trial.rng.choice((600, 3000, 1 << 20)),
                text / pattern])
    return [f"train = [{quoted(shards)}]"]


def quoted(text):
    return json.dumps(str(text), ensure_ascii=False)


def value(of):
    return str(of).lower() if isinstance(of, bool) else quoted(of) if isinstance(of, str) else str(of)


def make(trial, source=None, steps=None):
    """Draws a configuration and writes it, and its data, into the trial's folder."""
    rng = trial.rng
    source = source or rng.choice(("ping", "text", "jsonl", "prepared", "prepared"))
    data_folder = None if source == "ping" else trial.folder / "data"
    data = make_data(trial, data_folder, source)
    heads = rng.choice((1, 2, 4))
    head_dim = rng.choice((4, 8, 16))
    steps = steps or rng.randint(8, 40)
    every = rng.randint(1, max(1, steps // 3))
    seq_len = rng.choice((16, 24, 33, 64))
    fp8 = rng.random() < 0.2
    model = {
        "family": rng.choice(("llama", "qwen3", "olmo2")), "layers": rng.randint(1, 2),
        "hidden": rng.choice((16, 32, 48)), "heads": heads, "head_dim": head_dim,
        "kv_heads": rng.choice([k for k in (1, 2, 4) if heads % k == 0]), "ffn": rng.choice((16, 32, 80)),
        "vocab": rng.choice((320, 336)), "tied": rng.random() < 0.5, "dropout": rng.choice((0.0, 0.0, 0.1)),
    }
    train = {
        "batch_size": rng.randint(1, 3), "seq_len": seq_len, "accumulate": rng.choice((1, 1, 2, 3)),
        "max_steps": steps, "seed": rng.randint(0, 9), "eval_every": rng.choice((0, 3, 7)),
        "eval_batches": rng.randint(1, 3), "sample_every": rng.choice((0, 0, 5)), "sample_tokens": 8,
        "recompute": rng.choice(("none", "mlp", "block")),
    }
    optim = {"lr": 0.003, "warmup_steps": rng.choice((0, 3)), "clip": rng.choice((0.0, 1.0)),
             "schedule": rng.choice(("constant", "linear", "cosine", "wsd"))}
    more = {"packing": rng.choice(("pack", "pack", "stream", "bucket", "pad")), "shuffle": rng.random() < 0.8,
            "seed": rng.randint(0, 9), "workers": rng.randint(0, 2), "prefetch": rng.randint(1, 4)}
    checkpoint = {"every": every, "keep": rng.randint(1, 3), "keep_every": rng.choice((0, 0, every * 2))}
    sinks = ["jsonl"] + [s for s in ("console", "tensorboard", "prometheus") if rng.random() < 0.6]
    lines = ["[model]", *(f"{k} = {value(v)}" for k, v in model.items()),
             "[data]", *data, *(f"{k} = {value(v)}" for k, v in more.items()),
             "[train]", *(f"{k} = {value(v)}" for k, v in train.items()),
             "[optim]", *(f"{k} = {value(v)}" for k, v in optim.items()),
             "[precision]", f"matmul = {value('fp8' if fp8 else 'bf16')}",
             "[checkpoint]", *(f"{k} = {value(v)}" for k, v in checkpoint.items()),
             "[log]", f"fp8_every = {rng.choice((0, 4))}", f"sinks = {json.dumps(sinks)}", ""]
    path = pathlib.Path(trial.folder) / "run.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return Configuration(path, steps, every, source, data_folder)
