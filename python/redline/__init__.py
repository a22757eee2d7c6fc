"""redline from Python: runs the program and reads what it writes. Nothing is computed here.

    import redline
    end = redline.train("my.toml", lr=1e-3, out="runs/a")     # what `redline train --json` says at its end
    table = redline.metrics("runs/a")                         # a pandas.DataFrame, or a dict of lists without pandas
    plan = redline.plan("gqa-180m", card="h200")              # what `redline plan --json` says
    shards = redline.tokens("data/wiki")                      # numpy memmaps of a folder of `redline data prepare`
"""
import collections
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1  # of prctl(2)

__all__ = ["Error", "Shard", "call", "check", "main", "metrics", "plan", "program", "tokens", "train", "version"]


class Error(Exception):
    """The program did not do what it was asked to. The text is its sentence, `status` its exit status: 1 something
    failed, 2 bad input, 3 stopped by a signal. `document` is what it printed with --json, where it printed anything."""

    def __init__(self, sentence, status, document=None):
        super().__init__(sentence)
        self.status = status
        self.document = document


def program():
    """The path of the program: REDLINE_PROGRAM, else that of this package, else the first one in PATH."""
    named = os.environ.get("REDLINE_PROGRAM")
    if named:
        if not os.path.isfile(named):
            raise Error(f"REDLINE_PROGRAM: there is no {named}", 2)
        if not os.access(named, os.X_OK):
            raise Error(f"REDLINE_PROGRAM: {named} is no program that may be run", 2)
        return named
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "redline")
    if os.path.isfile(inside):
        return inside
    found = shutil.which("redline")
    if found is None:
        raise Error("there is no redline beside this package or in PATH; name the program in REDLINE_PROGRAM", 2)
    return found


def environment():
    """The variables that the program runs with. It finds NVIDIA's wheels beside this package; where Python has them in
    another folder (an environment that sees the system's packages), LD_LIBRARY_PATH gets their folders, as its last."""
    variables = dict(os.environ)
    found = importlib.util.find_spec("nvidia")
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "nvidia")
    places = [place for place in (found.submodule_search_locations or [] if found else [])
              if os.path.realpath(place) != os.path.realpath(beside)]
    folders = [folder for place in places for name in ("cu13", "cudnn", "nccl")
               if os.path.isdir(folder := os.path.join(place, name, "lib"))]
    if folders:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [variables.get("LD_LIBRARY_PATH"), *folders]))
    return variables


def main():
    """The command `redline`: this process becomes the program."""
    try:
        path = program()
        if os.path.exists(sys.argv[0]) and os.path.samefile(path, sys.argv[0]):  # it would start itself for ever
            raise Error(f"{path} is the script of a wheel, and PYTHONPATH has a module without a program before it; "
                        "take that out, or name the program itself in REDLINE_PROGRAM", 2)
        os.execve(path, ["redline", *sys.argv[1:]], environment())
    except OSError as error:
        print(f"redline: error: {_not_run(path, error)}", file=sys.stderr)
        sys.exit(2)
    except Error as error:
        print(f"redline: error: {error}", file=sys.stderr)
        sys.exit(error.status)


def version():
    return _run(["--version"]).stdout.split()[1]


def call(*words, quiet=True):
    """Runs `redline WORDS... --json` and returns its document. What the program says to people goes to standard error
    where `quiet` is false. A failure is an Error with its sentence."""
    return _document(_run([*map(str, words), "--json"], quiet))


def train(config=None, settings=None, *, out=None, resume=False, device=None, quiet=False, **keys):
    """Trains as `redline train` does and returns what it says at its end: folder, outcome, steps, eval_loss, run.

    `config` is a file or a preset. Keys are given by name (`lr=1e-3`, where one key ends so) or in full in `settings`
    ({"optim.lr": 1e-3}). Ctrl-C ends the run after its step, saved, and then raises KeyboardInterrupt.
    """
    words = ["train", *_config_words(config, settings, keys)]
    if out is not None:
        words += ["--out", os.fspath(out)]
    if resume:
        words.append("--resume")
    if device is not None:
        words += ["--device", device]
    return call(*words, quiet=quiet)


def plan(config=None, settings=None, *, card=None, gpus=None, **keys):
    """What `redline plan` expects of a run, as a dict: memory, FLOPs, the time of a step. Keys are as in train()."""
    words = ["plan", *_config_words(config, settings, keys)]
    if card is not None:
        words += ["--card", card]
    if gpus is not None:
        words += ["--gpus", gpus]
    return call(*words)


def check(device=None):
    """The table of `redline check`, as a dict. What does not work is in it, and no Error."""
    try:
        return call("check", *([] if device is None else ["--device", device]))
    except Error as error:
        if error.status == 1 and error.document is not None:
            return error.document
        raise


def metrics(run):
    """The rows of a run, one an update: a pandas.DataFrame, or without pandas a dict of columns, which are lists. A key
    that a row does not have is NaN, or None without pandas. docs/monitoring.md has the keys."""
    path = os.path.join(os.fspath(run), "metrics.jsonl")
    lines = _text_of(path, "name the folder of a run").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], 1):  # a run that is under way may have written half of the last line
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise Error(f"{path}:{number}: {error}", 2) from None
        if not isinstance(rows[-1], dict):
            raise Error(f"{path}:{number}: not a row of metrics, which is an object", 2)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        import pandas
    except ImportError:
        return columns
    return pandas.DataFrame(columns)


