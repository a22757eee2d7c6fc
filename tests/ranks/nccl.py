#!/usr/bin/env python3
"""Ranks on two machines over NCCL, both on the one card of this machine.

Usage: nccl.py REDLINE WORK_FOLDER

The machines are network namespaces (machines.py), so NCCL has nothing but its sockets between them: neither NVLink nor
shared memory. Losses must be those of two ranks of one machine that share the card. Then one machine is switched off,
and the other names it. Skipped, exit 77, where there is no card, no NCCL, or where namespaces are not allowed.
"""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import (RUN, Machines, as_rank, clean_environment, expect, expect_close, fresh_folder, losses, skip,
                      told, wait_for)

PORT = 23457
WORDS = [word if word != "cpu" else "cuda" for word in RUN] + ["kernels.tuning=off", "kernels.deterministic=true",
                                                               "precision.matmul=fp32", "checkpoint.every=0"]
SOCKETS = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1",
           "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}


def start(program, machines, out, logs, words):
    """A rank a machine. NCCL refuses two ranks of a card on one host, and takes NCCL_HOSTID for the host."""
    return [machines.start(r, [program, *WORDS, *words, "--out", out], logs[r], NCCL_HOSTID=f"h{r}", **SOCKETS,
                           **as_rank(r, 2, machines.address(0), PORT)) for r in (0, 1)]


def same_losses(program, folder, machines, mode):
    words = [f"parallel.mode={mode}", "train.max_steps=12"]
    one = os.path.join(folder, f"one_{mode}")
    done = subprocess.run([program, "launch", "-n", "2", "--share-card", "--", *WORDS, *words, "--out", one],
                          capture_output=True, text=True, check=False, timeout=120, env=clean_environment())
    expect(done.returncode == 0, done.stdout + done.stderr)
    two, logs = os.path.join(folder, f"two_{mode}"), [os.path.join(folder, f"{mode}{r}.log") for r in (0, 1)]
    ranks = start(program, machines, two, logs, words)
    expect([rank.wait(120) for rank in ranks] == [0, 0], told(*logs))
    with open(logs[0], encoding="utf-8", errors="replace") as file:
        text = file.read()
    expect("NET/Socket" in text and "eth0" in text, f"NCCL did not go through sockets of eth0:\n{text[-3000:]}")
    expect_close(losses(two), losses(one), mode, 1e-6)
    expect(len(losses(two)) == 12, f"{mode}: {len(losses(two))} steps of 12")
    bits = "bit for bit" if losses(two) == losses(one) else "within 1e-6"
    print(f"{mode}: 12 steps of two machines over NCCL's sockets have the losses of one machine, {bits}")


def a_machine_is_lost(program, folder, machines):
    out, logs = os.path.join(folder, "lost"), [os.path.join(folder, f"lost{r}.log") for r in (0, 1)]
    first, _ = start(program, machines, out, logs, ["parallel.mode=zero1", "train.max_steps=100000"])
    wait_for("ranks train", lambda: len(losses(out)) > 20)
    machines.power_off(1)
    begin = time.monotonic()
    expect(first.wait(60) == 1, told(logs[0]))
    expect("rank 1 on node2" in told(logs[0]), told(logs[0]))
    print(f"a machine switched off: rank 1 on node2 was named, and rank 0 gone after {time.monotonic() - begin:.1f} s")


def main(program, folder):
    program = os.path.abspath(program)
    folder = fresh_folder(os.path.abspath(folder))
    info = json.loads(subprocess.run([program, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    for part in ("cuda", "nccl"):
        if not info[part]["usable"]:
            skip(f"{part} cannot be used here: {info[part]['problem']}")
    with Machines(2, folder) as machines:
        for mode in ("zero1", "fsdp"):
            same_losses(program, folder, machines, mode)
        a_machine_is_lost(program, folder, machines)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
