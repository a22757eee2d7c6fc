// The core of the page: elements, numbers, and the kinds of plots: curves, columns, and a bar of time.
const data = JSON.parse(document.getElementById("data").textContent), main = document.querySelector("main");
const view = { axis: "step", log: false, smoothing: 17, range: null, hidden: new Set() };  // of all curves
let axes;  // of those curves: the words below an axis, and a place on it in words

// Elements. Text from files only ever becomes a text node or an attribute.
const make = (space, name, attributes, children) => {
  const element = document.createElementNS("http://www.w3.org/" + space, name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  element.append(...children);
  return element;
};
const html = (name, attributes, ...children) => make("1999/xhtml", name, attributes, children);
const svg = (name, attributes, ...children) => make("2000/svg", name, attributes, children);
const add = (name, attributes, ...children) => main.appendChild(html(name, attributes, ...children));
const colour = i => `color: var(--c${i % 9})`;
const chip = i => html("span", { class: "chip", style: colour(i) });
const bar = parts => html("span", { class: "bar" }, ...parts.map(([share, i, title]) =>
  html("i", { style: `${colour(i)}; width: ${100 * Math.min(1, Math.max(0, share))}%`, title })));
// A sentence of its own. The name of a key at its beginning stays as it is.
const paragraph = (text, kind = "quiet") => text && add("p", { class: kind },
  (/^\w+\.\w/.test(text) ? text[0] : text[0].toUpperCase()) + text.slice(1) + (text.endsWith(".") ? "" : "."));
const table = (kind, head, rows, caption) => {
  const cells = (name, row) => html("tr", {}, ...row.map((cell, i) => {
    const title = [head[i] ?? ""].flat().at(-1);
    return html(name, name === "td" && i > 0 && title !== "" ? { "data-name": title } : {}, ...[cell].flat());
  }));
  if (rows.length) add("table", { class: kind }, ...(caption ? [html("caption", {}, caption)] : []),
    html("thead", {}, cells("th", head)), html("tbody", {}, ...rows.map(row => cells("td", row))));
};

// Numbers as people read them.
const digits = (v, n) => String(+v.toPrecision(n));
const inUnits = (v, step, units) => {
  let unit = 0;
  for (; Math.abs(v) >= .9995 * step && unit < units.length - 1; ++unit) v /= step;
  return digits(v, unit ? 3 : 4) + units[unit];
};
const count = v => inUnits(v, 1000, ["", " k", " M", " B", " T"]), grouped = v => v.toLocaleString("en");
const bytes = v => inUnits(v, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
const flops = v => inUnits(v, 1000, ["", "k", "M", "G", "T", "P", "E", "Z", "Y"].map(unit => ` ${unit}FLOP`));
const joules = v => v === undefined ? "–" : inUnits(v * 1e6, 1000, [" µJ", " mJ", " J", " kJ"]);
const energy = kwh =>
  kwh === undefined ? "–" : kwh < .00995 ? digits(kwh * 1000, 3) + " Wh" : digits(kwh, 3) + " kWh";
const percent = v => (100 * v).toFixed(1) + "%";
const duration = s => {
  const two = v => String(Math.floor(v)).padStart(2, "0"), whole = Math.round(s);
  if (s < .9995) return digits(s * 1000, 3) + " ms";
  if (s < 59.5) return s.toFixed(s < 9.95 ? 1 : 0) + " s";
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${two(whole / 60 % 60)}m`;
  return whole < 864e6 ? `${Math.floor(whole / 86400)}d ${two(whole / 3600 % 24)}h` : "years";
};
const write = { number: v => digits(v, 5), share: percent, rate: v => count(v) + " tok/s",
  fine_share: v => digits(100 * v, 2) + "%", exponent: v => v.toExponential(2), milliseconds: v => duration(v / 1000),
  teraflops: v => flops(v * 1e12) + "/s", gibibytes: v => bytes(v * 2 ** 30) };
const tick = { ...write, number: v => digits(v, 4), share: v => digits(100 * v, 4) + "%", rate: count,
  exponent: v => digits(v, 2), milliseconds: v => v ? duration(v / 1000) : "0" };
const known = (v, figure) => v === null || v === undefined ? "–" : write[figure](v);
const date = t => t > 0 && t < 32e9 ? new Date(1000 * t).toISOString().slice(0, 19).replace("T", " ") : "";

// A list of numbers may be too long for the arguments of Math.min.
const least = list => list.reduce((a, b) => Math.min(a, b), Infinity);
const most = list => list.reduce((a, b) => Math.max(a, b), -Infinity);

// An axis over pixels; with a base it is logarithmic.
const scale = (low, high, base, from, to) => {
  const bend = v => base ? Math.log(Math.max(v, 1e-300)) : v, a = bend(low), b = bend(high);
  const inside = (v, a, b) => Math.min(Math.max(a, b), Math.max(Math.min(a, b), v));
  return {
    at: v => inside(b > a ? from + (bend(v) - a) / (b - a) * (to - from) : (from + to) / 2, from, to),
    value: pixel => {
      const v = a + (inside(pixel, from, to) - from) / (to - from) * (b - a);
      return base ? Math.exp(v) : v;
    } };
};
// Round numbers: powers of the base where at least three are inside, else 1, 2, 5 and their tens.
const ticks = (low, high, base, wanted) => {
  if (!(high > low)) return [low];
  if (base) {
    const power = v => Math.log(v) / Math.log(base), powers = [];
    const first = Math.ceil(power(low) - 1e-9), last = Math.floor(power(high) + 1e-9);
    for (let e = first; e <= last; e += Math.max(1, Math.ceil((last - first + 1) / wanted))) powers.push(base ** e);
    if (powers.length > 2) return powers;
  }
  const rough = (high - low) / wanted, ten = 10 ** Math.floor(Math.log10(rough)), out = [];
  const step = ten * ([1, 2, 5].find(round => round * ten >= rough * .999) ?? 10);
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; ++n) out.push(n * step);
  return out;
};

// A plot's axes, x and y being { low, high, base, label, tick }, and marks { at, label, until } across it, with a shade
// to where one goes on. One without y is flat.
const frame = (plot, x, y, marks) => {
  const width = Math.max(260, plot.card.clientWidth - 30), height = !y ? 104 : width > 700 ? 340 : 240;
  const top = marks.length ? 24 : 10, bottom = height - 42, right = width - 18;
  const yTicks = y ? ticks(y.low, y.high, y.base, Math.round((bottom - top) / 38)) : [];
  const left = 14 + 6.8 * most([0, ...yTicks.map(v => y.tick(v).length)]);
  const px = scale(x.low, x.high, x.base, left, right), py = y && scale(y.low, y.high, y.base, bottom, top);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": plot.title });
  const line = (kind, x1, y1, x2, y2) => picture.appendChild(svg("line", { class: kind, x1, y1, x2, y2 }));
  const words = (kind, x, y, anchor, text) =>
    picture.append(svg("text", { class: kind, x, y, "text-anchor": anchor }, text));
  for (const v of yTicks) {
    line("grid", left, py.at(v), right, py.at(v));
    words("tick", left - 7, py.at(v) + 4, "end", y.tick(v));
  }
  for (const v of ticks(x.low, x.high, x.base, Math.min(8, width / 75))) {
    line("axis", px.at(v), bottom, px.at(v), bottom + 5);
    words("tick", px.at(v), bottom + 18, "middle", x.tick(v));
  }
  line("axis", left, bottom, right, bottom);
  words("", (left + right) / 2, height - 6, "middle", x.label);
  let shaded = x.low;  // up to here, so that no place is shaded twice
  for (const { at, until } of marks.filter(m => m.until > m.at && m.at < x.high).sort((a, b) => a.at - b.at)) {
    const begin = px.at(Math.max(at, shaded)), width = px.at(until) - begin;
    if (width > 0) picture.append(svg("rect", { class: "again", x: begin, y: top, width, height: bottom - top }));
    shaded = Math.max(shaded, until);
  }
  let free = left;  // where the labels so far end; one that has no room shows on hover alone
  for (const { at, label } of marks.filter(m => m.at >= x.low && m.at <= x.high).sort((a, b) => a.at - b.at)) {
    const here = px.at(at), wide = 7 * label.length, before = here + wide > right;
    line("mark", here, top, here, bottom).append(svg("title", {}, label));
    if ((before ? here - wide : here) < free) continue;
    words("", here + (before ? -5 : 5), top - 6, before ? "end" : "start", label);
    free = before ? here : here + wide;
  }
  plot.card.querySelector("svg")?.remove();
  plot.card.append(picture);
  return { picture, px, py, left, right, top, bottom };
};

const tip = document.body.appendChild(html("div", { class: "tip", hidden: "" }));
const showTip = (event, head, rows) => {
  tip.replaceChildren(html("i", {}, head), ...rows.map(([i, name, value]) =>
    html("div", {}, chip(i), name + "  ", html("b", {}, value))));
  tip.hidden = false;
  const beyond = event.clientX + tip.offsetWidth + 28 > innerWidth;
  tip.style.left = (beyond ? Math.max(4, event.clientX - tip.offsetWidth - 14) : event.clientX + 14) + "px";
  tip.style.top = Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 4) + "px";
};
const xOf = (picture, event) =>
  new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse()).x;

// Means around each value, of fewer at the start, where losses fall steeply and a mean would stand above them.
const smoothed = (values, window) => {
  const sums = [0], counts = [0];
  values.forEach((v, i) => { sums.push(sums[i] + (v ?? 0)); counts.push(counts[i] + (v !== null)); });
  return values.map((v, i) => {
    const half = Math.min(Math.floor(window / 2), i >> 2), from = i - half, to = Math.min(i + half + 1, values.length);
    return v === null ? null : (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
};

// Lines. A series is { name, colour, x, y, low, high, dots, dashed, run }; x of a run has a list for each axis. A flag
// { x, text, colour, gone, run } stands on the axis below them.
const curves = plot => {
  const own = plot.axis, zoomed = own ? plot : view, base = own ? own.base : view.log && 10;
  const [label, said] = own ? [own.label, v => `${grouped(v)} ${own.label}`] : axes[view.axis];
  const all = plot.series.filter(s => !view.hidden.has(s.run)).map(s => ({ ...s, x: own ? s.x : s.x[view.axis] }));
  const xs = all.flatMap(s => s.x).filter(v => !base || v > 0);
  const [from, to] = zoomed.range ?? [base || own ? least(xs) : 0, most(xs)];
  for (const s of all) {
    const window = plot.smooth && !s.dots && view.smoothing && Math.max(4, s.y.length * view.smoothing / 1000);
    s.mean = window ? smoothed(smoothed(s.y, window), window) : s.y;  // twice: a spike becomes a hill, not a block
    s.low ??= s.y;
    s.high ??= s.y;
    s.seen = [...s.y.keys()].filter(i =>
      s.y[i] !== null && s.x[i] >= from && s.x[i] <= to && (!plot.log || s.low[i] > 0));
  }
  // The y axis has all of the values but the rarest spikes, which are marked at its end.
  const highs = all.flatMap(s => s.seen.map(i => s.high[i])).sort((a, b) => a - b);
  const usual = highs[Math.floor(.995 * (highs.length - 1))] ?? 1, last = highs.at(-1) ?? 1;
  const low = Math.min(last, least(all.flatMap(s => s.seen.map(i => s.low[i]))));
  const high = plot.smooth && usual > 0 && last > 2 * usual ? 1.2 * usual : last;
  const room = high > low ? .06 * (high - low) : Math.abs(high) * .1 || .01;
  const floor = plot.zero ? Math.min(low, 0) : low >= 0 ? Math.max(0, low - room) : low - room;
  const y = plot.log ? { low: low / 1.05, high: high * 1.05, base: 10 } : { low: floor, high: high + room };
  const marks = (plot.marks ?? []).filter(m => !view.hidden.has(m.run)).map(({ x, until, label }) =>
    ({ at: x[view.axis], until: until?.[view.axis], label }));
  const flags = (plot.flags ?? []).map(flag => ({ ...flag, at: flag.x[view.axis] }))
    .filter(({ run, at }) => !view.hidden.has(run) && at >= from && at <= to);
  const xTick = own ? v => digits(v, 6) : count;
  const f = frame(plot, { low: from, high: to, base, label, tick: xTick }, { ...y, tick: tick[plot.figure] }, marks);
  const line = (s, kind, points) => f.picture.append(svg("polyline", { class: kind, style: colour(s.colour),
    points: points.map(([i, v]) => `${f.px.at(s.x[i]).toFixed(1)},${f.py.at(v).toFixed(1)}`).join(" ") }));
  const dot = (s, i, r) => svg("circle", { style: colour(s.colour), cx: f.px.at(s.x[i]), cy: f.py.at(s.y[i]), r });
  for (const s of all.filter(s => all.length < 9 && (s.mean !== s.y || s.high !== s.y)))  // else they hide each other
    line(s, "behind", s.seen.flatMap(i => [[i, s.low[i]], [i, s.high[i]]]));
  for (const s of all) line(s, s.dashed || s.colour > 7 ? "dashed" : "", s.seen.map(i => [i, s.mean[i]]));
  for (const s of all.filter(s => s.dots && s.seen.length < 60)) f.picture.append(...s.seen.map(i => dot(s, i, 3.5)));
  for (const { at, text, colour: i, gone } of flags)
    f.picture.append(svg("path", { class: gone ? "flag gone" : "flag", style: colour(i),
      d: `M${(f.px.at(at) - 5).toFixed(1)},${f.bottom} l5,-10 l5,10 z` }, svg("title", {}, text)));
  const spoken = write[plot.figure], labelled = [];
  const spikes = all.flatMap(s => s.seen.filter(i => s.high[i] > y.high).map(i => ({ s, i, value: s.high[i] })));
  for (const { s, i, value } of spikes.sort((a, b) => b.value - a.value)) {  // the largest has room for its label
    const at = f.px.at(s.x[i]), text = spoken(value), wide = 7 * text.length + 8, before = at + wide > f.right;
    f.picture.append(svg("path", { class: "spike", style: colour(s.colour),
      d: `M${(at - 4).toFixed(1)},${f.top + 8} l4,-8 l4,8 z` }, svg("title", {}, `${said(s.x[i])}: ${text}`)));
    const [begin, end] = before ? [at - wide, at + 5] : [at - 5, at + wide];
    if (labelled.some(([a, b]) => begin < b && end > a)) continue;
    labelled.push([begin, end]);
    f.picture.append(svg("text", { class: "spike", x: at + (before ? -6 : 6), y: f.top + 9,
      "text-anchor": before ? "end" : "start" }, text));
  }

  const layer = f.picture.appendChild(svg("g", {}));
  let began = null;
  const leave = () => { tip.hidden = true; layer.replaceChildren(); };
  const dragged = event => [began, xOf(f.picture, event)].sort((a, b) => a - b).map(f.px.value);
  f.picture.onpointerleave = leave;
  f.picture.onpointerdown = event => {
    began = xOf(f.picture, event);
    if (event.isTrusted) f.picture.setPointerCapture(event.pointerId);  // a drag may end outside
  };
  f.picture.onpointercancel = () => { began = null; };
  f.picture.onpointermove = event => {
    leave();
    const x = xOf(f.picture, event);
    if (began !== null && Math.abs(x - began) > 6) {
      const [a, b] = dragged(event).map(f.px.at);
      return layer.append(svg("rect", { class: "drag", x: a, y: f.top, width: b - a, height: f.bottom - f.top }));
    }
    const near = all.filter(s => s.seen.length).map(s => {
      const i = s.seen.reduce((a, b) => Math.abs(f.px.at(s.x[b]) - x) < Math.abs(f.px.at(s.x[a]) - x) ? b : a);
      return { s, i, at: f.px.at(s.x[i]) };
    });
    if (!near.length) return;
    const here = near.reduce((a, b) => Math.abs(b.at - x) < Math.abs(a.at - x) ? b : a);
    const close = near.filter(n => Math.abs(n.at - here.at) < 12);
    layer.append(svg("line", { class: "cross", x1: here.at, x2: here.at, y1: f.top, y2: f.bottom }));
    layer.append(...close.map(({ s, i }) => dot(s, i, 4)));
    showTip(event, said(here.s.x[here.i]), [...close.map(({ s, i }) => [s.colour, s.name,
      spoken(s.y[i]) + (s.low[i] < s.high[i] ? ` (${spoken(s.low[i])} to ${spoken(s.high[i])})` : "")]),
      ...flags.filter(flag => Math.abs(f.px.at(flag.at) - x) < 6).slice(0, 4).map(flag =>
        [flag.colour, flag.text, ""])]);
  };
  f.picture.onpointerup = event => {
    const [a, b] = began === null ? [0, 0] : dragged(event);
    began = null;
    if (f.px.at(b) - f.px.at(a) > 6) zoom(zoomed, [a, b]);
  };
  f.picture.ondblclick = () => zoom(zoomed, null);
};

// Columns between edges; several series stand beside each other. A series is { name, colour, y, n, run }.
const columns = plot => {
  const { edges, names, label, base } = plot, all = plot.series.filter(s => !view.hidden.has(s.run));
  const marks = plot.marks ?? [], high = most([edges.at(-1), ...marks.map(m => m.at * 1.02)]);
  const f = frame(plot, { low: edges[0], high, base, label, tick: v => digits(v, 6) },
    { low: 0, high: 1.06 * most([1e-9, ...all.flatMap(s => s.y)]), tick: tick.share }, marks);
  all.forEach((s, place) => s.y.forEach((v, i) => {
    const left = f.px.at(edges[i]), wide = Math.max(.5, f.px.at(edges[i + 1]) - left - 1.5) / all.length;
    f.picture.append(svg("rect", { class: "column", style: colour(s.colour), x: left + .75 + wide * place,
      y: f.py.at(v), width: wide, height: f.bottom - f.py.at(v) }));
  }));
  f.picture.onpointerleave = () => { tip.hidden = true; };
  f.picture.onpointermove = event => {
    const at = f.px.value(xOf(f.picture, event)), i = edges.findLastIndex(e => e <= at);
    if (i < 0 || i >= names.length) return f.picture.onpointerleave();
    showTip(event, names[i], all.map(s => [s.colour, s.name, percent(s.y[i]) + (s.n ? ` (${grouped(s.n[i])})` : "")]));
  };
};

// Loads of experts as colours: of all layers at one look, or of one layer's experts over the run. Both share `chosen`,
// the look and the layer.
const heat = plot => {
  const { layers, experts, looks, x: { [view.axis]: xs } } = plot.loads, { look, layer } = plot.chosen;
  const rows = plot.over ? experts : layers.length, [axis, said] = axes[view.axis];
  const [from, to] = plot.over ? view.range ?? [0, xs.at(-1)] : [0, experts];
  const f = frame(plot, { low: from, high: to, label: plot.over ? axis : "expert", tick: plot.over ? count : String },
    { low: 0, high: rows, tick: v => v < rows && Number.isInteger(v) ? String(plot.over ? v : layers[v]) : "" }, []);
  plot.card.querySelector("figcaption span").textContent =
    plot.over ? `layer ${layers[layer]}` : `at ${said(xs[look])}`;
  const edges = plot.over ? [0, ...xs] : Array.from({ length: experts + 1 }, (_, e) => e);
  const load = (column, row) => plot.over ? looks[column][layer * experts + row] : looks[look][row * experts + column];
  for (let c = 0; c + 1 < edges.length; ++c) {
    const left = f.px.at(edges[c]), width = f.px.at(edges[c + 1]) - left;
    for (let r = 0; r < rows && width > 0; ++r) {
      const v = load(c, r), strength = v >= 1 ? Math.log2(v) / 2 : v > 0 ? -Math.log2(v) / 3 : 1;
      f.picture.append(svg("rect", { class: "column", style: colour(v >= 1 ? 1 : 0), x: left, y: f.py.at(r + 1),
        width: width + .3, height: f.py.at(r) - f.py.at(r + 1) + .3, "fill-opacity": Math.min(1, strength) }));
    }
  }
  const under = event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(f.picture.getScreenCTM().inverse());
    const x = f.px.value(at.x), row = Math.min(rows - 1, Math.floor(f.py.value(at.y)));
    return [Math.max(0, Math.min(edges.findIndex(e => e > x) - 1, edges.length - 2)), row];
  };
  f.picture.onpointerleave = () => { tip.hidden = true; };
  f.picture.onpointermove = event => {
    const [c, r] = under(event), v = load(c, r), [of, expert] = plot.over ? [layer, r] : [r, c];
    showTip(event, said(xs[plot.over ? c : look]), [[v >= 1 ? 1 : 0, `layer ${layers[of]}, expert ${expert}`,
      `${digits(v, 3)} × an even share`]]);
  };
  f.picture.onclick = event => {
    const [c, r] = under(event);
    plot.chosen[plot.over ? "look" : "layer"] = plot.over ? c : r;
    plot.chosen.changed();
  };
};

// Where time went, one stretch { from, to, head, name, colour } behind the other.
const timeline = plot => {
  const all = plot.stretches, high = all.at(-1).to;
  const f = frame(plot, { low: 0, high, label: plot.label, tick: v => digits(v, 4) }, null, plot.marks);
  const behind = f.picture.querySelector(".mark");
  for (const s of all) {
    const x = f.px.at(s.from), width = Math.max(.5, f.px.at(s.to) - x), height = f.bottom - f.top;
    const part = svg("rect", { class: "column", style: colour(s.colour), x, y: f.top, width, height });
    f.picture.insertBefore(part, behind);
  }
  f.picture.onpointerleave = () => { tip.hidden = true; };
  f.picture.onpointermove = event => {
    const at = f.px.value(xOf(f.picture, event)), s = all.find(s => at <= s.to) ?? all.at(-1);
    showTip(event, s.head, [[s.colour, s.name, s.value]]);
  };
};

// The stages of the loader, in the order in which data pass through them: boxes with a bar of their time each. Where
// the page is narrow they stand below each other.
const stages = plot => {
  const all = plot.stages, width = Math.max(260, plot.card.clientWidth - 30), gap = 40, high = 92;
  const turned = width < 190 * all.length;
  const wide = turned ? width - 4 : (width - 4 - gap * (all.length - 1)) / all.length;
  const picture = svg("svg", { role: "img", "aria-label": plot.title,
    viewBox: `0 0 ${width} ${turned ? all.length * (high + gap) - gap + 8 : high + 8}` });
  const words = (kind, x, y, text) => picture.append(svg("text", { class: kind, x, y }, text));
  all.forEach((s, i) => {
    const x = 2 + (turned ? 0 : i * (wide + gap)), y = 4 + (turned ? i * (high + gap) : 0), inside = wide - 20;
    const slowest = s.name === plot.slowest, threads = `${digits(s.threads, 3)} thread${s.threads === 1 ? "" : "s"}`;
    picture.append(svg("rect", { class: slowest ? "stage slowest" : "stage", x, y, width: wide, height: high, rx: 8 }));
    words("name", x + 10, y + 20, s.name + (slowest ? ": the others wait for it" : ""));
    words("tick", x + 10, y + 38, s.name === "train" ? "takes batches" : threads);
    words("tick", x + 10, y + 55, `${count(s.tokens_per_s)} tokens/s`);
    picture.append(svg("rect", { class: "rest", x: x + 10, y: y + 68, width: inside, height: 12, rx: 3 }));
    let from = x + 10;
    for (const [share, colour] of [[s.busy, 2], [s.waiting, 7]]) {
      const part = inside * Math.min(1, Math.max(0, share));
      picture.append(svg("rect", { class: "column", style: `color: var(--c${colour})`, x: from, y: y + 68,
        width: Math.max(0, Math.min(part, x + 10 + inside - from)), height: 12 }));
      from += part;
    }
    if (i + 1 === all.length) return;
    const [ax, ay] = turned ? [x + wide / 2, y + high + 3] : [x + wide + 3, y + high / 2], long = gap - 8;
    picture.append(svg("path", { class: "flow", d: turned ? `M${ax},${ay} v${long} m-5,-7 l5,7 l5,-7` :
      `M${ax},${ay} h${long} m-7,-5 l7,5 l-7,5` }));
  });
  picture.onpointerleave = () => { tip.hidden = true; };
  picture.onpointermove = event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
    const i = Math.floor(turned ? at.y / (high + gap) : at.x / (wide + gap)), s = all[Math.min(i, all.length - 1)];
    showTip(event, s.name, [[2, "working", percent(s.busy)], [7, "waiting for another stage", percent(s.waiting)]]);
  };
  plot.card.querySelector("svg")?.remove();
  plot.card.append(picture);
};

// A plot in its place. Series that are not runs, which the bar above names, are named beside its title.
const plots = [];
const addPlot = plot => {
  const named = plot.series.length > 1 && plot.series[0].run === undefined ? plot.series : [];
  const caption = html("figcaption", {}, plot.title, ...named.map(s => html("span", {}, chip(s.colour), s.name)),
    ...(plot.key ? [html("span", {}, plot.key)] : []));
  plot.card = add("figure", { class: plot.wide ? "wide" : "half" }, caption);
  plots.push(plot);
  if (plot.edges || plot.axis || plot.stretches || plot.stages || plot.loads) return;
  const button = html("button", { type: "button", "aria-pressed": "false", title: "logarithmic y axis" }, "log y");
  button.onclick = () => { plot.log = !plot.log; button.setAttribute("aria-pressed", plot.log); curves(plot); };
  caption.append(button);
};
const draw = () => plots.forEach(plot =>
  (plot.loads ? heat : plot.stages ? stages : plot.stretches ? timeline : plot.edges ? columns : curves)(plot));
const reset = html("button", { type: "button", hidden: "" }, "whole range");
const zoom = (what, range) => { what.range = range; tip.hidden = true; reset.hidden = !view.range; draw(); };
reset.onclick = () => zoom(view, null);
const control = (attributes, change, ...label) => {
  const input = html("input", attributes);
  input.oninput = () => { change(input); draw(); };
  return html("label", {}, input, ...label);
};
const addBar = names => add("div", { id: "bar" },
  html("div", { class: "runs" }, ...names.map((name, run) => {
    const words = html("span", {}, chip(run), name);
    return names.length < 2 ? words : control({ type: "checkbox", checked: "" },
      input => view.hidden[input.checked ? "delete" : "add"](run), words);
  })),
  reset,
  html("span", {}, ...["step", "tokens", "time"].map(axis => control(
    { type: "radio", name: "axis", id: "x-" + axis, ...(axis === "step" && { checked: "" }) },
    () => { view.axis = axis; view.range = null; reset.hidden = true; }, ` ${axis === "step" ? "steps" : axis}  `))),
  control({ type: "checkbox", id: "x-log" }, input => { view.log = input.checked; }, " log x"),
  control({ type: "range", id: "smoothing", max: 100, value: view.smoothing },
    input => { view.smoothing = +input.value; }, " smoothing"));
