#!/usr/bin/env python3
"""Lets tools/track.py take a run that was stopped, rolled back and resumed to the real wandb (offline) and MLflow
(files).

Usage: track_interop.py REDLINE WORK_FOLDER

The packages go into a virtual environment in WORK_FOLDER, made once. Where pip does not work the test is skipped: exit
status 77, and a line that says so.
"""
import contextlib
import glob
import io
import json
import os
import runpy
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment
from tensorboard_interop import train

TRACK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "track.py")


def track(where, run, *more):
    """tools/track.py in this process: to import the packages takes longer than all that it does."""
    sys.argv, shown = [TRACK, where, run, *more], io.StringIO()
    with contextlib.redirect_stdout(shown):
        status = runpy.run_path(TRACK)["main"]()
    assert status == 0, shown.getvalue()
    return shown.getvalue()


def rows_of(run):
    return [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"), encoding="utf-8")]


def records(path):
    """The records of a .wandb file: 7 bytes, then LevelDB's log: blocks of 32 KiB, in them pieces, each behind a check
    sum, a length and a type."""
    data, at, parts = open(path, "rb").read(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4:at + 6], "little"), data[at + 6]
        parts += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield parts
            parts = b""


def wandb_rows(session):
    """Rows, configuration and exit status that a session left for `wandb sync`, as the package itself reads them."""
    from wandb.proto import wandb_internal_pb2

    rows, config, status = [], {}, None
    for data in records(glob.glob(os.path.join(session, "*.wandb"))[0]):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({item.key or ".".join(item.nested_key): json.loads(item.value_json)
                         for item in record.history.item})
        elif kind == "run":
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            config["run_id"] = record.run.run_id
        elif kind == "exit":
            status = record.exit.exit_code
    return rows, config, status


def check_wandb(run, expected, ids):
    sessions = sorted(glob.glob(os.path.join(run, "wandb", "offline-run-*")), key=os.path.getmtime)
    rows, config, status = wandb_rows(sessions[-1])
    assert status == 0, status
    assert config["train.batch_size"] == 1 and config["model.hidden"] == 16, config
    ids.add(config["run_id"])
    rows = [row for row in rows if "loss" in row or "eval_loss" in row]
    assert [row["step"] for row in rows] == [row["step"] for row in expected], (len(rows), len(expected))
    for got, row in zip(rows, expected):
        for key, value in row.items():
            if key != "time" and isinstance(value, (int, float)):
                assert got[key] == value, (key, got, row)
    return len(rows)


def main(redline, folder):
    run, store = os.path.join(folder, "run"), os.path.join(folder, "mlruns")
    for old in (run, store):
        shutil.rmtree(old, ignore_errors=True)
    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true",
                      MLFLOW_TRACKING_URI="file:" + os.path.abspath(store))
    train(redline, run, 25)
    ids = set()
    track("wandb", run)
    track("mlflow", run)
    first = rows_of(run)
    check_wandb(run, first, ids)

    # The last steps' checkpoint is lost: the next session cuts metrics.jsonl and makes them again.
    shutil.rmtree(os.path.join(run, "checkpoints", "step_00000025"))
    train(redline, run, 30, "--resume")
    track("wandb", run)
    track("mlflow", run)
    second = [row for row in rows_of(run) if row["time"] > first[-1]["time"]]
    assert [row["step"] for row in second] == list(range(21, 31)), second
    count = check_wandb(run, second, ids)
    assert len(ids) == 1, f"a resumed run is the same run: {ids}"
    assert "0 rows" in track("wandb", run, "--once"), "nothing is sent twice"

    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("redline")
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 1 and runs[0].info.status == "FINISHED", runs
    # the later of two counts
    losses = {m.step: m.value for m in client.get_metric_history(runs[0].info.run_id, "loss")}
    assert losses == {row["step"]: row["loss"] for row in rows_of(run) if "loss" in row}
    assert runs[0].data.params["model.hidden"] == "16"

    bad = subprocess.run([sys.executable, TRACK, "wandb", folder], capture_output=True, text=True)
    assert bad.returncode == 2 and bad.stderr.count("\n") == 1 and "config.toml" in bad.stderr, bad.stderr
    print(f"wandb has {len(first)} and {count} rows of two sessions as one run, MLflow {len(losses)} steps")


if __name__ == "__main__":
    enter_environment(sys.argv[2], ["wandb", "mlflow"])
    main(*sys.argv[1:3])
