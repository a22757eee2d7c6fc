#!/usr/bin/env python3
"""Tests check_links.py on small folders: what leads nowhere is found, and what leads somewhere is not."""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_links  # noqa: E402


class CheckLinksTest(unittest.TestCase):
    def wrong(self, **files):
        """The lines that are printed for a repository of `files`; `__` in a name is a slash."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name.replace("__", "/").replace("_md", ".md").replace("_h", ".h"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                check_links.check(pathlib.Path(folder).resolve())
            return out.getvalue().splitlines()

    def test_links_that_lead_somewhere(self):
        self.assertEqual(self.wrong(
            README_md="# A\n[page](docs/b.md), [part](docs/b.md#the-part-of-it),\n[two\nlines](docs/b.md) [up](#a)\n",
            docs__b_md="# B\n## The part, of `it`\n[up](../README.md) [web](https://example.org/x.md#y)\n"), [])

    def test_a_missing_page_or_section_is_found_with_its_line(self):
        self.assertEqual(self.wrong(README_md="# A\n\n[page](docs/c.md)\n[part](docs/b.md#none)\n[here](#none)\n",
                                    docs__b_md="# B\n"),
                         ["README.md:3: docs/c.md: there is no such file",
                          "README.md:4: docs/b.md#none: the page has no such section",
                          "README.md:5: #none: the page has no such section"])

    def test_what_the_program_prints_is_followed(self):
        self.assertEqual(self.wrong(src__base__links_h='const char* kA = "docs/b.md#old";  // docs/b.md#new\n',
                                    docs__b_md="# B\n### New\n"),
                         ["src/base/links.h:1: docs/b.md#old: the page has no such section"])

    def test_files_of_the_sources_are_followed(self):
        page = "`src/base/links.h`, src/base/gone.h, src/base/NAME.h\n"
        self.assertEqual(self.wrong(src__base__links_h="", docs__b_md=page),
                         ["docs/b.md:1: src/base/gone.h: there is no such file"])

    def test_code_is_no_link_and_no_heading(self):
        self.assertEqual(self.wrong(docs__b_md="# B\n```\n# no heading\na[i](x.md)\n```\n`a[i](x.md)` [up](#b)\n"), [])
        self.assertEqual(len(self.wrong(docs__b_md="# B\n```\n# c\n```\n[up](#c)\n")), 1)

    def test_a_heading_that_comes_again_has_a_number(self):
        self.assertEqual(self.wrong(docs__b_md="# B\n## C\n## C\n[one](#c) [two](#c-1)\n"), [])
        self.assertEqual(len(self.wrong(docs__b_md="# B\n## C\n[two](#c-1)\n")), 1)


if __name__ == "__main__":
    unittest.main()
