#!/usr/bin/env python3
"""Converts a folder of `redline export` to GGUF with llama.cpp's own converter.

Usage: to_gguf.py --llama-cpp CHECKOUT MODEL [options of convert_hf_to_gguf.py]

The converter knows how a tokenizer splits text only by a hash of the tokens that one test text becomes. They depend on
the vocabulary, so it knows published tokenizers and no new one. This program reads the split from the folder's
tokenizer.json, tells the converter its name in llama.cpp, and leaves everything else to it. Exit status 2: bad input.
"""
import json
import os
import runpy
import sys

# The splits that redline trains with (redline tokenizer train --pattern), and what llama.cpp calls them.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
NAMES = {LLAMA3: "llama-bpe", LLAMA3.replace("{1,3}", ""): "qwen2"}
GPT2 = "gpt-2"


class BadInput(Exception):
    """One sentence for the user."""


def split_name(tokenizer, file):
    """What llama.cpp calls the way in which a tokenizer.json splits text."""
    pre = tokenizer.get("pre_tokenizer") or {}
    parts = pre.get("pretokenizers", [pre])
    if len(parts) == 1 and parts[0].get("type") == "ByteLevel" and parts[0].get("use_regex", True):
        return GPT2
    if len(parts) == 2 and parts[0].get("type") == "Split" and parts[1].get("type") == "ByteLevel":
        name = NAMES.get(parts[0].get("pattern", {}).get("Regex"))
        if name:
            return name
    raise BadInput(f"{file}: llama.cpp has no name that is known here for how it splits text; the splits of GPT-2, "
                   "LLaMA-3 and Qwen have one")


def read_tokenizer(model):
    file = os.path.join(model, "tokenizer.json")
    try:
        with open(file, encoding="utf-8") as stream:
            return json.load(stream), file
    except FileNotFoundError:
        raise BadInput(f"{file} is not there; a folder with a sentencepiece model needs no more than "
                       "convert_hf_to_gguf.py itself") from None
    except ValueError as error:
        raise BadInput(f"{file}: {error}") from None


def teach(base, gguf, tokenizer, name):
    """Lets the converter's classes answer with `name`, and write merges where the tokenizer has none."""
    known = base.TextModel.get_vocab_base_pre

    def get_vocab_base_pre(self, loaded):
        try:
            return known(self, loaded)  # a published tokenizer
        except NotImplementedError:
            return name

    base.TextModel.get_vocab_base_pre = get_vocab_base_pre
    if not tokenizer["model"].get("merges"):
        # llama.cpp refuses a file without merges, and a list in GGUF has an element at least. One of two whole special
        # tokens is never made, since merging begins with single characters.
        end = tokenizer["added_tokens"][0]["content"]
        write = gguf.SpecialVocab.add_to_gguf

        def add_to_gguf(self, writer, *rest, **more):
            self.merges = self.merges or [f"{end} {end}"]
            return write(self, writer, *rest, **more)

        gguf.SpecialVocab.add_to_gguf = add_to_gguf


def main(words):
    if len(words) < 3 or words[0] != "--llama-cpp":
        raise BadInput("usage: to_gguf.py --llama-cpp CHECKOUT MODEL [options of convert_hf_to_gguf.py]")
    checkout, model, options = os.path.abspath(words[1]), words[2], words[3:]
    converter = os.path.join(checkout, "convert_hf_to_gguf.py")
    if not os.path.exists(converter):
        raise BadInput(f"{converter} is not there; --llama-cpp takes a checkout of github.com/ggml-org/llama.cpp")
    tokenizer, file = read_tokenizer(model)
    name = split_name(tokenizer, file)
    sys.path.insert(0, checkout)
    sys.path.insert(1, os.path.join(checkout, "gguf-py"))
    try:
        from conversion import base
    except ModuleNotFoundError as error:
        if error.name == "conversion":
            raise BadInput(
                f"{checkout} is older than the converter's folder conversion/; take a newer llama.cpp") from None
        raise BadInput(f"Python has no {error.name}; pip install -r "
                       f"{checkout}/requirements/requirements-convert_hf_to_gguf.txt") from None
    teach(base, base.gguf, tokenizer, name)
    sys.argv = [converter, model, *options]
    runpy.run_path(converter, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BadInput as problem:
        print(f"to_gguf: {problem}", file=sys.stderr)
        sys.exit(2)
