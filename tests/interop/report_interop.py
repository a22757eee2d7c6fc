#!/usr/bin/env python3
"""Opens the pages of `redline report` and `redline data stats` in a headless Chromium and uses them as a reader does:
they render, values show under the pointer, curves zoom, nothing scrolls sideways on a phone, and nothing is complained
of. The page of `redline report --watch` follows a run, and stops it.

Usage: report_interop.py REDLINE WORK_FOLDER

Where there is no Chromium the test is skipped: exit status 77, and a line that says so. Screenshots stay in
WORK_FOLDER.
"""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import time

from browser import Browser, NoBrowser
from packages import skip

TINY = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16", "train.batch_size=1",
        "train.seq_len=32", "train.eval_batches=1", "train.eval_every=10", "train.max_steps=60", "data.debug=true",
        "train.sample_every=20"]

# A page in a frame of some width, so that a phone's is possible. `found` goes into the title of the page around it.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">
<iframe style="border:0" %s width="%d" height="3000" srcdoc="%s"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const doc = frame.contentDocument, win = frame.contentWindow, found = {};
  const all = what => [...doc.querySelectorAll(what)];
  const send = (target, kind, clientX, clientY) =>
    target.dispatchEvent(new win.PointerEvent(kind, { clientX, clientY, bubbles: true }));
  const tip = () => { const box = doc.querySelector(".tip"); return box && !box.hidden ? box.textContent : ""; };
  // Over the middle of every plot: in how many a value shows.
  const pointed = () => all("svg").filter(svg => {
    const box = svg.getBoundingClientRect();
    send(svg, "pointermove", box.left + box.width / 2, box.top + box.height / 2);
    return /[0-9]/.test(tip());
  }).length;
  const change = (id, how) => {
    const input = doc.getElementById(id);
    how(input);
    input.dispatchEvent(new win.Event("input"));
  };
  const lines = () => all("svg polyline").map(line => line.getAttribute("points")).join(" ");
  const odd = () => all("svg *").filter(e =>
    [...e.attributes].some(a => /NaN|Infinity|undefined/.test(a.value))).length;
  found.text = doc.querySelector("main").innerText;
  found.tables = all("noscript table").length;
  found.plots = all("svg").length;
  found.pointed = pointed();
  found.sideways = doc.documentElement.scrollWidth > doc.documentElement.clientWidth;
  found.odd = odd();
  found.spikes = all("svg text.spike").map(label => label.textContent);
  found.flags = ["flag", "flag gone", "again"].map(kind => all(`svg [class="${kind}"]`).length);
  found.stages = ["stage", "stage slowest", "flow"].map(kind => all(`svg [class="${kind}"]`).length);
  found.flagged = all("svg .flag").filter(flag => {
    const box = flag.getBoundingClientRect();
    send(flag.closest("svg"), "pointermove", box.left + box.width / 2, box.top);
    return tip().includes(flag.textContent);
  }).length;
  if (doc.getElementById("bar")) {
    const steps = lines();
    change("x-tokens", input => { input.checked = true; });
    found.tokens = all("svg text").some(text => text.textContent === "tokens") && pointed();
    change("x-log", input => { input.checked = true; });
    all("figcaption button").forEach(button => button.click());
    found.logarithmic = pointed();
    found.odd += odd();
    all("figcaption button").forEach(button => button.click());
    change("x-log", input => { input.checked = false; });
    change("x-step", input => { input.checked = true; });
    found.back = lines() === steps;
    change("smoothing", input => { input.value = 0; });
    found.smoothed = lines() !== steps;
    change("smoothing", input => { input.value = 17; });
    const box = doc.querySelector("svg").getBoundingClientRect(), y = box.top + box.height / 2;
    const drag = ["pointerdown", "pointermove", "pointerup"];
    drag.forEach((kind, i) => send(doc.querySelector("svg"), kind, box.left + box.width * (i ? .7 : .4), y));
    found.zoomed = lines() !== steps && !doc.querySelector("#bar button").hidden;
    doc.querySelector("#bar button").click();
    found.whole = lines() === steps;
    doc.querySelector("#bar .runs input")?.click();
    found.hidden = lines().length < steps.length;
  }
  document.body.dataset.found = JSON.stringify(found);
};
</script></body>"""


def use(browser, folder, page, width, scripts=True):
    """What FRAME found in the page at that width."""
    around = os.path.join(folder, "frame.html")
    with open(around, "w", encoding="utf-8") as file:
        text = html.escape(open(page, encoding="utf-8").read())
        file.write(FRAME % ("" if scripts else 'sandbox="allow-same-origin"', width, text))
    browser.show(around)
    found = json.loads(browser.value("document.body.dataset.found"))
    assert not found["sideways"], f"{page} scrolls sideways at {width} pixels"
    assert not found["odd"], f"{page}: places that are no numbers"
    assert found["pointed"] == found["plots"] and bool(found["plots"]) == scripts, (page, width, found)
    return found


def write_odd_run(folder):
    """Numbers that no run should have, text that wants to be markup, and a profile of another program."""
    os.makedirs(folder)
    text = "</script><img src=x onerror=alert(1)>\u2028"
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for step, value in enumerate((1e99, -1e99, 0, 5e-324, None, -7, 3, 3), 1):
            row = {"step": step, "time": step, "gpu_throttle": text}
            keys = ("loss", "grad_norm", "lr", "step_ms", "tokens", "tokens_per_s", "mfu", "eval_loss", "gpu_power_w")
            file.write(json.dumps({**row, **{key: value for key in keys}}) + "\n")
    with open(os.path.join(folder, "events.jsonl"), "w", encoding="utf-8") as file:
        file.write(json.dumps({"kind": "started", "time": 1e300, "device": text, "data": text, "device_memory": -1,
                               "memory": {"parameters": 1e99, "total": 5}, "header": [text]}) + "\n")
        file.write(json.dumps({"kind": text, "text": text, "time": 5}) + "\n")
        for step in (-5, 2, 3e9, 1e99, text):
            file.write(json.dumps({"kind": "skipped", "step": step, "text": text, "time": 5}) + "\n")
            file.write(json.dumps({"kind": "rolled_back", "from": 2, "to": step, "time": 5}) + "\n")
    with open(os.path.join(folder, "goodput.jsonl"), "w", encoding="utf-8") as file:
        parts = ("steps", "data", "evaluation", "sampling", "saving", "start_up", "done_again", "standing_still")
        for began, seconds in enumerate((9e9, 0, 1e-9, 1e99, -1, text)):
            file.write(json.dumps({"time": 9e9, "began": began, "step": 3, "first_step": 1e99, "joules": 1e99,
                                   "seconds": {part: seconds for part in parts}}) + "\n")
    with open(os.path.join(folder, "samples.jsonl"), "w", encoding="utf-8") as file:
        file.write(json.dumps({"step": 1, "samples": [{"prompt": text, "text": "a" * 500}]}) + "\n")
    with open(os.path.join(folder, "profile.json"), "w", encoding="utf-8") as file:
        json.dump({"kinds": [None, 5, {"name": text, "ms": "?"}], "step_ms": 0, "device": [text]}, file)
    with open(os.path.join(folder, "config.toml"), "w", encoding="utf-8") as file:
        file.write("[data]\ntrain = \"</script><b>\"\n")


def write_guarded_run(folder):
    """Updates skipped at steps 20 and 45; gone back from 46 to 40 for the latter, and skipped at 50."""
    os.makedirs(folder)
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for step in range(1, 61):
            file.write(json.dumps({"step": step, "time": step, "loss": None if step in (20, 50) else 5 - step / 20,
                                   "grad_norm": 1, "lr": 1e-3, "step_ms": 1000, "tokens": 100, "tokens_per_s": 100,
                                   "mfu": .1, "skipped": (step >= 20) + 2 * (step > 40), "rollbacks": +(step > 40)}) +
                       "\n")
    with open(os.path.join(folder, "events.jsonl"), "w", encoding="utf-8") as file:
        for event in ({"kind": "started", "version": 1, "first_step": 0, "steps": 60, "device": "CPU"},
                      {"kind": "skipped", "step": 20, "text": "step 20: a spike"},
                      {"kind": "skipped", "step": 45, "text": "step 45: a spike"},
                      {"kind": "rolled_back", "step": 40, "from": 46, "to": 40, "text": "gone back"},
                      {"kind": "skipped", "step": 50, "text": "step 50: not finite"}):
            file.write(json.dumps({"time": 5, **event}) + "\n")


def write_run_with_a_spike(folder):
    """A gradient norm of 55.9 at one step of 200, and about 2 at the others."""
    os.makedirs(folder)
    with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for step in range(1, 201):
            file.write(json.dumps({"step": step, "time": step, "loss": 5 - step / 100, "lr": 1e-3, "step_ms": 1000,
                                   "grad_norm": 55.9 if step == 120 else 2 + step % 7 / 10, "tokens": 100,
                                   "tokens_per_s": 100, "mfu": .1}) + "\n")


def make_pages(redline, at):
    """Runs, and the pages of them; `at` is the path of a name."""

    def run(*words):
        subprocess.run([redline, *words], check=True, stdout=subprocess.DEVNULL)

    for name, lr, steps in (("a", "2e-3", 50), ("b", "5e-4", 60)):
        run("train", "--device", "cpu", "--out", at(name), *TINY, f"optim.lr={lr}", f"train.max_steps={steps}")
    run("train", "--device", "cpu", "--out", at("a"), "--resume", "train.max_steps=60")
    run("profile", "--run", at("a"), "--device", "cpu", "--steps", "1")
    write_odd_run(at("odd"))
    write_guarded_run(at("guarded"))
    write_run_with_a_spike(at("spike"))
    with open(at("b/metrics.jsonl"), "r+", encoding="utf-8") as file:  # an evaluation before the first step
        rows = [row for row in file if json.loads(row)["step"] > 0]
        file.seek(0)
        file.writelines([json.dumps({"step": 0, "time": json.loads(rows[0])["time"], "eval_loss": 5.5}) + "\n", *rows])
        file.truncate()
    for copy in range(10):
        shutil.copytree(at("b" if copy % 2 else "a"), at(f"many/run {copy}" + "-long" * 20 * (copy == 7)))
    run("report", at("a"), "--tokens", "1", "--out", at("one.html"))
    run("report", at("a"), at("b"), "--out", at("both.html"))
    run("report", at("odd"), "--out", at("odd.html"))
    run("report", at("guarded"), "--out", at("guarded.html"))
    run("report", at("spike"), "--out", at("spike.html"))
    run("report", at("many"))
    run("data", "stats", "ping", "--seq-len", "256", "--documents", "500", "--html", at("lengths.html"))
    run("data", "stats", "ping", "--seq-len", "1", "--documents", "1", "--html", at("least.html"))


def look(browser, folder, at):
    for complaint in ("throw Error(1)", "console.error(1)"):  # this test can fail
        with open(at("bad.html"), "w", encoding="utf-8") as file:
            file.write(f"<script>{complaint}</script>")
        try:
            browser.show(at("bad.html"))
        except AssertionError:
            browser.complaints.clear()
        else:
            raise AssertionError(f"{complaint} was not seen")
    for page in ("one.html", "both.html"):
        found = use(browser, folder, at(page), 1280)
        assert found["plots"] >= 8 and found["tokens"] == found["plots"], found
        assert found["logarithmic"] >= found["plots"] - 1, found  # padding may be nothing but zeros
        for what in ("back", "smoothed", "zoomed", "whole"):
            assert found[what], (page, what)
        for words in ("held-out loss, best", "linear_weight_grad", "of its roofline", "activations", "data pipeline",
                      "started on CPU", "saved step_", "the whole config.toml", "padding", "Where the wall time went",
                      "start-up", "standing still"):
            assert words in found["text"], (page, words)
        pictures = 1 if page == "one.html" else 2  # a box for each stage, one of them the slowest, and arrows between
        others, slowest, arrows = found["stages"]
        assert slowest == pictures and others + slowest == arrows + pictures and arrows >= 2 * pictures, found["stages"]
        assert re.search(r"types\s", found["text"]) and "f32>f32" in found["text"], "the types of ops"
    assert found["hidden"], "a run goes at a click on its name"
    assert re.search(r"held-out loss, step 0\s+5.\d+\s+5.5000\s", found["text"]), found["text"]
    assert re.search(r"\nSamples\na\s+step\s+20\s", found["text"]), "what the model wrote"
    assert re.search(r"What differs\s+a\s+b\s+optim.lr\s", found["text"]), "what differs"
    assert not re.search(r"\nmodel.hidden\s", found["text"]), "and nothing else"
    assert "1 token at this pace" in use(browser, folder, at("one.html"), 390)["text"]
    found = use(browser, folder, at("guarded.html"), 1280)
    assert found["flags"] == [2, 1, 1] and found["flagged"] == 3, found["flags"]
    assert re.search(r"updates skipped\s+3\s+rollbacks\s+1\s", found["text"]), found["text"]
    assert "▲ update skipped; △ skipped before the run went back" in found["text"], found["text"]
    found = use(browser, folder, at("spike.html"), 1280)
    assert found["spikes"] == ["55.9"] and found["flags"] == [0, 0, 0], found
    for page in ("both.html", "guarded.html", "spike.html", "odd.html", "many/report.html", "lengths.html",
                 "least.html"):
        for width in (1280, 840, 390, 320):
            use(browser, folder, at(page), width)
    found = use(browser, folder, at("many/report.html"), 1280)
    assert re.search(r"10 runs\s", found["text"]) and re.search(r"\nrun 9\s+finished\s", found["text"]), found["text"]
    found = use(browser, folder, at("lengths.html"), 1280)
    for words in ("How long documents are", "p99", "stream", "At shorter rows", "rows of 128", "best: [", "speed-up"):
        assert words in found["text"], words

    browser.show(at("spike.html"))
    browser.screenshot(at("spike.png"))
    browser.show(at("both.html"))
    for name in ("light", "dark"):
        browser.colour_scheme(name)
        browser.screenshot(at(f"{name}.png"))
        assert os.path.getsize(at(f"{name}.png")) > 50_000, f"{name}.png is empty"
    browser.print_to_pdf(at("paper.pdf"))
    assert os.path.getsize(at("paper.pdf")) > 20_000, "paper.pdf is empty"
    for page in ("both.html", "lengths.html"):  # as tables, for whoever allows no scripts
        for width in (1280, 390):
            found = use(browser, folder, at(page), width, scripts=False)
            assert found["tables"] > 10, (page, found)
            assert ("best_eval_loss" if page == "both.html" else "best_edges") in found["text"], (page, found)
    print("pages of one run, of two, of a guarded one, of an odd one and of data stats: drawn, used, narrow, on paper, "
          "without scripts")


def follow(browser, redline, at):
    """A page that follows a run: it goes on by itself, its button stops the run, and it says what became of it."""
    words = [redline, "train", *TINY, "train.max_steps=1000000", "--device", "cpu", "--out", at("followed")]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    run = subprocess.Popen(words, **quiet)
    started = []
    shown = ("[document.querySelector('.state').textContent, document.querySelector('#following').textContent, "
             "document.querySelector('#stop') !== null]")

    def until(what, wanted):
        for _ in range(200):
            try:
                found = browser.value(shown)
            except AssertionError:  # between two pages
                browser.complaints.clear()
                found = None
            if found and wanted(*found):
                return found
            time.sleep(0.2)
        raise AssertionError(f"{what}: {found}")

    try:
        while not (os.path.exists(at("followed/metrics.jsonl")) and os.path.getsize(at("followed/metrics.jsonl"))):
            assert run.poll() is None, "the run ended"
            time.sleep(0.1)
        watch = subprocess.Popen([redline, "report", at("followed"), "--watch", "--allow-stop"],
                                 stdout=subprocess.PIPE, text=True)
        started.append(watch)
        browser.show(watch.stdout.readline().strip())
        step = lambda text: int(re.search(r"Step ([\d ,.\u202f\u00a0]+) was written \d+ s ago", text)[1]
                                .translate({ord(c): None for c in " ,.\u202f\u00a0"}))
        first = step(until("running", lambda state, text, stop: state == "running" and stop)[1])
        until("it goes on", lambda state, text, stop: state == "running" and step(text) > first)
        browser.value("window.confirm = () => true; document.querySelector('#stop').click(); 1")
        until("stopped", lambda state, text, stop: state == "stopped" and not stop and "No run is running" in text)
        assert run.wait(60) == 3, "it was stopped"
        run = subprocess.Popen([*words, "--resume"], **quiet)
        until("it goes on again", lambda state, text, stop: state == "running")
        run.kill()
        run.wait()
        until("killed", lambda state, text, stop: state == "not finished")
    finally:
        for process in (run, *started):
            process.kill()
            process.wait()
    print("the page of a run that goes on, is stopped by its button, goes on and is killed")


def main(redline, folder):
    folder = os.path.abspath(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)

    def at(name):
        return os.path.join(folder, name)

    try:
        with Browser(folder) as browser:
            make_pages(redline, at)
            look(browser, folder, at)
            follow(browser, redline, at)
    except NoBrowser as why:
        skip(why)


if __name__ == "__main__":
    main(*sys.argv[1:3])
