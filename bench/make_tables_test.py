#!/usr/bin/env python3
"""Tests make_tables.py on copies of the documents and results: a figure that differs, what is wrong with either."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent


class MakeTablesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = pathlib.Path(folder.name, "results")
        shutil.copytree(BENCH / "results", self.results)
        self.document = pathlib.Path(folder.name, "results.md")
        self.other = pathlib.Path(folder.name, "experiments.md")
        for document in (self.document, self.other):
            shutil.copy(BENCH.parent / "docs" / document.name, document)

    def run_it(self, *more):
        """Exit status and what it says."""
        done = subprocess.run(
            [sys.executable, "-B", str(BENCH / "make_tables.py"), "--documents", str(self.document), str(self.other),
             "--results", str(self.results), *more], capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    def assert_refused(self, words, *more):
        status, said = self.run_it(*more)
        self.assertEqual(status, 1)
        self.assertIn(words, said)
        self.assertNotIn("Traceback", said)

    def change(self, name, edit):
        path = self.results / name
        result = json.loads(path.read_text())
        edit(result)
        path.write_text(json.dumps(result))

    def test_a_changed_figure_is_found_and_then_written(self):
        self.assertEqual(self.run_it("--check"), (0, ""))
        self.change("h200_models.json", lambda r: r["rows"][0].update(step_ms=12.34))
        self.assert_refused("in h200-models;", "--check")
        self.assertNotIn("| 12.3 |", self.document.read_text())
        self.assertEqual(self.run_it(), (0, ""))
        self.assertIn("| ping-95m 128x1024 | 12.3 |", self.document.read_text())
        self.assertEqual(self.run_it("--check"), (0, ""))

    def test_the_words_above_a_table_are_its_files_head(self):
        self.change("loader.json", lambda r: r.update(date="2031-02-03", about="Rows of another length."))
        self.assert_refused("in loader;", "--check")
        self.assertEqual(self.run_it(), (0, ""))
        self.assertIn("Debian 12; 2031-02-03: `build/loader_bench --benchmark_min_time=0.5`. Rows of another length.",
                      self.document.read_text().replace("\n", " "))

    def test_an_edited_table_is_found(self):
        self.document.write_text(self.document.read_text().replace("| 183.8 |", "| 180.8 |"))
        self.assert_refused("h200-models", "--check")

    def test_what_is_not_known_is_an_empty_cell(self):
        self.change("h200_models.json", lambda r: r["rows"][0].update(peer=None))
        self.assertEqual(self.run_it(), (0, ""))
        self.assertIn("| 49.6 GiB | 3.3 s | | | | |", self.document.read_text())

    def test_a_key_by_another_name_is_no_empty_column(self):
        def rename(result):
            for row in result["rows"]:
                row["step_seconds"] = row.pop("step_ms")
        self.change("h200_packed.json", rename)
        self.assert_refused("finds nothing for its column 'ms a step'")

    def test_a_file_that_no_table_shows(self):
        shutil.copy(self.results / "loader.json", self.results / "forgotten.json")
        self.assert_refused("forgotten.json: no table of the documents shows it", "--check")

    def test_a_file_without_its_date(self):
        self.change("loader.json", lambda r: r.pop("date"))
        self.assert_refused("no date", "--check")

    def test_an_unknown_table_and_an_open_one(self):
        text = self.document.read_text()
        self.document.write_text(text + "<!-- table: nothing -->\n<!-- end -->\n")
        self.assert_refused("table nothing: ", "--check")
        self.document.write_text(text + "<!-- table: loader -->\n")
        self.assert_refused("has no '<!-- end -->'", "--check")


if __name__ == "__main__":
    unittest.main()
