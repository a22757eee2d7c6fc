#!/usr/bin/env python3
"""Makes a Debian package, a release archive or a Python wheel of a build, and tries it.

Usage: package.py deb|archive|wheel --build BUILD --out FOLDER [--no-card-libraries] [--outside REGEX]
                                    [--runtime-inside] [--licences FOLDER]

All hold what `cmake --install` installs. The archive also holds every shared library that the program needs but those
of glibc and the driver; the package only libraries that lie outside the system's folders, and depends on the packages
of the others. The wheel holds what the archive does without the libraries of cards, which are wheels of their own, and
the Python package of python/. Licences lie beside. What was made is unpacked elsewhere, the wheel by pip in a new
environment, and run with an empty environment; archive and wheel also in a root that has nothing but them and glibc.
Exit status 1: something failed.
"""
import argparse
import base64
import glob
import gzip
import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
GLIBC = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|BrokenLocale)\.so)")
DRIVER = re.compile(r"^lib(cuda|nvidia-ml)\.so")
SYSTEM_FOLDERS = ("/lib/", "/usr/lib/")
HEADERS = ("libcli11-dev", "nlohmann-json3-dev", "libfmt-dev", "libtomlplusplus-dev", "libxxhash-dev")  # compiled in
LIBRARIES = "lib/redline"
BESIDE = f"$ORIGIN/../{LIBRARIES}"
OF_CUDA = re.compile(r"^lib(cu|nv|nccl)")
# The extra `cuda` of a wheel: packages that hold no stubs, by the names that they have since CUDA 13. cuDNN opens the
# run-time compiler. cmake/Install.cmake has the folders in which they lie.
EXTRA = {"nvidia-cublas": ">=13,<14", "nvidia-cudnn-cu13": ">=9.6,<10", "nvidia-nccl-cu13": ">=2,<3",
         "nvidia-cuda-nvrtc": ">=13,<14"}
RPATH, RUNPATH, STRTAB = 15, 29, 5  # tags of ELF's dynamic section
EMPTY = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}
TINY = ("model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16", "train.batch_size=1",
        "train.seq_len=32", "train.eval_every=0", "train.max_steps=2")


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


def of_cards(build):
    """Libraries that the program opens for cards: cuBLASLt, and cuDNN and NCCL where they lie beside the headers of the
    build. cuDNN opens the run-time compiler of CUDA for attention."""
    found = {}
    cudnn = os.path.join(cached(build, "REDLINE_CUDNN_INCLUDE"), "../lib")
    cuda = os.path.dirname(cached(build, "CUDA_cublasLt_LIBRARY"))
    nccl = os.path.join(cached(build, "REDLINE_NCCL_INCLUDE"), "../lib")
    if cached(build, "REDLINE_CUDA_BUILT") != "ON":
        return found
    for folder, name in ((cuda, r"libcublasLt\.so\.\d+"), (cudnn, r"libcudnn.*\.so\.9"), (cuda, r"libnvrtc\.so\.\d+"),
                         (cuda, r"libnvrtc-builtins\.so\.\d+\.\d+"), (nccl, r"libnccl\.so\.2")):
        files = os.listdir(folder) if os.path.isabs(folder) and os.path.isdir(folder) else []
        here = [file for file in files if re.fullmatch(name, file)]
        if "nvrtc" in name and "libcudnn.so.9" not in found:
            continue
        if not here and folder == cuda:
            raise SystemExit(f"package: {folder} has no {name}, which programs for cards need")
        found.update({file: os.path.join(folder, file) for file in here})
    return found


