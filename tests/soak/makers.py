"""Commands that make a folder, or a file, whole or not at all: what they need, and what they ought to have made."""
import runs
from program import Failure


def draw(trial, reference, pages=True):
    """One of them: a function from where it is to be made to the words of the command. A page (`report`) holds times
    and is no folder, so that two of them cannot be compared."""
    texts = sorted((reference.configuration.data_folder / "text").iterdir())
    last = reference.run / "checkpoints" / runs.checkpoints(reference.run)[-1]
    ways = [lambda out: ["data", "prepare", "--tokenizer", "bytes", "--separator", "\\n\\n", "--out", out, *texts],
            lambda out: ["export", "--checkpoint", reference.run, "--out", out],
            lambda out: ["import", last, "--out", out]]
    if pages:
        ways.append(lambda out: ["report", reference.run, "--out", out])
    return trial.rng.choice(ways)


def require_same_files(expected, found):
    """Every file of a folder byte for byte, and no others."""
    names = sorted(str(p.relative_to(expected)) for p in expected.rglob("*") if p.is_file())
    others = sorted(str(p.relative_to(found)) for p in found.rglob("*") if p.is_file())
    if names != others:
        raise Failure(f"{found} holds {others}, and {expected} {names}")
    for name in names:
        if (expected / name).read_bytes() != (found / name).read_bytes():
            raise Failure(f"{found / name} differs from {expected / name}")


def require_nothing_made(out, ended):
    if out.exists():
        raise Failure(f"{out} is there although making it failed: {ended.in_words()}")
