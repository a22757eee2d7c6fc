#!/usr/bin/env python3
"""Makes docs/claims.md again with the program that was built: it cannot drift. claims_test.py PROGRAM."""
import ast
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
        for where, key, other in ((said, "mfu", 0.7), (ladder, "mfu", "0.9"),
                                  (self.figures.single_rows["gaps_ping"], "value", "5")):
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
        self.assertGreater(len(judged), 160)
        for row in judged:
            self.assertNotIn(row[2], ("refuted", "not seen"), row)
            self.assertTrue("`" in row[3], row)
            self.assertFalse(re.search("unknown|nan", row[1]), row)

    def test_commands_of_the_page_are_taken(self):
        there = set(re.findall(r"`redline ((?:config|plan) [^`]+)`", self.made)) - set(claims.COMMANDS.values())
        self.assertGreater(len(there), 5)
        for words in sorted(there):
            done = subprocess.run([PROGRAM, *words.split()], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, f"redline {words}: {done.stderr}")

    def verdict(self, says):
        """The verdict of the row whose claim begins so."""
        rows = [line.split(" | ") for line in claims.page(self.figures).splitlines() if line.startswith(f"| {says}")]
        self.assertEqual(len(rows), 1, says)
        return rows[0][2]

    def test_verdicts_follow_the_figure(self):
        self.assertEqual(claims.judged(0.45, 0.40, 0.50), "met")
        self.assertEqual(claims.judged(0.51, 0.40, 0.50, "too slow"), "beaten")
        self.assertEqual(claims.judged(0.39, 0.40, 0.50, "too slow"), "refuted: too slow")
        self.assertEqual(claims.at_most(0.39, 0.40, 0.50), "beaten")
        self.assertEqual(claims.at_most(0.50, 0.40, 0.50), "met")
        self.assertEqual(claims.at_most(0.51, 0.40, 0.50, "too much"), "refuted: too much")
        self.assertEqual(claims.within(0.45, 0.40, 0.50, "elsewhere"), "met")
        for value in (0.39, 0.51):
            self.assertEqual(claims.within(value, 0.40, 0.50, "elsewhere"), "refuted: elsewhere")
        self.assertEqual(claims.holds(True, "not so"), "met")
        self.assertEqual(claims.holds(False, "not so"), "refuted: not so")

    def test_a_claim_of_several_figures_is_as_good_as_its_worst(self):
        self.assertEqual(claims.all_of("beaten", "beaten"), "beaten")
        self.assertEqual(claims.all_of("beaten", "met"), "met")
        self.assertEqual(claims.all_of("beaten", "refuted: a", "refuted: b", "refuted: a"), "refuted: a; b")
        self.assertEqual(claims.all_of("met", "refuted"), "refuted")

    def test_a_verdict_is_known_and_has_its_reason(self):
        for verdict, words in (("unknown", "begins with"), ("refuted", "needs its reason"),
                               ("not seen", "needs its reason")):
            with self.assertRaisesRegex(claims.BadClaim, words):
                claims.Row("a claim", "a figure", verdict, "`redline plan`")
        claims.Row("a claim", "a figure", "refuted: it is not so", "`redline plan`")

    def test_padding_of_batches_by_length_is_judged_at_the_guides_rows(self):
        self.assertIn("--batch-size 128", claims.COMMANDS["documents buckets"])
        said, plan = (self.figures.said[name] for name in ("documents buckets", "ping buckets"))
        bucket, expected = said["modes"]["bucket"], plan["expected"]
        self.assertRegex(self.verdict("batches by length, of 300, 500 and 1024: 20–30%"), "^refuted: ")
        self.assertRegex(self.verdict("batches by length: 27–42% MFU"), "^refuted: ")
        kept = bucket["wasted"], expected["mfu"]
        try:
            bucket["wasted"], expected["mfu"] = 0.25, 0.28
            self.assertEqual(self.verdict("batches by length, of 300, 500 and 1024: 20–30%"), "met")
            self.assertEqual(self.verdict("batches by length: 27–42% MFU"), "met")
        finally:
            bucket["wasted"], expected["mfu"] = kept

    def test_verdicts_that_words_alone_decide_are_on_features(self):
        """A literal verdict in the script stands in a row whose claim has no figure that was measured or planned."""
        with open(claims.__file__, encoding="utf-8") as file:
            rows = [node for node in ast.walk(ast.parse(file.read()))
                    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Row"]
        literal = [row for row in rows if isinstance(row.args[2], ast.Constant)]
        self.assertGreater(len(rows), 150)
        self.assertLess(len(literal), 40)
        for row in literal:
            verdict = row.args[2].value
            self.assertFalse(verdict.startswith("refuted"), ast.unparse(row.args[0]))
            if isinstance(row.args[1], ast.JoinedStr):  # a figure of the program beside words
                self.assertTrue(verdict.startswith(("not seen: ", "beaten: nothing has to fail")),
                                ast.unparse(row.args[0]))

    def test_printed_by_names_only_what_printed_a_number(self):
        self.assertNotIn("twin_qkv", self.figures.single_rows)
        self.assertNotIn("torch_twins", self.made)
        self.figures.single_rows["twin_qkv"] = {"value": "1.031"}
        try:
            made = claims.page(self.figures)
        finally:
            del self.figures.single_rows["twin_qkv"]
        self.assertRegex(made, r"three products takes 1\.031 times as long \| refuted: .*`bench/torch_twins\.py` \|")

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
