// Lays out the page of runs, or that of the lengths of documents.
const runsPage = ({ runs, figures, panels, title, unreadable }) => {
  const several = runs.length > 1, names = () => runs.map((run, i) => [chip(i), run.run]), first = runs[0];
  const longest = most([0, ...runs.map(run => run.seconds)]);
  const [unit, unitName] = longest > 10800 ? [3600, "hours"] : longest > 180 ? [60, "minutes"] : [1, "seconds"];
  for (const set of runs.flatMap(run => [run.x, run.held_out, run.held_out_average, ...run.named, run.resumes,
    run.skips, run.went_back.from, run.went_back.to, ...[run.norms, run.fp8, run.loads]
    .flatMap(looks => looks ? [looks.x] : [])]))
    set.time = set.time.map(v => v / unit);
  axes = { step: ["step", v => "step " + grouped(v)], tokens: ["tokens", v => count(v) + " tokens"],
    time: [unitName, v => `${digits(v, 4)} ${unitName}`] };

  const place = (set, k) => ({ step: set.step[k], tokens: set.tokens[k], time: set.time[k] });

  const state = html("span", { class: "state " + first.state.replace(" ", "-") }, first.state);
  add("h1", {}, title, ...(several ? [] : [state]));
  if (several) add("p", { class: "quiet" }, runs.map(run => run.folder).join(", "));
  if (!several && first.program !== undefined) {
    add("p", { class: "quiet" }, `${count(first.parameters)} parameters on ${first.device}, data: ${first.data}`);
    add("p", { class: "quiet" }, `${first.program}, started ${date(first.started)} UTC`);
  }
  const problems = [...unreadable, ...runs.flatMap(run => run.problems.map(p => several ? `${run.run}: ${p}` : p))];
  if (problems.length) add("div", { class: "note bad" }, "Not everything could be read.",
    html("ul", {}, ...problems.map(p => html("li", {}, p))));

  // Many runs stand below each other, with the figures that one compares first.
  const turned = runs.length > 4, turn = rows => rows[0].map((_, i) => rows.map(row => row[i]));
  const compare = (kind, head, rows, caption) => {
    const all = turned ? turn([head, ...rows]) : [head, ...rows];
    table(kind, all[0], all.slice(1), caption);
  };
  const timed = run => run.goodput?.wall_seconds > 0;
  const heldOut = run => run.trained_on ? "evaluated, and trained on" : "held out";
  if (runs.some(run => run.x.step.length)) {
    const row = (name, value) => [name, ...runs.map(value)], loss = v => v === null ? "–" : v.toFixed(4);
    const evaluated = runs.some(run => run.trained_on) ? "evaluated loss" : "held-out loss";
    const before = run => run.held_out.step[0] === 0 ? run.held_out.y[0] : null;
    const began = !turned && runs.some(run => before(run) !== null);
    const short = figures.filter(f => !turned || ["mean_mfu", "mean_tokens_per_s", "memory_gib"].includes(f.key));
    const rows = [
      ...(several ? [row("state", run => run.state)] : []),
      row("loss, last 20 steps", run => loss(run.last_loss)),
      ...(began ? [row(evaluated + ", step 0", run => loss(before(run)))] : []),
      row(evaluated + ", last", run => loss(run.last_eval_loss)),
      row(evaluated + ", best", run => loss(run.best_eval_loss)),
      ...(runs.some(run => run.held_out_average.y.length) ?
        [row("of the average, last", run => loss(run.held_out_average.y.at(-1) ?? null))] : []),
      row("steps", run => grouped(run.steps) + (run.steps_asked ? " of " + grouped(run.steps_asked) : "")),
      ...["updates skipped", "rollbacks"].filter(name => runs.some(run => run[name.replace(" ", "_")] > 0)).map(name =>
        row(name, run => known(run[name.replace(" ", "_")], "number"))),
      row("tokens", run => count(run.tokens)), row("time trained", run => duration(run.seconds)),
      ...(!turned && runs.some(timed) ?
        [row("wall time in steps", run => timed(run) ? percent(run.goodput.share) : "–")] : []),
      ...(runs.some(run => run.energy) ? [row("energy", run => energy(run.energy?.kwh)),
        row("energy a token", run => joules(run.energy?.joules_per_token))] : []),
      ...short.filter(f => runs.some(run => (run[f.key] ?? null) !== null)).map(f =>
        row(f.title, run => known(run[f.key], f.figure))),
      ...(turned ? [] : first.extrapolation).map(({ tokens }, i) =>
        row(`${count(tokens)} token${tokens === 1 ? "" : "s"} at this pace`,
          run => run.extrapolation[i].seconds === null ? "–" : duration(run.extrapolation[i].seconds)))];
    if (several) compare(turned ? "plain turned" : "plain", ["", ...names()], rows, "");
    else table("tiles", [], rows);
    addBar(runs.map(run => run.run));
  }
  const stepTimes = () => {
    const all = runs.filter(run => run.step_times.length), bins = 32;
    const low = least(all.map(run => run.step_times[0])), high = Math.max(low * 1.001 + 1e-6, most(all.map(run =>
      run.step_times[0] + 1.15 * (run.step_times[Math.floor(.98 * (run.step_times.length - 1))] - run.step_times[0]))));
    const edges = Array.from({ length: bins + 1 }, (_, b) => low + (high - low) * b / bins);
    const ms = i => digits(edges[i], 4);
    if (all.length) addPlot({ title: "Step times", label: "ms; the last column holds all that is slower", edges,
      names: edges.slice(1).map((_, b) => b + 1 < bins ? `${ms(b)} to ${ms(b + 1)} ms` : `${ms(b)} ms and more`),
      series: all.map(run => {
        const y = Array(bins).fill(0), i = runs.indexOf(run);
        for (const v of run.step_times)
          y[Math.min(bins - 1, Math.floor((v - low) / (high - low) * bins))] += 1 / run.step_times.length;
        return { name: several ? run.run : "of the steps", run: i, colour: i, y };
      }) });
  };
  const section = name => panels.filter(panel => panel.section === name).forEach(panel => {
    if (panel.step_times) stepTimes();
    const evaluated = panel.evaluations && runs.some(run => run.held_out.y.length);
    const dots = (run, i, key, first) => run.named.filter(of => of.key === key).map((of, k) => ({ y: of.y, x: of,
      dots: true, dashed: true, ...(several ? { name: `${run.run}, ${of.name}`, run: i, colour: i } :
        { name: of.name, colour: first + k }) }));
    const sets = (run, i) => dots(run, i, "eval_loss", 1);
    const series = panel.named ? runs.flatMap((run, i) => dots(run, i, panel.key, 0)) : runs.flatMap((run, i) => [
      ...(run.curves[panel.key] ? [{ ...run.curves[panel.key], x: run.x, colour: i,
        ...(several ? { name: run.run, run: i } : { name: panel.evaluations ? "training" : panel.title }) }] : []),
      ...(panel.evaluations && sets(run, i).length ? sets(run, i) :
        panel.evaluations && run.held_out.y.length ? [{ y: run.held_out.y, x: run.held_out, dots: true, dashed: true,
        ...(several ? { name: `${run.run}, ${heldOut(run)}`, run: i, colour: i } :
          { name: heldOut(run), colour: 1 }) }] : []),
      ...(panel.evaluations && run.held_out_average.y.length ? [{ y: run.held_out_average.y, x: run.held_out_average,
        dots: true, dashed: true, ...(several ? { name: `${run.run}, ${heldOut(run)}, average`, run: i, colour: i } :
          { name: heldOut(run) + ", average of weights", colour: 1 + Math.max(1, sets(run, i).length) }) }] : [])]);
    const marks = [], flags = [];
    if (panel.evaluations) runs.forEach((run, i) => {
      const owner = several ? run.run + " " : "", { from, to, from_step } = run.went_back;
      run.resumes.step.forEach((_, k) =>
        marks.push({ run: i, x: place(run.resumes, k), label: owner + run.resumes.text[k] }));
      for (const step of new Set(to.step)) {  // a run may go back to one step several times; the last is the first here
        const times = [...to.step.keys()].filter(k => to.step[k] === step), last = grouped(from_step[times[0]]);
        const farthest = times.reduce((a, b) => from.step[b] > from.step[a] ? b : a);
        marks.push({ run: i, x: place(to, times[0]), until: place(from, farthest), label: owner + (times.length > 1 ?
          `went back ${times.length} times, the last from step ${last}` : `went back from step ${last}`) });
      }
      run.skips.step.forEach((_, k) => flags.push({ run: i, x: place(run.skips, k), gone: run.skips.gone[k],
        colour: several ? i : 5, text: (run.skips.n[k] > 1 ? `${grouped(run.skips.n[k])} updates skipped, the last: ` :
          "") + run.skips.text[k] }));
    });
    flags.sort((a, b) => b.gone - a.gone);  // those of the curve stand in front
    const key = [several && evaluated ? "lines: training; dots: " +
        (runs.some(run => run.trained_on) ? "evaluations" : "held out") : "",
      flags.some(flag => !flag.gone) ? "▲ update skipped" : "",
      flags.some(flag => flag.gone) ? "△ skipped before the run went back" : ""];
    if (series.length) addPlot({ ...panel, series, marks, flags, key: key.filter(words => words).join("; ") });
  });
  // A heading, where something follows it.
  const under = (name, content) => {
    const heading = add("h2", {}, name);
    content();
    if (main.lastChild === heading) heading.remove();
  };
  section("");
  under("Where the wall time went", () => {
    const parts = [["start_up", "start-up", 1], ["steps", "steps", 2], ["data", "waiting for data", 4],
      ["ranks", "waiting for other ranks", 8],
      ["evaluation", "evaluation", 0], ["sampling", "sampling", 3], ["saving", "saving", 6],
      ["done_again", "lost and done again", 5], ["standing_still", "standing still", 7]]
      .filter(([key]) => runs.some(run => timed(run) && run.goodput.seconds[key] > 0));
    const share = ({ goodput: of }, key) => of.seconds[key] / of.wall_seconds;
    if (several && parts.length) {
      add("p", { class: "quiet" }, ...parts.flatMap(([, name, i]) => [chip(i), name + "  "]));
      table("bars", ["", "", "in steps", "in all"], runs.filter(timed).map(run => [run.run,
        bar(parts.map(([key, name, i]) => [share(run, key), i, `${name}: ${percent(share(run, key))}`])),
        percent(run.goodput.share), duration(run.goodput.wall_seconds)]));
      compare(turned ? "plain turned" : "plain", ["", ...names()], parts.map(([key, name]) =>
        [name, ...runs.map(run => timed(run) ? percent(share(run, key)) : "–")]), "");
    }
    if (several || !timed(first)) return;
    const { sessions, seconds, wall_seconds: wall } = first.goodput, stretches = [], marks = [];
    const [unit, unitName] = wall > 10800 ? [3600, "hours"] : wall > 180 ? [60, "minutes"] : [1, "seconds"];
    let at = 0;
    sessions.forEach((session, n) => {
      if (n) marks.push({ at, label: "after step " + grouped(session.first_step) });
      const head = sessions.length > 1 ? `session ${n + 1} of ${sessions.length}` : "the run";
      const put = (time, name, colour, head) => {
        if (time <= 0) return;
        stretches.push({ from: at, to: at += time / unit, head, name, colour,
          value: `${duration(time)}, ${percent(time / wall)} of the run` });
      };
      for (const [key, name, i] of parts) put(session.seconds[key], name, i, head);
      put(session.seconds_until_next, "standing still", 7, "until the next session");
    });
    addPlot({ title: "The run from its start", label: unitName, wide: true, stretches, marks,
      series: parts.map(([, name, colour]) => ({ name, colour })) });
    table("bars", ["", "", "of the run", "time"], parts.map(([key, name, i]) =>
      [[chip(i), name], bar([[seconds[key] / wall, i]]), percent(seconds[key] / wall), duration(seconds[key])]));
    if (sessions.length > 1) table("plain", ["session", "began, UTC", "after step", "took", "in steps", "done again",
      "stood still then"], sessions.map((s, n) => {
      const all = Object.values(s.seconds).reduce((sum, time) => sum + time, 0);
      const some = time => time > 0 ? duration(time) : "–";
      return [String(n + 1), date(s.began), grouped(s.first_step), some(all), percent(s.seconds.steps / (all || 1)),
        some(s.seconds.done_again), some(s.seconds_until_next)];
    }).slice(-20), sessions.length > 20 ? "The last 20 sessions" : "");
  });
  under("Speed", () => section("Speed"));
  under("Where the time goes", () => runs.filter(run => run.profile).forEach(({ run, profile: p }) => {
    const number = v => typeof v === "number" ? v : 0, step = number(p.step_ms), shown = 12;
    const kinds = p.kinds.filter(kind => typeof kind?.name === "string");
    const line = (name, ms, i, roofline, types) =>
      [name, bar([[ms / step, i]]), percent(ms / step), duration(ms / 1000), roofline, types];
    table("bars", ["", "", "of the step", "time", "of its roofline", "types"], [
      ...kinds.slice(0, shown).map(kind =>
        line(kind.name, number(kind.ms), 0, percent(number(kind.roofline)), String(kind.types ?? ""))),
      line("other ops", kinds.slice(shown).reduce((sum, kind) => sum + number(kind.ms), 0), 0, "", ""),
      line("waiting for data", number(p.data_ms), 1, "", ""), line("outside of nodes", number(p.outside_ms), 7, "", ""),
    ].filter(row => row[3] !== "0 ms"), `${run}: ${duration(step / 1000)} a step on ${p.device ?? "?"}`);
  }));
  under("Memory", () => {
    const held = runs.filter(run => run.memory_bytes?.total > 0);
    const kinds = [["parameters", 0], ["working copies", 4], ["gradients", 2], ["moments", 3], ["averages", 5],
      ["activations", 1]]
      .filter(([kind]) => held.some(run => run.memory_bytes[kind]));
    const whole = most(held.map(run => Math.max(run.memory_bytes.total, run.card_memory)));
    table("bars", ["", "", ...[...kinds, ["other", 7]].map(([kind, i]) => [chip(i), kind]), "in all"], held.map(run => {
      const { total, ...memory } = run.memory_bytes, parts = kinds.map(([kind, i]) => [memory[kind] ?? 0, i, kind]);
      parts.push([Math.max(0, total - parts.reduce((sum, [size]) => sum + size, 0)), 7, "other"]);
      return [several ? run.run : "the run",
        bar(parts.map(([size, i, kind]) => [size / whole, i, `${kind}: ${bytes(size)}`])),
        ...parts.map(([size]) => bytes(size)),
        bytes(total) + (run.card_memory > 0 ?
          ` of ${bytes(run.card_memory)}, ${percent(total / run.card_memory)}` : "")];
    }));
  });
  under("Data", () => {
    section("Data");
    for (const { run, pipeline: p } of runs.filter(run => run.pipeline)) {
      const intervals = `${grouped(p.intervals)} interval${p.intervals === 1 ? "" : "s"}`;
      addPlot({ title: several ? `The data pipeline of ${run}` : "The data pipeline", wide: true, stages: p.stages,
        slowest: p.slowest, key: `mean of ${intervals}`,
        series: [{ name: "working", colour: 2 }, { name: "waiting for another stage", colour: 7 }] });
      table("plain", ["stage", "threads", "tokens/s", "busy", "waiting"], p.stages.map(s => [s.name,
        digits(s.threads, 3), count(s.tokens_per_s), percent(s.busy), percent(s.waiting)]), several ? run : "");
    }
  });
  under("Norms", () => {
    section("Norms");
    for (const { run, norms } of runs.filter(run => run.norms)) {
      const curve = (title, of, figure) => {
        const series = norms.kinds.filter(kind => kind[of].some(v => v !== null)).map((kind, i) =>
          ({ name: kind.kind, colour: i, x: norms.x, y: kind[of], dots: true }));
        if (series.length && norms.x.step.length) addPlot({ title, figure, zero: true, series });
      };
      if (!several) {
        curve("Gradient norm of a tensor, middle layer", "gradient", "number");
        curve("Weight norm of a tensor, middle layer", "weight", "number");
        curve("Update over weight, middle layer", "change", "exponent");
      }
      table("plain", ["tensor", "gradient", "weight", "update", "update over weight"], norms.largest.map(t => [t.name,
        known(t.gradient, "number"), known(t.weight, "number"), known(t.update, "number"),
        known(t.change, "exponent")]),
        `${several ? run + ": " : ""}step ${grouped(norms.step)}, the largest updates first`);
      if (norms.left_out) add("p", { class: "quiet" }, `${grouped(norms.left_out)} more tensors in norms.jsonl.`);
    }
  });
  under("Experts", () => {
    section("Experts");
    for (const { run, loads } of runs.filter(run => run.loads)) {
      const { layers, experts, looks } = loads, last = looks.length - 1;
      const uneven = layers.map((_, l) => most(looks[last].slice(l * experts, (l + 1) * experts)));
      const chosen = { look: last, layer: uneven.indexOf(most(uneven)) }, owner = several ? run + ": " : "";
      const plots = [false, true].map(over => ({ title: `${owner}Load of experts ${over ? "over the run" : "by layer"}`,
        loads, chosen, over, series: [], key: " " }));
      chosen.changed = () => plots.forEach(heat);
      plots.forEach(addPlot);
    }
    if (runs.some(run => run.loads)) paragraph("No colour is an even share of the tokens; orange is more, at its " +
      "strongest four times as much, and blue is less, at its strongest an eighth and below. Click on a layer to see " +
      "it over the run, or on a place of the run to see all layers there");
  });
  under("Eight bits", () => {
    if (several || !first.fp8) section("Eight bits");
    for (const { run, fp8 } of runs.filter(run => run.fp8)) {
      const share = v => v === null ? "–" : v > 0 ? digits(100 * v, 2) + "%" : "0";
      const curve = (title, of, figure) => addPlot({ title, figure, zero: true,
        series: fp8.worst.map((t, i) => ({ name: t.name, colour: i, x: fp8.x, y: t[of], dots: true })) });
      if (!several && fp8.x.step.length) {
        curve("Cut off by the range, the worst tensors", "saturated", "fine_share");
        curve("Zero in eight bits, the worst tensors", "zero", "share");
      }
      table("plain", ["tensor", "format", "scale", "largest magnitude", "cut off", "zero"],
        fp8.last.map(t => [t.outside ? [html("span", { class: "kind-warning" }, t.name)] : t.name, t.format,
          t.scale > 0 ? `2^${digits(Math.log2(t.scale), 3)}` : "–", known(t.amax, "number"), share(t.saturated),
          share(t.zero)]),
        `${several ? run + ": " : ""}step ${grouped(fp8.step)}, the worst first`);
      if (fp8.left_out) add("p", { class: "quiet" }, `${grouped(fp8.left_out)} more tensors in fp8.jsonl.`);
    }
    if (runs.some(run => run.fp8)) paragraph("Zeros are those of fp8: values that were zero before, as gradients of " +
      "padding are, and values too small for their scale");
  });
  under("GPU", () => {
    section("GPU");
    for (const { run, gpu } of runs.filter(run => run.gpu?.throttled > 0)) {
      const reasons = gpu.throttle_reasons.join("; ");
      add("p", {}, `${run}: the card held its clocks down at ${percent(gpu.throttled)} of the steps (${reasons}` +
        (reasons === "power cap" ? ", which is normal under full load)." : ")."));
    }
  });
  under("Samples", () => {
    for (const { run, samples } of runs)
      table("words", ["step", ""], samples.map(({ step, prompt, text }, i) =>
        [step === samples[i - 1]?.step ? "" : grouped(step), [html("span", { class: "quiet" }, prompt), text]]),
        several ? run : "");
  });
  under("What happened", () => {
    const all = runs.flatMap((run, i) => run.events.toReversed().map(event => ({ ...event, i })));
    const events = all.sort((a, b) => a.time - b.time).slice(-200);
    table("words", ["UTC", "step", "what", ""], events.map(event => [date(event.time), grouped(event.step),
      html("span", { class: "kind-" + event.kind }, event.kind), [...(several ? [chip(event.i)] : []), event.text]]));
    const left = runs.reduce((sum, run) => sum + run.events_left_out, all.length - events.length);
    if (left) add("p", { class: "quiet" }, `${grouped(left)} more in events.jsonl, before these.`);
  });
  under("Settings", () => {
    const keys = [...new Set(runs.flatMap(run => Object.keys(run.settings)))];
    const value = (run, key) => run.settings[key] ?? "–";
    const different = keys.filter(key => runs.some(run => value(run, key) !== value(first, key)));
    if (several && !different.length) add("p", {}, "All runs have the same settings.");
    const rows = different.map(key => [key, ...runs.map(run => value(run, key))]);
    if (rows.length) compare("plain", ["", ...names()], rows, "What differs");
    const folded = (name, text) => add("details", {}, html("summary", {}, name), html("pre", {}, text));
    for (const run of runs) {
      if (run.header?.length && !several) add("pre", {}, run.header.join("\n"));
      if (run.header?.length && several) folded(run.run + ": what was chosen", run.header.join("\n"));
      if (run.config) folded(run.run + ": the whole config.toml", run.config);
    }
  });
  add("footer", { class: "quiet" }, "Means of speeds are over time and leave out each session's first 3 steps. Faint " +
    "lines are single steps, strong ones their running mean. Drag over a curve to zoom, double-click for the whole. " +
    "Made by redline report.");
};

