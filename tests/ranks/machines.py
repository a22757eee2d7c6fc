"""Machines on this machine, for tests of ranks on several: network namespaces with a name and an address each, all on
one switch. Nothing of the machine's own network is changed, and with the tests everything is gone.

Also what these tests share: a small run, its losses, and the word with which a test is skipped.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

SKIPPED = 77  # what ctest takes for "skipped"
TOKEN = "0123456789abcdef" * 4
RUN = ("train --preset quick --device cpu model.layers=2 model.hidden=32 model.heads=2 model.head_dim=16 model.ffn=48 "
       "train.batch_size=1 train.seq_len=64 data.max_segments=8 optim.lr=3e-3 optim.warmup_steps=4 train.eval_every=0 "
       "parallel.timeout=60").split()


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def need(*tools):
    """Skips the test where one of the programs is missing."""
    for tool in tools:
        if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            skip(f"there is no {tool} here")


class Machines:
    """with Machines(3) as m: m.run(0, [...]). Machine 0 is node1 at 10.77.0.1."""

    def __init__(self, count, folder):
        need("ip", "unshare")
        if os.geteuid() != 0:
            skip("network namespaces need root")
        self.count = count
        self.tag = f"rl{os.getpid()}"
        self.hosts = os.path.join(folder, "hosts")
        self.started = []
        with open(self.hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{self.address(i)} {self.name(i)}\n" for i in range(count)))

    @staticmethod
    def name(i):
        return f"node{i + 1}"

    @staticmethod
    def address(i):
        return f"10.77.0.{i + 1}"

    def space(self, i):
        return f"{self.tag}n{i}"

    def __enter__(self):
        try:
            self._ip("netns", "add", self.tag)
            self._ip("-n", self.tag, "link", "add", "switch", "type", "bridge")
            self._ip("-n", self.tag, "link", "set", "switch", "up")
            for i in range(self.count):
                self._ip("netns", "add", self.space(i))
                self._ip("-n", self.tag, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns",
                         self.space(i))
                self._ip("-n", self.tag, "link", "set", f"port{i}", "master", "switch", "up")
                self._ip("-n", self.space(i), "addr", "add", f"{self.address(i)}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    self._ip("-n", self.space(i), "link", "set", link, "up")
        except subprocess.CalledProcessError as error:
            self.__exit__()
            skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        return self

    def __exit__(self, *_):
        for i in range(self.count):
            self.power_off(i)
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for space in [self.space(i) for i in range(self.count)] + [self.tag]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def on(self, i, command):
        """The command as machine i runs it, under its name and with its network."""
        inside = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        return ["ip", "netns", "exec", self.space(i), "unshare", "--uts", "--mount", "sh", "-c", inside, self.name(i),
                self.hosts, *command]

    def start(self, i, command, log, **variables):
        """Begins it; its output goes to the file."""
        with open(log, "ab") as out:
            self.started.append(subprocess.Popen(self.on(i, command), stdout=out, stderr=subprocess.STDOUT,
                                                 stdin=subprocess.DEVNULL, env=clean_environment(**variables)))
        return self.started[-1]

    def run(self, i, command, **variables):
        return subprocess.run(self.on(i, command), capture_output=True, text=True, check=False, timeout=300,
                              env=clean_environment(**variables))

    def unplug(self, i):
        """The machine goes on, and nobody hears of it."""
        self._ip("-n", self.tag, "link", "set", f"port{i}", "down")

    def power_off(self, i):
        """All its processes are gone at once."""
        found = subprocess.run(["ip", "netns", "pids", self.space(i)], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def listeners(self, i):
        """Addresses and ports on which anything listens there."""
        said = self.run(i, ["ss", "-H", "-l", "-t", "-n"]).stdout
        return [line.split()[3] for line in said.splitlines()]


def clean_environment(**variables):
    """Ours without any launcher's variables, and the ones that are given."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "OMPI_", "PMI", "TORCHELASTIC_"))
            and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    # More ranks than cores, and OpenMPI as root, which it wants to be told twice.
    kept.update(REDLINE_TOKEN=TOKEN, REDLINE_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                OMPI_MCA_hwloc_base_binding_policy="none", **variables)
    return kept


def as_rank(rank, ranks, address, port, local_rank=0, on_each=1):
    """The variables that torchrun sets."""
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(on_each), "MASTER_ADDR": address, "MASTER_PORT": str(port)}


def losses(folder):
    """By step, as they stand in metrics.jsonl: equal text is equal bits."""
    path = os.path.join(folder, "metrics.jsonl")
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.endswith("\n")]
    return {row["step"]: row["loss"] for row in rows if row["step"] > 0}


def starts(folder):
    """The rows with which sessions of the run began."""
    path = os.path.join(folder, "events.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["kind"] == "started"]


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} seconds")
        time.sleep(0.02)


def told(*logs):
    text = ""
    for log in logs:
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as file:
                text += f"--- {os.path.basename(log)}\n{file.read()[-6000:]}\n"
    return text


def expect(condition, words):
    if not condition:
        raise AssertionError(words)


def expect_close(some, others, what, tolerance=1e-4):
    expect(some.keys() == others.keys(), f"{what}: steps {sorted(some)[-3:]} and {sorted(others)[-3:]}")
    for step, loss in some.items():
        expect(abs(loss - others[step]) <= tolerance * loss, f"{what}: step {step} has {loss}, not {others[step]}")


def straight_run(program, folder, ranks, words):
    """The run that all others are held against: on one machine, undisturbed."""
    out = os.path.join(folder, f"straight{ranks}")
    command = [program, *(["launch", "-n", str(ranks), "--"] if ranks > 1 else []), *RUN, *words, "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=clean_environment())
    expect(done.returncode == 0, f"a run on one machine failed:\n{done.stdout}{done.stderr}")
    return losses(out)


def fresh_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder
