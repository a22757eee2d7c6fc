#!/usr/bin/env python3
"""Writes src/data/tokenizer/unicode_tables.cpp from what the Hugging Face `tokenizers` package itself answers.

Usage: python3 tools/make_unicode_tables.py > src/data/tokenizer/unicode_tables.cpp   (needs: pip install tokenizers)

The split patterns of tokenizer.json mean \\p{L} and \\p{N} of the Unicode version inside that package, and its NFC is
of a much older one. So every code point is put to it, and the answers are kept as ranges.
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def matching(pattern, code_points):
    keep = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(code_points), 4096):
        for piece, _ in keep.pre_tokenize_str("".join(map(chr, code_points[i : i + 4096]))):
            found.update(map(ord, piece))
    return found


def ranges(code_points):
    result = []
    for c in sorted(code_points):
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def inert():
    """Code points that this Python composes or reorders and the package does not, for being newer than its NFC."""
    nfc = normalizers.NFC().normalize_str
    found = set()
    for c in CODE_POINTS:
        character = chr(c)
        probes = [character, "A\u0345" + character, "A" + character + "\u0334", "A" + character + "\u0301"]
        if any(nfc(p) != unicodedata.normalize("NFC", p) for p in probes):
            found.add(c)
        parts = unicodedata.normalize("NFD", character)
        if nfc(parts) != unicodedata.normalize("NFC", parts):
            found.update(map(ord, parts))
    return found


def write_array(name, kind, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        if len(line) + len(row) > 118:
            print(line)
            line = "   "
        line += " " + row
    print(line)
    print("};\n")


def main():
    unassigned = matching(r"\p{Cn}", CODE_POINTS)
    newer = [c for c in CODE_POINTS if c not in unassigned and unicodedata.category(chr(c)) == "Cn"]
    rows = []
    for category in CATEGORIES:
        rows += [(low, high, category) for low, high in ranges(matching(rf"\p{{{category}}}", newer))]
    newer_rows = [f'{{0x{low:x}, 0x{high:x}, "{category}"}},' for low, high, category in sorted(rows)]
    print(f"""// Made by tools/make_unicode_tables.py from tokenizers {tokenizers.__version__}; changes here are lost.
#include "data/tokenizer/unicode.h"

namespace redline::data {{
namespace {{

// clang-format off""")
    for name, pattern in (("kLetters", r"\p{L}"), ("kNumbers", r"\p{N}")):
        write_array(name, "CodePoints", [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(matching(pattern, CODE_POINTS))])
    write_array("kNewer", "NewerCodePoints", newer_rows)
    write_array("kInert", "CodePoints", [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(inert())])
    print(f"""// clang-format on

}}  // namespace

std::span<const CodePoints> letter_ranges() {{ return kLetters; }}
std::span<const CodePoints> number_ranges() {{ return kNumbers; }}
std::span<const NewerCodePoints> newer_code_points() {{ return kNewer; }}  // than Unicode {unicodedata.unidata_version}
std::span<const CodePoints> inert_code_points() {{ return kInert; }}

}}  // namespace redline::data""")


if __name__ == "__main__":
    sys.exit(main())
