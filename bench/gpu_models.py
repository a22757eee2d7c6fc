#!/usr/bin/env python3
"""Trains models on the card for some seconds each and adds a row for each to one table (Markdown), with --results also
to a file as bench/results has them, from which bench/make_tables.py makes the tables of docs/results.md.

Full rows of random tokens: the median step after the first five, beside what `redline plan` expects and what nvidia-smi
says of the card's memory. Of ping-95m also its own documents, packed and one a row: real tokens a second. The table's
head names the card's ceilings as measured in the same call. With --peer, a PyTorch program that takes --runs
MODEL:BATCH:PRECISION:HOW runs the same model right after, on the same card, for ping-95m on padded rows as well;
of several HOWs (--peer-how) the fastest counts. With --precision bf16,fp8 each model runs in both. With --build, the
program is built and its tests pass before anything is measured.

  bench/gpu_models.py
  bench/gpu_models.py --build llama-1.36b:24 --seconds 15 --peer bench/torch_peer.py --table table.md
  bench/gpu_models.py --seconds 14 --peer bench/torch_peer.py --no-packing --results bench/results/h200_models.json
  bench/gpu_models.py gemma3-1b:8 --peer bench/torch_peer.py --peer-how default:cudnn:8 default:cudnn:fused8
"""
import argparse
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import result_files

MODELS = ["ping-95m:128", "gqa-180m:64", "cs336-350m:32", "llama-1.36b:24", "qwen3-1.8b:8"]
WARM_UP = 5  # steps that do not count
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=MODELS, metavar="MODEL:BATCH", help="default: " + " ".join(MODELS))
    parser.add_argument("--redline", help="the program (default: build/redline, with --build what was built)")
    parser.add_argument("--build", action="store_true",
                        help="first build and test it: tools/check_gpu.sh --no-sanitizer")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=25, help="of each run, with its start (default: 25)")
    parser.add_argument("--peer", metavar="FILE", help="a PyTorch program to run right after each model")
    parser.add_argument("--peer-how", nargs="+", default=["default:cudnn:8"], metavar="MODE:ATTENTION:CHUNKS[:MORE]",
                        help="how the peer computes, as it says itself; of several the fastest counts")
    parser.add_argument("--peer-precision", choices=["bf16", "fp8"], help="run the peer beside rows of it only")
    parser.add_argument("--precision", default="bf16",
                        help="of products: bf16, fp8 or both, with a comma (default: bf16)")
    parser.add_argument("--keys", nargs="*", default=[], metavar="KEY=VALUE", help="more keys of the runs in fp8")
    parser.add_argument("--table", metavar="FILE",
                        help="where rows go as well; made with its head when it is not there")
    parser.add_argument("--results", metavar="FILE", help="a JSON file of all rows; written anew after each of them")
    parser.add_argument("--commit", help="of the program, for that file (default: what git says of this folder)")
    parser.add_argument("--no-packing", action="store_true", help="without the documents of ping-95m")
    given = parser.parse_args()
    given.redline = given.redline or (os.path.join(ROOT, "build-cuda/redline") if given.build else "build/redline")
    return given


class Failed(SystemExit):
    """A run gave no figures: its words end the program, unless it goes on with other runs."""


