#!/usr/bin/env python3
"""Times redline's tokenizer beside the Hugging Face one, on the same documents, in turn.

Usage: tokenizer_peer.py BENCH TOKENIZER.json TEXT [--document-bytes 4096] [--threads 1,2]

BENCH is build/tokenizer_bench (REDLINE_BENCH=ON); needs pip install tokenizers. TEXT is cut into documents at blank
lines. Each side makes 5 passes over all documents with one tokenizer; the best counts, and the first (caches cold) is
shown too. MB a second of processor time, all threads together, is what to look at when the machine has other work.
"""
import argparse
import json
import os
import subprocess
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before the library is loaded

PASSES = 5


def documents_of(path, size):
    with open(path, encoding="utf-8", newline="") as file:
        paragraphs = file.read().split("\n\n")
    documents, current = [], ""
    for paragraph in paragraphs:
        current += paragraph + "\n\n"
        if len(current) >= size:
            documents.append(current)
            current = ""
    return documents + ([current] if current else [])


def time_passes(work):
    seconds, cpu = [], []
    for _ in range(PASSES):
        start, cpu_start = time.perf_counter(), time.process_time()
        tokens = work()
        seconds.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
    return {"first_s": seconds[0], "best_s": min(seconds), "cpu_s": min(cpu), "tokens": tokens}


def peer(tokenizer_path, documents):
    import tokenizers

    load = time.perf_counter()
    library = tokenizers.Tokenizer.from_file(tokenizer_path)
    load = time.perf_counter() - load
    one = time_passes(lambda: sum(len(library.encode(d, add_special_tokens=False).ids) for d in documents))
    library = tokenizers.Tokenizer.from_file(tokenizer_path)
    batch = time_passes(lambda: sum(len(e.ids) for e in library.encode_batch(documents, add_special_tokens=False)))
    library = tokenizers.Tokenizer.from_file(tokenizer_path)
    fast = time_passes(lambda: sum(len(e.ids) for e in library.encode_batch_fast(documents, add_special_tokens=False)))
    return tokenizers.__version__, load, {"encode": one, "encode_batch": batch, "encode_batch_fast": fast}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--document-bytes", type=int, default=4096)
    parser.add_argument("--threads", default="1,2")
    arguments = parser.parse_args()
    documents = documents_of(arguments.text, arguments.document_bytes)
    megabytes = sum(len(d.encode()) for d in documents) * 1e-6
    version, load, rows = peer(arguments.tokenizer, documents)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": d}) + "\n" for d in documents)
        file.flush()
        command = [arguments.bench, arguments.tokenizer, file.name, *arguments.threads.split(",")]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    results = [json.loads(line) for line in lines]
    ours = results[1:]
    name = os.path.basename(arguments.tokenizer)
    print(f"{name}, {len(documents)} documents, {megabytes:.1f} MB; tokenizers {version}")
    print(f"open the file: redline {results[0]['open_s'] * 1e3:.0f} ms, tokenizers {load * 1e3:.0f} ms")
    single = next((r for r in ours if r["threads"] == 1), ours[0])
    table = [(f"tokenizers {name}, 1 thread", row) for name, row in rows.items()]
    table += [(f"redline, {r['threads']} thread{'s' * (r['threads'] > 1)}", r) for r in ours]
    print(f"{'':39} {'MB/s':>7} {'first':>7} {'MB/cpu-s':>9} {'redline, 1 thread, is':>22}")
    for name, row in table:
        assert row["tokens"] == single["tokens"], f"{name}: {row['tokens']} tokens, redline {single['tokens']}"
        wall, cpu = row["best_s"] / single["best_s"], row["cpu_s"] / single["cpu_s"]
        rates = [megabytes / row[key] for key in ("best_s", "first_s", "cpu_s")]
        print(f"{name:39} {rates[0]:7.1f} {rates[1]:7.1f} {rates[2]:9.1f} {wall:9.2f}x, cpu {cpu:6.2f}x")


if __name__ == "__main__":
    main()