const lengthsPage = d => {
  const modes = ["pad", "bucket", "pack", "stream"], say = d.sentences, bins = d.histogram, end = bins.at(-1).to + 1;
  const sum = key => bins.reduce((sum, bin) => sum + bin[key], 0), documents = sum("documents"), tokens = sum("tokens");
  const modesTable = (i, caption) => table("bars", ["", "", ...d.tables.titles],
    modes.map((name, colour) => [name, bar([[d.row_lengths[i].modes[name].utilisation, colour]]),
      ...d.tables.modes[i][name]]), caption);

  add("h1", {}, "Document lengths of " + d.data);
  [say.settings, say.sampling, say.caveat].forEach(text => paragraph(text));
  paragraph(d.recommendation, "note");
  table("tiles", [], [["documents", grouped(d.documents)], [d.exact ? "tokens" : "tokens, about", grouped(d.tokens)],
    ["mean length", d.mean.toFixed(1)], ["median", grouped(d.percentiles.p50)],
    ["longest", grouped(d.percentiles.max)]]);
  add("h2", {}, "How long documents are");
  addPlot({ title: "Share of documents and of tokens by length", wide: true, label: "tokens of a document", base: 2,
    edges: [...bins.map(b => b.from), end], names: bins.map(b => `${grouped(b.from)} to ${grouped(b.to)} tokens`),
    marks: d.seq_len >= bins[0].from && d.seq_len <= 4 * end ? [{ at: d.seq_len, label: `a row: ${d.seq_len}` }] : [],
    series: [{ name: "documents", colour: 7, n: bins.map(b => b.documents), y: bins.map(b => b.documents / documents) },
      { name: "tokens", colour: 3, n: bins.map(b => b.tokens), y: bins.map(b => b.tokens / tokens) }] });
  table("plain", ["", ...Object.keys(d.percentiles)], [["tokens", ...Object.values(d.percentiles).map(grouped)]]);
  add("h2", {}, `Real tokens of those computed, rows of ${d.seq_len}`);
  modesTable(0, "");
  paragraph(say.counting);
  paragraph("Of the four, pad takes one document a row, bucket documents of similar length, pack the best fit with " +
    "documents whole, and stream joins documents and cuts them where a batch ends");
  if (d.long_documents === "split") paragraph("Truncated are the tokens that data.long_documents = \"truncate\" " +
    "would drop; split, as here, drops none");
  if (d.row_lengths.length > 1) {
    const rows = d.row_lengths.toReversed();
    add("h2", {}, "At shorter rows");
    addPlot({ title: "Real tokens of those computed", wide: true, figure: "share", zero: true,
      axis: { label: "tokens of a row", base: 2 },
      series: modes.map((name, i) => ({ name, colour: i, dots: true, dashed: name === "stream",
        x: rows.map(row => row.seq_len), y: rows.map(row => row.modes[name].utilisation) })) });
    paragraph("Batches keep their tokens: half the length, twice the rows. Speed-ups are over pad at the same length");
    paragraph(say.shorter);
    d.row_lengths.slice(1).forEach((row, i) => modesTable(i + 1, `rows of ${row.seq_len}`));
  }
  add("h2", {}, "Bucket edges that waste least");
  const edges = list => `[${list.filter(edge => edge < d.seq_len).join(", ")}]`;
  table("plain", ["edges", ...d.tables.titles], [
    ["usual: " + edges(d.buckets.usual_edges), ...d.tables.modes[0].bucket],
    ["best: " + edges(d.buckets.best_edges), ...d.tables.best_edges]]);
  paragraph(say.buckets);
};

