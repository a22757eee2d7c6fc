#!/usr/bin/env python3
"""Holds lines to 120 columns: C++, Python, JavaScript and HTML with their comments, and the prose of the docs.

Longer may be: tables, code blocks and headings of Markdown, lines behind `// clang-format off`, and a word that has no
place to break. Prints one line a violation and exits 1 when there is any.

  check_lines.py [ROOT]           (ROOT: the repository, by default the one this script is in)
  check_lines.py --wrap [ROOT]    breaks the paragraphs that have a line too long, in comments of C++ and in Markdown
"""
import pathlib
import re
import sys

COLUMNS = 120
SOURCES = {".h", ".cuh", ".cpp", ".cu"}
SCRIPTS = {".py", ".js", ".html"}
ROOMS = ["src", "tests", "bench", "fuzz", "tools", "python"]
ITEM = re.compile(r"^(\s*)(?:[-*]|\d+\.)\s+")
# A line that begins with one of these would be read as a list, a heading, a quote or a table.
NO_LINE_START = re.compile(r"^(?:[-+*#>|=]|#+|\d+[.)])$|^\|")
COMMENT = re.compile(r"^(\s*)//(?: (?!\s)(.*))?$")


def words_of(text):
    """The places where a line may break: between words, not inside of `code`, nor before a mark of Markdown."""
    words = []
    inside = False
    for word in text.split():
        if words and (inside or NO_LINE_START.match(word)):
            words[-1] += " " + word
        else:
            words.append(word)
        inside ^= word.count("`") % 2 == 1
    return words


def wrapped(text, first, other):
    """The words of `text` in lines that begin with `first`, then with `other`."""
    lines, line = [], first
    for word in words_of(text):
        if line not in (first, other) and len(line) + 1 + len(word) > COLUMNS:
            lines.append(line)
            line = other
        line += ("" if line in (first, other) else " ") + word
    return lines + [line]


def too_long(line):
    """Whether a line is longer than it may be: a single word may be."""
    return len(line) > COLUMNS and len(words_of(line.strip().removeprefix("//"))) > 1


def markdown_blocks(lines):
    """(first line, one behind the last, whether it is prose) for every block of a document."""
    fence, start = False, None
    for number, line in enumerate(lines + [""]):
        marks_fence = line.lstrip().startswith("```")
        plain = not fence and not marks_fence and line.strip() and not re.match(r"\s*\||#|<!--", line)
        if start is not None and (not plain or ITEM.match(line)):
            yield start, number, True
            start = None
        if plain and start is None:
            start = number
        fence ^= marks_fence


def comment_blocks(lines):
    """The paragraphs of whole-line comments, and each other line by itself."""
    free, start = False, None
    for number, line in enumerate(lines + [""]):
        if "// clang-format off" in line:
            free = True
        if "// clang-format on" in line:
            free = False
        match = COMMENT.match(line)
        plain = bool(match and match[2] and not match[2].startswith(("- ", "|", "clang-format")))
        begun = start is not None and COMMENT.match(lines[start])[1]
        if start is not None and (not plain or match[1] != begun):
            yield start, number, True
            start = None
        if plain and start is None:
            start = number
        if not plain and not free and number < len(lines):
            yield number, number + 1, False


def single_lines(lines):
    """Each line by itself: scripts are wrapped by hand."""
    return ((number, number + 1, False) for number in range(len(lines)))


def blocks_of(suffix):
    return markdown_blocks if suffix == ".md" else single_lines if suffix in SCRIPTS else comment_blocks


def check(path, wrap):
    """Returns the numbers of the lines that are too long; with `wrap` they are broken first, where that can be done."""
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    markdown = path.suffix == ".md"
    out, last, wrong = [], 0, []
    for begin, end, prose in blocks_of(path.suffix)(lines):
        block = lines[begin:end]
        if wrap and prose and any(too_long(line) for line in block):
            if markdown:
                first = (ITEM.match(block[0]) or re.match(r"\s*", block[0]))[0]
                block = wrapped(" ".join([block[0][len(first):]] + block[1:]), first, " " * len(first))
            else:
                first = COMMENT.match(block[0])[1] + "// "
                block = wrapped(" ".join(COMMENT.match(line)[2] for line in block), first, first)
        out += lines[last:begin]
        wrong += [len(out) + 1 + n for n, line in enumerate(block) if too_long(line)]
        out += block
        last = end
    out += lines[last:]
    if wrap and out != lines:
        path.write_text("\n".join(out), encoding="utf-8")
    return wrong


def files_of(root):
    for room in ROOMS:
        yield from sorted(p for p in (root / room).rglob("*") if p.suffix in SOURCES | SCRIPTS and p.is_file())
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").glob("*.md"))


def main(arguments):
    wrap = arguments[:1] == ["--wrap"]
    rest = arguments[1:] if wrap else arguments
    root = pathlib.Path(rest[0]) if rest else pathlib.Path(__file__).resolve().parent.parent
    count = violations = 0
    for path in files_of(root):
        count += 1
        for number in check(path, wrap):
            print(f"{path.relative_to(root).as_posix()}:{number}: longer than {COLUMNS} columns")
            violations += 1
    print(f"check_lines: {count} files, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
