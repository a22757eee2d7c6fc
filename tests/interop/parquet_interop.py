#!/usr/bin/env python3
"""Files that pyarrow writes, read by redline: the same documents as from .jsonl in shards, streams and resumed runs,
and what is wrong named.

Usage: parquet_interop.py REDLINE WORK_FOLDER [PYARROW]

PYARROW is a folder with the package, taken where this Python can load it; else it goes into a virtual environment in
WORK_FOLDER, made once. Where pip does not work, or redline was built without the module, the test is skipped: exit
status 77, and a line that says so.
"""
import filecmp
import glob
import json
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment, skip

TINY = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16", "train.batch_size=16",
        "train.seq_len=256", "train.eval_batches=2", "train.eval_every=5", "checkpoint.every=6",
        "data.shuffle_buffer=32", "data.tokenizer=bytes", "--device", "cpu"]


def documents():
    """Texts of all kinds: none, one repeated, others than ASCII, lines and quotes, and one longer than a page."""
    rng = random.Random(7)
    words = ["the", "of", "Zug", "naïve", "数学", "🙂", "\n", "\t", '"quoted"', "\\", "x" * 40]
    texts = [" ".join(rng.choice(words) for _ in range(rng.randrange(1, 120))) for _ in range(400)]
    for i in range(0, 400, 13):
        texts[i] = ""
    for i in range(5, 400, 7):
        texts[i] = "again and again"
    texts[211] = "long " * 300_000
    return texts


def redline_runs(redline, *words, status=0, cwd=None):
    result = subprocess.run([redline, *words], capture_output=True, text=True, cwd=cwd)
    assert result.returncode == status, f"{words}: exit {result.returncode}: {result.stdout}{result.stderr}"
    if status == 2:
        assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr if status else result.stdout


class Test:
    def __init__(self, redline, folder):
        self.redline, self.folder = redline, folder
        self.prepared = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def lines(self, name, rows):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
        return self.path(name)

    def table(self, name, columns, **options):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), self.path(name), **options)
        return self.path(name)

    def prepare(self, *inputs, status=0, redline=None):
        self.prepared += 1
        out = self.path(f"shards{self.prepared}")
        said = redline_runs(redline or self.redline, "data", "prepare", "--tokenizer", "bytes", "--val-fraction", "0.1",
                            "--out", out, *inputs, status=status)
        assert os.path.exists(out) == (status == 0), out
        return said if status else out

    def same_shards(self, expected, got):
        names = sorted(os.listdir(expected))
        assert names == sorted(os.listdir(got)), (names, os.listdir(got))
        names.remove("manifest.json")
        match, different, odd = filecmp.cmpfiles(expected, got, names, shallow=False)
        assert not different and not odd, (different, odd, got)
        assert self.manifest(expected) == self.manifest(got), got

    def manifest(self, folder):
        """All but the hashes of the inputs, which are other files."""
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        del manifest["source"]["inputs"]
        return manifest

    def refused(self, wanted, *inputs):
        said = self.prepare(*inputs, status=2)
        assert all(w in said for w in wanted), (wanted, said)

    def train(self, run, data, steps, *more):
        redline_runs(self.redline, "train", "--out", self.path(run), f"data.train={data}", *TINY,
                     f"train.max_steps={steps}", *more)
        rows = [json.loads(line) for line in open(os.path.join(self.path(run), "metrics.jsonl"), encoding="utf-8")]
        keys = ("step", "loss", "eval_loss", "grad_norm", "tokens")
        weights = glob.glob(os.path.join(self.path(run), "checkpoints", f"step_{steps:08}", "model*.safetensors"))
        assert weights, os.listdir(os.path.join(self.path(run), "checkpoints", f"step_{steps:08}"))
        figures = [[row.get(key) for key in keys] for row in rows]
        return figures, b"".join(open(path, "rb").read() for path in sorted(weights))


