#!/usr/bin/env python3
"""Compares redline's tokenizers with the Hugging Face `tokenizers` and `sentencepiece` packages on generated strings.

Usage: tokenizers_interop.py REDLINE WORK_FOLDER [--fixtures]

The packages go into a virtual environment in WORK_FOLDER, made once. Where pip does not work the test is skipped: exit
status 77, and a line that says so. With --fixtures, small tokenizers and what the packages make of some texts are
written to WORK_FOLDER/fixtures instead: tests/fixtures/tokenizers is a copy of it.
"""
import itertools
import json
import os
import random
import subprocess
import sys
import unicodedata

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment

PACKAGES = ["tokenizers", "sentencepiece"]

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"\p{N}{1,3}", r"[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def corpus():
    """Something to train small vocabularies on: words with a tail of rare ones, numbers, code, other scripts."""
    rng = random.Random(7)
    syllables = "ka lo mi ter an der ing tion ver un re pro con th he in er st ou al".split()
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(800)]
    extra = ["don't", "I'm", "We'LL", "naïve", "Ünïcödé", "привет", "世界", "今天天气", "こんにちは", "안녕하세요", "مرحبا", "नमस्ते"]
    lines = []
    for _ in range(1500):
        line = " ".join(rng.choice(words) for _ in range(rng.randint(3, 14)))
        if rng.random() < 0.5:
            line += " " + " ".join(rng.choice(extra) for _ in range(3))
        if rng.random() < 0.3:
            line += f" {rng.randint(0, 99999)}, {rng.random():.5f};\n"
            line += f"    if (x == {rng.randint(0, 9)}) {{ return; }}\r\n"
        lines.append(line.capitalize() + ".\n")
    return lines


def character(rng, planes):
    while True:
        c = rng.randrange(*planes)
        if not 0xD800 <= c <= 0xDFFF:
            return chr(c)


def without_middles(points):
    """Code points, but every 16th of the middles of long runs of one kind: nothing tells 110,000 ideographs apart."""
    kind = lambda c: unicodedata.category(chr(c)) + unicodedata.decomposition(chr(c))
    for _, run in itertools.groupby(points, kind):
        run = list(run)
        # unassigned ones may be assigned by now
        middle = run[64:-64] if len(run) > 2048 and kind(run[0]) in ("Lo", "Co") else []
        yield from run if not middle else run[:64] + middle[::16] + run[-64:]


def strings(specials, every_point):
    """Text that a tokenizer may meet, and some it should not."""
    rng = random.Random(11)
    spaces = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
    marks = [chr(c) for c in range(0x300, 0x20000) if unicodedata.combining(chr(c))]
    contractions = ["'s", "'S", "'ſ", "'t", "'T", "'re", "'RE", "'rE", "'ve", "'Ve", "'m", "'M", "'ll", "'lL", "'d",
                    "'D", "'K", "’s", "''", "'"]
    words = "the quick brown Fox jumps over LAZY dogs don't I'm we'LL 3.14 1234567 x==y {return;} naïve café".split()
    result = ["", " ", "\n", "\r\n", "a", "'", "''", "\0", "a\0b", "\ufffd", "\U0010ffff", "ﬁ ß ẞ K Å Ω", "a" * 3000,
              " " * 3000]
    result += ["\n" * 1000 + "a", " \n" * 500, "ab" * 2000, "1" * 1000, "é" * 500, "e\u0301" * 500, "한" * 300,
               "각" * 200]
    # Code points once or more, in their order and among neighbours of other kinds.
    points = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
    assigned = [c for c in points if c < 0x33500 or 0xE0000 <= c < 0xE0200]
    assigned = assigned if every_point else list(without_middles(assigned))
    for i in range(0, len(assigned), 512):
        result.append("".join(map(chr, assigned[i : i + 512])))
        if i % 2048 == 0:
            result.append("".join("a1"[c % 2] + chr(c) for c in assigned[i : i + 512]))
    pools = [
        lambda: rng.choice(words),
        lambda: rng.choice(spaces) * rng.choice([1, 1, 2, 5]),
        lambda: rng.choice(contractions),
        lambda: character(rng, (0x20, 0x7F)),
        lambda: character(rng, (0x80, 0x800)),
        lambda: character(rng, (0x800, 0x10000)),
        lambda: character(rng, (0x10000, 0x33000)),
        lambda: character(rng, (0x33000, 0x110000)),
        lambda: "".join(rng.choices(marks, k=rng.randint(1, 6))),
        lambda: rng.choice("aeiouAEIOU") + "".join(rng.choices(marks, k=2)),
        lambda: "".join(rng.choices("0123456789٠١२३四Ⅷ½", k=rng.randint(1, 8))),
        lambda: "".join(chr(rng.randrange(0x1100, 0x1200)) for _ in range(4)),
        lambda: rng.choice("👩‍👩‍👧‍👦 🇩🇪 👍🏽 ☃ 🙂".split()),
        lambda: rng.choice(specials),
        lambda: rng.choice(["\r\n", "\n\n", "\r", "\n \n", "  \n"]),
        lambda: character(rng, (0x4E00, 0xA000)) * rng.randint(1, 4),
    ]
    for n in range(1500):
        few = rng.sample(pools, rng.randint(1, 4)) if n % 3 else pools
        result.append("".join(rng.choice(few)() for _ in range(rng.randint(1, 24))))
    for n in range(100):
        result.append(" ".join(rng.choice(words) for _ in range(rng.randint(1, 40))))
    return result


