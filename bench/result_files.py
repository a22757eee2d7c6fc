"""Files of measurements, bench/results/*.json: a head that says when, where, of which versions and by which command,
and `rows`, one a line, in the units that their keys name. `about` has sentences for the page: data, sizes, what a
column means. Not known is null."""
import json
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")
HEAD = ["date", "machine", "versions", "command"]  # what every file has before its rows


def read(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    missing = [key for key in [*HEAD, "rows"] if key not in result]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}")
    return result


def write(path, result):
    missing = [key for key in [*HEAD, "rows"] if key not in result]
    if missing:
        raise ValueError(f"{path}: no {', '.join(missing)}")
    head = {key: value for key, value in result.items() if key != "rows"}
    if "about" not in head and os.path.exists(path):  # a new measurement of the same kind
        kept = read(path).get("about")
        if kept:
            head["about"] = kept
            print(f"{path}: kept its sentences: {kept}", file=sys.stderr)
    lines = json.dumps(head, indent=2, ensure_ascii=False)[:-2] + ',\n  "rows": [\n'
    lines += ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in result["rows"])
    with open(path, "w", encoding="utf-8") as file:
        file.write(lines + "\n  ]\n}\n")
