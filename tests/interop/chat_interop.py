#!/usr/bin/env python3
"""Conversations as tokens and masks, against transformers' apply_chat_template.

Usage: chat_interop.py REDLINE WORK_FOLDER

transformers and jinja2 are installed into a virtual environment in WORK_FOLDER where the interpreter does not have them
(exit 77 where that fails). Small tokenizers are made with a template each; `redline data prepare --chat` writes
conversations into shards, whose ids and masks must be those of transformers, also where the template is named and not
found. Every exit status but 0 is a difference.
"""
import itertools
import json
import os
import random
import shutil
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from packages import enter_environment

MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
         "<|eot_id|>"]

# {% generation %} tells transformers what an answer is; redline must find the same by the marks.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{ '\\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a test.\\nBe one.<|im_end|>\\n' }}"
    "{% endif %}" + CHATML
)
LLAMA3 = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endgeneration %}"
    "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
)
# Qwen3's handling of thoughts, without its tools.
QWEN3 = """{%- set at = namespace(last_query_index=messages|length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not at.found and message.role == 'user' %}
        {%- set at.found = true %}
        {%- set at.last_query_index = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- else %}
        {%- set content = message.content %}
        {%- set thoughts = message.reasoning_content or '' %}
        {%- if not thoughts and '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if loop.index0 > at.last_query_index and (loop.last or thoughts) %}
            {{- '<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- endif %}
{%- endfor %}"""