def spell_all_merges(path):
    """As the file of LLaMA-3 has it: every way to make a token is a merge, and merges are written as "left right"."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    vocabulary = data["model"]["vocab"]
    merges = []
    for token in sorted(vocabulary, key=vocabulary.get):
        ways = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [way for way in ways if way[0] in vocabulary and way[1] in vocabulary]
        merges += sorted(known, key=lambda way: (vocabulary[way[0]], vocabulary[way[1]]))
    assert len(merges) > len(data["model"]["merges"])
    data["model"]["merges"] = [" ".join(pair) for pair in merges]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


def make_tokenizers(folder, vocabulary=900):
    """Small vocabularies of the families, as files: name and path."""
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                            trainers)

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    byte_level = lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = lambda pattern, behavior="isolated", invert=False: pre_tokenizers.Split(Regex(pattern), behavior, invert)
    sequence = lambda *parts: pre_tokenizers.Sequence([*parts, byte_level()])
    family = lambda pattern: sequence(split(pattern))
    digits = lambda single: pre_tokenizers.Digits(individual_digits=single)
    odd = [
        AddedToken("<|endoftext|>", special=True, normalized=False),
        AddedToken("<|im_end|>", special=True, normalized=False),
        AddedToken("<mask>", lstrip=True, rstrip=False, special=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
        AddedToken("word", single_word=True, normalized=False),
        AddedToken("wörd", single_word=True, normalized=True),
        AddedToken("cafe\u0301", normalized=True),
        AddedToken("<|end", normalized=False),
        AddedToken("    ", normalized=False),
    ]
    plans = {
        "gpt2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), odd[:1], {}),
        "gpt2-prefix": (None, pre_tokenizers.ByteLevel(add_prefix_space=True), odd[:6], {}),
        "llama3": (None, family(LLAMA3), odd[:1], {"ignore_merges": True}),
        "qwen": (normalizers.NFC(), family(QWEN), odd[:2], {}),
        "qwen-odd": (normalizers.Sequence([normalizers.NFC()]), family(QWEN), odd, {}),
        "o200k": (None, family(O200K), odd[:3], {"ignore_merges": True}),
        "digits": (None, pre_tokenizers.Sequence([digits(True), pre_tokenizers.ByteLevel(add_prefix_space=True)]),
                   odd[:2], {}),
        "digits-runs": (None, sequence(digits(False)), odd, {}),
        "deepseek": (None, sequence(*map(split, DEEPSEEK)), odd[:2], {}),
        "cl100k": (None, family(CL100K), odd[:2], {}),
        "words": (None, sequence(split(r"\w+|[^\w\s]+", "removed", True)), odd[:1], {}),
        "next": (None, sequence(split(r"\s", "merged_with_next")), odd[:1], {}),
        "previous": (None, sequence(split(r"[^\S\n]|\d+", "merged_with_previous")), odd[:1], {}),
        "contiguous": (None, sequence(split(r"[\p{Han}\p{Hiragana}]|\p{P}", "contiguous")), odd[:1], {}),
        "anchors": (None, family(r"^\s+|(?<=[a-z])\d++|\s+$|.\x{301}|'(?i:[sdmt]|ll|ve|re)|\p{^L}{2,3}+"), odd[:1], {}),
        "string": (None, sequence(pre_tokenizers.Split(" ", "merged_with_previous")), odd[:1], {}),
        "small-alphabet": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), odd[:1], {"small": True}),
        "unknown": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), odd[:1],
                    {"small": True, "unk_token": "<unk>"}),
        "unknown-fused": (None, pre_tokenizers.ByteLevel(add_prefix_space=False), odd[:1],
                          {"small": True, "unk_token": "<unk>", "fuse_unk": True}),
    }
    lines, made = corpus(), []
    for name, (normalizer, pre_tokenizer, added, options) in plans.items():
        options = dict(options)
        small = options.pop("small", False)
        tokenizer = Tokenizer(models.BPE(**options))
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            show_progress=False,
            initial_alphabet=[] if small else alphabet,
            special_tokens=["<unk>"] if "unk_token" in options else [],
        )
        tokenizer.train_from_iterator(["abcde fgh ijk abc de 123\n"] if small else lines, trainer)
        tokenizer.add_tokens(added)
        path = os.path.join(folder, f"{name}.tokenizer.json")
        tokenizer.save(path)
        if name == "llama3":
            spell_all_merges(path)
        made.append((name, path))
    return made


def run_jsonl(redline, path, rows, *flags):
    text = "".join(json.dumps(row, ensure_ascii=index % 2 == 0) + "\n" for index, row in enumerate(rows))
    command = [redline, "tokenize", "--tokenizer", path, "--jsonl", *flags]
    result = subprocess.run(command, input=text.encode("utf-8", "surrogatepass"), capture_output=True)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {result.returncode}: {result.stderr.decode()}")
    return [json.loads(line) for line in result.stdout.decode().split("\n") if line]


def compare(redline, name, path, texts, encode, decode):
    """The number of texts that differ; the first few are shown."""
    rows = run_jsonl(redline, path, [{"text": t} for t in texts])
    expected = encode(texts)
    assert len(rows) == len(texts), f"{name}: {len(rows)} rows for {len(texts)} texts"
    bad = [i for i, row in enumerate(rows) if row["ids"] != expected[i]]
    rng = random.Random(3)
    # Also ids that no text would give: decoding must replace the same bytes.
    ids = expected + [rng.sample(e, len(e)) for e in expected[:400] if len(e) < 200]
    back = run_jsonl(redline, path, [{"ids": e} for e in ids], "--decode")
    bad_back = [i for i, row in enumerate(back) if row["text"] != decode(ids[i])]
    print(f"{name}: {len(texts)} texts, {len(bad)} encode otherwise, {len(bad_back)} decode otherwise")
    for i in bad[:3]:
        print(f"  {texts[i][:200]!r}\n    redline {rows[i]['ids'][:40]}\n    library {expected[i][:40]}")
    for i in bad_back[:3]:
        print(f"  {ids[i][:40]}\n    redline {back[i]['text'][:100]!r}\n    library {decode(ids[i])[:100]!r}")
    return len(bad) + len(bad_back)


def compare_library(redline, name, path, texts):
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(path)
    encode = lambda batch: [e.ids for e in library.encode_batch(batch, add_special_tokens=False)]
    return compare(redline, name, path, texts, encode, lambda ids: library.decode(ids, skip_special_tokens=False))


def train_with_redline(redline, folder, texts):
    """Files that redline trained, read by the library."""
    corpus_path = os.path.join(folder, "corpus.txt")
    with open(corpus_path, "w", encoding="utf-8", newline="") as file:
        file.write("".join(corpus()))
    bad = 0
    for pattern in ("gpt2", "llama3", "qwen"):
        path = os.path.join(folder, f"trained-{pattern}.json")
        command = [redline, "tokenizer", "train", "--vocab-size", "1000", "--pattern", pattern, "--out", path]
        subprocess.run(command + ["--special", "<|endoftext|>", "--special", "<|pad|>", corpus_path], check=True,
                       capture_output=True)
        bad += compare_library(redline, f"trained by redline, {pattern}", path, texts)
    return bad


def train_sentencepiece(folder, prefix, vocabulary):
    import sentencepiece

    corpus_path = os.path.join(folder, "sentences.txt")
    with open(corpus_path, "w", encoding="utf-8") as file:
        file.write("".join(line.replace("\n", " ") + "\n" for line in corpus()))
    sentencepiece.SentencePieceTrainer.train(
        input=corpus_path, model_prefix=prefix, vocab_size=vocabulary, character_coverage=0.99, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        minloglevel=2,
    )


def compare_sentencepiece(redline, folder, texts):
    import sentencepiece

    prefix = os.path.join(folder, "pieces")
    train_sentencepiece(folder, prefix, 800)
    library = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
    texts = [t for t in texts if "\0" not in t]
    return compare(redline, "sentencepiece", prefix + ".model", texts, library.encode, library.decode)


def write_fixtures(folder, texts):
    import sentencepiece
    from tokenizers import Tokenizer

    out = os.path.join(folder, "fixtures")
    os.makedirs(out, exist_ok=True)
    chosen = [t for t in texts if len(t) < 60][:20] + [t for t in texts[700:] if 10 < len(t) < 80][::30][:60]
    for name, path in make_tokenizers(folder, 500):
        if name not in ("gpt2", "llama3", "qwen-odd", "o200k"):
            continue
        with open(path, encoding="utf-8") as file, open(os.path.join(out, f"{name}.tokenizer.json"), "w",
                                                        encoding="utf-8") as to:
            json.dump(json.load(file), to, ensure_ascii=False, separators=(",", ":"))
        library = Tokenizer.from_file(path)
        write_cases(out, name, chosen, lambda t: library.encode(t, add_special_tokens=False).ids,
                    lambda i: library.decode(i, skip_special_tokens=False))
    train_sentencepiece(folder, os.path.join(out, "pieces"), 500)
    library = sentencepiece.SentencePieceProcessor(model_file=os.path.join(out, "pieces.model"))
    write_cases(out, "pieces", [t for t in chosen if "\0" not in t], library.encode, library.decode)
    os.remove(os.path.join(out, "pieces.vocab"))


def write_cases(folder, name, texts, encode, decode):
    cases = [{"text": t, "ids": encode(t), "decoded": decode(encode(t))} for t in texts]
    with open(os.path.join(folder, f"{name}.cases.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def main():
    redline, folder = sys.argv[1], sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    enter_environment(folder, PACKAGES)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    specials = ["<|endoftext|>", "<|im_end|>", "<mask>", "<r>", "<both>", "word", "wörd", "wo\u0308rd", "caf\u00e9",
                "cafe\u0301", "<|end", "    ", "<|pad|>"]
    texts = strings(specials, every_point=False)
    if "--fixtures" in sys.argv:
        return write_fixtures(folder, texts)
    bad = 0
    for number, (name, path) in enumerate(make_tokenizers(folder)):
        if name == "llama3":
            some = strings(specials, every_point=True)
        elif name in ("gpt2", "qwen-odd"):
            some = texts
        else:  # each its own fifth
            some = texts[:100] + texts[100 + number % 5::5]
        bad += compare_library(redline, name, path, some)
    bad += train_with_redline(redline, folder, texts[::5])
    bad += compare_sentencepiece(redline, folder, texts[::5])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
