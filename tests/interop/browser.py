"""One headless Chromium that shows page after page, spoken to over two pipes in the DevTools protocol."""
import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ANSWERS_WITHIN = 120  # seconds


class NoBrowser(Exception):
    """There is none, or it does not start."""


class Browser:
    """Whatever a page complains of (exceptions, the console, a dialog that it opens) fails the test that showed it."""

    def __init__(self, folder, width=1280, height=3200):
        name = next((name for name in NAMES if shutil.which(name)), None)
        if not name:
            raise NoBrowser("there is no Chromium here")
        ours, theirs = os.pipe(), os.pipe()
        self.log = open(os.path.join(folder, "browser.log"), "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [name, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={width},{height}", f"--user-data-dir={folder}/profile", "--remote-debugging-pipe",
             "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, pass_fds=(3, 4),
            preexec_fn=lambda: place(ours[0], theirs[1]))
        os.close(ours[0])
        os.close(theirs[1])
        self.write_to, self.read_from = ours[1], theirs[0]
        self.number, self.session, self.rest, self.events, self.complaints = 0, None, b"", [], []
        target = next(t for t in self.ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.ask("Browser.close")
        except (NoBrowser, OSError):
            pass  # it has ended already
        self.process.wait(timeout=ANSWERS_WITHIN)
        for end in (self.write_to, self.read_from):
            os.close(end)
        self.log.close()

    def receive(self):
        """The next message: an answer, or an event, whose complaints are kept."""
        until = time.monotonic() + ANSWERS_WITHIN
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read_from], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {ANSWERS_WITHIN} s")
            data = os.read(self.read_from, 1 << 20)
            if not data:
                self.log.seek(0)
                raise NoBrowser(f"{self.process.args[0]} does not run here: {self.log.read()[-300:]}")
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        kind, told = message.get("method"), message.get("params", {})
        if kind in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"):
            self.complaints.append(json.dumps(told)[:1000])
        elif kind == "Log.entryAdded" and "frame is sandboxed" not in told["entry"]["text"]:
            self.complaints.append(json.dumps(told)[:1000])
        return message

    def ask(self, method, **parameters):
        self.number += 1
        question = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            question["sessionId"] = self.session
        data = json.dumps(question).encode() + b"\0"
        while data:
            data = data[os.write(self.write_to, data):]
        while (message := self.receive()).get("id") != self.number:
            self.events.append(message.get("method"))
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def show(self, path):
        """Opens the page of a file or of an address, and returns when it is loaded with its scripts and frames."""
        self.events.clear()
        self.ask("Page.navigate", url=path if path.startswith("http://") else f"file://{path}")
        while "Page.loadEventFired" not in self.events:
            self.events.append(self.receive().get("method"))
        assert not self.complaints, (path, self.complaints)

    def value(self, script):
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found and not self.complaints, (script, found, self.complaints)
        return found["result"].get("value")

    def colour_scheme(self, name):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        write(path, self.ask("Page.captureScreenshot", format="png")["data"])

    def print_to_pdf(self, path):
        write(path, self.ask("Page.printToPDF")["data"])


def place(reads, writes):
    """Chromium reads questions from 3 and writes answers to 4. Through higher numbers: an end may lie on either."""
    reads, writes = os.dup(reads), os.dup(writes)
    reads, writes = os.dup2(reads, 60), os.dup2(writes, 61)
    os.dup2(reads, 3)
    os.dup2(writes, 4)


def write(path, base64_text):
    with open(path, "wb") as file:
        file.write(base64.b64decode(base64_text))