def look_beside_only(program, wanted=BESIDE):
    """The program's folders to look for libraries become the one beside it, or `wanted`, in place. The older tag of the
    two holds for the libraries' own libraries, too, and comes before LD_LIBRARY_PATH: they need not be changed."""
    with open(program, "r+b") as file:
        data = bytearray(file.read())
        assert data[:6] == b"\x7fELF\x02\x01", f"{program} is no ELF of 64 bits, little endian"
        headers, = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        # type, flags, offset, address, _, bytes
        segments = [struct.unpack_from("<IIQQQQ", data, headers + i * size) for i in range(count)]
        at, length = next((s[2], s[5]) for s in segments if s[0] == 2)  # the dynamic section
        entries = [(offset, *struct.unpack_from("<QQ", data, offset)) for offset in range(at, at + length, 16)]
        strings = next(value for _, tag, value in entries if tag == STRTAB)
        # from address to place in the file
        strings += next(s[2] - s[3] for s in segments if s[0] == 1 and s[3] <= strings < s[3] + s[5])
        offset, _, text = next(entry for entry in entries if entry[1] in (RPATH, RUNPATH))
        assert data[strings + text:].startswith(wanted.encode()), f"{program} does not look for libraries in {wanted}"
        struct.pack_into("<Q", data, offset, RPATH)
        data[strings + text + len(wanted)] = 0
        file.seek(0)
        file.write(data)


