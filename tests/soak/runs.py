"""Compares a run's folder with the reference, the same configuration run once without interruption."""
import json

from program import Failure

# The computed figures of a step. The other keys of metrics.jsonl are times and the machine's state.
STEP_KEYS = ("step", "loss", "grad_norm", "lr", "tokens", "padding", "truncated_tokens", "eval_loss", "fp8_saturated",
             "fp8_zero")
# These name the settings of the machine that may differ, or hold hashes of what does.
UNCOMPARED = ("config.toml", "manifest.json")


def checkpoints(run):
    """Names of the folders in checkpoints/ that stand for a checkpoint, oldest first."""
    folder = run / "checkpoints"
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("step_") and "." not in p.name)


def step_of(name):
    return int(name.removeprefix("step_"))


def rows(path):
    """The whole lines of a .jsonl file. A line that is no JSON is a failure: damage is told apart by who asks."""
    if not path.exists():
        return []
    found = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line))
        except ValueError as e:
            raise Failure(f"{path}: line {number} is no JSON ({e})") from None
    return found


def last_step(run):
    """The step of the last whole row of metrics.jsonl, read while another process writes: 0 where there is none."""
    try:
        lines = (run / "metrics.jsonl").read_bytes().split(b"\n")
    except OSError:
        return 0
    for line in reversed(lines[:-1]):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


def computed(row):
    return {key: row[key] for key in STEP_KEYS if key in row}


def without_left(expected, found, left):
    """The reference's rows but for what a signal leaves behind the steps in `left`: an evaluation, samples."""
    there = {row.get("step"): row for row in found}
    rest = []
    for row in expected:
        if row.get("step") in left and "eval_loss" in row and "eval_loss" not in there.get(row["step"], row):
            row = {key: value for key, value in row.items() if key != "eval_loss"}
        if row.get("step") in there or "samples" not in row or row["step"] not in left:
            rest.append(row)
    return rest


def require_same_rows(reference, run, name, pick=lambda row: row, gaps=False, left=()):
    """Row for row. With gaps the run may lack rows, and what it has is in order and the reference's."""
    expected, found = [pick(r) for r in rows(reference / name)], [pick(r) for r in rows(run / name)]
    expected = without_left(expected, found, left)
    if found == expected:
        return
    if gaps:
        rest = iter(expected)
        if all(row in rest for row in found):
            return
    for n, (a, b) in enumerate(zip(expected, found), 1):
        if a != b and not gaps:
            raise Failure(f"{run / name}: row {n} is {json.dumps(b)[:300]}, and the reference's {json.dumps(a)[:300]}")
    raise Failure(f"{run / name}: {len(found)} rows, of steps {[r.get('step') for r in found]}, and the reference has "
                  f"{len(expected)}" + (" (gaps are allowed)" if gaps else ""))


def state_without_session(text):
    """state.json but for what sessions and their saves leave in it: the seconds trained, and the checkpoint that is
    held to be good, which is one of those that were made."""
    state = json.loads(text)
    state.get("ends", {}).pop("seconds", None)
    state.get("guard", {}).pop("good", None)
    return state


def state_without_stamp(text):
    """state.json but for when the data's files were written, which copying them changes, and the hash of all their
    bytes, which a thread finds beside the run."""
    state = state_without_session(text)
    for key in ("data", "eval"):
        for word in ("stamp", "whole"):
            state.get(key, {}).pop(word, None)
    return state


def require_same_checkpoint(reference, run, stamps=True):
    """Every file of the last checkpoint, byte for byte."""
    last = checkpoints(reference)[-1]
    if not checkpoints(run) or checkpoints(run)[-1] != last:
        raise Failure(f"{run}: its checkpoints are {checkpoints(run)}, and the reference ends with {last}")
    expected, found = reference / "checkpoints" / last, run / "checkpoints" / last
    names = sorted(p.name for p in expected.iterdir())
    if names != sorted(p.name for p in found.iterdir()):
        raise Failure(f"{found} holds {sorted(p.name for p in found.iterdir())}, and the reference's {names}")
    for name in names:
        a, b = (expected / name).read_bytes(), (found / name).read_bytes()
        if a == b or name in UNCOMPARED:
            continue
        read = state_without_session if stamps else state_without_stamp
        if name == "state.json" and read(a) == read(b):
            continue
        where = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        raise Failure(f"{found / name} differs from the reference's at byte {where} ({len(b)} bytes, and {len(a)})")


def same_weights(reference, run):
    last = checkpoints(reference)[-1]
    try:
        return all((reference / "checkpoints" / last / name).read_bytes() ==
                   (run / "checkpoints" / last / name).read_bytes()
                   for name in ("model.safetensors", "optimizer.safetensors"))
    except OSError:
        return False


def require_same(reference, run, gaps=False, stamps=True, left=()):
    """That the run ended as the reference did. `left` are the steps behind which a signal stopped it."""
    require_same_checkpoint(reference, run, stamps)
    require_same_rows(reference, run, "metrics.jsonl", computed, gaps, left)
    for name in ("samples.jsonl", "fp8.jsonl"):
        require_same_rows(reference, run, name, gaps=gaps, left=left)
    rows(run / "events.jsonl")
    left = [p.name for p in (run / "checkpoints").iterdir() if "." in p.name]
    if left:
        raise Failure(f"{run / 'checkpoints'} still holds {left} when the run has ended")