def check_forms(test, texts, expected):
    """Codecs, encodings, types and row groups as writers have them."""
    import pyarrow as pa

    number = list(range(len(texts)))
    forms = {
        "snappy": ({"id": number, "text": texts}, {"compression": "snappy", "row_group_size": 37}),
        "zstd": ({"text": texts},
                 {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0", "row_group_size": 100,
                  "data_page_size": 2000}),
        "gzip": ({"text": pa.array(texts, pa.large_string())}, {"compression": "gzip", "row_group_size": 1}),
        "plain": ({"text": pa.array([t.encode() for t in texts], pa.binary())},
                  {"compression": "none", "write_page_checksum": True}),
        "dictionary": ({"text": pa.array(texts).dictionary_encode()}, {"compression": "snappy", "row_group_size": 150}),
        "delta": ({"text": texts},
                  {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "row_group_size": 64}),
    }
    for name, (columns, options) in forms.items():
        test.same_shards(expected, test.prepare(test.table(name + ".parquet", columns, **options)))
    test.same_shards(expected, test.prepare("--threads", "1", test.path("snappy.parquet")))
    required = pa.table({"text": texts}, schema=pa.schema([pa.field("text", pa.string(), nullable=False)]))
    pa.parquet.write_table(required, test.path("required.parquet"))
    test.same_shards(expected, test.prepare(test.path("required.parquet")))

    nested = [{"lang": "de", "inner": {"text": t}} for t in texts]
    test.table("nested.parquet", {"meta": nested, "text": number}, row_group_size=90)
    test.same_shards(expected, test.prepare("--text-field", "meta.inner.text", test.path("nested.parquet")))

    # Several files, of both kinds, in the order of their names.
    mixed = test.path("mixed")
    os.makedirs(mixed)
    test.table("mixed/a.parquet", {"text": texts[:150]}, row_group_size=60)
    test.lines("mixed/b.jsonl", [{"text": t} for t in texts[150:300]])
    test.table("mixed/c.parquet", {"text": texts[300:]})
    test.table("mixed/d.parquet", {"text": pa.array([], pa.string())})
    three = test.prepare(mixed)
    for path in glob.glob(os.path.join(expected, "*.bin")):
        assert filecmp.cmp(path, os.path.join(three, os.path.basename(path)), shallow=False), path
    return len(forms) + 3


def check_nulls(test, texts):
    """A null is what null is in .jsonl: malformed."""
    import pyarrow as pa

    with_nulls = [None if i % 9 == 4 else t for i, t in enumerate(texts)]
    lines = test.lines("nulls.jsonl", [{"text": t} for t in with_nulls])
    table = test.table("nulls.parquet", {"text": with_nulls}, row_group_size=50)
    test.refused(["nulls.jsonl:5:", "null, not a string"], lines)
    test.refused(["nulls.parquet: row 4 (from 0)", '"text" is null, not a string', "--on-error skip"], table)
    test.same_shards(test.prepare("--on-error", "skip", lines), test.prepare("--on-error", "skip", table))
    outer = pa.array([None if i % 9 == 4 else {"text": t} for i, t in enumerate(texts)])
    table = test.table("outer.parquet", {"meta": outer}, row_group_size=50)
    test.same_shards(test.path(f"shards{test.prepared}"),
                     test.prepare("--on-error", "skip", "--text-field", "meta.text", table))


