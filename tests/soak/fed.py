"""Commands fed with what others left, right and wrong: each does its work or says a sentence, and where a model only
went from one folder to another its loss stays the same."""
import json

import makers
import runs
from damaged import damage, files_in
from program import Failure
from trial import REFUSED, SAME, Reference


def round_trip(trial, reference):
    """Run, export, import, a run that begins from it: the same loss everywhere."""
    exported, imported = trial.folder / "exported", trial.folder / "imported"
    trial.must(["export", "--checkpoint", reference.run, "--out", exported])
    trial.must(["import", exported, "--out", imported])
    first = trial.folder / "first"
    trial.must(reference.train(first, f"model.init_from={imported}", "train.max_steps=1", "optim.lr=0"))
    # Shorter than any row, one at a time and in fp32: rows, batches and precision, which a Hugging Face folder does not
    # name, do not matter.
    texts = trial.folder / "short.jsonl"
    texts.write_text("".join(json.dumps({"text": f"so {n * n}."}) + "\n" for n in range(9)), encoding="utf-8")
    losses = {}
    for folder in (reference.run, exported, imported, first):
        ended = trial.must(["eval", "--checkpoint", folder, "--data", texts, "--per-document", "--device", "cpu",
                            "--precision", "fp32", "--json"])
        losses[str(folder)] = json.loads(ended.out)["loss"]
    if len(set(losses.values())) != 1:
        raise Failure(f"one model, several losses: {losses}")
    return exported, imported


def wrong_folders(trial, reference, made):
    """Any command on any folder, with some of them damaged."""
    half = trial.folder / "half"
    reference.half_done(half)
    data = reference.configuration.data_folder
    last = reference.run / "checkpoints" / runs.checkpoints(reference.run)[-1]
    folders = [reference.run, half, half / "checkpoints", last, trial.folder, trial.folder / "missing",
               reference.run / "config.toml", *made, *([data, data / "text", data / "shards"] if data else [])]
    refused = 0
    for n in range(6):
        folder = trial.rng.choice(folders)
        if folder in (half, *made) and trial.rng.random() < 0.5:
            damage(trial, trial.rng.choice(files_in(folder)))
        out = trial.folder / f"out{n}"
        command = trial.rng.choice((
            ["eval", "--checkpoint", folder, "--device", "cpu", "--batches", 1],
            ["eval", "--checkpoint", folder, "--data", trial.rng.choice(folders), "--batches", 1, "--device", "cpu"],
            ["sample", "--checkpoint", folder, "--prompt", "a", "--tokens", 4, "--device", "cpu"],
            ["export", "--checkpoint", folder, "--out", out], ["import", folder, "--out", out],
            ["report", folder, "--out", out], ["report", folder, reference.run, "--json"],
            ["train", folder, "--out", out, "--device", "cpu"],
            reference.train(out, f"model.init_from={folder}", "train.max_steps=1"),
            reference.train(out, f"data.train={folder}", "train.max_steps=1"),
            reference.train(out, f"data.tokenizer={folder}", "train.max_steps=1"),
            ["data", "stats", folder, "--seq-len", 32],
            ["data", "prepare", "--tokenizer", "bytes", "--out", out, folder],
            ["verify", folder], ["plan", folder], ["config", folder], ["tokenize", folder]))
        ended = trial.run(command, (0, 1, 2))
        refused += ended.status != 0
        if ended.status and command[0] in ("export", "import", "data", "report"):
            makers.require_nothing_made(out, ended)
    return refused


def fed(trial):
    there_and_back = trial.rng.random() < 0.5
    reference = Reference(trial, trial.rng.choice(("text", "jsonl", "prepared")) if there_and_back else None)
    made = round_trip(trial, reference) if there_and_back else ()
    return REFUSED if wrong_folders(trial, reference, made) else SAME
