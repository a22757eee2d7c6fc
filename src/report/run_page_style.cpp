// The looks of the report and its one script. Switching the x axis is style alone; the script only adds what is under the
// pointer, so a page without scripts, or on paper, lacks nothing else.
#include "report/run_page.h"

namespace redline::report {

const std::string_view kRunPageStyle = R"css(
body { max-width: 76rem; padding-top: 1.5rem; }
header h1 { font-size: 1.7rem; letter-spacing: -.01em; }
header .quiet { margin: .1rem 0; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; letter-spacing: -.005em; }
.x { position: absolute; opacity: 0; pointer-events: none; }
.bar { position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center;
  justify-content: space-between; background: var(--page); border-bottom: 1px solid var(--line); padding: .6rem 0; margin: 1rem 0 1.25rem; }
.runs { display: flex; flex-wrap: wrap; gap: .25rem 1.1rem; font-size: .92rem; }
.chip { display: inline-block; width: .75em; height: .75em; border-radius: 3px; margin-right: .45em; vertical-align: -.05em; }
.k0 { background: var(--c0); } .k1 { background: var(--c1); } .k2 { background: var(--c2); } .k3 { background: var(--c3); } .k4 { background: var(--c4); } .k5 { background: var(--c5); } .k6 { background: var(--c6); } .k7 { background: var(--c7); }
.switch { display: inline-flex; border: 1px solid var(--line); border-radius: 7px; overflow: hidden; font-size: .88rem; }
.switch label { padding: .25rem .8rem; cursor: pointer; color: var(--quiet); }
.switch label + label { border-left: 1px solid var(--line); }
.switch label:hover { color: var(--text); }
#x-step:checked ~ main label[for=x-step], #x-tokens:checked ~ main label[for=x-tokens], #x-time:checked ~ main label[for=x-time] {
  background: var(--c2); color: var(--page); }
#x-step:focus-visible ~ main label[for=x-step], #x-tokens:focus-visible ~ main label[for=x-tokens], #x-time:focus-visible ~ main label[for=x-time] {
  outline: 2px solid var(--text); outline-offset: -2px; }
.by-step, .by-tokens, .by-time { display: none; }
#x-step:checked ~ main .by-step, #x-tokens:checked ~ main .by-tokens, #x-time:checked ~ main .by-time { display: block; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.card { margin: 0; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem .4rem; background: var(--page); position: relative; min-width: 0; }
.card.whole { grid-column: 1 / -1; }
.card figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .2rem; }
.key { font-weight: 400; font-size: .85rem; color: var(--quiet); margin-left: 1rem; }
.card svg { min-width: 0; margin: .25rem 0; }
.scroll { overflow-x: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(12.5rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.tile { border: 1px solid var(--line); border-radius: 10px; padding: .65rem .9rem; }
.tile span { display: block; color: var(--quiet); font-size: .82rem; }
.tile b { display: block; white-space: nowrap; font-size: 1.15rem; line-height: 1.35; font-variant-numeric: tabular-nums; letter-spacing: -.01em; }
.state { display: inline-block; font-size: .8rem; font-weight: 600; border-radius: 99px; padding: .05rem .6rem; border: 1px solid currentColor; vertical-align: .25em; margin-left: .5rem; letter-spacing: 0; }
.state.good { color: var(--c3); } .state.bad { color: var(--c0); } .state.open { color: var(--c2); }
.note.bad { border-left-color: var(--c0); }
.note ul { margin: .3rem 0 0; padding-left: 1.2rem; }
table.events td, table.settings td { text-align: left; white-space: normal; vertical-align: top; padding-left: 0; }
table.events td:nth-child(-n+3), table.settings td:first-child { white-space: nowrap; }
table.events th, table.settings th { text-align: left; padding-left: 0; }
table.settings td { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .85em; overflow-wrap: anywhere; }
.kind { font-size: .8rem; color: var(--quiet); } .kind.is-warning, .kind.is-failed { color: var(--c0); font-weight: 600; } .kind.is-checkpoint { color: var(--c3); }
pre { font: .82rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--faint); border-radius: 8px; padding: .8rem 1rem; overflow-x: auto; margin: .5rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--quiet); }
.tip { position: absolute; z-index: 3; pointer-events: none; background: var(--page); border: 1px solid var(--line); border-radius: 7px;
  box-shadow: 0 3px 14px rgb(0 0 0 / .18); padding: .35rem .6rem; font-size: .82rem; line-height: 1.45; white-space: nowrap; font-variant-numeric: tabular-nums; }
