#!/usr/bin/env python3
"""Opens `redline report` pages in a headless Chromium: they render, values show under the pointer, and nothing is complained of.

Usage: report_interop.py REDLINE WORK_FOLDER

Where there is no Chromium the test is skipped: exit status 77, and a line that says so. Screenshots stay in WORK_FOLDER.
"""
import os
import re
import shutil
import subprocess
import sys

from packages import SKIPPED

TINY = ["model.layers=1", "model.hidden=16", "model.heads=2", "model.head_dim=8", "model.ffn=16", "train.batch_size=1",
        "train.seq_len=32", "train.eval_batches=1", "train.eval_every=10", "train.max_steps=60"]

# As a reader does it: over the middle of every plot that is shown, then over the tokens axis.
POINTING = """<script>
let shown = 0;
const over = () => {
  for (const svg of document.querySelectorAll("svg.plot")) {
    const box = svg.getBoundingClientRect();
    if (box.width === 0) continue;
    const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
    svg.dispatchEvent(new PointerEvent("pointermove", at));
    const tip = svg.closest("figure").querySelector(".tip");
    if (!tip.hidden && tip.querySelectorAll("b").length > 0) ++shown;
  }
};
over();
document.getElementById("x-tokens").checked = true;
over();
document.body.dataset.shown = shown;
document.body.dataset.plots = document.querySelectorAll("svg.plot").length;
</script></body>"""


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    print("skipped: there is no Chromium here")
    sys.exit(SKIPPED)


def show(chromium, folder, page, *more):
    """The browser's output and what it complained of."""
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,3200",
               f"--user-data-dir={folder}/profile", "--enable-logging=stderr", *more, f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        print(f"skipped: {chromium} does not run here: {done.stderr[-300:]}")
        sys.exit(SKIPPED)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def main(redline, folder):
    chromium = browser()
    folder = os.path.abspath(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    runs = [os.path.join(folder, name) for name in ("a", "b")]
    for run, lr in zip(runs, ("2e-3", "5e-4")):
        command = [redline, "train", "--device", "cpu", "--out", run, *TINY, f"optim.lr={lr}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    page = os.path.join(folder, "report.html")
    subprocess.run([redline, "report", *runs, "--out", page], check=True, stdout=subprocess.DEVNULL)

    pointing = os.path.join(folder, "pointing.html")
    text = open(page, encoding="utf-8").read()
    assert "</script></body>" not in text  # what follows must come after the page's own script
    with open(pointing, "w", encoding="utf-8") as file:
        file.write(text.replace("</body>", POINTING))
    dom, complaints = show(chromium, folder, pointing, "--dump-dom")
    assert not complaints, complaints
    plots = int(re.search(r'data-plots="(\d+)"', dom)[1])
    shown = int(re.search(r'data-shown="(\d+)"', dom)[1])
    assert plots >= 24 and plots % 3 == 0, plots  # each over steps, tokens and time
    assert shown == plots * 2 // 3, f"values show in {shown} of {plots} plots, over two axes"
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = os.path.join(folder, f"{name}.png")
        _, complaints = show(chromium, folder, page, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}")
        assert not complaints, complaints
        assert os.path.getsize(picture) > 50_000, f"{picture} is empty"
    print(f"{plots} plots render, values show under the pointer, no complaints")


if __name__ == "__main__":
    main(*sys.argv[1:3])