const doctorPage = d => {
  const ms = v => duration(v / 1000), points = v => v.toFixed(1), longest = most(d.parts.map(part => part.ms));
  const state = html("span", { class: "state " + (d.healthy ? "finished" : "failed") },
    d.healthy ? "nothing to mend" : `${d.findings.length} to mend`);
  add("h1", {}, d.title, state);
  add("p", { class: "quiet" }, `On ${d.device}; ${d.basis}.`);
  table("tiles", [], [["a step, all in", ms(d.step_ms)], ["tokens/s", known(d.tokens_per_s, "rate")],
    ["MFU", percent(d.mfu)]]);
  add("h2", {}, "Where the step goes");
  table("bars", ["", "", "time", "floor", "loss", "of the step", "points of MFU"], d.parts.filter(part => part.ms > 0)
    .map(part => [part.part, bar([[part.floor_ms / longest, 2, "floor: " + ms(part.floor_ms)],
      [part.loss_ms / longest, 1, "loss: " + ms(part.loss_ms)]]), ms(part.ms), ms(part.floor_ms), ms(part.loss_ms),
    percent(part.share), points(part.mfu_points)]));
  add("p", { class: "quiet" }, chip(2), "the least that the machine could take  ", chip(1), "the rest");
  paragraph(d.note, "note");
  const list = (title, found) => {
    if (!found.length) return;
    add("h2", {}, title);
    for (const f of found) {
      add("p", {}, html("b", {}, f.name), ": " + f.found + ".");
      if (f.of === "learning") paragraph(`costs ${f.costs}`, "");
      else table("plain", ["costs", "of the step", "points of MFU", "gain expected", "gain measured"], [[ms(f.loss_ms),
        percent(f.share), points(f.mfu_points), f.gain.toFixed(2) + " ×",
        f.gain_measured === null ? "–" : f.gain_measured.toFixed(2) + " ×"]]);
      if (f.set.length) add("pre", {}, f.set.join(" "));
      add("p", { class: "quiet" }, f.mend + ".");
      for (const text of [f.caution, f.not_measured && "Not measured: " + f.not_measured]) paragraph(text);
      paragraph(f.of === "learning" ? `see ${f.see}` : `costs ${f.basis}; see ${f.see}`);
    }
  };
  list("What to mend, the dearest first", d.findings);
  list("Faster, for another result", d.options);
  list("Tried, and does not help here", d.refuted);
};

