"""The arithmetic of bench/long_run.py on curves whose end is known: python3 -m unittest, from this folder."""
import json
import os
import pathlib
import random
import tempfile
import unittest

import long_run

TRUE = long_run.Law(0.45, 0.998, 2.2, 1.15, 1.3)


def curve(law, steps, warm_up, noise, every=50, seed=1):
    """[(step, loss)] of a run that obeys the law but for noise."""
    draw = random.Random(seed)
    behind = long_run.sums(long_run.rates(steps, warm_up), law.memory)
    wanted = sorted({*range(every, steps + 1, every), steps})
    return [(step, law.at(*behind[step - 1]) + draw.gauss(0, noise)) for step in wanted]


class Law(unittest.TestCase):
    def test_a_schedule_warms_up_stands_and_falls(self):
        rates = long_run.rates(1000, 100)
        self.assertAlmostEqual(rates[0], 2e-5)
        self.assertAlmostEqual(rates[99], 2e-3)
        self.assertAlmostEqual(rates[349], 2e-3)
        self.assertAlmostEqual(rates[674], 1e-4 + 1.9e-3 / 2, places=5)
        self.assertAlmostEqual(rates[-1], 1e-4)

    def test_the_law_that_made_a_curve_is_found(self):
        law, _, _ = long_run.fit(curve(TRUE, 1060, 100, 0), long_run.rates(1060, 100))
        self.assertEqual(law.memory, 0.998)
        self.assertAlmostEqual(law.power, 0.45, delta=0.02)
        self.assertAlmostEqual(law.floor, 2.2, delta=0.05)

    def test_the_end_of_90_minutes_lies_within_what_is_said_of_it(self):
        target = long_run.rates(6116, 100)
        true = TRUE.end_of(target)
        inside = 0
        for seed in range(6):
            _, loss, low, high = long_run.carried(curve(TRUE, 1060, 100, 0.003, seed=seed), long_run.rates(1060, 100),
                                                  target, draws=60)
            self.assertLess(low, high)
            self.assertAlmostEqual(loss, true, delta=0.15)
            inside += low <= true <= high
        self.assertGreaterEqual(inside, 4)

    def test_more_noise_is_less_certain(self):
        widths = []
        for noise in (0.001, 0.01):
            _, _, low, high = long_run.carried(curve(TRUE, 1060, 100, noise), long_run.rates(1060, 100),
                                               long_run.rates(6116, 100), draws=60)
            widths.append(high - low)
        self.assertGreater(widths[1], 2 * widths[0])

    def test_the_first_part_of_a_run_foretells_its_end(self):
        self.assertLess(abs(long_run.missed(curve(TRUE, 1060, 100, 0), long_run.rates(1060, 100))), 0.02)

    def test_a_part_with_few_evaluations_foretells_nothing(self):
        rare = curve(TRUE, 1040, 100, 0, every=100)
        self.assertIsNone(long_run.missed(rare, long_run.rates(1040, 100)))
        law, _, _ = long_run.fit(rare, long_run.rates(1040, 100))
        self.assertAlmostEqual(law.power, 0.45, delta=0.02)

    def test_the_straight_line_knows_no_floor(self):
        self.assertAlmostEqual(long_run.straight([(100, 4.0), (1000, 3.0), (50, 9.0)], 10000), 2.0)

    def test_few_evaluations_are_no_curve(self):
        with self.assertRaisesRegex(long_run.BadRun, "a curve takes 8"):
            long_run.fit(curve(TRUE, 300, 100, 0), long_run.rates(300, 100))


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_runs(self.folder)

    def test_runs_become_rows_in_bits_a_byte(self):
        result = long_run.gather(self.folder, "a card", "13.0", "2031-02-03")
        self.assertAlmostEqual(result["bits_per_nat"], 0.25 / 0.6931472, places=6)
        last = [row for row in result["rows"] if row["arm"] == "redline"][-1]
        self.assertEqual((last["step"], last["seconds"], last["mtokens"]), (1060, 954.0, 277.9))
        self.assertAlmostEqual(last["bits_per_byte"], last["held_out"] * result["bits_per_nat"], places=4)
        self.assertIn("1.85 epochs", result["about"])
        said = long_run.forecast(result["rows"])
        self.assertEqual(said["steps"], 6000)
        self.assertLess(said["law"], last["bits_per_byte"])
        self.assertLess(said["line"], last["bits_per_byte"])
        self.assertEqual(len(long_run.shown(result["rows"])), 6 + 4 + 2)
        (sixty, peer, short, long), (end, *_) = long_run.equal_seconds(result["rows"])
        self.assertEqual((sixty, end, peer), (60.4, 120.8, round(5.8 * result["bits_per_nat"], 5)))
        of_short = [row for row in result["rows"] if row["arm"] == "redline, as long as PyTorch"]
        self.assertTrue(of_short[0]["bits_per_byte"] > short > of_short[1]["bits_per_byte"])
        self.assertTrue(long > of_short[1]["bits_per_byte"])
        self.assertEqual(long_run.at_seconds(of_short, 125), of_short[-1]["bits_per_byte"])
        self.assertIsNone(long_run.at_seconds(of_short, 200))

    def test_a_card_that_others_used_too_is_told(self):
        lines = (self.folder / "long.jsonl").read_text().splitlines()
        slow = [line.replace('"step_ms": 900.0', '"step_ms": 1500.0') for line in lines[200:]]
        (self.folder / "long.jsonl").write_text("\n".join(lines[:200] + slow) + "\n")
        result = long_run.gather(self.folder, "a card", "13.0", "2031-02-03")
        self.assertEqual([row for row in result["rows"] if row["arm"] == "redline"][-1]["seconds"], 954.0)
        self.assertIn('a part of "redline": its steps took 1,471 s, and count as 900 ms', result["about"])
        self.assertNotIn('a part of "redline, two', result["about"])

    def test_another_recipe_is_refused(self):
        lines = (self.folder / "long.jsonl").read_text().replace('"lr": 0.002,', '"lr": 0.001,')
        (self.folder / "long.jsonl").write_text(lines)
        with self.assertRaisesRegex(long_run.BadRun, "the rate never reaches 0.002"):
            long_run.gather(self.folder, "a card", "13.0", "2031-02-03")

    def test_a_run_that_was_cut_is_refused(self):
        lines = (self.folder / "long.jsonl").read_text().splitlines()
        (self.folder / "long.jsonl").write_text("\n".join(lines[:-5]) + "\n")
        with self.assertRaisesRegex(long_run.BadRun, "the schedule|no held-out loss"):
            long_run.gather(self.folder, "a card", "13.0", "2031-02-03")

    def test_a_peer_without_an_end_is_refused(self):
        (self.folder / "peer.jsonl").write_text('{"step": 3, "seconds": 30.0, "loss": 5.0, "held_out": 5.1}\n')
        with self.assertRaisesRegex(long_run.BadRun, "no end of bench/torch_text.py"):
            long_run.gather(self.folder, "a card", "13.0", "2031-02-03")


