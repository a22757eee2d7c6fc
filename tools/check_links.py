#!/usr/bin/env python3
"""Follows the links of the documentation: every page and section that a page, the program, a test or a script names.

In Markdown that is each [text](page.md#section), and each file of the sources, as src/base/error.h; names in capitals
stand for any. In all files it is each docs/page.md#section, which warnings and errors print. Links into the web are not
followed. Prints one line a link that leads nowhere and exits 1 when there is any.

  check_links.py [ROOT]           (ROOT: the repository, by default the one this script is in)
"""
import pathlib
import re
import sys

ROOMS = ["src", "tests", "bench", "fuzz", "tools", "cmake", "configs", ".ci"]
SINGLE = ["Makefile", "CMakeLists.txt", "CMakePresets.json", "Dockerfile", "Dockerfile.cuda", "packages.txt"]
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
NAMED = re.compile(r"(?<![\w/.-])((?:docs/)?[A-Za-z_0-9]+\.(?:md|svg|png))(#[a-z0-9_-]+)?")
SOURCE = re.compile(r"(?<![\w/.-])(?:src|tests|bench|fuzz|tools|cmake|configs)/[\w./-]+"
                    r"\.(?:h|cpp|cu|cuh|py|sh|toml|json|csv)\b")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")


def anchor_of(heading):
    """A heading's anchor, as GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors_of(text):
    """The anchors of a page; a heading that comes again gets a number."""
    anchors, seen = set(), {}
    for line in FENCE.sub("", text).split("\n"):
        if match := re.match(r"#{1,6} (.*)", line):
            anchor = anchor_of(match[1])
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


def blanked(pattern, text):
    """`text` with spaces for each match: places and lines stay."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def links_of(text):
    """(place, target) of each link of a page, those in code left out."""
    plain = blanked(CODE, blanked(FENCE, text))
    for match in LINK.finditer(plain):
        if not re.match(r"[a-z]+:", match[1]):
            yield match.start(), match[1]


def named_in(text):
    """(place, target) of each page of docs/ that a text names, and of sections of other pages."""
    for match in NAMED.finditer(text):
        if match[1].startswith("docs/") or (match[2] and match[1].isupper()):
            yield match.start(), match[0]


def sources_in(text):
    """(place, target) of each file of the sources that a page names."""
    for match in SOURCE.finditer(text):
        if not re.search(r"[A-Z]{2}", match[0]):
            yield match.start(), match[0]


class Pages:
    """What there is to lead to; pages are read once."""

    def __init__(self):
        self.anchors = {}

    def wrong(self, folder, target, own):
        """Why `target`, seen from `folder` in the page `own`, leads nowhere; nothing where it does not."""
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve() if name else own
        if not path.exists():
            return "there is no such file"
        if not anchor:
            return None
        if path not in self.anchors:
            self.anchors[path] = anchors_of(path.read_text(encoding="utf-8"))
        return None if anchor in self.anchors[path] else "the page has no such section"


def files_of(root):
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "docs").glob("*.md"))
    for room in ROOMS:
        yield from sorted(p for p in (root / room).rglob("*") if p.is_file() and not p.name.startswith("check_links"))
    yield from (root / name for name in SINGLE if (root / name).exists())


def check(root):
    """Prints what leads nowhere; returns the numbers of links and of those."""
    pages, links, violations = Pages(), 0, 0
    for path in files_of(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        markdown = path.suffix == ".md"
        found = [(place, target, root) for place, target in named_in(blanked(LINK, text) if markdown else text)]
        if markdown:
            found += [(place, target, path.parent) for place, target in links_of(text)]
            found += [(place, target, root) for place, target in sources_in(text)]
        for place, target, folder in sorted(found, key=lambda row: row[:2]):
            links += 1
            if why := pages.wrong(folder, target, path.resolve()):
                line = text.count("\n", 0, place) + 1
                print(f"{path.relative_to(root).as_posix()}:{line}: {target}: {why}")
                violations += 1
    return links, violations


def main(arguments):
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    links, violations = check(root.resolve())
    print(f"check_links: {links} links, {violations} lead nowhere")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
