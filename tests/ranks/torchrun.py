#!/usr/bin/env python3
"""torchrun starts the ranks, on one machine and on two, and starts them again.

Usage: torchrun.py REDLINE WORK_FOLDER

The torchrun of REDLINE_TORCHRUN, or the one in PATH; where there is none the test is skipped: exit 77. The two machines
are network namespaces (machines.py). A rank that is killed costs the steps since the last checkpoint; a machine that is
switched off is done without: the run goes on with one rank, and a step keeps its rows.
"""
import os
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import (RUN, Machines, clean_environment, expect, expect_close, fresh_folder, losses, skip, starts,
                      straight_run, told, wait_for)

STEPS = 1500
# A step is that of two ranks, however many come first.
WORDS = [*RUN, "parallel.ranks=2", f"train.max_steps={STEPS}", "checkpoint.every=100", "checkpoint.keep=3", "--resume"]


def rank_process(tag, rank):
    """The process that has these words in its command line and is that rank; none yet: None."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/environ", "rb") as variables:
                line, place = words.read().split(b"\0"), variables.read().split(b"\0")
            if tag.encode() in line and b"train" in line[:2] and f"RANK={rank}".encode() in place:
                return int(pid)
        except OSError:
            pass  # it has ended meanwhile
    return None


def on_one_machine(torchrun, program, folder, straight):
    out, log = os.path.join(folder, "one"), os.path.join(folder, "one.log")
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "--max-restarts", "2", "--no-python", program, *WORDS,
               "--out", out]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=clean_environment())
    wait_for("ranks train", lambda: len(losses(out)) > 250, 120)
    killed = rank_process(out, 1)
    os.kill(killed, signal.SIGKILL)
    begin = time.monotonic()
    wait_for("the ranks are started again", lambda: len(starts(out)) == 2, 60)
    seconds = time.monotonic() - begin
    expect(process.wait(300) == 0, told(log))
    last = starts(out)[-1]
    expect(last.get("restart") == "restart 1 by torchrun" and last["first_step"] >= 200, f"{last}")
    expect(losses(out) == straight, "after a restart by torchrun the losses are others")
    print(f"torchrun on one machine: {seconds:.1f} s from a rank's end until the run went on; the same losses")


def on_two_machines(torchrun, program, folder, straight):
    out = os.path.join(folder, "two")
    with Machines(2, folder) as machines:
        logs = [os.path.join(folder, f"two{i}.log") for i in (0, 1)]
        agents = []
        for i in (0, 1):
            command = [torchrun, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-backend",
                       "c10d", "--rdzv-endpoint", "node1:29400", "--rdzv-id", "redline-test", "--local-addr",
                       machines.address(i), "--no-python", program, *WORDS, "--out", out]
            agents.append(machines.start(i, command, logs[i]))

        def two_train(sessions):  # which may begin on one of them, where the other comes late
            expect(agents[0].poll() is None, "torchrun ended too early:\n" + told(*logs))
            last = (starts(out) or [{"ranks": 0, "first_step": 0}])[-1]
            return len(starts(out)) >= sessions and last["ranks"] == 2 and max(
                losses(out), default=0) > last["first_step"] + 120

        wait_for("two machines train", lambda: two_train(1), 240)
        sessions = len(starts(out))
        os.kill(rank_process(out, 1), signal.SIGKILL)  # a rank alone: both machines go on
        wait_for("both are started again", lambda: two_train(sessions + 1), 240)
        sessions = len(starts(out))
        begin = time.monotonic()
        machines.power_off(1)
        wait_for("one machine goes on", lambda: len(starts(out)) > sessions, 240)
        seconds = time.monotonic() - begin
        expect(agents[0].wait(300) == 0, told(*logs))
        first, last = starts(out)[0], starts(out)[-1]
        expect(last["ranks"] == 1 and last["first_step"] > 0, f"{last}")
        expect(last["tokens_per_step"] == first["tokens_per_step"], "a step has other rows on fewer ranks")
        expect("on node2 is gone" in told(*logs), told(*logs))
    # Sums of floats in another order drift apart over a thousand steps.
    expect_close(losses(out), straight, "after a machine was lost", tolerance=1e-2)
    print(f"torchrun on two machines: one is switched off, {seconds:.1f} s until the other went on alone")


def main(program, folder):
    torchrun = os.environ.get("REDLINE_TORCHRUN") or shutil.which("torchrun")
    if not torchrun:
        skip("there is no torchrun here, nor does REDLINE_TORCHRUN name one")
    program = os.path.abspath(program)
    folder = fresh_folder(os.path.abspath(folder))
    straight = straight_run(program, folder, 2, [f"train.max_steps={STEPS}"])
    on_one_machine(torchrun, program, folder, straight)
    on_two_machines(torchrun, program, folder, straight)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
