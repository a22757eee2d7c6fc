
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
let following = "This page follows the run.";
const words = html("span", {}, following), line = html("p", { class: "quiet" }, words);
main.insertBefore(line, main.querySelector("h1").nextSibling);

const loadAnew = () => {
  sessionStorage.setItem("view", JSON.stringify({ range: view.range,
    inputs: controls().map(input => [input.checked, input.value]), folds: folds().map(fold => fold.open) }));
  location.reload();
};
let held = false, asking = false;  // a drag over a curve is not cut off
addEventListener("pointerdown", () => { held = true; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { held = false; });
setInterval(async () => {
  if (document.hidden || held || asking) return;
  asking = true;
  try {
    const answer = await fetch("state"), state = await answer.text();
    if (answer.ok && state !== data.follow.state) return loadAnew();
    words.textContent = answer.ok ? following : state;
  } catch {
    words.textContent = "This page followed the run until redline report --watch ended.";
  } finally {
    asking = false;
  }
}, 3000);

// The address that was printed has the token, and the page does not.
if (data.follow.can_stop && location.hash.length > 1 && data.runs.some(run => run.state === "not finished")) {
  const button = html("button", { type: "button", id: "stop" }, "Stop the run");
  button.onclick = async () => {
    if (!confirm("Stop the run? It saves its state, and --resume goes on with it.")) return;
    try {
      const answer = await fetch("stop", { method: "POST", headers: { "X-Redline-Token": location.hash.slice(1) } });
      words.textContent = following = await answer.text();
    } catch {
      words.textContent = "Nothing answers: redline report --watch has ended.";
    }
  };
  line.append(" ", button);
}