def owner(path):
    """The Debian package that a file belongs to; empty: none."""
    for name in (path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")):
        result = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    return ""


def wheel_licences(path):
    """Licences that a Python wheel brought with a file. They lie beside the wheel's list of files, in a folder above or
    beside the file."""
    folder = os.path.dirname(os.path.realpath(path))
    for _ in range(5):
        for record in [path for form in ("*.dist-info/RECORD", "dist-info/*.dist-info/RECORD")
                       for path in glob.glob(os.path.join(folder, form))]:
            with open(record, encoding="utf-8") as file:
                if re.search(rf"(^|/){re.escape(os.path.basename(path))},", file.read(), re.MULTILINE):
                    return sorted(p for p in glob.glob(os.path.join(os.path.dirname(record), "**"), recursive=True)
                                  if re.match("licen[cs]e|notice|eula", os.path.basename(p), re.IGNORECASE)
                                  and os.path.isfile(p))
        folder = os.path.dirname(folder)
    return []


def licence_files(path, package, folders):
    """Name in the package -> text of the licence of a library or header."""
    for text in [f"{folder}/{package}/copyright" for folder in folders if package]:
        if os.path.exists(text):
            return {package + ".txt": text}
    texts = wheel_licences(path)
    if not texts:  # a toolkit from NVIDIA's installer
        texts = glob.glob(os.path.join(os.path.dirname(os.path.realpath(path)), "../../../EULA.txt"))
    whose = re.sub(r"\.so.*|\.[ah]$", "", os.path.basename(path))
    return {f"{whose}{'-' + str(n) if n else ''}.txt": text for n, text in enumerate(texts)}


def copy_licences(build, libraries, folder, given):
    """A text for each library and for each header that is compiled in, and a list of which is whose."""
    os.makedirs(folder)
    lines = ["# What this package holds beside redline, and where the licences are", ""]
    names = [(name, path, owner(path)) for name, path in sorted(libraries.items())]
    names += [(f"{p} (compiled in)", "", p) for p in HEADERS]
    frontend = cached(build, "REDLINE_CUDNN_FRONTEND_INCLUDE")
    if cached(build, "REDLINE_CUDA_BUILT") == "ON" and os.path.exists(os.path.join(frontend, "cudnn_frontend.h")):
        header = os.path.join(frontend, "cudnn_frontend.h")
        names.append(("cuDNN's frontend (compiled in)", header, owner(header)))
    if cached(build, "REDLINE_WHEEL") == "ON" and cached(build, "REDLINE_CUDA_BUILT") == "ON":
        runtime = cached(build, "CUDA_cudart_static_LIBRARY")
        names.append(("libcudart (compiled in)", runtime, owner(runtime)))
    for name, path, package in names:
        texts = licence_files(path, package, (*given, "/usr/share/doc"))
        for to, text in texts.items():
            shutil.copy(text, os.path.join(folder, to))
        if not texts and re.match("lib(cu|nccl)", name):
            texts = ["NVIDIA; https://docs.nvidia.com/cuda/eula/, and for cuDNN and NCCL the licences of these "
                     "products"]
        if not texts:
            raise SystemExit(f"package: no licence was found for {name} {path}; install the package that it comes "
                             "from, or name a folder that has PACKAGE/copyright (--licences)")
        lines.append(f"- {name}: {', '.join(texts)}")
    with open(os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def stage(options, prefix, libraries, folders=BESIDE):
    """The installed tree under `prefix`, with libraries beside the program, which looks for them in `folders` alone."""
    subprocess.run(["cmake", "--install", options.build, "--prefix", prefix, "--strip"], check=True,
                   stdout=subprocess.DEVNULL)
    look_beside_only(os.path.join(prefix, "bin/redline"), folders)
    if libraries:
        os.makedirs(os.path.join(prefix, LIBRARIES), exist_ok=True)
        for name, path in libraries.items():
            shutil.copy(os.path.realpath(path), os.path.join(prefix, LIBRARIES, name))
    copy_licences(options.build, libraries, os.path.join(prefix, "share/doc/redline/licences"), options.licences)


def try_out(prefix, outside, before=(), program=None):
    """The program runs with no variables, trains on the CPU, and takes its libraries from `prefix` but for those in
    `outside`. `before` are words before the command, `program` where it lies for them."""
    installed = os.path.join(prefix, "bin/redline")
    with tempfile.TemporaryDirectory() as work:
        run = "/run" if before else os.path.join(work, "run")
        for words in (["--version"], ["info"], ["config", "--presets"], ["plan", "quick", "--card", "h100"],
                      ["train", "--device", "cpu", "--out", run, *TINY]):
            done = subprocess.run([*before, program or installed, *words], cwd="/", env=EMPTY, capture_output=True,
                                  text=True)
            if done.returncode != 0:
                raise SystemExit(f"package: redline {' '.join(words)} ended with {done.returncode}: "
                                 f"{done.stderr[-500:]}")
    modules = module_of(os.path.join(prefix, LIBRARIES))
    if modules and not before:  # it looks at the file only once it has its module
        with tempfile.TemporaryDirectory() as work:
            words = ["data", "prepare", "--tokenizer", "bytes", "--out", "out", "prose.parquet"]
            with open(os.path.join(work, "prose.parquet"), "w", encoding="utf-8") as file:
                file.write("no table\n")
            said = subprocess.run([installed, *words], cwd=work, env=EMPTY, capture_output=True, text=True).stderr
        if "not a Parquet file" not in said:
            raise SystemExit(f"package: the Parquet module does not work: {said}")
    for name, path in [pair for file in [installed, *modules] for pair in needed(file).items()]:
        if name not in outside and not os.path.realpath(path).startswith(os.path.realpath(prefix)):
            raise SystemExit(f"package: {name} comes from {path} and not from the package")


def try_alone(prefix, root, outside):
    """As try_out, in a root with nothing but the unpacked archive, glibc and `outside`. Returns the words that say
    whether it could be done."""
    os.makedirs(os.path.join(root, "proc"))  # without it the loader does not know where the program lies
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    enter = ["unshare", *as_root, "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot", root]
    for line in output("ldd", os.path.join(prefix, "bin/redline")).splitlines():
        match = re.match(r"\s*(?:(\S+) => )?(/\S+) \(", line)
        if match and (GLIBC.match(os.path.basename(match[2])) or match[1] in outside):
            os.makedirs(root + os.path.dirname(match[2]), exist_ok=True)
            shutil.copy(os.path.realpath(match[2]), root + match[2])
    program = "/" + os.path.relpath(os.path.join(prefix, "bin/redline"), root)
    if subprocess.run([*enter, "/nothing"], capture_output=True, env=EMPTY).returncode != 127:
        return "not tried in a root of its own, which this user may not enter"
    try_out(prefix, outside, enter, program)
    return "run in a root with glibc " + (f"and {', '.join(sorted(outside))}" if outside else "alone")


def carried(options):
    """The libraries that an archive or a wheel brings along, and the names of those that it leaves to the machine."""
    libraries = needed_in_all(options.build)
    outside = {n for n in libraries if options.outside and re.match(options.outside, n)}
    if any(n.startswith("libmpi") for n in set(libraries) - outside):
        raise SystemExit(f"package: {options.build} has MPI, which is an installation and cannot be carried along: "
                         f"configure with -DREDLINE_MPI=OFF, as make {MAKE[options.kind]} does")
    return {n: path for n, path in libraries.items() if n not in outside}, outside


def make_archive(options, version):
    name = f"redline-{version}-linux-{platform.machine()}"
    inside, outside = carried(options)
    if not options.no_card_libraries:
        inside.update(of_cards(options.build))
    with tempfile.TemporaryDirectory() as work:
        stage(options, os.path.join(work, name), inside)
        path = os.path.abspath(os.path.join(options.out, name + ".tar.gz"))
        subprocess.run(["tar", "--owner=0", "--group=0", "-C", work, "-I", "gzip -1", "-cf", path, name], check=True)
        with tempfile.TemporaryDirectory() as elsewhere:
            subprocess.run(["tar", "-C", elsewhere, "-xzf", path], check=True)
            try_out(os.path.join(elsewhere, name), outside)
            how = try_alone(os.path.join(elsewhere, name), elsewhere, outside)
    return path, how


def dependencies(root, work):
    """What dpkg-shlibdeps finds: the packages of the libraries that are not inside."""
    os.makedirs(os.path.join(work, "debian"))
    with open(os.path.join(work, "debian/control"), "w", encoding="utf-8") as file:
        file.write("Source: redline\n\nPackage: redline\nArchitecture: any\n")
    inside = os.path.join(root, "usr", LIBRARIES)
    programs = [os.path.join(root, "usr/bin/redline"), *glob.glob(inside + "/*")]
    text = output("dpkg-shlibdeps", "-O", "--ignore-missing-info", f"-l{inside}", *programs, cwd=work,
                  stderr=subprocess.DEVNULL)
    return text.strip().removeprefix("shlibs:Depends=")


def make_deb(options, version):
    build, out = options.build, options.out
    version = version.replace("-", "+", 1).replace("-", ".")  # a hyphen would begin Debian's own revision
    architecture = output("dpkg", "--print-architecture").strip()
    everything = needed_in_all(build)
    inside = {name: path for name, path in everything.items() if not os.path.realpath(path).startswith(SYSTEM_FOLDERS)}
    if not options.no_card_libraries:  # products on cards need cuBLASLt; cuDNN and NCCL are packages of their own
        inside.update({n: p for n, p in of_cards(build).items() if "cublas" in n
                       and not os.path.realpath(p).startswith(SYSTEM_FOLDERS)})
    with tempfile.TemporaryDirectory() as work:
        root = os.path.join(work, "root")
        stage(options, os.path.join(root, "usr"), inside)
        share = os.path.join(root, "usr/share")
        # where Debian's zsh looks
        shutil.move(os.path.join(share, "zsh/site-functions"), os.path.join(share, "zsh/vendor-completions"))
        shutil.move(os.path.join(share, "doc/redline/LICENSE"), os.path.join(share, "doc/redline/copyright"))
        page = os.path.join(share, "man/man1/redline.1")
        with open(page, "rb") as plain, open(page + ".gz", "wb") as packed:
            packed.write(gzip.compress(plain.read(), mtime=0))
        os.remove(page)
        size = sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(root) for name in names) // 1024
        os.makedirs(os.path.join(root, "DEBIAN"))
        with open(os.path.join(root, "DEBIAN/control"), "w", encoding="utf-8") as file:
            file.write(f"Package: redline\nVersion: {version}\nArchitecture: {architecture}\n"
                       "Maintainer: redline developers <redline@localhost>\n"
                       f"Installed-Size: {size}\nDepends: {dependencies(root, work)}\n"
                       "Section: science\nPriority: optional\n"
                       "Description: pretrains LLaMA-, Qwen3- and OLMo-2-class language models\n"
                       " One program for CPUs and NVIDIA cards.\n")
        path = os.path.abspath(os.path.join(out, f"redline_{version}_{architecture}.deb"))
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z3", "--build", root, path], check=True,
                       stdout=subprocess.DEVNULL)
        with tempfile.TemporaryDirectory() as elsewhere:
            subprocess.run(["dpkg-deb", "-x", path, elsewhere], check=True)
            try_out(os.path.join(elsewhere, "usr"), set(everything) - set(inside))
    return path, "run"


