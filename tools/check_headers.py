#!/usr/bin/env python3
"""Checks that every header of src/ and tests/ compiles by itself: it includes what it uses.

Usage: check_headers.py [BUILD]

BUILD (build) is a configured build folder: its compile_commands.json has the flags. Batches of files that are compiled
together hide a missing include; this finds it in a header. Nothing is written.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DROPPED = {"-o": 1, "-c": 1, "-MF": 1, "-MT": 1, "-MD": 0, "-MMD": 0}  # flags, and how many words follow


def flags_of(command):
    """The words of a compile command but the launcher, the file and what is written."""
    words = shlex.split(command)
    while not re.search(r"(\+\+|g\+\+|clang\+\+|c\+\+)[-.0-9]*$", words[0]):
        words.pop(0)
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in DROPPED:
            skip = DROPPED[word]
        else:
            kept.append(word)
    return kept


def commands_by_room(build):
    """For every room of src/ and tests/ the flags of one of its files, by the name of its target."""
    with open(os.path.join(build, "compile_commands.json")) as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        target = re.search(r"CMakeFiles/([^/]+)\.dir/", entry["command"])
        if target and not entry["file"].endswith(".cu"):
            found.setdefault(target.group(1), (entry["directory"], flags_of(entry["command"])))
    return found


def headers(with_cuda):
    listed = subprocess.run(["git", "ls-files", "src/**.h", "src/*.h", "tests/**.h", "tests/*.h"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split()
    listed = [h for h in listed if os.path.exists(os.path.join(ROOT, h))]
    return [h for h in listed if with_cuda or not re.search(r"/(cuda|nccl)/|_card\.h$|/card_", h)]


def check(header, commands):
    place, room = header.split("/")[:2]
    target = ("redline_" if place == "src" else "tests_") + room
    directory, flags = commands.get(target) or commands["tests_model" if place == "tests" else "redline_base"]
    alone = ["-fsyntax-only", "-w", "-x", "c++", "-include", os.path.join(ROOT, header), os.devnull]
    done = subprocess.run([*flags, *alone], cwd=directory, capture_output=True, text=True)
    return header, done.stderr if done.returncode else ""


def main():
    build = os.path.join(ROOT, sys.argv[1] if len(sys.argv) > 1 else "build")
    commands = commands_by_room(build)
    with open(os.path.join(build, "CMakeCache.txt")) as cache:
        with_cuda = "REDLINE_CUDA_BUILT:INTERNAL=ON" in cache.read()
    listed, bad = headers(with_cuda), 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for header, error in pool.map(lambda h: check(h, commands), listed):
            if error:
                bad += 1
                first = next((line for line in error.splitlines() if "error:" in line), error.splitlines()[0])
                print(f"{header}: does not compile by itself: {first}")
    print(f"check_headers: {len(listed)} headers, {bad} violations")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
