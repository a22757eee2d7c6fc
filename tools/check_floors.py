#!/usr/bin/env python3
"""Holds the floors of src/: an include goes to the same room or to a strictly lower floor.

Rooms on one floor do not include each other. Prints one line a violation and exits 1 when there is any.
Usage: check_floors.py [ROOT]   (ROOT: the repository, by default the one this script is in)
"""

import pathlib
import re
import sys

# The one table: lowest floor first. CMakeLists.txt links by the same floors; check_floors_test.py compares the two.
FLOORS = [
    ["base"],
    ["io", "config", "device"],
    ["data", "ops", "optim", "dist"],
    ["program"],
    ["model"],
    ["train", "infer"],
    ["perf", "report"],
    ["cli"],
]

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS, start=1) for room in rooms}
SUFFIXES = {".h", ".hpp", ".cuh", ".inl", ".c", ".cc", ".cpp", ".cu"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def check_include(room, quoted, angled):
    """Returns what is wrong with an include in a file of `room`, or None."""
    target = (quoted or angled).split("/")[0]
    if angled and target not in FLOOR_OF:
        return None  # the standard library or a dependency
    if target not in FLOOR_OF or "/" not in (quoted or angled):
        return f'"{quoted or angled}" starts with no room; write the path from src/, and <> for libraries'
    if target == room or FLOOR_OF[target] < FLOOR_OF[room]:
        return None
    return f"{room} (floor {FLOOR_OF[room]}) includes {target} (floor {FLOOR_OF[target]})"


def check_tree(root):
    """Returns (violations, number of files read) for the repository at `root`."""
    source = root / "src"
    violations = []
    files = sorted(p for p in source.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    for path in files:
        name = path.relative_to(root).as_posix()
        parts = path.relative_to(source).parts
        room = parts[0]
        if len(parts) < 2 or room not in FLOOR_OF:
            violations.append(f"{name}:1: {room} is not a room; the rooms are {', '.join(FLOOR_OF)}")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            match = INCLUDE.match(line)
            wrong = check_include(room, *match.groups()) if match else None
            if wrong:
                violations.append(f"{name}:{number}: {wrong}")
    return violations, len(files)


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    if not (root / "src").is_dir():
        print(f"check_floors: {root} has no src folder", file=sys.stderr)
        return 2
    violations, count = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"check_floors: {count} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
