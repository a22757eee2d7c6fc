#!/usr/bin/env python3
"""Tests check_floors.py on small trees with good and bad includes, and its table against CMakeLists.txt."""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))
import check_floors  # noqa: E402


class CheckFloorsTest(unittest.TestCase):
    def run_on(self, files):
        """Writes {path: text} to a tree, runs the script on it, returns (exit status, output lines)."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "src").mkdir()
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            done = subprocess.run(
                [sys.executable, str(TOOLS / "check_floors.py"), folder], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout.splitlines()

    def assert_one_violation(self, files, line):
        status, output = self.run_on(files)
        self.assertEqual(status, 1)
        self.assertEqual(output[:-1], [line])

    def test_downward_same_room_and_library_includes_pass(self):
        status, output = self.run_on({
            "src/base/error.h": "#include <string>\n#include <sys/stat.h>\n",
            "src/ops/cpu/linear.cpp": '#include "ops/linear.h"\n#include "base/error.h"\n#include <cblas.h>\n',
            "src/cli/main.cpp": '#include "train/trainer.h"\n#include "report/page.h"\n',
            "src/README.md": '#include "nowhere/x.h"\n',
        })
        self.assertEqual(status, 0, output)
        self.assertEqual(output, ["check_floors: 3 files, 0 violations"])

    def test_upward_include_fails_with_file_and_line(self):
        self.assert_one_violation(
            {"src/ops/linear.h": '#pragma once\n#include "base/error.h"\n  #  include "program/program.h"\n'},
            "src/ops/linear.h:3: ops (floor 3) includes program (floor 4)")

    def test_neighbour_on_the_same_floor_fails(self):
        self.assert_one_violation(
            {"src/train/loop.cpp": '#include "infer/evaluate.h"\n'},
            "src/train/loop.cpp:1: train (floor 6) includes infer (floor 6)")

    def test_angle_brackets_hide_nothing(self):
        self.assert_one_violation(
            {"src/base/log.cpp": "#include <report/console.h>\n"},
            "src/base/log.cpp:1: base (floor 1) includes report (floor 7)")

    def test_cuda_files_are_read(self):
        self.assert_one_violation(
            {"src/ops/cuda/attention.cu": '#include "model/llama.h"\n'},
            "src/ops/cuda/attention.cu:1: ops (floor 3) includes model (floor 5)")

    def test_unknown_room_in_an_include_fails(self):
        for include in ("utils/strings.h", "../cli/args.h", "sibling.h", "base"):
            with self.subTest(include=include):
                status, output = self.run_on({"src/io/json.cpp": f'#include "{include}"\n'})
                self.assertEqual(status, 1)
                self.assertTrue(output[0].startswith(f'src/io/json.cpp:1: "{include}" starts with no room'), output)

    def test_file_in_no_room_fails(self):
        for name in ("src/utils/strings.h", "src/main.cpp"):
            with self.subTest(name=name):
                status, output = self.run_on({name: ""})
                self.assertEqual(status, 1)
                self.assertIn("is not a room", output[0])

    def test_every_violation_is_printed(self):
        _, output = self.run_on({"src/base/a.h": '#include "io/x.h"\n#include "cli/y.h"\n'})
        self.assertEqual(output[-1], "check_floors: 1 files, 2 violations")

    def test_table_agrees_with_cmake(self):
        cmake = (TOOLS.parent / "CMakeLists.txt").read_text()
        block = re.search(r"set\(redline_floors\s+(.*?)\)", cmake, re.DOTALL).group(1)
        self.assertEqual([floor.split() for floor in re.findall(r'"([^"]*)"', block)], check_floors.FLOORS)


if __name__ == "__main__":
    unittest.main()
