#!/usr/bin/env python3
"""Installs a build into a scratch prefix, makes a .deb, an archive and a wheel of it without the libraries of cards,
and uses what lies there.

Usage: package_test.py BUILD

Nothing is compiled. Where the system has no dpkg the .deb is left out, and a line says so.
"""
import argparse
import base64
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import package

BUILD = None
OF_MPI = r"lib(mpi|open-|hwloc|event|udev|cap|z\.)"  # what an archive must find on the machine if the build has MPI


def shown(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, env=package.EMPTY, cwd="/", **more)
    assert done.returncode == 0, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout


class Installed(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="redline_package_test_")
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def use(self, prefix):
        """What a person does after an installation."""
        program = os.path.join(prefix, "bin/redline")
        self.assertRegex(shown(program, "--version"), r"^redline \d+\.\d+\.\d+")
        self.assertIn("cpu       built, usable", shown(program, "info"))
        presets = sorted(glob.glob(os.path.join(prefix, "share/redline/configs/*.toml")))
        self.assertGreater(len(presets), 3)
        known = shown(program, "config", "--presets")
        for path in presets:  # by name, and as a file to copy from: the same
            name = os.path.basename(path).removesuffix(".toml")
            self.assertIn(name, known)
        both = [shown(program, "config", *words).splitlines()
                for words in ([presets[0]], ["--preset", os.path.basename(presets[0])[:-5]])]
        differ = [(a, b) for a, b in zip(*both, strict=True) if a != b]
        # where it came from, and nothing else
        self.assertTrue(len(differ) == 1 and differ[0][1].startswith("preset"), differ)
        completion = os.path.join(prefix, "share/bash-completion/completions/redline")
        asks = 'source "$1"; COMP_WORDS=(redline trai); COMP_CWORD=1; COMP_LINE="redline trai"; COMP_POINT=12; ' \
               'f=$(complete -p redline | sed -E "s/.*-F ([^ ]+).*/\\1/"); "$f" redline trai redline; ' \
               'echo "${COMPREPLY[@]}"'
        self.assertEqual(shown("bash", "-c", asks, "bash", completion).split(), ["train"])
        licences = os.path.join(prefix, "share/doc/redline/licences")
        if os.path.isdir(licences):
            with open(os.path.join(licences, "README.md"), encoding="utf-8") as file:
                named = re.findall(r"[\w+.-]+\.txt", file.read())
            self.assertEqual(sorted({*named, "README.md"}), sorted(os.listdir(licences)))
            self.assertIn("nlohmann-json3-dev.txt", named)

    def test_a_prefix(self):
        prefix = os.path.join(self.folder, "prefix")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, "--strip"], check=True,
                       stdout=subprocess.DEVNULL)
        self.use(prefix)
        with open(os.path.join(prefix, "share/man/man1/redline.1"), encoding="utf-8") as page:
            self.assertTrue(page.read().startswith(".TH"))
        for path in ("share/zsh/site-functions/_redline", "share/fish/vendor_completions.d/redline.fish",
                     "share/doc/redline/LICENSE"):
            self.assertGreater(os.path.getsize(os.path.join(prefix, path)), 100, path)

    def package(self, kind, *more):
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "package.py"), kind, "--build", BUILD, "--out",
                               self.folder, "--no-card-libraries", *more], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout.split(": ")[0]

    @unittest.skipUnless(shutil.which("dpkg-shlibdeps"), "there is no dpkg here")
    def test_a_deb(self):
        path = self.package("deb")
        root = os.path.join(self.folder, "root")
        subprocess.run(["dpkg-deb", "-x", path, root], check=True)
        self.assertRegex(shown("dpkg-deb", "-f", path, "Depends"), "libopenblas0")
        self.use(os.path.join(root, "usr"))
        self.assertTrue(os.path.exists(os.path.join(root, "usr/share/man/man1/redline.1.gz")))

    def test_an_archive(self):
        path = self.package("archive", "--outside", OF_MPI)
        subprocess.run(["tar", "-C", self.folder, "-xzf", path], check=True)
        prefix = path.removesuffix(".tar.gz")
        self.use(prefix)
        self.assertTrue(glob.glob(os.path.join(prefix, "lib/redline/libopenblas.so*")))

    def test_a_wheel(self):
        path = self.package("wheel", "--outside", OF_MPI, "--runtime-inside")
        self.assertRegex(os.path.basename(path), r"^redline-\d[\w.+]*-py3-none-manylinux_2_\d+_\w+\.whl$")
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            info = os.path.basename(path).split("-py3")[0] + ".dist-info/"
            metadata = wheel.read(info + "METADATA").decode()
            records = dict(line.rsplit(",", 2)[:2] for line in wheel.read(info + "RECORD").decode().splitlines())
            for name in names:
                digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
                self.assertEqual(records.pop(name), "" if name.endswith("/RECORD") else "sha256=" + digest)
        self.assertEqual(records, {})
        for name in re.findall(r"^License-File: (.*)$", metadata, re.MULTILINE):
            self.assertIn(info + "licenses/" + name, names)
        self.assertIn(info + "licenses/licences/nlohmann-json3-dev.txt", names)
        inside = [os.path.basename(name) for name in names]
        self.assertEqual([n for n in inside if package.OF_CUDA.match(n) and not n.startswith("libcudart")], [])
        cuda = package.cached(BUILD, "REDLINE_CUDA_BUILT") == "ON"
        self.assertEqual("Requires-Dist: nvidia-cublas>=13,<14; extra == 'cuda'" in metadata, cuda)
        prefix = os.path.join(self.folder, "venv")
        subprocess.run([sys.executable, "-m", "venv", prefix], check=True)
        subprocess.run([os.path.join(prefix, "bin/pip"), "install", "--quiet", "--no-index", "--no-deps", path],
                       check=True)
        self.use(prefix)

    def test_versions_of_wheels(self):
        self.assertEqual(package.wheel_version("0.1.0"), "0.1.0")
        self.assertEqual(package.wheel_version("0.2.0-12-g1a2b3c4"), "0.2.0.post12+g1a2b3c4")

    def test_a_wheel_without_its_runtime_is_refused(self):
        """A program that needs libcudart.so would not start where the extra `cuda` is not installed."""
        linked = [n for n in package.needed_in_all(BUILD) if package.OF_CUDA.match(n)]
        if not linked:
            self.skipTest("this build links no library of CUDA")
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "package.py"), "wheel", "--build", BUILD,
                               "--out", self.folder, "--outside", OF_MPI], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("-DREDLINE_WHEEL=ON", done.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_licences_of_what_is_no_package_here(self):
        text = os.path.join(self.folder, "unpacked-headers", "copyright")
        os.makedirs(os.path.dirname(text))
        with open(text, "w", encoding="utf-8") as file:
            file.write("MIT")
        self.assertEqual(package.licence_files("", "unpacked-headers", (self.folder,)), {"unpacked-headers.txt": text})
        self.assertEqual(package.licence_files("", "unpacked-headers", ("/nonexistent",)), {})

    def test_a_library_from_elsewhere_is_told(self):
        """The check of the packages can fail: an archive whose libraries are gone takes them from the system."""
        prefix = os.path.join(self.folder, "prefix")
        package.stage(argparse.Namespace(build=BUILD, licences=[]), prefix, {})
        with self.assertRaisesRegex(SystemExit, "and not from the package"):
            package.try_out(prefix, {})


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: package_test.py BUILD [unittest's words]")
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
