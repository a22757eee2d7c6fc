#!/usr/bin/env python3
"""Takes a run of redline to Weights & Biases or to MLflow, while it trains or afterwards.

Usage: track.py wandb|mlflow RUN [--project NAME] [--name NAME] [--once] [--idle SECONDS]

Reads config.toml, metrics.jsonl and events.jsonl of the folder RUN and changes none of them. Ends with the run. Started
again, it goes on with the same run there: what was sent is remembered in RUN/track.WHERE.json. The packages' own
settings hold: WANDB_MODE=offline, WANDB_API_KEY, MLFLOW_TRACKING_URI. Exit status 2: bad input.
"""
import argparse
import json
import math
import os
import sys
import time
import tomllib
import uuid

POLL_SECONDS = 1.0
ENDS = {"finished": 0, "stopped": 0, "failed": 1}  # kind of the last event, and the status that the run has there


class BadInput(Exception):
    """One sentence for the user."""


class Rows:
    """The rows of a .jsonl file that were not read yet. A run that goes back cuts its file, and rows are written anew:
    those are told by their time, which only grows."""

    def __init__(self, path, after):
        self.path, self.after = path, after
        self.offset, self.last_line = 0, b""

    def new(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset - len(self.last_line))
                if file.read(len(self.last_line)) != self.last_line:
                    self.offset, self.last_line = 0, b""
                    file.seek(0)
                text = file.read()
        except FileNotFoundError:
            return []
        rows = []
        for line in text.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # still being written
                break
            self.offset += len(line)
            self.last_line = line
            try:
                row = json.loads(line)
            except ValueError:  # what a crash left; redline leaves it where it is
                continue
            if isinstance(row, dict) and row.get("time", 0) > self.after:
                rows.append(row)
                self.after = row["time"]
        return rows


def numbers(row):
    """What can be drawn: every number but the step and the time."""
    return {key: value for key, value in row.items()
            if key not in ("step", "time") and isinstance(value, (int, float)) and not isinstance(value, bool)
            and math.isfinite(value)}


def settings(folder):
    """config.toml as one table: {"train.seq_len": 256, ...}."""
    with open(os.path.join(folder, "config.toml"), "rb") as file:
        sections = tomllib.load(file)
    flat = {}
    for name, value in sections.items():
        flat.update({f"{name}.{key}": of_key for key, of_key in value.items()} if isinstance(value, dict)
                    else {name: value})
    return flat


class WandbSink:
    def __init__(self, state, folder, options):
        import wandb

        self.run = wandb.init(id=state["id"], resume="allow", project=options.project, name=options.name, dir=folder,
                              config=settings(folder))
        # Steps are a metric of their own: the service's steps only grow, and a run may go back.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def row(self, row):
        self.run.log({"step": row["step"], **numbers(row)})

    def event(self, sentence):
        print(sentence, flush=True)  # the package shows what is printed as the run's log

    def end(self, status):
        self.run.finish(exit_code=status)


class MlflowSink:
    PARAMETERS_AT_ONCE, LONGEST_PARAMETER = 100, 500

    def __init__(self, state, folder, options):
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self.folder = folder
        self.client = MlflowClient()
        if "mlflow_run" not in state:
            found = self.client.get_experiment_by_name(options.project)
            experiment = found.experiment_id if found else self.client.create_experiment(options.project)
            run = self.client.create_run(experiment, run_name=options.name)
            state["mlflow_run"] = run.info.run_id
        self.run = state["mlflow_run"]
        self.client.update_run(self.run, status="RUNNING")
        known = self.client.get_run(self.run).data.params  # a parameter is set once, whatever a resume changed
        new = [Param(key, str(value)[:self.LONGEST_PARAMETER]) for key, value in settings(folder).items()
               if key not in known]
        for first in range(0, len(new), self.PARAMETERS_AT_ONCE):
            self.client.log_batch(self.run, params=new[first:first + self.PARAMETERS_AT_ONCE])

    def row(self, row):
        from mlflow.entities import Metric

        at = int(row["time"] * 1000)
        self.client.log_batch(self.run,
                              metrics=[Metric(key, value, at, row["step"]) for key, value in numbers(row).items()])

    def event(self, sentence):
        print(sentence, flush=True)

    def end(self, status):
        self.client.log_artifact(self.run, os.path.join(self.folder, "events.jsonl"))
        self.client.set_terminated(self.run, status="FAILED" if status else "FINISHED")


SINKS = {"wandb": WandbSink, "mlflow": MlflowSink}


def held(folder):
    """Whether a process of this machine trains into the folder: it has a lock on its file .lock."""
    try:
        lock = os.stat(os.path.join(folder, ".lock"))
        place = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
        with open("/proc/locks", encoding="ascii") as file:
            return any(place in line.split() for line in file)
    except OSError:
        return False


def read_state(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {"id": uuid.uuid4().hex[:12], "rows_until": 0, "events_until": 0}
    except ValueError as error:
        raise BadInput(f"{path}: not what this program wrote ({error}); remove it to begin a new run there") from None


def write_state(path, state):
    with open(path + ".partial", "w", encoding="utf-8") as file:
        json.dump(state, file)
    os.replace(path + ".partial", path)


def sentence_of(event):
    words = event.get("text") or ", ".join(f"{key} {event[key]}" for key in ("program", "device", "folder")
                                           if key in event)
    return f"step {event.get('step', 0)}: {event['kind']}" + (f": {words}" if words else "")


def track(options):
    folder = options.run
    state_path = os.path.join(folder, f"track.{options.where}.json")
    state = read_state(state_path)
    sink = SINKS[options.where](state, folder, options)
    rows = Rows(os.path.join(folder, "metrics.jsonl"), state["rows_until"])
    events = Rows(os.path.join(folder, "events.jsonl"), state["events_until"])
    status, sent, quiet_since = 0, 0, time.monotonic()
    try:
        while True:
            new_events, new_rows = events.new(), rows.new()  # in this order: behind an end there are no rows
            for row in new_rows:
                sink.row(row)
            for event in new_events:
                sink.event(sentence_of(event))
            sent += len(new_rows)
            if new_rows or new_events:
                quiet_since = time.monotonic()
                state.update(rows_until=rows.after, events_until=events.after)
                write_state(state_path, state)
            last = new_events[-1]["kind"] if new_events else ""
            if last in ENDS:
                status = ENDS[last]
                break
            if options.once or (time.monotonic() - quiet_since > options.idle and not held(folder)):
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        pass
    sink.end(status)
    print(f"{sent} rows of {folder} are in {options.where}")


def main():
    parser = argparse.ArgumentParser(description="Takes a run of redline to Weights & Biases or to MLflow.")
    parser.add_argument("where", choices=sorted(SINKS))
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--project", default="redline", help="project there (MLflow: experiment; default: redline)")
    parser.add_argument("--name", help="what the run is called there (default: its folder)")
    parser.add_argument("--once", action="store_true", help="send what there is, and end")
    parser.add_argument("--idle", type=float, default=600, metavar="SECONDS",
                        help="end when nothing came for so long and nobody trains here any more (default: 600)")
    options = parser.parse_args()
    options.run = os.path.abspath(options.run)
    options.name = options.name or os.path.basename(options.run)
    try:
        if not os.path.exists(os.path.join(options.run, "config.toml")):
            raise BadInput(f"{options.run}: not the folder of a run; it has no config.toml")
        track(options)
    except BadInput as error:
        print(f"track: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"track: Python has no {error.name}; pip install {options.where}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