.tip i { font-style: normal; color: var(--quiet); }
svg .cross { stroke: var(--quiet); stroke-dasharray: 2 3; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .85rem; }
@media screen and (max-width: 52rem) { .grid { grid-template-columns: minmax(0, 1fr); } .card.whole .scroll svg { min-width: 40rem; } }
@media print { body { max-width: none; } .switch, .tip, .cross { display: none; } .bar { position: static; border: 0; padding: 0; margin: .4rem 0; }
  .card, .tile { break-inside: avoid; } .card.whole .scroll svg { min-width: 0; } h2 { margin-top: 1.2rem; } .grid { gap: .5rem; } pre { white-space: pre-wrap; } }
)css";

const std::string_view kRunPageScript = R"js(
"use strict";
(() => {
  const units = ["", " k", " M", " B", " T"];
  const count = v => {
    let unit = 0;
    while (Math.abs(v) >= 999.5 && unit < 4) { v /= 1000; ++unit; }
    return (unit ? v.toPrecision(3) : String(+v.toPrecision(4))) + units[unit];
  };
  const write = {
    number: v => String(+v.toPrecision(5)), share: v => (100 * v).toFixed(1) + "%", rate: v => count(v) + " tok/s",
    milliseconds: v => String(+v.toPrecision(4)) + " ms", exponent: v => v.toExponential(2),
  };
  const place = { step: v => "step " + v.toLocaleString("en"), tokens: v => count(v) + " tokens",
                  time: (v, unit) => v.toPrecision(4) + " " + unit };
  const nearest = (list, x) => {
    let low = 0, high = list.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (list[middle] < x) low = middle; else high = middle; }
    return Math.abs(list[low] - x) <= Math.abs(list[high] - x) ? low : high;
  };
  const element = (name, attributes) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) e.setAttribute(key, attributes[key]);
    return e;
  };
  for (const source of document.querySelectorAll("figure script")) {
    const data = JSON.parse(source.textContent), card = source.parentElement;
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    card.append(tip);
    for (const svg of card.querySelectorAll("svg.plot")) {
      const kind = svg.dataset.kind;
      const [left, right, top, bottom] = svg.dataset.frame.split(" ").map(Number);
      const [x0, x1, y0, y1] = svg.dataset.range.split(" ").map(Number);
      const layer = element("g", {});
      svg.append(layer);
      const leave = () => { tip.hidden = true; layer.replaceChildren(); };
      svg.addEventListener("pointerleave", leave);
      svg.addEventListener("pointermove", event => {
        const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        if (at.x < left - 8 || at.x > right + 8 || at.y < top - 8 || at.y > bottom + 8) return leave();
        const x = x0 + (at.x - left) / (right - left) * (x1 - x0);
        layer.replaceChildren();
        tip.replaceChildren();
        const near = data.series.map(s => ({ s, i: nearest(s[kind], x) }));
        const main = near.reduce((a, b) => Math.abs(b.s[kind][b.i] - x) < Math.abs(a.s[kind][a.i] - x) ? b : a);
        const here = main.s[kind][main.i], px = v => left + (v - x0) / (x1 - x0) * (right - left);
        layer.append(element("line", { class: "cross", x1: px(here), x2: px(here), y1: top, y2: bottom }));
        const head = document.createElement("i");
        head.textContent = place[kind](here, data.units.time);
        tip.append(head);
        for (const { s, i } of near) {
          if (Math.abs(px(s[kind][i]) - px(here)) > 12) continue;
          const y = Math.min(1, Math.max(0, (s.y[i] - y0) / (y1 - y0)));
          layer.append(element("circle", { class: "dot c" + s.colour, cx: px(s[kind][i]), cy: bottom - y * (bottom - top), r: 4 }));
          const line = document.createElement("div"), chip = document.createElement("span"), value = document.createElement("b");
          chip.className = "chip k" + s.colour;
          value.textContent = write[data.figure](s.y[i]);
          line.append(chip, s.name + "  ", value);
          tip.append(line);
        }
        tip.hidden = false;
        const box = card.getBoundingClientRect(), beyond = event.clientX - box.left + tip.offsetWidth + 24 > box.width;
        tip.style.left = event.clientX - box.left + (beyond ? -tip.offsetWidth - 14 : 14) + "px";
        tip.style.top = event.clientY - box.top + 12 + "px";
      });
    }
  }
})();
)js";

}  // namespace redline::report