def check_wrong(test, texts, expected):
    import pyarrow as pa

    columns = {"id": list(range(len(texts))), "text": texts, "tags": [["a", "b"]] * len(texts),
               "meta": [{"body": "b"}] * len(texts)}
    table = test.table("good.parquet", columns, row_group_size=100, use_dictionary=False, write_page_checksum=True)
    test.refused(['there is no column "body"', '"id", "text", "tags.list.element", "meta.body"', "--text-field"],
                 "--text-field", "body", table)
    test.refused(['"id" is of the type INT64, not a string', "--text-field"], "--text-field", "id", table)
    test.refused(['"tags" is a list'], "--text-field", "tags", table)
    test.refused(['"meta" has columns of its own: "meta.body"'], "--text-field", "meta", table)

    # Conversations are named, with a line of Python that writes them as they are read.
    messages = [[{"role": "user", "content": t}, {"role": "assistant", "content": "So."}] for t in texts]
    chats = test.table("chats.parquet", {"messages": messages}, row_group_size=100)
    said = test.prepare(chats, status=2)
    assert '"messages"' in said and "data.chat" in said, said
    line = said[said.index("python3 -c "):].replace("python3", sys.executable, 1)
    subprocess.run(line, shell=True, check=True, cwd=test.folder,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    with open(test.path("chats.jsonl"), encoding="utf-8") as file:
        assert [json.loads(row) for row in file] == [{"messages": m} for m in messages]

    # Without checksums a flipped bit may be another text. A second reading tells.
    plain = test.table("plain.parquet", {"text": texts}, use_dictionary=False, compression="none")
    first = test.prepare(plain)
    bits = bytearray(open(plain, "rb").read())
    bits[bits.index(b"again and again")] ^= 1
    with open(plain, "wb") as file:
        file.write(bits)
    test.prepare(plain)
    test.refused(["--same-input-as", "plain.parquet"], "--same-input-as", first, plain)

    data = open(table, "rb").read()
    for name, cut in (("half", len(data) // 2), ("last", len(data) - 1), ("magic", 4)):
        with open(test.path(name + ".parquet"), "wb") as file:
            file.write(data[:cut])
        test.refused([f"{name}.parquet: it is cut short at byte {cut}", "bring it back whole"],
                     test.path(name + ".parquet"))
    with open(test.path("prose.parquet"), "w", encoding="utf-8") as file:
        file.write("This is no table.\n")
    test.refused(["prose.parquet: this is not a Parquet file"], test.path("prose.parquet"))
    with open(test.path("footer.parquet"), "wb") as file:
        file.write(data[:-200] + b"\xff" * 192 + data[-8:])
    test.refused(["footer.parquet: damaged: "], test.path("footer.parquet"))
    shutil.copy(table, test.path("table.jsonl"))
    test.refused(["table.jsonl: this is a Parquet file", ".parquet"], test.path("table.jsonl"))

    # A damaged page: what stood before it comes, and the next file.
    metadata = pa.parquet.ParquetFile(table).metadata
    column = metadata.row_group(2).column(1)
    at = column.data_page_offset + column.total_compressed_size // 2
    with open(test.path("page.parquet"), "wb") as file:
        file.write(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1:])
    test.refused(["page.parquet: row group 2: damaged: ", "--on-error skip"], test.path("page.parquet"))
    out = test.prepare("--on-error", "skip", test.path("page.parquet"), test.path("half.parquet"),
                       test.lines("more.jsonl", [{"text": "more"}]))
    manifest = json.load(open(os.path.join(out, "manifest.json"), encoding="utf-8"))
    assert '"file_ends": 2' in json.dumps(manifest), manifest
    first = test.prepare(test.lines("first.jsonl", [{"text": t} for t in texts[:200]] + [{"text": "more"}]))
    for path in glob.glob(os.path.join(first, "*.bin")):
        assert filecmp.cmp(path, os.path.join(out, os.path.basename(path)), shallow=False), path

    # The program without its module: a sentence, and a line of Python that does.
    elsewhere = test.path("elsewhere/bin/redline")
    os.makedirs(os.path.dirname(elsewhere))
    try:
        os.link(test.redline, elsewhere)
    except OSError:
        shutil.copy(test.redline, elsewhere)
    said = redline_runs(elsewhere, "data", "prepare", "--tokenizer", "bytes", "--out", "none", table, status=2,
                        cwd=test.folder)
    assert "redline-parquet.so is neither in" in said, said
    line = said[said.index("python3 -c "):].replace("python3", sys.executable, 1)
    subprocess.run(line, shell=True, check=True, cwd=test.folder,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    test.same_shards(expected, test.prepare(test.path("good.jsonl"), redline=elsewhere))
    # The installed place.
    os.makedirs(test.path("elsewhere/lib/redline"))
    os.symlink(os.path.join(os.path.dirname(test.redline), "redline-parquet.so"),
               test.path("elsewhere/lib/redline/redline-parquet.so"))
    test.same_shards(expected, test.prepare(table, redline=elsewhere))


def check_streams(test, texts):
    """The same batches as from .jsonl over more than an epoch, and again after a stop in the middle of it."""
    lines = test.lines("stream.jsonl", [{"text": t} for t in texts])
    table = test.table("stream.parquet", {"text": texts}, row_group_size=37)
    more = ["data.workers=2"]
    expected = test.train("lines", lines, 18, *more)
    assert test.train("table", table, 18, *more) == expected
    # The last checkpoint is lost, as if a kill had come before it: the next session makes its steps again.
    shutil.rmtree(os.path.join(test.path("table"), "checkpoints", "step_00000018"))
    assert test.train("table", table, 18, "--resume", "data.workers=1") == expected
    said = [redline_runs(test.redline, "data", "stats", data, "--tokenizer", "bytes", "--seq-len", "64", "--json")
            for data in (lines, table)]
    told = [json.loads(text) for text in said]
    for one in told:
        one.pop("data", None)
    of_lines, of_table = ({k: v for k, v in one.items() if k != "source"} for one in told)
    assert of_lines == of_table, told
    vocabularies = []
    for data in (lines, table):
        out = test.path(os.path.basename(data) + ".tokenizer.json")
        redline_runs(test.redline, "tokenizer", "train", "--vocab-size", "300", "--out", out, data)
        vocabularies.append(open(out, "rb").read())
    assert vocabularies[0] == vocabularies[1], "tokenizers trained on the same documents"


def main(redline, folder):
    redline = os.path.abspath(redline)
    if not os.path.exists(os.path.join(os.path.dirname(redline), "redline-parquet.so")):
        skip("redline was built without the Parquet module")
    work = os.path.abspath(os.path.join(folder, "work"))
    shutil.rmtree(work, ignore_errors=True)
    os.makedirs(work)
    test = Test(redline, work)
    assert json.loads(redline_runs(redline, "info", "--json"))["parquet"]["usable"]
    texts = documents()
    lines = test.lines("documents.jsonl", [{"text": t} for t in texts])
    expected = test.prepare(lines)
    forms = check_forms(test, texts, expected)
    check_nulls(test, texts)
    check_wrong(test, texts, expected)
    check_streams(test, texts[:200])
    print(f"{forms} forms of Parquet give the shards of .jsonl; nulls, damage, streams and resume agree")


def enter(folder, package):
    """Makes pyarrow importable: from `package`, else from an environment."""
    package = os.path.abspath(package) if package else ""
    sys.path.insert(0, package)
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        sys.path.remove(package)
        enter_environment(folder, ["pyarrow"])


if __name__ == "__main__":
    enter(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
    main(*sys.argv[1:3])
