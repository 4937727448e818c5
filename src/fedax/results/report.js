"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const SHAPES = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star"];
  const STROKES = ["", "6 3", "2 3", "7 3 2 3"];
  const OUTLINES = ["M10 5a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", "M10.3 2.3h5.4v5.4h-5.4z", "M13 1.5l3.4 6h-6.8z", "M13 1.2l3.8 3.8l-3.8 3.8l-3.8 -3.8z", "M13 8.5l3.4 -6h-6.8z", "M12 1.5h2v2.5h2.5v2h-2.5v2.5h-2v-2.5h-2.5v-2h2.5z", "M10.5 2.5l5 5m0 -5l-5 5", "M13 1l1 3h3l-2.4 1.8l1 3l-2.6 -1.8l-2.6 1.8l1 -3l-2.4 -1.8h3z"];
  const AXES = { rounds: "communication rounds", bits: "bits sent, both directions", gradients: "minibatch gradients of a client", seconds: "wall time in seconds, compilation included", time: "hours on the virtual clock", energy: "energy of all clients, J", cost: "time at prices below" };
  const PRICES = { round: "a round", step: "a minibatch gradient", gigabit: "a gigabit" };
  const state = { x: "rounds", scale: "log" };
  const plots = [];
  const prices = { ...data.prices };

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const again = (i) => Math.floor(i / 8);
  const dash = (i) => again(i) % 4; // methods have solid lines, their further forms dashes and lighter colours
  // as styles.py, with the ground of the page in place of white
  const color = (i) => dash(i) ? mixed(style(`--s${i % 8}`), style("--ground"), 0.25) : style(`--s${i % 8}`);
  const paint = (i) => dash(i) ? `color-mix(in srgb, var(--s${i % 8}) 75%, var(--ground))` : `var(--s${i % 8})`; // follows the theme
  const mixed = (one, other, part) => "#" + [1, 3, 5].map((k) => Math.round(parseInt(one.slice(k, k + 2), 16) * (1 - part) + parseInt(other.slice(k, k + 2), 16) * part).toString(16).padStart(2, "0")).join("");
  const shape = (i) => (i + 3 * again(i)) % 8;
  const hollow = (i, size) => ({ color: style("--panel"), size, symbol: SHAPES[shape(i)], line: { color: color(i), width: 1.6 } });
  const faint = (hex) => hex + "2b";
  const el = (tag, text, cls) => {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (cls) node.className = cls;
    return node;
  };
  const clone = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

  function swatch(i) {
    const ns = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(ns, "svg");
    const line = document.createElementNS(ns, "line");
    for (const [key, value] of Object.entries({ width: 26, height: 10, "aria-hidden": "true", class: "swatch" })) svg.setAttribute(key, value);
    for (const [key, value] of Object.entries({ x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": STROKES[dash(i)] })) line.setAttribute(key, value);
    line.style.stroke = paint(i);
    const outline = document.createElementNS(ns, "path");
    outline.setAttribute("d", OUTLINES[shape(i)]);
    outline.style.cssText = `stroke: ${paint(i)}; fill: var(--ground); stroke-width: 1.5`;
    svg.append(line, outline);
    return svg;
  }

  // ---- traces ----------------------------------------------------------------------------------------------------------
  function across(algorithm) {
    const { rounds, gradients, bits } = algorithm.x;
    if (state.x !== "cost") return algorithm.x[state.x];
    return rounds.map((round, k) => prices.round * round + prices.step * gradients[k] + prices.gigabit * bits[k] / 1e9);
  }

  function curve(algorithm, i, chart) {
    const series = algorithm.series[chart.metric];
    if (!series) return [];
    const x = across(algorithm), clip = clipped(chart, series);
    const shared = { x, mode: "lines", showlegend: false, hoverinfo: "skip", line: { width: 0 } };
    const traces = [];
    if (series.low) {
      traces.push({ ...shared, y: clip(series.low) });
      traces.push({ ...shared, y: clip(series.high), fill: "tonexty", fillcolor: faint(color(i)) });
    }
    const mean = clip(series.mean), value = chart.percent ? "%{y:.2%}" : "%{y:.4g}";
    const at = state.x === "rounds" ? "round %{x}" : state.x === "bits" ? "%{x:.3s} bits" : state.x === "gradients" ? "%{x:.4~s} gradients" : state.x === "time" ? "%{x:.4~g} h" : state.x === "energy" ? "%{x:.4~s}J" : state.x === "cost" ? "time %{x:.4~g}" : "%{x:.3s} s";
    traces.push({
      x, y: mean, mode: x.length > 1 ? "lines" : "markers", showlegend: false, name: algorithm.label,
      line: { color: color(i), width: 2.2, dash: DASHES[dash(i)] }, marker: { color: color(i), size: 8 },
      hovertemplate: `${plain(algorithm.label)}<br>${at}: ${value}<extra></extra>`,
    });
    if (x.length > 1) traces.push({ ...marker(algorithm.marked, x, mean, i), showlegend: false });
    return traces;
  }

  // a logarithmic axis shows positive numbers only: points at or below 0 are left out, and bands end at the smallest number
  function clipped(chart, series) {
    if (!isLog(chart) || chart.floor === null) return (values) => values;
    return (values) => values.map((value, k) => series.mean[k] > 0 && value !== null ? Math.max(value, chart.floor) : null);
  }

  const isLog = (chart) => chart.loss && state.scale === "log";

  // markers at staggered places, so that curves on each other can be told apart
  const marker = (at, x, y, i) => ({ x: at.map((k) => x[k]), y: at.map((k) => y[k]), mode: "markers", hoverinfo: "skip", marker: hollow(i, 7) });

  function ranked(algorithm, i) {
    if (!algorithm.clients) return [];
    const y = algorithm.clients;
    return [{
      x: y.map((_, k) => k + 1), y, mode: y.length > 60 ? "lines" : "lines+markers", showlegend: false, name: algorithm.label,
      line: { color: color(i), width: 1.8, dash: DASHES[dash(i)] }, marker: { color: color(i), size: 5 },
      hovertemplate: `${plain(algorithm.label)}<br>client of rank %{x}: %{y:.1%}<extra></extra>`,
    }];
  }

  function scattered(algorithm, i) {
    if (!algorithm.weights.length) return [];
    const [x, y] = algorithm.weights, ends = [Math.min(...x), Math.max(...x)];
    return [{
      x: ends, y: ends, mode: "lines", showlegend: false, hoverinfo: "skip", line: { color: style("--quiet"), width: 1.2, dash: "dot" },
    }, {
      x, y, mode: "markers", showlegend: false, name: algorithm.label, marker: { color: color(i), size: 6, opacity: 0.75 },
      hovertemplate: `${plain(algorithm.label)}<br>%{x:.2%} of the examples: weight %{y:.2%}<extra></extra>`,
    }];
  }

  // plotly reads a few tags in hover texts, so labels are passed without anything that could be one
  function plain(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "% {");
  }

  // on a logarithmic axis: 1, 2, 5 within few decades, else one tick every so many decades; a narrow axis has room for few
  function spacing(traces, few = 3) {
    const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0);
    const decades = Math.log10(Math.max(...values) / Math.min(...values));
    return decades > few ? Math.ceil(decades / 6) : decades > 0.6 || decades === 0 ? "D2" : undefined;
  }

  // of few rounds or clients there is no half one
  const wholeTicks = (traces) => traces.some((trace) => trace.x.some((value) => value > 7)) ? {} : { dtick: 1 };

  // accuracies rise from chance in the first tenth of the axis, which is not to stretch the chart
  function late(traces) {
    const every = traces.flatMap((trace) => trace.x), start = Math.min(...every), from = start + 0.1 * (Math.max(...every) - start);
    const values = traces.flatMap((trace) => trace.y.filter((value, k) => value !== null && (trace.x[k] >= from || trace.x.length < 3)));
    const low = Math.min(...values), high = Math.max(...values), pad = 0.06 * (high - low) || 0.01;
    return { range: [Math.max(low - pad, 0), Math.min(high + pad, Math.max(high, 1))], autorange: false };
  }

  const CUT = "the axis leaves out the first rounds";
  const joined = (...notes) => notes.filter(Boolean).join("; ");

  // says so where curves leave an axis that was not chosen by the reader
  function remark(plot, traces, axis) {
    const out = axis.range && axis.type !== "log" && traces.some((trace) => (trace.mode || "").includes("lines") && trace.y.some((value) => value !== null && value < axis.range[0]));
    plot.note.textContent = joined(plot.base, out ? CUT : "");
  }

  function layout(chart, traces) {
    const ink = style("--quiet");
    const axis = {
      gridcolor: style("--grid"), zeroline: false, linecolor: style("--line"), tickfont: { size: 11, color: ink }, automargin: true,
    };
    const ranks = chart.metric === "clients", parts = chart.metric === "weights";
    const below = ranks ? "client, from worst to best" : parts ? "share of the examples" : AXES[state.x];
    const log = isLog(chart), whole = ranks || (chart.metric && !parts && state.x === "rounds");
    return {
      margin: { l: 52, r: 14, t: 24, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: ink }, hovermode: "closest", showlegend: false,
      hoverlabel: { bgcolor: style("--ground"), bordercolor: style("--line"), font: { color: style("--ink"), size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: style("--ink") },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: {
        ...axis, title: { text: below, font: { size: 12 }, standoff: 8 }, nticks: 7, type: parts && chart.loss ? "log" : "linear",
        tickformat: parts ? "~%" : !ranks && (state.x === "bits" || state.x === "energy") ? "~s" : "", rangemode: ranks ? "normal" : "tozero",
        ...(parts && chart.loss ? { dtick: "D2" } : {}), ...(whole ? wholeTicks(traces) : {}),
      },
      yaxis: {
        ...axis, type: log ? "log" : "linear", tickformat: chart.percent ? "~%" : log ? "~g" : "", nticks: 7,
        ...(log ? { dtick: spacing(traces) } : {}), ...(chart.percent && !ranks && !parts && traces.length ? late(traces) : {}),
      },
    };
  }

  // one drawing of a chart at a time: a second one that begins before the first has ended leaves its axes behind
  function draw(plot) {
    plot.drawn = (plot.drawn || Promise.resolve()).then(() => drawNow(plot));
    return plot.drawn;
  }

  const DRAWN = { clients: ranked, weights: scattered };

  // the traces and the layout; the note is set first, as it takes room from the plots beside it
  function planned(plot) {
    const traces = plot.panel ? plot.panel.series.flatMap(drawnSeries) : plot.task.algorithms.flatMap((algorithm, i) =>
      plot.hidden.has(i) ? [] : (DRAWN[plot.chart.metric] ?? curve)(algorithm, algorithm.style, plot.chart));
    const drawn = plot.panel ? drawnLayout(plot.panel, traces) : layout(plot.chart, traces);
    remark(plot, traces, drawn.yaxis);
    return [traces, drawn];
  }

  function drawNow(plot) {
    return Plotly.react(plot.node, ...planned(plot), {
      responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]], showTips: false,
      toImageButtonOptions: { format: "svg", filename: plot.chart.title.toLowerCase().replace(/\W+/g, "-") },
    });
  }

  function redraw() {
    plots.forEach(planned);
    return Promise.all(plots.map(draw));
  }

  // ---- one section per task --------------------------------------------------------------------------------------------
  function addTask(task) {
    const section = clone("task-template");
    const hidden = new Set();
    section.querySelector("h2").textContent = task.title;
    section.querySelector(".note").textContent = task.note;
    section.querySelector(".caption").textContent = task.caption;
    document.getElementById("tasks").append(section);

    const rows = addTable(section, task);
    const chips = section.querySelector(".chips");
    task.algorithms.forEach((algorithm, i) => {
      const chip = el("button", undefined, "chip");
      chip.type = "button";
      chip.setAttribute("aria-pressed", "true");
      chip.append(swatch(algorithm.style), el("span", algorithm.label));
      chip.addEventListener("click", () => {
        const off = !hidden.delete(i);
        if (off) hidden.add(i);
        chip.setAttribute("aria-pressed", String(!off));
        rows[i].classList.toggle("off", off);
        plots.filter((plot) => plot.hidden === hidden).forEach(draw);
      });
      chips.append(chip);
    });

    const grid = section.querySelector(".charts");
    grid.classList.toggle("four", task.charts.length % 3 === 1 || task.charts.length === 2);
    for (const chart of task.charts) {
      const figure = clone("chart-template");
      figure.querySelector("h3").textContent = chart.title;
      const note = figure.querySelector("p");
      const node = figure.querySelector(".plot");
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", `${chart.title}, ${task.title}; the final values are in the table below`);
      grid.append(figure);
      plots.push({ task, chart, node, hidden, note, base: chart.note });
    }
  }

  function addTable(section, task) {
    const head = section.querySelector("thead tr");
    task.table.head.forEach((title, k) => {
      const about = task.table.about[k], cell = el("th", about ? undefined : title);
      if (about) cell.append(Object.assign(el("abbr", title), { title: about, tabIndex: 0 }));
      head.append(cell);
    });
    head.querySelectorAll("th").forEach((cell) => { cell.scope = "col"; });
    section.querySelector(".scroll").tabIndex = 0;
    return task.table.rows.map((row, i) => {
      const line = el("tr");
      const name = el("th");
      name.scope = "row";
      const label = el("div", undefined, "label");
      label.append(swatch(task.algorithms[i].style), el("span", row.label));
      name.append(label);
      line.append(name, ...row.cells.map((cell) => el("td", cell.text, cell.mark)));
      section.querySelector("tbody").append(line);
      return line;
    });
  }

  // ---- all tasks side by side, one small chart each ---------------------------------------------------------------------
  function addOverview() {
    if (data.tasks.length < 4) return;
    const section = clone("task-template");
    section.querySelector("h2").textContent = "All tasks side by side";
    section.querySelectorAll(".chips, .scroll, .caption, .note").forEach((node) => node.remove());
    document.getElementById("tasks").append(section);
    const grid = section.querySelector(".charts");
    grid.classList.add("small");
    for (const task of data.tasks.filter((each) => each.charts.length)) {
      const figure = clone("chart-template"), node = figure.querySelector(".plot"), chart = task.charts[0];
      figure.querySelector("h3").textContent = task.title;
      const note = figure.querySelector("p");
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", `${chart.title}, ${task.title}`);
      grid.append(figure);
      plots.push({ task, chart, node, hidden: new Set(), note, base: chart.title });
    }
  }

  // ---- the figures of a recipe --------------------------------------------------------------------------------------------
  const PLAIN = { paper: { colour: "--ink", symbol: "diamond-open", size: 9 }, ours: { colour: "--s0", symbol: "circle", size: 9 }, runs: { colour: "--s0", symbol: "circle", size: 5 }, beyond: { colour: "--s0", symbol: "triangle-left", size: 9 }, published: { colour: "--ink", symbol: "diamond-open", size: 8 } };

  // folders beside each other have a colour and a symbol each
  const FOLDERS = ["circle", "square", "triangle-up", "star", "cross", "pentagon", "hexagon", "bowtie"], SIGNS = ["●", "■", "▲", "★", "✚", "⬟", "⬢", "⧓"];
  const plainOf = (kind, i) => kind === "ours" ? { ...PLAIN.ours, colour: `--s${i % 8}`, symbol: FOLDERS[i % 8] } : PLAIN[kind];

  function sample(entry) {
    if (!PLAIN[entry.kind]) return swatch(entry.style);
    const node = el("span", { paper: "◇", published: "◇", ours: SIGNS[entry.style % 8], runs: "•", beyond: "◂" }[entry.kind]);
    node.style.color = style(plainOf(entry.kind, entry.style).colour);
    node.setAttribute("aria-hidden", "true");
    return node;
  }

  function drawnSeries(series) {
    const { x, y, low, high, kind } = series, i = series.style, own = plainOf(kind, i);
    const ends = low.length > 0, name = plain(series.label), at = ["curve", "points", "published", "dots"].includes(kind) ? y : x;
    const shared = { showlegend: false, hoverinfo: "skip" }, hover = { name, hovertemplate: `${name}: %{text}<extra></extra>` };
    const text = at.map((value, k) => value === null ? "" : `${Number(value.toPrecision(4))}${ends && low[k] !== null ? ` (${Number(low[k].toPrecision(4))} to ${Number(high[k].toPrecision(4))})` : ""}`);
    if (kind === "curve") {
      const band = ends ? [{ ...shared, x, y: low, mode: "lines", line: { width: 0 } }, { ...shared, x, y: high, mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: faint(color(i)) }] : [];
      const line = { ...hover, x, y, text, showlegend: false, mode: "lines", line: { color: color(i), width: 2, dash: DASHES[dash(i)] } };
      return [...band, line, { ...marker(series.marked, x, y, i), showlegend: false }];
    }
    const bars = { type: "data", symmetric: false, array: high.map((v, k) => v === null ? 0 : v - at[k]), arrayminus: low.map((v, k) => v === null ? 0 : at[k] - v), thickness: 1.4, width: 4 };
    const points = { ...hover, x, y, text, showlegend: false, mode: own ? "markers" : "lines+markers" };
    if (kind === "beyond") Object.assign(points, { mode: "markers+text", text: series.texts, textposition: "top right", textfont: { size: 10, color: style(own.colour) }, cliponaxis: false });
    if (kind === "dots") return [{ ...points, mode: "markers", marker: { color: color(i), size: 5, opacity: 0.7, symbol: SHAPES[shape(i)] } }];
    if (own) return [{ ...points, marker: { color: style(own.colour), size: own.size, symbol: own.symbol, opacity: kind === "runs" ? 0.45 : 1 }, ...(ends ? { [kind === "published" ? "error_y" : "error_x"]: { ...bars, color: style(own.colour) } } : {}) }];
    return [{ ...points, line: { color: color(i), width: 2, dash: DASHES[dash(i)] }, marker: { color: color(i), size: 7, symbol: SHAPES[shape(i)] }, error_y: { ...bars, color: color(i) } }];
  }

  function drawnLayout(panel, traces) {
    const base = layout({ metric: "", loss: false, percent: false }, traces), logs = (value) => Math.log10(value);
    const axis = (given, kept, values, few) => ({
      ...kept, title: { text: given.title, font: { size: 12 }, standoff: 8 }, type: given.log ? "log" : "linear", tickformat: given.log ? "~g" : "", rangemode: "normal",
      ...(given.log ? { dtick: spacing(values, few) } : {}),
      ...(given.low === null ? {} : { range: given.log ? [logs(given.low), logs(given.high)] : [given.low, given.high], autorange: false }),
      ...(given.ticks.length ? { tickmode: "array", tickvals: given.ticks.map(([at]) => at), ticktext: given.ticks.map(([, text]) => plain(text).replace(/\n/g, "<br>")) } : {}),
    });
    const big = !panel.x.ticks.length && traces.some((trace) => trace.x.some((value) => value >= 1e4));
    const across = panel.marks.filter((mark) => mark.style === null), ends = panel.marks.filter((mark) => mark.style !== null);
    return {
      ...base, xaxis: { ...axis(panel.x, base.xaxis, traces.map((t) => ({ y: t.x })), panel.columns > 2 ? 1.5 : 3), ...(big ? { tickformat: "~s" } : {}), ...(panel.x.title.endsWith("rounds") && !panel.x.log ? wholeTicks(traces) : {}) }, yaxis: axis(panel.y, base.yaxis, traces),
      shapes: panel.marks.map((mark) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: mark.value, y1: mark.value, line: mark.style === null ? { color: style("--quiet"), width: 1.2, dash: "dash" } : { color: color(mark.style), width: 1, dash: "dot" } })),
      annotations: [
        ...across.map((mark) => ({ xref: "paper", x: 1, y: panel.y.log ? logs(mark.value) : mark.value, xanchor: "right", yanchor: "bottom", text: plain(mark.text), showarrow: false, font: { size: 10 }, bgcolor: style("--panel"), opacity: 0.85 })),
        ...ends.map((mark) => ({ xref: "paper", x: 1, y: panel.y.log ? logs(mark.value) : mark.value, xanchor: "center", yanchor: "middle", text: "◇", hovertext: plain(`paper, ${mark.text}`), showarrow: false, font: { size: 16, color: color(mark.style) } })),
      ],
    };
  }

  function addFigure(figure, place) {
    const section = clone("figure-template"), key = section.querySelector(".key"), grid = section.querySelector(".charts");
    section.querySelector("h2").textContent = figure.title || figure.name;
    section.querySelector(".note").textContent = figure.note;
    const entry = (each, text) => { const node = el("span"); node.append(sample(each), el("span", text)); return node; };
    key.append(...figure.legend.map((each) => entry(each, each.text)));
    if (figure.panels.some((panel) => panel.marks.some((mark) => mark.style !== null))) key.append(el("span", "◇ the paper's number"));
    grid.style.setProperty("--columns", figure.columns);
    document.getElementById(place).append(section);
    for (const panel of figure.panels) {
      panel.columns = figure.columns;
      const frame = clone("chart-template"), node = frame.querySelector(".plot"), own = el("div", undefined, "own");
      frame.querySelector("h3").textContent = panel.title;
      const note = frame.querySelector("p");
      if (!panel.y.ticks.length) own.append(...panel.own.map((each) => entry(each, each.text)));
      frame.querySelector("figcaption").append(own);
      if (panel.y.ticks.length) node.style.flexBasis = `${90 + 34 * panel.y.ticks.length}px`;
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", `${figure.title || figure.name}, ${panel.title}`);
      if (panel.y.ticks.length && figure.panels.some((other) => !other.y.ticks.length)) frame.classList.add("wide");
      grid.append(frame);
      plots.push({ panel, node, chart: { title: `${figure.name} ${panel.title}` }, hidden: new Set(), note, base: "" });
    }
  }

  // ---- further tables ----------------------------------------------------------------------------------------------------
  const MARKS = {
    "holds": "good", "holds in short runs": "good", "selected": "good",
    "does not hold": "bad", "does not hold in short runs": "bad", "undecided": "open",
  };

  function addSheet(sheet, place) {
    const section = clone("sheet-template");
    section.querySelector("h2").textContent = sheet.title;
    section.querySelector(".note").textContent = sheet.note;
    section.querySelector(".scroll").tabIndex = 0;
    for (const title of sheet.head) section.querySelector("thead tr").append(Object.assign(el("th", title), { scope: "col" }));
    const lines = sheet.rows.map((row) => {
      const line = el("tr");
      line.append(...row.map((text) => el("td", text, MARKS[text] || (text.length < 18 ? "short" : ""))));
      return line;
    });
    section.querySelector("tbody").append(...lines);
    const folded = sheet.first ? lines.slice(sheet.first) : [];
    if (folded.length) {
      const button = Object.assign(el("button", `Show all ${lines.length} rows`, "chip"), { type: "button" });
      folded.forEach((line) => { line.hidden = true; });
      button.addEventListener("click", () => { folded.forEach((line) => { line.hidden = false; }); button.remove(); });
      section.querySelector(".scroll").after(button);
    }
    document.getElementById(!sheet.lead ? "sheets" : place === 0 ? "first" : "lead").append(section);
  }

  // ---- prices of the simulated time --------------------------------------------------------------------------------------
  function addPrices() {
    const field = document.getElementById("prices");
    const clocked = data.tasks.length > 0 && data.tasks.every((task) => task.algorithms.every((algorithm) => algorithm.x.time));
    document.querySelectorAll("[data-clock]").forEach((label) => { label.hidden = !clocked; });
    const show = () => { field.hidden = state.x !== "cost"; };
    for (const [key, what] of Object.entries(PRICES)) {
      const label = el("label", `${what} `), input = el("input");
      Object.assign(input, { type: "number", min: "0", step: "any", value: String(prices[key]) });
      input.addEventListener("input", () => {
        if (input.value !== "" && Number(input.value) >= 0) { prices[key] = Number(input.value); redraw(); }
      });
      label.append(input);
      field.append(label);
    }
    document.querySelectorAll(".controls input[name=x]").forEach((input) => input.addEventListener("change", show));
    show();
  }

  function addFolded() {
    const settings = document.getElementById("settings");
    for (const [name, text] of Object.entries(data.settings)) {
      if (Object.keys(data.settings).length > 1) settings.append(el("p", name, "note"));
      settings.append(el("pre", text));
    }
    const list = document.querySelector("#versions dl");
    for (const [name, version] of Object.entries(data.versions)) list.append(el("dt", name), el("dd", String(version)));
  }

  // ---- theme: the system's, until the reader chooses -------------------------------------------------------------------
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("fedax-theme"); } catch { return null; } };
  function setTheme(theme, keep) {
    root.dataset.theme = theme;
    document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
    if (keep) try { localStorage.setItem("fedax-theme", theme); } catch { /* private windows keep nothing */ }
    return redraw();
  }
  document.getElementById("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark", true));
  system.addEventListener("change", () => { if (!remembered()) setTheme(system.matches ? "dark" : "light"); });

  for (const input of document.querySelectorAll(".controls input[type=radio]")) {
    input.addEventListener("change", () => { state[input.name] = input.value; redraw(); });
  }

  data.figures.forEach((figure) => addFigure(figure, "figures"));
  data.tasks.forEach(addTask);
  addOverview();
  data.sheets.forEach(addSheet);
  document.querySelector("[data-control=scale]").hidden = !plots.some((plot) => plot.chart.loss);
  addPrices();
  addFolded();
  setTheme(remembered() || (system.matches ? "dark" : "light")).then(() => { root.dataset.ready = String(plots.length); });
})();
