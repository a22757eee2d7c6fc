
// The end of a page that is served: it asks whether there is a newer one, loads that, and goes on with the same view.
const all = what => [...document.querySelectorAll(what)];
const controls = () => all("#bar input"), folds = () => all("details");
const remembered = JSON.parse(sessionStorage.getItem("view") ?? "null");
if (remembered) {
  controls().forEach((input, i) => {
    const [checked, value] = remembered.inputs[i] ?? [input.checked, input.value];
    if (input.checked === checked && input.value === value) return;
    [input.checked, input.value] = [checked, value];
    if (checked || input.type !== "radio") input.oninput();
  });
  folds().forEach((fold, i) => { fold.open = remembered.folds[i] ?? false; });
  if (remembered.range) zoom(view, remembered.range);
}
const running = data.runs.filter(run => run.state === "running");
const ago = seconds => seconds < 100 ? `${Math.max(0, Math.round(seconds))} s` :
  seconds < 6000 ? `${Math.round(seconds / 60)} minutes` : `${Math.round(seconds / 3600)} hours`;
// The clock is that of the machine which serves the page.
let asked = null;
const following = () => {
  if (asked || running.length === 0) return asked ?? "No run is running; this page shows one that goes on.";
  const step = data.runs.length > 1 ? "the runs. The last step" : `the run. Step ${grouped(running[0].steps)}`;
  return `This page follows ${step} was written ${ago(Date.now() / 1000 - data.follow.written)} ago.`;
};
const words = html("span", { id: "following" }, following()), line = html("p", { class: "quiet" }, words);
main.insertBefore(line, main.querySelector("h1").nextSibling);

const loadAnew = () => {
  sessionStorage.setItem("view", JSON.stringify({ range: view.range,
    inputs: controls().map(input => [input.checked, input.value]), folds: folds().map(fold => fold.open) }));
  location.reload();
};
let held = false, asking = false, answered = true;  // a drag over a curve is not cut off
addEventListener("pointerdown", () => { held = true; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { held = false; });
setInterval(async () => {
  if (document.hidden || held || asking) return;
  asking = true;
  try {
    const answer = await fetch("state"), state = await answer.text();
    if (answer.ok && state !== data.follow.state) return loadAnew();
    answered = answer.ok;
    words.textContent = answer.ok ? following() : state;
  } catch {
    answered = false;
    words.textContent = "This page followed the run until redline report --watch ended.";
  } finally {
    asking = false;
  }
}, 3000);
setInterval(() => { if (answered) words.textContent = following(); }, 1000);

// The address that was printed has the token, and the page does not.
if (data.follow.can_stop && location.hash.length > 1 && running.length > 0) {
  const button = html("button", { type: "button", id: "stop" }, "Stop the run");
  button.onclick = async () => {
    if (!confirm("Stop the run? It saves its state, and --resume goes on with it.")) return;
    try {
      const answer = await fetch("stop", { method: "POST", headers: { "X-Redline-Token": location.hash.slice(1) } });
      words.textContent = asked = await answer.text();
    } catch {
      words.textContent = "Nothing answers: redline report --watch has ended.";
    }
  };
  line.append(" ", button);
}