def glibc_of(folder):
    """The least version of glibc, (2, 36), that has all that the programs and libraries under a folder ask of it."""
    files = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]
    programs = [path for path in files if open(path, "rb").read(4) == b"\x7fELF"]
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", output("readelf", "--version-info", "--wide", *programs))
    return max((int(major), int(minor)) for major, minor in versions)


def wheel_version(version):
    """As Python writes versions: 0.1.0-12-g1a2b3c4 is 0.1.0.post12+g1a2b3c4."""
    return re.sub(r"-(\d+)-(g[0-9a-f]+)$", r".post\1+\2", version)


def metadata(version, cuda, licences):
    lines = ["Metadata-Version: 2.4", "Name: redline", f"Version: {version}",
             "Summary: pretrains language models: one program for CPUs and NVIDIA cards",
             "License-Expression: MIT", *[f"License-File: {name}" for name in licences], "Requires-Python: >=3.9"]
    if cuda:
        lines += ["Provides-Extra: cuda"]
        lines += [f"Requires-Dist: {name}{bounds}; extra == 'cuda'" for name, bounds in EXTRA.items()]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "",
                      "redline pretrains LLaMA-, Qwen- and OLMo-class language models. `redline train` trains the",
                      "built-in model, `redline check` says what works on this machine, `redline --help` has the rest,",
                      "and `import redline` runs the program from Python.", ""])