def output_of(command):
    """What a command prints; where it fails, its own words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}; --redline names the program")
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def first_word(command):
    """What a command that may be missing prints first; None where it does not."""
    try:
        said = subprocess.run(command, capture_output=True, text=True).stdout.split()
    except OSError:
        return None
    return said[0] if said else None


def card_says(what):
    return first_word(["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"])


def card_memory_gib():
    used = card_says("memory.used")
    return int(used) / 1024 if used else None


def versions(given):
    cuda = json.loads(output_of([given.redline, "info", "--json"]))["cuda"]
    found = {"cuda": cuda["runtime_version"] or None, "driver": card_says("driver_version"),
             "cublaslt": cuda["cublaslt_version"] or None, "cudnn": cuda["cudnn_version"] or None,
             "redline": given.commit or first_word(["git", "-C", ROOT, "describe", "--always", "--dirty"])}
    if given.peer:
        try:
            found["pytorch"] = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            found["pytorch"] = None
    return found


def rows_of(run):
    """The rows of a run's metrics so far that are steps: the first row says where the run begins."""
    try:
        with open(os.path.join(run, "metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file if line.endswith("\n")]  # the last one may be cut
    except OSError:
        return []
    return [row for row in rows if "step_ms" in row]


def train(given, model, keys, steps=None):
    """Rows of metrics, seconds to the first of them, the card's memory and what the run said. A preset or a
    configuration trains for given.seconds, or until it has `steps` steps."""
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        command = [given.redline, "train", model, "--device", given.device, "--out", run, *keys]
        begin = time.time()
        with open(os.path.join(folder, "log"), "w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            ended = None
            try:
                while ended is None and time.time() - begin < given.seconds - 1:
                    if steps and len(rows_of(run)) >= steps:
                        break
                    time.sleep(0.25)
                    ended = process.poll()
                memory = card_memory_gib() if given.device == "cuda" else None
            finally:  # by force: a save at the end would measure the disk
                process.send_signal(signal.SIGKILL)
                process.wait()
            log.seek(0)
            said = log.read()
        if ended is not None:  # it has steps for days
            raise Failed(f"{model}: the run ended by itself with status {ended}\n{said[-800:]}")
        rows, least = rows_of(run), steps or WARM_UP + 3
        if len(rows) < least:
            raise Failed(f"{model}: {len(rows)} of {least} steps in {given.seconds:g} s; give it more --seconds\n"
                         f"{said[-800:]}")
        return rows, rows[0]["time"] - begin, memory, said


def keys_of(batch, more):
    return [f"train.batch_size={batch}", "train.accumulate=1", "train.max_steps=1000000", "train.eval_every=0",
            "checkpoint.every=0", "model.dropout=0", "optim.name=adamw", *more]


def median(rows, key):
    return statistics.median(row[key] for row in rows[WARM_UP:])


class Table:
    """The rows as Markdown, and as a file of results."""
    HEAD = ["model", "ms a step", "k tokens/s", "mfu / palm, %", "first step", "memory", "plan", "peer, k tokens/s",
            "mfu / palm, %", "first step", "memory"]

    def __init__(self, given):
        self.path, self.results = given.table, given.results
        machine = json.loads(output_of([given.redline, "peaks", "--device", given.device, "--json"]))["machine"]
        self.result = {
            "date": time.strftime("%Y-%m-%d"), "machine": machine["name"], "card": machine["card"],
            "ceilings": {"product_tflops_per_s": round(machine["measured_flops"] * 1e-12, 4),
                         "copy_gbytes_per_s": round(machine["copy_bytes_per_s"] * 1e-9, 2)},
            "versions": versions(given), "command": " ".join(sys.argv), "used_in_fit": False, "rows": []}
        ceilings = (f"{machine['name']}: {machine['measured_flops'] * 1e-12:.4g} TFLOP/s in a large product, copy "
                    f"{machine['copy_bytes_per_s'] * 1e-9:.4g} GB/s; {self.result['date']}, `{self.result['command']}`")
        head = [ceilings, "", self.line(self.HEAD), self.line(["---"] * len(self.HEAD))]
        if self.path and os.path.exists(self.path) and os.path.getsize(self.path) > 0:
            print("\n".join(head))
        else:
            self.write(head)

    @staticmethod
    def line(cells):
        return "| " + " | ".join(cells) + " |"

    def write(self, lines):
        print("\n".join(lines), flush=True)
        if self.path:
            with open(self.path, "a") as file:
                file.write("\n".join(lines) + "\n")

    def add(self, name, row):
        self.result["rows"].append(row)
        if self.results:
            result_files.write(self.results, self.result)
        plan, peer = row.get("plan"), row.get("peer")
        cells = [name, f"{row['step_ms']:.1f}", f"{row['ktokens_per_s']:.1f}", mfu_of(row), seconds_of(row)]
        if plan:
            held = f"{row['memory_gib']:.1f} GiB"
            if row["nvidia_smi_gib"]:
                held += f" ({row['nvidia_smi_gib']:.2f} by nvidia-smi)"
            step = f", {plan['step_ms']:.1f} ms" if plan["step_ms"] else ""
            cells += [held, f"{plan['total_gib']:.2f} GiB{step}"]
        if peer:
            cells += [f"{peer['ktokens_per_s']}", mfu_of(peer), seconds_of(peer), f"{peer['memory_gib']} GiB"]
        self.write([self.line(cells + [""] * (len(self.HEAD) - len(cells)))])


def mfu_of(row):
    return f"{row['mfu_percent']:.1f} / {row['mfu_palm_percent']:.1f}" if "mfu_percent" in row else ""


def seconds_of(row):
    return f"{row['first_step_s']:.1f} s" if "first_step_s" in row else ""


def peer_rows(arguments):
    """What the peer prints, an object a run; a run that failed has an error."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines] or [{"error": done.stderr.strip()[-300:]}]


def peer_row(given, model, arguments):
    rows = peer_rows(arguments)
    whole = [row for row in rows if "error" not in row]
    for row in rows:
        print(f"{given.peer}: {json.dumps(row)}", file=sys.stderr, flush=True)
    if not whole:
        sys.exit(f"{given.peer}, {model}: {rows[-1]['error']}")
    return max(whole, key=lambda row: row["ktok_s"])


def peer_of(given, model, batch, precision):
    if not given.peer or (given.peer_precision and precision != given.peer_precision):
        return None
    runs = ",".join(f"{model}:{batch}:{precision}:{how}" for how in given.peer_how)
    row = peer_row(given, model, [given.peer, "--runs", runs, "--steps", "10"])
    return {"ktokens_per_s": row["ktok_s"], "mfu_percent": row["mfu_causal"], "mfu_palm_percent": row["mfu_palm"],
            "memory_gib": row["mem_gib"], "first_step_s": row["first_step_s"]}


def measured(rows, first):
    """Of a run's metrics, in the units of the results."""
    return {"step_ms": round(median(rows, "step_ms"), 3), "ktokens_per_s": round(median(rows, "tokens_per_s") / 1e3, 3),
            "mfu_percent": round(100 * median(rows, "mfu"), 2),
            "mfu_palm_percent": round(100 * median(rows, "mfu_palm"), 2), "first_step_s": round(first, 2)}


def full_rows(given, table, model, batch, precision):
    sizes = tomllib.loads(output_of([given.redline, "config", "--preset", model]))
    more = given.keys if precision == "fp8" else []
    keys = keys_of(batch, [f"data.train=random:{sizes['model']['vocab']}", f"precision.matmul={precision}", *more])
    rows, first, memory, _ = train(given, model, keys)
    plan = json.loads(output_of([given.redline, "plan", "--preset", model, *keys, "--json"]))
    expected = plan.get("expected")
    tokens = sizes["train"]["seq_len"]
    table.add(f"{model} {batch}x{tokens} {precision}", {
        "model": model, "batch_size": int(batch), "seq_len": tokens, "rows": "full", "precision": precision,
        **measured(rows, first),
        "memory_gib": round(rows[-1]["memory_gib"], 3), "nvidia_smi_gib": memory and round(memory, 3),
        "plan": {"total_gib": round(plan["memory"]["total"] / 2**30, 3),
                 "step_ms": expected and round(expected["step_ms"], 2)},
        "peer": peer_of(given, model, batch, precision)})


def documents(given, table, model, batch):
    tokens = tomllib.loads(output_of([given.redline, "config", "--preset", model]))["train"]["seq_len"]
    run = {"model": model, "batch_size": int(batch), "seq_len": tokens}
    rate, padding = {}, {}
    for packing in ("pack", "pad"):
        rows, first, _, _ = train(given, model, keys_of(batch, ["data.train=ping", f"data.packing={packing}"]))
        rate[packing] = median(rows, "tokens_per_s")
        padding[packing] = statistics.mean(row["padding"] for row in rows[WARM_UP:])
        table.add(f"{model}, its documents, {packing} ({100 * padding[packing]:.1f}% padding)", {
            "program": "redline", **run, "rows": packing, **measured(rows, first),
            "padding_percent": round(100 * padding[packing], 2)})
    print(f"packed documents: {rate['pack'] / rate['pad']:.2f} times as many real tokens a second")
    if given.peer:
        row = peer_row(given, model,
                       [os.path.join(ROOT, "bench/torch_padded.py"), given.peer, model, batch, "--padding",
                                      f"{padding['pad']:.4f}"])
        table.add(f"the peer, a document a row and nothing masked ({100 * row['padding']:.1f}% padding)", {
            "program": "peer", **run, "rows": "pad", "step_ms": row["ms"], "ktokens_per_s": row["ktok_s"],
            "padding_percent": round(100 * row["padding"], 2)})
        print(f"packed documents here: {rate['pack'] / 1e3 / row['ktok_s']:.2f} times as many as the peer's")


def main():
    given = arguments()
    runs = [run.split(":") for run in given.runs]
    for run in runs:
        if len(run) != 2 or not run[1].isdigit():
            sys.exit(f"{':'.join(run)}: not MODEL:BATCH, as in ping-95m:128")
    if given.build and subprocess.run([os.path.join(ROOT, "tools/check_gpu.sh"), "--no-sanitizer"],
                                      stdout=sys.stderr).returncode != 0:
        sys.exit("tools/check_gpu.sh failed: nothing was measured")
    table = Table(given)
    for model, batch in runs:
        for precision in given.precision.split(","):
            full_rows(given, table, model, batch, precision)
        if model == "ping-95m" and not given.no_packing:
            documents(given, table, model, batch)


if __name__ == "__main__":
    main()
