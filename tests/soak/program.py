"""Starts redline under limits of time, memory and file size, and holds how it ended against what it promises:
a documented exit status, and one sentence where it is not 0. Knows nothing of training."""
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

ERROR = "redline: error: "
# Words of a process that did not end by its own sentence, and libraries' names of their errors.
CRASH_WORDS = (
    "terminate called", "what():", "Assertion", "assertion failed", "Segmentation fault", "core dumped", "Aborted",
    "Sanitizer", "runtime error:", "stack smashing", "double free", "corrupted size", "pure virtual",
    "error while loading shared libraries",
)
LIBRARY_WORDS = (
    "std::", "basic_string", "vector::", "map::at", "_M_", "json.exception", "[json", "filesystem error", "bad_alloc",
    "bad_function_call", "bad_optional", "bad_variant", "stoi", "stol", "stoul", "stod",
)
BARE_SENTENCES = {"Resource temporarily unavailable", "Cannot allocate memory", "Invalid argument", "invalid argument"}

# Sets the limits and becomes the program. A process of its own, since what runs between fork and exec may not be
# Python where there are threads.
LAUNCHER = (
    "import os,resource,sys\n"
    "for word in sys.argv[1].split(','):\n"
    "  name,bytes=word.split('=')\n"
    "  resource.setrlimit(getattr(resource,'RLIMIT_'+name),(int(bytes),int(bytes)))\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n")


class Failure(Exception):
    """What the program did and may not do."""


class Ended:
    """How a process ended. A negative status is the signal that ended it, as subprocess has it."""

    def __init__(self, command, status, out, err, seconds, hung):
        self.command, self.status, self.out, self.err = command, status, out, err
        self.seconds, self.hung = seconds, hung

    def told(self):
        return self.out + self.err

    def in_words(self):
        how = "hung and was killed" if self.hung else (
            f"ended by signal {-self.status}" if self.status < 0 else f"exit status {self.status}")
        last = "\n".join(self.err.strip().splitlines()[-4:])
        return f"{how}: {self.command}" + (f"\n    standard error: {last}" if last else "")


class Running:
    """A process in a group of its own. Its output is read by a thread, so that it never waits for us."""

    def __init__(self, command, shown, time_limit, environment):
        self.shown, self.time_limit = shown, time_limit
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, start_new_session=True, env=environment)
        self.ended = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        hung = False
        try:
            out, err = self.process.communicate(timeout=self.time_limit)
        except subprocess.TimeoutExpired:
            hung = True
            self.kill()
            out, err = self.process.communicate()
        seconds = time.monotonic() - self.began
        self.ended = Ended(self.shown, self.process.returncode, out.decode("utf-8", "replace"),
                           err.decode("utf-8", "replace"), seconds, hung)

    def alive(self):
        return self.process.poll() is None

    def seconds(self):
        return time.monotonic() - self.began

    def send(self, number):
        try:
            self.process.send_signal(number)
        except ProcessLookupError:
            pass

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def wait(self):
        self.thread.join()
        return self.ended


class Program:
    """The program under test. `limits` are bytes by the names of setrlimit: AS, DATA, FSIZE."""

    def __init__(self, redline, time_limit=60.0):
        self.redline, self.time_limit = os.path.abspath(redline), time_limit
        self.lowest, self.running = {}, set()
        self.lock = threading.Lock()
        ended = self.run(["--help"])
        found = re.search(r"^Exit status: (.*(?:\n .*)*)", ended.out, re.M)
        if ended.status != 0 or not found:
            raise Failure(f"{redline} --help names no exit statuses: {ended.in_words()}")
        self.statuses = {int(n) for n in re.findall(r"(?:^|[,;] )(\d+) ", found.group(1))}

    def start(self, arguments, limits=None, threads=None, time_limit=None):
        command = [self.redline, *map(str, arguments)]
        prefix = []
        if limits:
            words = ",".join(f"{name}={int(bytes)}" for name, bytes in limits.items())
            prefix = [sys.executable, "-I", "-S", "-c", LAUNCHER, words]
        environment = dict(os.environ)
        if threads:
            environment["REDLINE_THREADS"] = str(threads)
        shown = shlex.join(command)
        if threads:
            shown = f"REDLINE_THREADS={threads} {shown}"
        if limits:
            options = {"AS": "--as", "DATA": "--data", "FSIZE": "--fsize"}
            shown = "prlimit " + " ".join(f"{options[n]}={int(b)}" for n, b in limits.items()) + " env " + shown
        running = Running(prefix + command, shown, time_limit or self.time_limit, environment)
        self.running = {r for r in self.running if r.ended is None} | {running}
        return running

    def run(self, arguments, **how):
        return self.start(arguments, **how).wait()

    def kill_all(self):
        for running in self.running:
            running.kill()

    def least(self, name):
        """The smallest limit, within 1 MiB, under which the program starts at all: below it the loader of the system
        ends it, and nothing that redline does can be seen."""
        with self.lock:
            if name not in self.lowest:
                low, high = 1, 65536  # MiB
                while high - low > 1:
                    middle = (low + high) // 2
                    if self.run(["--version"], limits={name: middle << 20}, time_limit=5).status == 0:
                        high = middle
                    else:
                        low = middle
                self.lowest[name] = high << 20
            return self.lowest[name]

    def require_orderly(self, ended, allowed):
        """That it ended with one of the allowed statuses, and with one sentence where that is 1 or 2."""
        if ended.hung:
            raise Failure(f"it hung for {self.time_limit:.0f} s: {ended.in_words()}")
        if ended.status < 0 and ended.status not in allowed:
            raise Failure(f"a signal ended it: {ended.in_words()}")
        for word in CRASH_WORDS:
            if word in ended.err:
                raise Failure(f"it said '{word}': {ended.in_words()}")
        if ended.status not in allowed:
            known = "" if ended.status in self.statuses or ended.status < 0 else ", which --help does not name"
            raise Failure(f"exit status {ended.status}{known}, where {sorted(allowed)} are right: {ended.in_words()}")
        if ended.status in (1, 2):
            self.require_sentence(ended)
        return ended

    def require_sentence(self, ended):
        lines = [line for line in ended.err.splitlines() if line.startswith(ERROR)]
        if len(lines) != 1:
            raise Failure(f"{len(lines)} lines begin with '{ERROR.strip()}', where one is right: {ended.in_words()}")
        sentence = lines[0][len(ERROR):]
        if ended.err.rstrip("\n").splitlines()[-1] != lines[0]:
            raise Failure(f"the sentence is not the last line: {ended.in_words()}")
        if sentence.strip() in BARE_SENTENCES or len(sentence.split()) < 3:
            raise Failure(f"the sentence does not say of what it speaks: {ended.in_words()}")
        for word in LIBRARY_WORDS:
            if word in sentence:
                raise Failure(f"the sentence is a library's ('{word}'): {ended.in_words()}")
        return sentence
