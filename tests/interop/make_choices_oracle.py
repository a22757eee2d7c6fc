#!/usr/bin/env python3
"""Writes tests/fixtures/choices: questions, and what transformers gives as the log-probability of each choice.

Usage: make_choices_oracle.py [MODEL_FOLDER]      (torch, transformers and numpy must be there)

The model is tests/fixtures/llama-mha. Tokens are bytes, each as its own id, and once more those of a small tokenizer
that joins letters. As the common harness has it, spaces at the end of a question are the choice's, and as many tokens
as the question alone has are the question's. Every pair runs alone through the model in float64. redline eval --choices
must agree (tests/infer/choices_test.cpp).
"""
import json
import os
import sys

import tokenizers
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "fixtures", "choices")
QUESTIONS = [
    ("The sky is", [" blue", " green", " a fish"], 0),
    ("2 + 2 =", [" 4", " 22"], 0),
    ("Water boils at ", ["100 degrees", "three o'clock", "dawn", "0"], 0),  # its last space becomes the choice's
    ("Größe:", [" klein", " groß", " 大"], 1),
    ("x", ["y", "zzzzzzzzzzzzzzzzzzzzzzzz"], 1),
]


def log_probability(model, encode, question, choice):
    context = encode(question.rstrip(" "))
    tokens = encode(question + choice)
    with torch.no_grad():
        logits = model(torch.tensor([tokens[:-1]])).logits[0].log_softmax(-1)
    return sum(logits[i - 1, tokens[i]].item() for i in range(len(context), len(tokens)))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "..", "fixtures", "llama-mha")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    os.makedirs(OUT, exist_ok=True)
    with open(os.path.join(OUT, "questions.jsonl"), "w") as out:
        for question, choices, answer in QUESTIONS:
            row = {"question": question, "choices": choices, "answer": answer}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    gpt2 = tokenizers.Tokenizer.from_file(os.path.join(HERE, "..", "fixtures", "tokenizers", "gpt2.tokenizer.json"))
    oracle = {"transformers": transformers.__version__}
    for name, encode in [("bytes", lambda text: list(text.encode())), ("gpt2", lambda text: gpt2.encode(text).ids)]:
        oracle[name] = [[round(log_probability(model, encode, question, choice), 6) for choice in choices]
                        for question, choices, _ in QUESTIONS]
    with open(os.path.join(OUT, "oracle.json"), "w") as out:
        json.dump(oracle, out)
        out.write("\n")


if __name__ == "__main__":
    main()
