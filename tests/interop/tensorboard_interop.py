#!/usr/bin/env python3
"""Lets the real TensorBoard read the event files of a run that was killed, rolled back and resumed.

Usage: tensorboard_interop.py REDLINE WORK_FOLDER

The package goes into a virtual environment in WORK_FOLDER, made once. Where pip does not work the test is skipped: exit
status 77, and a line that says so.
"""
import glob
import json
import os
import shutil
import subprocess
import sys

from packages import enter_environment

TINY = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16", "train.batch_size=1",
        "train.seq_len=32", "train.eval_batches=1", "train.eval_every=10", "checkpoint.every=10",
        "train.sample_every=50", "train.sample_tokens=8"]


def train(redline, run, steps, *more):
    command = [redline, "train", "--device", "cpu", "--out", run, *TINY, f"train.max_steps={steps}", *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(redline, folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

    run = os.path.join(folder, "run")
    shutil.rmtree(run, ignore_errors=True)
    train(redline, run, 125)
    # The checkpoint of the last steps is lost, as if a kill had come before it: the next session makes them again.
    shutil.rmtree(os.path.join(run, "checkpoints", "step_00000125"))
    assert os.listdir(os.path.join(run, "checkpoints")) == ["step_00000120"]
    # A killed session leaves half a record.
    first = sorted(glob.glob(os.path.join(run, "events.out.tfevents.*")))[0]
    with open(first, "ab") as file:
        file.write(b"\x30\0\0\0\0\0\0\0half")
    train(redline, run, 130, "--resume")

    files = sorted(glob.glob(os.path.join(run, "events.out.tfevents.*")))
    assert len(files) == 2, files
    for file in files:
        records = list(RawEventFileLoader(file).Load())
        assert len(records) >= 10, (file, len(records))

    accumulator = EventAccumulator(run, size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    before, *rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"), encoding="utf-8")]
    names = {"train/loss": "loss", "train/lr": "lr", "train/grad_norm": "grad_norm", "speed/mfu": "mfu",
             "speed/tokens_per_s": "tokens_per_s", "speed/step_ms": "step_ms", "data/padding": "padding"}
    for tag, key in names.items():
        points = accumulator.Scalars(tag)
        assert [p.step for p in points] == [row["step"] for row in rows], f"{tag}: every step once, in order"
        for point, row in zip(points, rows):
            assert abs(point.value - row[key]) <= 1e-6 * abs(row[key]), (tag, point, row)
            assert abs(point.wall_time - row["time"]) < 1e-3
    evaluations = {p.step: p.value for p in accumulator.Scalars("eval/loss")}
    assert before["step"] == 0 and "loss" not in before, before
    for row in [before, *rows]:
        if "eval_loss" in row:
            assert abs(evaluations[row["step"]] - row["eval_loss"]) <= 1e-6 * row["eval_loss"]
    histograms = accumulator.Histograms("speed/step_ms_spread")
    assert histograms and all(abs(sum(h.histogram_value.bucket) - h.histogram_value.num) < 1e-9 for h in histograms)
    texts = [tag for tag in tags["tensors"] if accumulator.SummaryMetadata(tag).plugin_data.plugin_name == "text"]
    samples = [json.loads(line) for line in open(os.path.join(run, "samples.jsonl"), encoding="utf-8")]
    assert [row["step"] for row in samples] == [50, 100, 130], samples
    prompts = len(samples[0]["samples"])
    assert sorted(texts) == sorted(["config", "run", *(f"samples/{n + 1}" for n in range(prompts))]), tags
    for n in range(prompts):
        written = {t.step: t.tensor_proto.string_val[0].decode() for t in accumulator.Tensors(f"samples/{n + 1}")}
        for row in samples:
            for part in row["samples"][n].values():
                assert part in written[row["step"]], (part, written)
    config = accumulator.Tensors("config")[-1].tensor_proto.string_val[0].decode()
    assert "max_steps = 130" in config and config.startswith("```toml"), config[:200]
    print(f"TensorBoard reads {len(rows)} steps of {len(names)} scalars from {len(files)} files, "
          f"{len(histograms)} histograms, {len(texts)} texts")


if __name__ == "__main__":
    enter_environment(sys.argv[2], ["tensorboard"])
    main(*sys.argv[1:3])
