#!/usr/bin/env python3
"""A Slurm of two machines starts the ranks: srun, srun --mpi=pmix, and a job that is queued again.

Usage: slurm.py REDLINE WORK_FOLDER

slurmctld, two slurmd and munge run for the test alone, from a folder of their own, in network namespaces
(machines.py), for two minutes, most of which Slurm waits. REDLINE_SLURM=1 asks for them; without it, or where one of
them is missing, the test is skipped: exit 77.
"""
import os
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from machines import RUN, Machines, expect, fresh_folder, losses, need, skip, starts, straight_run, told, wait_for

CONFIG = """
ClusterName=redline
SlurmctldHost=node1(10.77.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1
JobRequeue=1
ReturnToService=2
MpiDefault=none
KillWait=5
PropagateResourceLimits=NONE
NodeName=node1 NodeAddr=10.77.0.1 CPUs=2 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.2 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    def __init__(self, machines, folder):
        self.machines, self.folder = machines, folder
        self.config = os.path.join(folder, "slurm.conf")

    def begin(self):
        f = self.folder
        os.chmod(f, 0o755)
        for part in ("state", "spool-node1", "spool-node2", "tmp-node1", "tmp-node2"):
            os.makedirs(os.path.join(f, part))
        with open(os.path.join(f, "cgroup.conf"), "w", encoding="utf-8") as file:
            file.write("CgroupPlugin=cgroup/v1\n")  # which looks for nothing while nothing uses it
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(folder=f))
        key = os.path.join(f, "munge.key")
        with open(key, "wb") as file:
            file.write(os.urandom(128))
        os.chmod(key, 0o400)
        self.machines.start(0, ["munged", "--foreground", "--force", f"--socket={f}/munge.socket", f"--key-file={key}",
                                f"--pid-file={f}/munge.pid", f"--log-file={f}/munge.log",
                                f"--seed-file={f}/munge.seed"], os.path.join(f, "munge.out"))
        wait_for("munge answers", lambda: os.path.exists(os.path.join(f, "munge.socket")), 20)
        self.machines.start(0, ["slurmctld", "-D", "-i", "-f", self.config], os.path.join(f, "slurmctld.out"))
        for i in (0, 1):
            self.machines.start(i, ["slurmd", "-D", "-N", self.machines.name(i), "-f", self.config],
                                os.path.join(f, f"slurmd{i}.out"))
        try:
            wait_for("both machines are idle", self.idle, 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def idle(self):
        said = self.run("sinfo", "-h", "-N", "-o", "%t").stdout.split()
        return said == ["idle", "idle"]

    def run(self, *command):
        return self.machines.run(0, list(command), SLURM_CONF=self.config)

    def logs(self):
        return told(*(os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder))
                      if name.endswith((".log", ".out"))))


def by_srun(slurm, program, folder, straight, flags, engine):
    name = "srun" + "".join(flags).replace("=", "-")
    out = os.path.join(folder, name)
    done = slurm.run("srun", "-N", "2", "--ntasks-per-node", "1", *flags, program, *RUN, "train.max_steps=20", "--out",
                     out)
    expect(done.returncode == 0, f"{name}: {done.stdout}{done.stderr}\n{slurm.logs()}")
    expect(engine in done.stdout, f"{name} did not take {engine}: {done.stdout}")
    expect(losses(out) == straight, f"{name}: the losses are others")
    print(f"{' '.join(['srun', '-N 2', *flags])}: over {engine}; the same losses, bit for bit")


def queued_again(slurm, program, folder):
    """A job that Slurm puts back into its queue goes on from its last checkpoint."""
    out, script, log = (os.path.join(folder, name) for name in ("queued", "job.sh", "job.log"))
    words = " ".join([program, *RUN, "train.max_steps=3000", "checkpoint.every=50", "--out", out, "--resume"])
    with open(script, "w", encoding="utf-8") as file:
        file.write(f"#!/bin/bash\n#SBATCH --nodes 2 --ntasks-per-node 1 --requeue --open-mode append\nsrun {words}\n")
    done = slurm.run("sbatch", "--parsable", "-o", log, script)
    expect(done.returncode == 0, done.stderr)
    job = done.stdout.strip()
    wait_for("the job trains", lambda: len(losses(out)) > 120, 60)
    done = slurm.run("scontrol", "requeue", job)
    expect(done.returncode == 0, done.stderr)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    begin = time.monotonic()
    # Slurm itself waits for up to two minutes before it starts a job again.
    wait_for("the job is started again", lambda: len(starts(out)) == 2, 240)
    last = starts(out)[-1]
    expect(last.get("restart") == "restart 1 by Slurm" and last["first_step"] >= 50, f"{last}")
    print(f"sbatch --requeue: the job went on from step {last['first_step']} after {time.monotonic() - begin:.0f} s")
    slurm.run("scancel", job)


def a_task_is_killed(slurm, program, folder):
    """srun ends with the sentence that names the rank and its machine."""
    out, log = os.path.join(folder, "killed"), os.path.join(folder, "killed.log")
    process = slurm.machines.start(0, ["srun", "-N", "2", "--ntasks-per-node", "1", program, *RUN,
                                       "train.max_steps=100000", "--out", out], log, SLURM_CONF=slurm.config)
    wait_for("the ranks train", lambda: len(losses(out)) > 20, 60)
    found = slurm.machines.run(1, ["sh", "-c", f"ip netns pids {slurm.machines.space(1)}"]).stdout.split()
    for pid in found:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if file.read().startswith(program.encode() + b"\0train"):
                    os.kill(int(pid), 9)
        except OSError:
            pass
    begin = time.monotonic()
    expect(process.wait(60) != 0, told(log))
    expect("rank 1 on node2 is gone" in told(log), told(log))
    print(f"a killed task: rank 1 on node2 was named, and srun ended after {time.monotonic() - begin:.1f} s")


def main(program, folder):
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if os.environ.get("REDLINE_SLURM") != "1":
        skip("REDLINE_SLURM=1 asks for it")
    need("slurmctld", "slurmd", "srun", "sbatch", "munged")
    program = os.path.abspath(program)
    folder = fresh_folder(os.path.abspath(folder))
    straight = straight_run(program, folder, 2, ["train.max_steps=20"])
    own = tempfile.mkdtemp(prefix="rlslurm")  # a path that is short enough for a socket
    try:
        with Machines(2, folder) as machines:
            slurm = Slurm(machines, own)
            slurm.begin()
            by_srun(slurm, program, folder, straight, [], "TCP")
            if "pmix" in slurm.run("srun", "--mpi=list").stderr + slurm.run("srun", "--mpi=list").stdout:
                by_srun(slurm, program, folder, straight, ["--mpi=pmix"], "MPI")
            else:
                print("this Slurm has no pmix: srun --mpi=pmix was not tried")
            a_task_is_killed(slurm, program, folder)
            queued_again(slurm, program, folder)
    finally:
        shutil.rmtree(own, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
