"""The arithmetic of bench/time_to_loss.py: python3 -m unittest, from this folder."""
import math
import unittest

import time_to_loss


class Arithmetic(unittest.TestCase):
    BASE = {10.0: [(100, 200.0, 5.0)], 20.0: [(200, 200.0, 4.5)]}  # 40 s, falls by 0.5 with twice the tokens

    def test_the_base_needs_all_of_its_own_run(self):
        self.assertAlmostEqual(time_to_loss.slope(self.BASE), 0.5 / math.log(2))
        self.assertAlmostEqual(time_to_loss.seconds_to(4.5, self.BASE), 40)

    def test_half_the_tokens_are_half_the_seconds(self):
        self.assertAlmostEqual(time_to_loss.seconds_to(5.0, self.BASE), 20)

    def test_a_faster_step_and_a_lower_loss_multiply(self):
        better = {10.0: [(100, 100.0, 4.5)], 20.0: [(200, 100.0, 4.0)]}
        self.assertAlmostEqual(time_to_loss.seconds_to(4.5, better), 10)
        words = time_to_loss.table({"torch adamw": self.BASE, "muon": better})
        self.assertIn("| muon | 100.0 | 4.5000 | 4.0000 | 10 | 4.00 |", words)

    def test_seconds_are_counted_from_the_nearest_run(self):
        # the short run's own 20 s, not a third of the long one's 60
        bent = {10.0: [(100, 200.0, 5.0)], 20.0: [(200, 300.0, 4.0)]}
        self.assertAlmostEqual(time_to_loss.seconds_to(5.1, bent), 20 * math.exp(-0.1 * math.log(2)))

    def test_a_loss_that_a_run_ends_with_needs_no_slope(self):
        self.assertAlmostEqual(time_to_loss.seconds_to(5.0, {10.0: [(100, 200.0, 5.0)]}), 20)

    def test_curves_are_means_of_five_steps_and_keep_the_last(self):
        self.assertEqual(time_to_loss.thinned({step: float(step) for step in range(1, 8)}), [(5, 3.0), (7, 5.0)])
        self.assertEqual(time_to_loss.thinned({1: 9.0, 50: 7.0, 100: 6.0}), [(50, 7.0), (100, 6.0)])

    def test_seeds_have_a_spread(self):
        self.assertEqual(time_to_loss.spread([4.0, 5.0]), "4.5000 ± 0.7071")

    def test_one_length_has_no_slope(self):
        self.assertIsNone(time_to_loss.seconds_to(4.5, {10.0: [(100, 200.0, 5.0)]}))


if __name__ == "__main__":
    unittest.main()
