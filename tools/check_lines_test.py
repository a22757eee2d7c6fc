#!/usr/bin/env python3
"""Tests check_lines.py on small files: what is too long, what may be, and what --wrap makes of it."""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_lines  # noqa: E402

LONG = "word " * 30 + "end"


class CheckLinesTest(unittest.TestCase):
    def check(self, name, text, wrap=False):
        """The numbers of the long lines, and the text as it is then."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, name)
            path.write_text(text)
            return check_lines.check(path, wrap), path.read_text()

    def test_a_long_line_is_told_by_its_number(self):
        self.assertEqual(self.check("a.md", "short\n" + LONG + "\n")[0], [2])
        self.assertEqual(self.check("a.h", "int a;\n// " + LONG + "\n")[0], [2])
        self.assertEqual(self.check("a.cpp", "int a;  // " + LONG + "\n")[0], [1])
        for name in ("a.py", "a.js", "a.html"):
            self.assertEqual(self.check(name, "short\n" + LONG + "\n", wrap=True), ([2], "short\n" + LONG + "\n"))

    def test_tables_code_headings_and_single_words_may_be_long(self):
        for text in ("| " + LONG + " |", "```\n" + LONG + "\n```", "# " + LONG, "x" * 200, "`" + LONG + "`"):
            self.assertEqual(self.check("a.md", text + "\n")[0], [], text)
        self.assertEqual(self.check("a.cpp", "// clang-format off\n" + LONG + "\n// clang-format on\n")[0], [])

    def test_wrapping_keeps_the_words_and_nothing_is_too_long(self):
        for name, text in (("a.md", "before\n\n- " + LONG + "\n  " + LONG + "\n- next\n"),
                           ("a.h", "  // " + LONG + "\n  // and so on.\n  int a;\n")):
            wrong, after = self.check(name, text, wrap=True)
            self.assertEqual(wrong, [])
            self.assertEqual(after.replace("//", "").split(), text.replace("//", "").split())
            self.assertEqual(self.check(name, after, wrap=True), ([], after), "a second time nothing changes")

    def test_wrapping_leaves_short_paragraphs_and_marks_of_markdown_alone(self):
        text = "short\nlines stay\n\n" + "word " * 22 + "three - four\n"
        _, after = self.check("a.md", text, wrap=True)
        self.assertTrue(after.startswith("short\nlines stay\n\n"))
        self.assertFalse(any(line.startswith("- ") for line in after.splitlines()))

    def test_items_keep_their_indent(self):
        _, after = self.check("a.md", "1. " + LONG + "\n", wrap=True)
        self.assertEqual([line[:3] for line in after.splitlines()], ["1. ", "   "])


if __name__ == "__main__":
    unittest.main()