def zip_wheel(root, path):
    """All files of a folder, with their list at the end, as wheels have it. The same files give the same bytes."""
    record = glob.glob(os.path.join(root, "*.dist-info"))[0] + "/RECORD"
    names = sorted(os.path.relpath(os.path.join(at, n), root) for at, _, files in os.walk(root) for n in files)
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name)  # of 1980
            entry.external_attr = (0o100000 | mode) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)

        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                data = file.read()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}")
            add(name, data, 0o755 if os.access(os.path.join(root, name), os.X_OK) else 0o644)
        name = os.path.relpath(record, root)
        add(name, "\n".join([*lines, f"{name},,", ""]), 0o644)


def try_wheel(path, outside):
    """Installs a wheel into an environment of its own, runs the command, and the module."""
    with tempfile.TemporaryDirectory() as work:
        home = os.path.join(work, "venv")
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([os.path.join(home, "bin/python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
                        "--disable-pip-version-check", path], check=True)
        script = "import os, redline; print(os.path.dirname(redline.__file__)); print(redline.version()); " \
                 "print(redline.plan('quick', card='h100')['parameters'])"
        package, version, parameters = output(os.path.join(home, "bin/python"), "-c", script, cwd="/",
                                              env=EMPTY).split("\n")[:3]
        said = output(os.path.join(home, "bin/redline"), "--version", cwd="/", env=EMPTY)
        if said != f"redline {version}\n" or int(parameters) < 1e6:
            raise SystemExit(f"package: the command of the wheel says {said!r}, its module {version} and {parameters}")
        try_out(package, outside)


def make_wheel(options, version):
    inside, outside = carried(options)
    build, cuda = options.build, cached(options.build, "REDLINE_CUDA_BUILT") == "ON"
    if [n for n in inside if OF_CUDA.match(n)] and not options.runtime_inside:
        raise SystemExit(f"package: {build} links CUDA's runtime as a library, without which its program does not "
                         "start: configure with -DREDLINE_WHEEL=ON, as make wheel does")
    folders = cached(build, "REDLINE_WHEEL_FOLDERS") or BESIDE
    version = wheel_version(version)
    with tempfile.TemporaryDirectory() as work:
        root = os.path.join(work, "root")
        package = os.path.join(root, "redline")
        stage(options, package, inside, folders)
        for name in glob.glob(os.path.join(SOURCE, "python/redline/*.py")):
            shutil.copy(name, package)
        info, data = (os.path.join(root, f"redline-{version}.{kind}") for kind in ("dist-info", "data/data"))
        os.makedirs(data)
        shutil.move(os.path.join(package, "share/doc/redline/licences"), os.path.join(info, "licenses/licences"))
        shutil.move(os.path.join(package, "share/doc/redline/LICENSE"), os.path.join(info, "licenses"))
        shutil.rmtree(os.path.join(package, "share/doc"))
        # Below a prefix, where shells and man look for them.
        shutil.move(os.path.join(package, "share"), data)
        licences = [os.path.relpath(p, os.path.join(info, "licenses"))
                    for p in sorted(glob.glob(os.path.join(info, "licenses/**"), recursive=True)) if os.path.isfile(p)]
        tag = "py3-none-manylinux_{}_{}_{}".format(*glibc_of(package), platform.machine())
        for name, text in {"METADATA": metadata(version, cuda, licences),
                           "WHEEL": f"Wheel-Version: 1.0\nGenerator: redline\nRoot-Is-Purelib: false\nTag: {tag}\n",
                           "entry_points.txt": "[console_scripts]\nredline = redline:main\n"}.items():
            with open(os.path.join(info, name), "w", encoding="utf-8") as file:
                file.write(text)
        path = os.path.abspath(os.path.join(options.out, f"redline-{version}-{tag}.whl"))
        zip_wheel(root, path)
        try_wheel(path, outside)
        with tempfile.TemporaryDirectory() as elsewhere:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(elsewhere)
            os.chmod(os.path.join(elsewhere, "redline/bin/redline"), 0o755)  # zipfile does not keep it
            how = try_alone(os.path.join(elsewhere, "redline"), elsewhere, outside)
    return path, "installed by pip into an empty environment, and " + how


MAKE = {"deb": "deb", "archive": "release", "wheel": "wheel"}


def main():
    parser = argparse.ArgumentParser(
        description="Makes a Debian package, a release archive or a Python wheel of a build, and tries it.")
    parser.add_argument("kind", choices=list(MAKE))
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--no-card-libraries", action="store_true",
                        help="leave out cuBLASLt, cuDNN and NCCL: a small package")
    parser.add_argument("--outside", metavar="REGEX",
                        help="libraries that an archive or a wheel leaves to the machine, by their names")
    parser.add_argument("--runtime-inside", action="store_true",
                        help="a wheel of a build that links CUDA's runtime as a library brings that library along")
    parser.add_argument("--licences", metavar="FOLDER", action="append", default=[],
                        help="has PACKAGE/copyright for what is compiled in and is no package here")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    version = output(os.path.join(options.build, "redline"), "--version").split()[1]
    make = {"deb": make_deb, "archive": make_archive, "wheel": make_wheel}[options.kind]
    path, how = make(options, version)
    if cached(options.build, "REDLINE_NATIVE") != "OFF":
        print(f"package: warning: {options.build} was built for this machine's processor (REDLINE_NATIVE): others may "
              "not run it", file=sys.stderr)
    print(f"{path}: {os.path.getsize(path) / 1e6:.1f} MB, unpacked elsewhere and {how}")


if __name__ == "__main__":
    sys.exit(main())
