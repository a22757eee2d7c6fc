#!/usr/bin/env python3
"""Makes docs/claims.md again with the program that was built: it cannot drift. claims_test.py PROGRAM."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import claims
import long_run
import long_run_test
import result_files


class ClaimsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.figures = claims.Figures(PROGRAM)
        cls.made = claims.page(cls.figures)

    def test_the_page_is_what_results_and_plans_say(self):
        with open(claims.PAGE, encoding="utf-8") as file:
            there = file.read().splitlines()
        how = f"docs/claims.md has drifted; run bench/claims.py --redline {PROGRAM}"
        self.assertEqual([line for line in self.made.splitlines() if line not in there], [], how)
        self.assertEqual(there, self.made.splitlines(), how)

    def test_another_figure_is_another_page(self):
        said = self.figures.said["ping"]["expected"]
        ladder = next(row for row in self.figures.ladder_rows if row["rung"] == "no dropout")
        for where, key, other in ((said, "mfu", 0.2), (ladder, "mfu", "0.9"),
                                  (self.figures.single_rows["gaps_ping"], "value", "20")):
            kept, where[key] = where[key], other
            self.assertNotEqual(claims.page(self.figures), self.made, key)
            where[key] = kept
        self.assertEqual(claims.page(self.figures), self.made)

    def test_the_long_run_stands_in_the_rows_of_the_board_once_it_was_made(self):
        kept = self.figures.results
        with tempfile.TemporaryDirectory() as folder:
            self.figures.results = folder
            plans = self.figures.said["cs336"]["expected"], self.figures.said["90min"]["expected"]
            try:
                before = claims.long_run_rows(self.figures, *plans)
                long_run_test.write_runs(pathlib.Path(folder))
                made = long_run.gather(folder, "a card", "13.0", "2031-02-03")
                result_files.write(f"{folder}/{long_run.NAME}.json", made)
                after = claims.long_run_rows(self.figures, *plans)
            finally:
                self.figures.results = kept
        self.assertNotIn("bits a byte", before[0].cells[1] + before[1].cells[1])
        at_1000 = next(row for row in made["rows"] if row["arm"] == "redline" and row["step"] == 1000)
        self.assertIn(f"{at_1000['held_out']:.2f} on other text", after[0].cells[1])
        self.assertRegex(after[1].cells[1], r"16 minutes of an H200 end at [01]\.\d{3} bits a byte")
        self.assertRegex(after[1].cells[1], r"carried to 90 at [01]\.\d{3} \([01]\.\d{3} to [01]\.\d{3}\)")
        self.assertIn("`bench/long_run.py`", after[1].cells[3])

    def test_every_row_has_a_verdict_and_a_command(self):
        rows = [line for line in self.made.splitlines() if line.startswith("| ")]
        rows = [line.split(" | ") for line in rows if len(line.split(" | ")) == 4 and "---" not in line]
        judged = [row for row in rows if row[2].startswith(claims.VERDICTS)]
        self.assertGreater(len(judged), 120)
        for row in judged:
            self.assertTrue("`" in row[3], row)
            self.assertFalse(re.search("unknown|nan", row[1]), row)

    def test_commands_of_the_page_are_taken(self):
        there = set(re.findall(r"`redline ((?:config|plan) [^`]+)`", self.made)) - set(claims.COMMANDS.values())
        self.assertGreater(len(there), 5)
        for words in sorted(there):
            done = subprocess.run([PROGRAM, *words.split()], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"redline {words}: {done.stderr}")

    def test_verdicts_follow_the_figure(self):
        self.assertEqual(claims.judged(0.45, 0.40, 0.50), "met")
        self.assertEqual(claims.judged(0.51, 0.40, 0.50), "beaten")
        self.assertEqual(claims.judged(0.39, 0.40, 0.50, "too slow"), "refuted: too slow")
        with self.assertRaisesRegex(claims.BadClaim, "begins with"):
            claims.Row("a claim", "a figure", "unknown", "`redline plan`")

    def test_what_is_not_there_is_one_sentence(self):
        with self.assertRaisesRegex(claims.BadClaim, "h200_figures.csv has no nothing"):
            self.figures.single("nothing")
        with self.assertRaisesRegex(claims.BadClaim, "redline plan no-such-preset: .*no-such-preset"):
            claims.answer_of(PROGRAM, "plan no-such-preset")
        with self.assertRaisesRegex(claims.BadClaim, "--redline names the program"):
            claims.answer_of("/no/such/program", "plan quick")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
