#!/usr/bin/env python3
"""Runs the commands of the documentation that need neither a card nor files: what stands below `$ redline ...` in the
pages is what it prints, and commands in the text are taken. commands_test.py PROGRAM."""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PRESETS = {path.stem for path in (ROOT / "configs").glob("*.toml")}
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Files and machines of one's own, and words that stand for them.
NEEDED = re.compile(r"--card cpu|--tokenizer|--out|--trace|runs/|\.toml|\.json|[A-Z]{3,}|…|\b(?:Qwen|models)")


def alone(words):
    """Whether a command answers anywhere: a plan, a diagnosis by it, keys, or statistics of the generated text."""
    if NEEDED.search(words.split(" | ")[0]):
        return False
    first, *rest = words.split(" | ")[0].split()
    if first == "data":
        return rest[:2] == ["stats", "ping"]
    if first == "doctor":
        return "--card" in rest
    if first == "train":  # refused words of others, which start nothing
        return bool(re.match(r"quick [a-z0-9_]+=\S+$", " ".join(rest)))
    return first == "config" or first == "plan" and bool(PRESETS & set(rest)) and "--card" in rest


def shown():
    """(page, command, lines below it) of each `$ redline` in a block of the pages."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if not block.startswith("$ redline "):
                continue
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *lines = part.rstrip("\n").split("\n")
                if command.startswith("redline ") and alone(command.removeprefix("redline ")):
                    yield page.name, command.removeprefix("redline "), lines


def named():
    """Commands in the text and in blocks of examples, each once."""
    found = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found.update(re.findall(r"`redline ((?:plan|config|doctor|data stats) [^`\n]+)`", text))
        for block in BLOCK.findall(text):  # two spaces and more begin what the example says of itself
            examples = re.findall(r"^redline ((?:plan|config|doctor|data stats) .+)$", block, re.MULTILINE)
            found.update(re.split(r" {2,}| # ", words)[0] for words in examples)
    return sorted(words for words in found if ">" not in words and alone(words))


def ran(words):
    """Exit status, of a pipe its end's, and what it says: on standard error only where it fails, since a slow machine
    shows progress there. In a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", f"redline() {{ \"$REDLINE\" \"$@\"; }}; redline {words}"], text=True,
                              cwd=folder, env={**os.environ, "REDLINE": PROGRAM}, capture_output=True, check=False)
    return done.returncode, done.stdout + (done.stderr if done.returncode else "")


def all_ran(commands):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return zip(commands, pool.map(ran, commands))


class DocsCommandsTest(unittest.TestCase):
    def test_pages_show_what_is_printed(self):
        there = list(shown())
        self.assertGreater(len(there), 7)
        said = dict(all_ran(sorted({command for _, command, _ in there})))
        for page, command, lines in there:
            out = said[command][1].rstrip("\n").split("\n")
            wanted = [line.rstrip() for line in lines]
            while wanted and not wanted[-1]:
                wanted.pop()
            if wanted:
                self.assertEqual([line.rstrip() for line in out if line != "--"], [w for w in wanted if w != "--"],
                                 f"{page}: redline {command}")

    def test_commands_in_the_text_are_taken(self):
        commands = named()
        self.assertGreater(len(commands), 30)
        for words, (status, said) in all_ran(commands):
            self.assertIn(status, (0, 1) if words.startswith("doctor") else (0,), f"redline {words}: {said[-300:]}")

    def test_what_needs_files_is_left_out(self):
        for words in ("plan my.toml --card h100", "data stats DATA --seq-len 8", "doctor runs/a", "plan gqa-180m",
                      "train quick", "plan quick --card cpu", "config --markdown > docs/config.md --out x"):
            self.assertFalse(alone(words), words)
        self.assertTrue(alone("plan gqa-180m --card h100 | head -1"))


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