// Measured rows: of redline ladder, of its tiers, of redline tune.
const ladderPage = d => {
  const measured = d.rows.filter(row => row.state === "measured");
  const best = most(measured.map(row => row.tokens_per_s)), times = v => v > 0 ? "×" + v.toFixed(2) : "–";
  const keys = row =>
    [row.keys.length > 3 ? row.about : row.keys.join(" "), row.reason].filter(word => word).join("; ");
  const why = row => row.state === "not separable" ?
    `not separable: saves ${bytes(row.saved_bytes)} a step by the plan (${row.about})` : `${row.state}: ${row.reason}`;
  add("h1", {}, d.title);
  paragraph(`${d.device}; ${d.about}`);
  if (d.stopped) paragraph("It was stopped: the rows are those that were measured", "note bad");
  const top = measured.filter(row => row.kept).at(-1) ?? measured.at(-1);
  if (top) table("tiles", [], [["real tokens a second", count(top.tokens_per_s)],
    ["of the peak (MFU)", percent(top.mfu)], ["memory", bytes(top.memory_bytes)],
    ["energy a token", joules(top.joules_per_token)],
    [`over the ${d.over}`, times(top.over_first)]]);
  add("h2", {}, "What was measured");
  table("bars", ["", "", "step", "tokens/s", "MFU", "memory", "energy a token", "× before", `× ${d.over}`],
    measured.map(row => [row.name, bar([[row.tokens_per_s / best, row.kept ? 0 : 7, row.about]]),
      duration(row.step_ms / 1000), count(row.tokens_per_s), percent(row.mfu), bytes(row.memory_bytes),
      joules(row.joules_per_token), times(row.over_before), times(row.over_first)]));
  paragraph("Tokens are real ones: padding does not count. Bars in grey did not stay in what follows");
  table("words", ["", "switched by"], measured.map(row => [row.name, keys(row)]), "The keys");
  table("words", ["", ""], d.rows.filter(row => row.state !== "measured").map(row => [row.name, why(row)]),
    "What was not measured");
  if (d.result.length) add("pre", {}, d.result.join("\n"));
  add("footer", { class: "quiet" }, "Made by redline.");
};

({ runs: runsPage, lengths: lengthsPage, doctor: doctorPage, ladder: ladderPage })[data.page](data);
draw();
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
