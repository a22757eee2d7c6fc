#!/usr/bin/env python3
"""Makes a Debian package or a release archive of a build with REDLINE_RELOCATABLE=ON, and tries it.

Usage: package.py deb|archive --build BUILD --out FOLDER

Both hold what `cmake --install` installs. The archive also holds every shared library that the program needs but those of glibc and
the driver, with their licences; the package only libraries that lie outside the system's folders, and depends on the packages
of the others. What was made is unpacked elsewhere and run with an empty environment. Exit status 1: something failed.
"""
import argparse
import glob
import gzip
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|BrokenLocale)\.so)")
DRIVER = re.compile(r"^lib(cuda|nvidia-ml)\.so")
SYSTEM_FOLDERS = ("/lib/", "/usr/lib/")
HEADERS = ("libcli11-dev", "nlohmann-json3-dev", "libfmt-dev")  # compiled in
LIBRARIES = "lib/redline"


def output(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def module_of(build):
    """The Parquet module of a build or of what was unpacked; none: it was built without."""
    return glob.glob(os.path.join(build, "redline-parquet.so"))


def needed(program):
    """Name -> path of all shared libraries, those of libraries included."""
    found = {}
    for line in output("ldd", program).splitlines():
        if "not found" in line:
            raise SystemExit(f"package: {program} needs {line.strip()}")
        match = re.match(r"\s*(\S+) => (/\S+)", line)
        if match and not GLIBC.match(match[1]) and not DRIVER.match(match[1]):
            found[match[1]] = match[2]
    return found


def needed_in_all(build):
    found = {}
    for path in [os.path.join(build, "redline"), *module_of(build)]:
        found.update(needed(path))
    return found


def cached(build, name):
    with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
        match = re.search(rf"^{name}:\w+=(.*)$", file.read(), re.MULTILINE)
    return match[1] if match else ""


def loaded_later(build):
    """Libraries that the program opens when they are there: cuDNN and NCCL, where they lie beside the headers of the build."""
    found = {}
    for variable, pattern in (("REDLINE_CUDNN_INCLUDE", "libcudnn*.so.9"), ("REDLINE_NCCL_INCLUDE", "libnccl.so.2")):
        include = cached(build, variable)
        for path in glob.glob(os.path.join(include, "..", "lib", pattern)) if include else []:
            found[os.path.basename(path)] = path
    return found


def owner(path):
    """The Debian package that a file belongs to; empty: none."""
    for name in (path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
        result = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    return ""


def copy_licences(libraries, folder):
    """A text for each library, and a list of which is whose."""
    os.makedirs(folder)
    lines = ["# Libraries in this package, and where their licences are", ""]
    names = [(name, owner(path), path) for name, path in sorted(libraries.items())] + [(f"{p} (compiled in)", p, "") for p in HEADERS]
    for name, package, path in names:
        text = f"/usr/share/doc/{package}/copyright"
        if package and os.path.exists(text):
            shutil.copy(text, os.path.join(folder, package + ".txt"))
            lines.append(f"- {name}: {package}.txt")
        elif "/pyarrow/" in path:
            texts = glob.glob(os.path.join(os.path.dirname(path), "..", "pyarrow-*.dist-info", "licenses", "*.txt"))
            if not texts:
                raise SystemExit(f"package: no licence was found for {name} ({path})")
            for text in texts:
                shutil.copy(text, os.path.join(folder, "pyarrow-" + os.path.basename(text)))
            lines.append(f"- {name}: pyarrow-LICENSE.txt")
        elif "cuda" in os.path.realpath(path) or re.match("lib(cu|nv)", name):
            lines.append(f"- {name}: NVIDIA; https://docs.nvidia.com/cuda/eula/ and, for cuDNN and NCCL, the licences of these products")
        elif package in HEADERS:
            lines.append(f"- {name}: its licence is with its sources")
        else:
            raise SystemExit(f"package: no licence was found for {name} ({path})")
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def stage(build, prefix, libraries):
    """The installed tree under `prefix`, with libraries beside the program."""
    subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--strip"], check=True, stdout=subprocess.DEVNULL)
    if libraries:
        os.makedirs(os.path.join(prefix, LIBRARIES), exist_ok=True)
        for name, path in libraries.items():
            shutil.copy(os.path.realpath(path), os.path.join(prefix, LIBRARIES, name))
    copy_licences(libraries, os.path.join(prefix, "share/doc/redline/licences"))


def try_out(prefix, outside):
    """The program runs from elsewhere, with no variables, and takes its libraries from `prefix` but for those in `outside`."""
    program = os.path.join(prefix, "bin/redline")
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    for words in (["--version"], ["config", "--presets"], ["plan", "quick", "--card", "h100"]):
        subprocess.run([program, *words], check=True, cwd="/", env=clean, stdout=subprocess.DEVNULL)
    modules = module_of(os.path.join(prefix, LIBRARIES))
    if modules:  # it looks at the file only once it has its module
        with tempfile.TemporaryDirectory() as work:
            words = ["data", "prepare", "--tokenizer", "bytes", "--out", "out", "prose.parquet"]
            with open(os.path.join(work, "prose.parquet"), "w", encoding="utf-8") as file:
                file.write("no table\n")
            said = subprocess.run([program, *words], cwd=work, env=clean, capture_output=True, text=True).stderr
        if "not a Parquet file" not in said:
            raise SystemExit(f"package: the Parquet module does not work: {said}")
    for name, path in [pair for file in [program, *modules] for pair in needed(file).items()]:
        if name not in outside and not os.path.realpath(path).startswith(os.path.realpath(prefix)):
            raise SystemExit(f"package: {name} comes from {path} and not from the package")


def make_archive(build, out, version):
    name = f"redline-{version}-linux-{platform.machine()}"
    with tempfile.TemporaryDirectory() as work:
        stage(build, os.path.join(work, name), {**needed_in_all(build), **loaded_later(build)})
        path = os.path.abspath(os.path.join(out, name + ".tar.gz"))
        subprocess.run(["tar", "--owner=0", "--group=0", "-C", work, "-I", "gzip -1", "-cf", path, name], check=True)
        with tempfile.TemporaryDirectory() as elsewhere:
            subprocess.run(["tar", "-C", elsewhere, "-xzf", path], check=True)
            try_out(os.path.join(elsewhere, name), {})
    return path


def dependencies(root, work):
    """What dpkg-shlibdeps finds: the packages of the libraries that are not inside."""
    os.makedirs(os.path.join(work, "debian"))
    with open(os.path.join(work, "debian/control"), "w", encoding="utf-8") as file:
        file.write("Source: redline\n\nPackage: redline\nArchitecture: any\n")
    inside = os.path.join(root, "usr", LIBRARIES)
    programs = [os.path.join(root, "usr/bin/redline"), *glob.glob(inside + "/*")]
    text = output("dpkg-shlibdeps", "-O", "--ignore-missing-info", f"-l{inside}", *programs, cwd=work, stderr=subprocess.DEVNULL)
    return text.strip().removeprefix("shlibs:Depends=")


def make_deb(build, out, version):
    version = version.replace("-", "+", 1).replace("-", ".")  # a hyphen would begin Debian's own revision
    architecture = output("dpkg", "--print-architecture").strip()
    everything = needed_in_all(build)
    inside = {name: path for name, path in everything.items() if not os.path.realpath(path).startswith(SYSTEM_FOLDERS)}
    with tempfile.TemporaryDirectory() as work:
        root = os.path.join(work, "root")
        stage(build, os.path.join(root, "usr"), inside)
        share = os.path.join(root, "usr/share")
        shutil.move(os.path.join(share, "zsh/site-functions"), os.path.join(share, "zsh/vendor-completions"))  # where Debian's zsh looks
        shutil.move(os.path.join(share, "doc/redline/LICENSE"), os.path.join(share, "doc/redline/copyright"))
        page = os.path.join(share, "man/man1/redline.1")
        with open(page, "rb") as plain, open(page + ".gz", "wb") as packed:
            packed.write(gzip.compress(plain.read(), mtime=0))
        os.remove(page)
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(root) for name in names) // 1024
        os.makedirs(os.path.join(root, "DEBIAN"))
        with open(os.path.join(root, "DEBIAN/control"), "w", encoding="utf-8") as file:
            file.write(f"Package: redline\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: redline developers <redline@localhost>\n"
                       f"Installed-Size: {size}\nDepends: {dependencies(root, work)}\nSection: science\nPriority: optional\n"
                       "Description: pretrains LLaMA-, Qwen3- and OLMo-2-class language models\n One program for CPUs and NVIDIA cards.\n")
        path = os.path.abspath(os.path.join(out, f"redline_{version}_{architecture}.deb"))
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", root, path], check=True, stdout=subprocess.DEVNULL)
        with tempfile.TemporaryDirectory() as elsewhere:
            subprocess.run(["dpkg-deb", "-x", path, elsewhere], check=True)
            try_out(os.path.join(elsewhere, "usr"), set(everything) - set(inside))
    return path


def main():
    parser = argparse.ArgumentParser(description="Makes a Debian package or a release archive of a build, and tries it.")
    parser.add_argument("kind", choices=["deb", "archive"])
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    if cached(options.build, "REDLINE_RELOCATABLE") != "ON":
        raise SystemExit(f"package: {options.build} was not configured with REDLINE_RELOCATABLE=ON; use make deb or make release")
    os.makedirs(options.out, exist_ok=True)
    version = output(os.path.join(options.build, "redline"), "--version").split()[1]
    path = (make_deb if options.kind == "deb" else make_archive)(options.build, options.out, version)
    print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB, unpacked elsewhere and run")


if __name__ == "__main__":
    sys.exit(main())
