"""The arithmetic of bench/expert_curves.py: python3 -m unittest, from this folder."""
import unittest

import expert_curves


class Curves(unittest.TestCase):
    def test_even_loads_are_those_of_all_experts_and_one_expert_is_one(self):
        self.assertEqual(expert_curves.as_if([{"loads": [1, 1, 1, 1]}]), 4)
        self.assertEqual(expert_curves.as_if([{"loads": [1, 1, 1, 1]}, {"loads": [4, 0, 0, 0]}]), 1)

    def test_an_evaluation_has_the_seconds_tokens_and_losses_before_it(self):
        metrics = [{"step": 0, "eval_loss": 9.0},
                   {"step": 1, "step_ms": 500.0, "tokens": 1000000, "loss": 8.0},
                   {"step": 2, "step_ms": 500.0, "tokens": 1000000, "loss": 6.0, "eval_loss": 6.5,
                    "largest_load": 2.0, "smallest_load": 0.5},
                   {"step": 3, "step_ms": 250.0, "tokens": 1000000, "loss": 5.0, "eval_loss": 5.5,
                    "largest_load": 1.5, "smallest_load": 0.75}]
        rows = expert_curves.curve("moe", 1, metrics, [{"step": 1, "layers": [{"loads": [2, 0]}]}])
        self.assertEqual([(row["step"], row["seconds"], row["million_tokens"], row["loss"], row["held_out"],
                           row["largest_load"], row["as_if"]) for row in rows],
                         [(2, "1.00", "2.000", "7.0000", "6.5000", "2.000", "1.0"),
                          (3, "1.25", "3.000", "5.0000", "5.5000", "1.500", "1.0")])

    def test_a_run_without_a_loss_at_its_end_is_no_curve(self):
        with self.assertRaisesRegex(SystemExit, "no held-out loss behind its last step, 1"):
            expert_curves.curve("moe", 1, [{"step": 1, "step_ms": 1.0, "tokens": 1, "loss": 8.0}], [])


if __name__ == "__main__":
    unittest.main()
