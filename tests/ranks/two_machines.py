#!/usr/bin/env python3
"""Ranks on two machines, and a hostile third.

Usage: two_machines.py REDLINE WORK_FOLDER

The machines are network namespaces (machines.py). Losses must be those of two ranks of one machine, bit for bit: over
TCP, as ranks are that torchrun or a plain srun starts, and over MPI, started by mpirun with two hosts. The third
machine, which does not know the token, knocks with every kind of bytes while rank 0 waits, and later finds no open
port. A machine that is switched off, or whose cable is pulled, is named by the others. Where a tool is missing the test
is skipped: exit 77.
"""
import os
import shutil
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import (RUN, Machines, as_rank, expect, expect_close, fresh_folder, losses, need,
                      starts, straight_run, told, wait_for)

PORT = 23456
SHORT = ["train.max_steps=20"]
LONG = ["train.max_steps=1000", "checkpoint.every=50", "checkpoint.keep=3"]


def hostile(seconds):
    """What the third machine runs: strangers of every kind at the door, for so long."""
    frames = [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 8, b"\xff" * 4096, struct.pack("<IB", 1 << 31, 1),
              struct.pack("<IB", 0, 2), b"\x20\0\0\0\0" + b"n" * 31]
    for kind in range(16):
        frames.append(struct.pack("<IB", 40, kind) + os.urandom(40))
        frames.append(struct.pack(">IB", 40, kind) + os.urandom(40))
        # A knock, for the kind that is one, and a false proof behind it.
        frames.append(struct.pack("<IB", 32, kind) + os.urandom(32) + struct.pack("<IB", 72, kind + 2) + os.urandom(72))
    silent, reached, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for frame in frames:
            try:
                stranger = socket.create_connection(("10.77.0.1", PORT), timeout=0.5)
                stranger.sendall(frame)
                reached += 1
                if reached % 3 == 0 and len(silent) < 200:
                    silent.append(stranger)  # it stays and says nothing more
                else:
                    stranger.close()
            except OSError:
                time.sleep(0.01)
    print(reached)


def over_tcp(program, folder, machines, straight):
    out, logs = os.path.join(folder, "tcp"), [os.path.join(folder, f"tcp{r}.log") for r in (0, 1)]
    ranks = [machines.start(r, [program, *RUN, *SHORT, "--out", out], logs[r],
                            **as_rank(r, 2, machines.address(0), PORT)) for r in (0, 1)]
    expect([rank.wait(120) for rank in ranks] == [0, 0], "over TCP:\n" + told(*logs))
    expect(losses(out) == straight, f"over TCP the losses are others: {losses(out)} {straight}")
    expect("TCP" in told(logs[0]), told(logs[0]))


def over_mpi(program, folder, machines, straight):
    if not shutil.which("mpirun"):
        return print("without mpirun: two hosts over MPI were not tried")
    # What mpirun starts on another machine it starts with ssh; here this takes its place.
    agent = os.path.join(folder, "agent.sh")
    with open(agent, "w", encoding="utf-8") as file:
        file.write("#!/bin/sh\nname=$1\nshift\ncase $name in\n")
        for i in range(2):
            words = " ".join(f"'{word}'" for word in machines.on(i, ["sh", "-c"]))
            file.write(f"{machines.name(i)}|{machines.address(i)}) exec {words} \"$*\" ;;\n")
        file.write("esac\nexit 1\n")
    os.chmod(agent, 0o755)
    out, log = os.path.join(folder, "mpi"), os.path.join(folder, "mpi.log")
    mpirun = ["mpirun", "--host", "node1:1,node2:1", "-np", "2", "--mca", "plm_rsh_agent", agent, "--mca", "btl",
              "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--mca", "oob_tcp_if_include", "eth0", "-x",
              "REDLINE_TOKEN", "-x", "REDLINE_THREADS", "-x", f"MASTER_ADDR={machines.address(0)}"]
    done = machines.start(0, [*mpirun, program, *RUN, *SHORT, "--out", out], log)
    expect(done.wait(180) == 0, told(log))
    expect("Open MPI" in told(log) or "MPI" in told(log), told(log))
    expect(losses(out) == straight, f"over MPI the losses are others: {losses(out)} {straight}")
    return print("mpirun with two hosts: the same losses, bit for bit")