def make_tokenizer(folder, pattern, template, jinja_file):
    """A byte-level BPE over some text, with the marks as special tokens and the template beside it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)
    text = "system user assistant\n\nAnswer the question, briefly.\n\n\n  Because it is so! <think>\n\n</think>\n\n"
    tokenizer.train_from_iterator([text] * 20, trainer)
    os.makedirs(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
              "eos_token": "<|endoftext|>"}
    if jinja_file:
        with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
            file.write(template)
    else:
        config["chat_template"] = template
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(config, file)


def conversations():
    rng = random.Random(3)
    say = lambda role, content: {"role": role, "content": content}
    yield [say("user", "Why?"), say("assistant", "Because it is so!")]
    yield [say("system", "Be brief."), say("user", "Why?"), say("assistant", "So."), say("user", "And?"),
           say("assistant", "So!\n")]
    yield [say("user", "Why?"), say("assistant", "")]
    yield [say("user", ""), say("assistant", "\n\nAnswer"), say("user", "  more  "), say("assistant", "\n  two\n\n")]
    yield [say("user", "a"), say("assistant", "<think>\nhm\n</think>\n\nb"), say("user", "c"),
           say("assistant", "<think>\nso\n</think>\n\nd")]
    yield [say("user", "a"), say("assistant", "b"), say("assistant", "c")]
    yield [say("user", "a"), say("assistant", "b"), say("user", "and then")]
    yield [say("assistant", "I begin."), say("user", "no")]
    yield [say("user", "a"), {**say("assistant", "b"), "reasoning_content": "\nI see\n"}]
    words = ["question", " answer", "\n", "\n\n", "  ", "naïve", "世界", "<|im_start|>", "!", "12", "\t", "<think>"]
    for _ in range(60):
        text = lambda: "".join(rng.choice(words) for _ in range(rng.randint(0, 8)))
        turns = [say(role, text()) for _ in range(rng.randint(1, 3)) for role in ("user", "assistant")]
        yield ([say("system", text())] if rng.random() < 0.5 else []) + turns


def read_shards(folder):
    """(ids, learned) of each document, as docs/formats.md writes them down."""
    manifest = json.load(open(os.path.join(folder, "manifest.json")))
    assert manifest["version"] == 2 and manifest["dtype"] == "uint16", manifest["version"]
    for shard in manifest["splits"]["train"]["shards"]:
        read = lambda kind: open(os.path.join(folder, shard[kind]["name"]), "rb").read()
        ids = [i for (i,) in struct.iter_unpack("<H", read("token_file"))]
        offsets = [i for (i,) in struct.iter_unpack("<Q", read("offset_file"))]
        bits = read("mask_file")
        learned = [bits[i // 8] >> i % 8 & 1 for i in range(len(ids))]
        assert sum(learned) == shard["learned"]
        yield from ((ids[a:b], learned[a:b]) for a, b in itertools.pairwise(offsets))


TEXTS = ["one", "Answer the question,\n\nbriefly.", "naïve 世界", "  two  "]


def beginnings(redline, work):
    """Documents and conversations of tokenizers with a BOS token, against what transformers makes of them."""
    from tokenizers import Tokenizer, processors
    from transformers import AutoTokenizer
    from tokenizers_interop import LLAMA3 as LLAMA3_SPLIT

    bos, eos = "<|begin_of_text|>", "<|endoftext|>"
    ids = [(token, MARKS.index(token)) for token in (bos, eos)]
    cases = [  # what stands in tokenizer.json, and what tokenizer_config.json says
        ("no template", None, {}),
        ("BOS", f"{bos} $A", {}),
        ("BOS and EOS", f"{bos} $A {eos}", {}),
        ("BOS, and a configuration without", f"{bos} $A", {"add_bos_token": False}),
        ("no template, and a configuration with BOS", None, {"add_bos_token": True}),
    ]
    lines = os.path.join(work, "texts.jsonl")
    with open(lines, "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in TEXTS)
        file.writelines(json.dumps({"messages": messages}) + "\n" for messages in conversations())
    bad = 0
    for number, (name, template, more) in enumerate(cases):
        folder = os.path.join(work, f"begin{number}")
        shutil.rmtree(folder, ignore_errors=True)
        make_tokenizer(folder, LLAMA3_SPLIT, LLAMA3, jinja_file=False)
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        if template:
            tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        path = os.path.join(folder, "tokenizer_config.json")
        config = json.load(open(path))
        json.dump({**config, **more}, open(path, "w"))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        expected = []
        for text in TEXTS:
            made = list(tokenizer(text)["input_ids"])
            expected.append(made if made[-1] == ids[1][1] else made + [ids[1][1]])
        for messages in conversations():
            expected.append(list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]))
        out = os.path.join(work, "shards")
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([redline, "data", "prepare", "--tokenizer", folder, "--chat", "auto", "--out", out, lines],
                       check=True, capture_output=True, text=True)
        got = [ids for ids, _ in read_shards(out)]
        differ = [i for i, (a, b) in enumerate(zip(expected, got)) if a != b]
        bad += bool(differ) or len(got) != len(expected)
        print(f"  {'FAIL' if differ else 'ok  '} {name}: {len(got)} documents, the first {got[0]}")
        for i in differ[:3]:
            print("    expected", expected[i], "\n    got     ", got[i])
    return bad


def main():
    redline, work = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    os.makedirs(work, exist_ok=True)
    enter_environment(work, ["transformers", "jinja2"])
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from transformers import AutoTokenizer
    from tokenizers_interop import GPT2, LLAMA3 as LLAMA3_SPLIT, QWEN

    bad = 0
    lines = os.path.join(work, "chat.jsonl")
    with open(lines, "w") as file:
        file.writelines(json.dumps({"messages": messages}) + "\n" for messages in conversations())
    cases = [
        ("ChatML", CHATML, QWEN, ["auto", "chatml"]),
        ("ChatML with a system prompt", DEFAULT_SYSTEM, GPT2, ["auto"]),
        ("Llama-3", LLAMA3, LLAMA3_SPLIT, ["auto", "llama3"]),
        ("Qwen3", QWEN3, QWEN, ["auto"]),
    ]
    for number, (name, template, pattern, ways) in enumerate(cases):
        folder = os.path.join(work, f"tokenizer{number}")
        shutil.rmtree(folder, ignore_errors=True)
        make_tokenizer(folder, pattern, template, jinja_file=number % 2 == 1)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        expected = []
        for messages in conversations():
            made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                                 return_assistant_tokens_mask=True)
            expected.append((list(made["input_ids"]), list(made["assistant_masks"])))
        for how in ways:
            out = os.path.join(work, "shards")
            shutil.rmtree(out, ignore_errors=True)
            words = [redline, "data", "prepare", "--tokenizer", folder, "--chat", how, "--out", out, lines]
            subprocess.run(words, check=True, capture_output=True, text=True)
            got = list(read_shards(out))
            differ = [i for i, (a, b) in enumerate(zip(expected, got)) if a != b]
            bad += bool(differ) or len(got) != len(expected)
            learned = sum(sum(m) for _, m in got)
            print(f"  {'FAIL' if differ else 'ok  '} {name}, --chat {how}: {len(got)} conversations, "
                  f"{learned} tokens learned")
            for i in differ[:3]:
                print("    messages", list(conversations())[i], "\n    expected", expected[i], "\n    got     ", got[i])
    bad += beginnings(redline, work)
    print(f"{'differences' if bad else 'all the same'}: {len(cases)} templates, and how texts begin")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