Shard = collections.namedtuple("Shard", ["ids", "offsets", "mask"])
Shard.__doc__ = """A shard's files as numpy memmaps. Document i is ids[offsets[i]:offsets[i + 1]]; `mask`, of
conversations only, has bit i % 8 of byte i // 8 set where token i is learned."""


def tokens(folder, split="train"):
    """The shards of a folder that `redline data prepare` made, as a list of Shard. Needs numpy."""
    import numpy

    path = os.path.join(os.fspath(folder), "manifest.json")
    try:
        manifest = json.loads(_text_of(path, "name a folder that `redline data prepare` made"))
    except ValueError as error:
        raise Error(f"{path}: {error}", 2) from None
    known = isinstance(manifest, dict) and manifest.get("format") == "redline-shards"
    if not known or manifest.get("version") not in (1, 2):
        raise Error(f"{path}: not the manifest of token shards that this version knows", 2)
    if split not in manifest["splits"]:
        raise Error(f"{path}: there is no split '{split}', only {', '.join(manifest['splits'])}", 2)

    def mapped(file, dtype):
        name = os.path.join(os.fspath(folder), file["name"])
        size = os.path.getsize(name) if os.path.exists(name) else None
        if size != file["bytes"]:
            said = "missing" if size is None else f"{size} bytes long"
            raise Error(f"{name}: {said}, where {path} says {file['bytes']} bytes; prepare the folder again", 2)
        return numpy.memmap(name, dtype=dtype, mode="r")

    dtype = {"uint16": "<u2", "uint32": "<u4"}[manifest["dtype"]]
    return [Shard(mapped(shard["token_file"], dtype), mapped(shard["offset_file"], "<u8"),
                  mapped(shard["mask_file"], "u1") if "mask_file" in shard else None)
            for shard in manifest["splits"][split]["shards"]]


def _text_of(path, otherwise):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise Error(f"{path}: no such file; {otherwise}", 2) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{path}: {error}", 2) from None


def _config_words(config, settings, keys):
    words = [] if config is None else [os.fspath(config)]
    named = dict(settings or {})
    for name, value in keys.items():
        full = _full_name(name)
        if full in named:
            raise Error(f"{full} is given twice", 2)
        named[full] = value
    return words + [f"{name}={_literal(name, value)}" for name, value in named.items()]


def _full_name(name):
    """optim.lr for lr."""
    ends = [row["key"] for row in call("config", "--keys") if row["key"] == name or row["key"].endswith("." + name)]
    if len(ends) == 1:
        return ends[0]
    if not ends:
        raise Error(f"there is no key '{name}'; `redline config --keys` lists all of them", 2)
    raise Error(f"'{name}' may be {' or '.join(ends)}: give it in full, as settings={{'{ends[0]}': ...}}", 2)


def _literal(name, value):
    """A value as TOML has it; text as it is, since the program knows what a key takes."""
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":  # numpy's, too
        return "true" if value else "false"
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, (list, tuple)):
        return json.dumps([os.fspath(v) if isinstance(v, os.PathLike) else v for v in value])
    try:
        if not isinstance(value, float) and hasattr(value, "__index__"):
            return repr(value.__index__())
        if hasattr(value, "__float__"):
            return repr(float(value))
    except (TypeError, ValueError):  # an array of several
        pass
    raise Error(f"{name}: {value!r} is no value of a key", 2)


def _not_run(path, error):
    return f"{path} cannot be run: {error.strerror}; REDLINE_PROGRAM may name another"


def _run(words, quiet=True):
    """The finished program. It has a session of its own, so that a Ctrl-C reaches it once, from here, however it came
    to this process; it ends in good order, and is waited for. Where this process is killed, it is told to stop, which
    saves. Threads read its streams, since a notebook has no descriptor that the program could write to."""
    path, libc = program(), ctypes.CDLL(None)
    out, err = [], collections.deque(maxlen=1000)

    def listen():
        for line in process.stderr:
            err.append(line)
            if not quiet:
                sys.stderr.write(line)
                sys.stderr.flush()

    interrupted = False
    try:
        started = subprocess.Popen([path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
                                   env=environment(), start_new_session=True,
                                   preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM))
    except OSError as error:
        raise Error(_not_run(path, error), 2) from None
    with started as process:
        readers = [threading.Thread(target=listen), threading.Thread(target=lambda: out.append(process.stdout.read()))]
        for reader in readers:
            reader.start()
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
        for reader in readers:
            reader.join()
    if interrupted:
        raise KeyboardInterrupt
    done = subprocess.CompletedProcess(words, process.returncode, "".join(out), "".join(err))
    if done.returncode != 0:
        lines = [line for line in err if line.startswith("redline: error: ")]
        how = f"exit status {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        said = lines[-1][len("redline: error: "):].strip() if lines else f"redline {words[0]} ended with {how}"
        raise Error(said, done.returncode, _document(done, must=False))
    return done


def _document(done, must=True):
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        if must:
            raise Error(f"redline {done.args[0]} printed no JSON document: {error}", 1) from None
        return None