def with_a_hostile_third(program, folder, machines, straight):
    """Knocks for seconds at rank 0, which waits for rank 1; then looks for an open port while both train."""
    out, logs = os.path.join(folder, "hostile"), [os.path.join(folder, f"hostile{r}.log") for r in (0, 1)]
    words = [program, *RUN, "train.max_steps=400", "--out", out]
    first = machines.start(0, words, logs[0], **as_rank(0, 2, machines.address(0), PORT))
    wait_for("rank 0 listens", lambda: machines.listeners(0))
    expect(machines.listeners(0) == [f"{machines.address(0)}:{PORT}"],
           f"rank 0 listens on {machines.listeners(0)}, not where it is to be reached alone")
    knocks = machines.run(2, [sys.executable, "-B", os.path.abspath(__file__), "--hostile", "4"])
    expect(int(knocks.stdout) > 50, f"the third machine did not reach the door: {knocks.stdout}{knocks.stderr}")
    second = machines.start(1, words, logs[1], **as_rank(1, 2, machines.address(0), PORT))
    wait_for("ranks train", lambda: len(losses(out)) > 5)
    for machine in (0, 1):
        expect(not machines.listeners(machine), f"while ranks train {machines.listeners(machine)} is open")
    expect([first.wait(120), second.wait(120)] == [0, 0], told(*logs))
    got = losses(out)
    expect({step: got[step] for step in straight} == straight, "strangers changed the losses")
    expect("without this run's token" in told(logs[0]), told(logs[0]))
    print(f"{knocks.stdout.strip()} strangers at the door: shown out; no port is open while ranks train")


def a_machine_is_lost(program, folder, machines, how):
    """Rank 1's machine goes; rank 0 names it, and goes on alone with the step's rows."""
    out, logs = os.path.join(folder, how), [os.path.join(folder, f"{how}{r}.log") for r in (0, 1)]
    words = [program, *RUN, *LONG, "--out", out, "--resume"]
    first = machines.start(0, words, logs[0], **as_rank(0, 2, machines.address(0), PORT))
    machines.start(1, words, logs[1], **as_rank(1, 2, machines.address(0), PORT))
    wait_for("ranks train", lambda: len(losses(out)) > 120)
    getattr(machines, how)(1)
    begin = time.monotonic()
    expect(first.wait(60) == 1, told(logs[0]))
    seconds = time.monotonic() - begin
    expect("rank 1 on node2" in told(logs[0]), told(logs[0]))
    print(f"{how}: rank 1 on node2 was named after {seconds:.1f} s")
    before = losses(out)
    alone = machines.run(0, words)
    expect(alone.returncode == 0, alone.stdout + alone.stderr)
    last = starts(out)[-1]
    expect(last["ranks"] == 1 and last["first_step"] > 0, f"it did not go on on one rank: {last}")
    expect(last["tokens_per_step"] == starts(out)[0]["tokens_per_step"], "a step has other rows on fewer ranks")
    again = {step: loss for step, loss in losses(out).items() if step in before}
    expect_close(again, before, "steps that one rank made again")


def main(program, folder):
    need("ss")
    program = os.path.abspath(program)
    folder = fresh_folder(os.path.abspath(folder))
    straight = straight_run(program, folder, 2, SHORT)
    with Machines(3, folder) as machines:
        over_tcp(program, folder, machines, straight)
        over_mpi(program, folder, machines, straight)
        long_run = straight_run(program, fresh_folder(os.path.join(folder, "long")), 2, ["train.max_steps=400"])
        with_a_hostile_third(program, folder, machines, long_run)
        a_machine_is_lost(program, folder, machines, "power_off")
        a_machine_is_lost(program, folder, machines, "unplug")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--hostile":
        hostile(float(sys.argv[2]))
    elif len(sys.argv) == 3:
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