def write_runs(folder):
    """What --gather reads, of curves that obey the law."""
    for name, steps, warm_up, every in (("long", 1060, 100, 50), ("short", 136, 40, 34)):
        held = dict(curve(TRUE, steps, warm_up, 0.002, every))
        rates = long_run.rates(steps, warm_up)
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.write('{"step": 0, "eval_loss": 10.4}\n')
            for step in range(1, steps + 1):
                line = {"step": step, "lr": rates[step - 1], "loss": 4.0, "step_ms": 900.0, "tokens": 262144}
                if step in held:
                    line["eval_loss"] = held[step]
                file.write(json.dumps(line) + "\n")
    with open(folder / "peer.jsonl", "w", encoding="utf-8") as file:
        file.write('{"step": 40, "seconds": 60.4, "loss": 5.9, "held_out": 5.8}\n')
        file.write('{"step": 80, "seconds": 120.8, "loss": 5.4, "held_out": 5.3, "torch": "2.11.0", '
                   '"tokens_per_step": 262144, "step_ms": 1510.0}\n')
    for name, tokens, documents in (("train", 150_000_000, 90_000), ("val", 1_200_000, 790)):
        with open(os.path.join(folder, f"{name}_manifest.json"), "w", encoding="utf-8") as file:
            json.dump({"tokens": tokens, "documents": documents, "source": {"bytes": 4 * tokens}}, file)


if __name__ == "__main__":
    unittest.main()
