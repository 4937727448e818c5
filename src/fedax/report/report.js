"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const STROKES = ["", "6 3", "2 3", "7 3 2 3"];
  const AXES = { rounds: "communication rounds", bits: "bits sent, both directions", gradients: "minibatch gradients of a client", seconds: "seconds, compilation included", time: "simulated time" };
  const PRICES = { round: "a round", step: "a minibatch gradient", gigabit: "a gigabit" };
  const state = { x: "rounds", scale: "log" };
  const plots = [];
  const prices = { ...data.prices };

  const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const color = (i) => style(`--s${i % 8}`);
  const dash = (i) => Math.floor(i / 4) % 4;
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
    line.style.stroke = `var(--s${i % 8})`;
    svg.append(line);
    return svg;
  }

  // ---- traces ----------------------------------------------------------------------------------------------------------
  function across(algorithm) {
    const { rounds, gradients, bits } = algorithm.x;
    if (state.x !== "time") return algorithm.x[state.x];
    return rounds.map((round, k) => prices.round * round + prices.step * gradients[k] + prices.gigabit * bits[k] / 1e9);
  }

  function curve(algorithm, i, chart) {
    const series = algorithm.series[chart.metric];
    if (!series) return [];
    const x = across(algorithm);
    const shared = { x, mode: "lines", showlegend: false, hoverinfo: "skip", line: { width: 0 } };
    const traces = [];
    if (series.low) {
      traces.push({ ...shared, y: series.low });
      traces.push({ ...shared, y: series.high, fill: "tonexty", fillcolor: faint(color(i)) });
    }
    const value = chart.percent ? "%{y:.1%}" : "%{y:.4g}";
    const at = state.x === "rounds" ? "round %{x}" : state.x === "bits" ? "%{x:.3s} bits" : state.x === "gradients" ? "%{x:.4~s} gradients" : state.x === "time" ? "time %{x:.4~g}" : "%{x:.3s} s";
    traces.push({
      x, y: series.mean, mode: x.length > 1 ? "lines" : "markers", showlegend: false, name: algorithm.label,
      line: { color: color(i), width: 2.2, dash: DASHES[dash(i)] }, marker: { color: color(i), size: 8 },
      hovertemplate: `${plain(algorithm.label)}<br>${at}: ${value}<extra></extra>`,
    });
    return traces;
  }

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

  // on a logarithmic axis: 1, 2, 5 within few decades, else one tick every so many decades
  function spacing(traces) {
    const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0);
    const decades = Math.log10(Math.max(...values) / Math.min(...values));
    return decades > 3 ? Math.ceil(decades / 6) : decades > 0.6 ? "D2" : undefined;
  }

  function layout(chart, traces) {
    const ink = style("--quiet");
    const axis = {
      gridcolor: style("--grid"), zeroline: false, linecolor: style("--line"), tickfont: { size: 11, color: ink }, automargin: true,
    };
    const ranks = chart.metric === "clients", parts = chart.metric === "weights";
    const below = ranks ? "client, from worst to best" : parts ? "share of the examples" : AXES[state.x];
    const log = chart.loss && state.scale === "log";
    return {
      margin: { l: 52, r: 14, t: 24, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: ink }, hovermode: "closest", showlegend: false,
      hoverlabel: { bgcolor: style("--ground"), bordercolor: style("--line"), font: { color: style("--ink"), size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: style("--ink") },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: {
        ...axis, title: { text: below, font: { size: 12 }, standoff: 8 }, nticks: 7, type: parts ? "log" : "linear",
        tickformat: parts ? "~%" : !ranks && state.x === "bits" ? "~s" : "", rangemode: ranks ? "normal" : "tozero",
        ...(parts ? { dtick: "D2" } : {}),
      },
      yaxis: {
        ...axis, type: log ? "log" : "linear", tickformat: parts ? "~%" : chart.percent ? ".0%" : log ? "~g" : "", nticks: 7,
        ...(log ? { dtick: spacing(traces) } : {}),
      },
    };
  }

  // one drawing of a chart at a time: a second one that begins before the first has ended leaves its axes behind
  function draw(plot) {
    plot.drawn = (plot.drawn || Promise.resolve()).then(() => drawNow(plot));
    return plot.drawn;
  }

  const DRAWN = { clients: ranked, weights: scattered };

  function drawNow(plot) {
    const traces = plot.task.algorithms.flatMap((algorithm, i) =>
      plot.hidden.has(i) ? [] : (DRAWN[plot.chart.metric] ?? curve)(algorithm, i, plot.chart));
    return Plotly.react(plot.node, traces, layout(plot.chart, traces), {
      responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtons: [["toImage", "resetScale2d"]], showTips: false,
      toImageButtonOptions: { format: "svg", filename: plot.chart.title.toLowerCase().replace(/\W+/g, "-") },
    });
  }

  const redraw = () => Promise.all(plots.map(draw));

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
      chip.append(swatch(i), el("span", algorithm.label));
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
      figure.querySelector("p").textContent = chart.note;
      const node = figure.querySelector(".plot");
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", `${chart.title}, ${task.title}; the final values are in the table below`);
      grid.append(figure);
      plots.push({ task, chart, node, hidden });
    }
  }

  function addTable(section, task) {
    const head = section.querySelector("thead tr");
    for (const title of task.table.head) head.append(el("th", title));
    head.querySelectorAll("th").forEach((cell) => { cell.scope = "col"; });
    section.querySelector(".scroll").tabIndex = 0;
    return task.table.rows.map((row, i) => {
      const line = el("tr");
      const name = el("th");
      name.scope = "row";
      const label = el("div", undefined, "label");
      label.append(swatch(i), el("span", row.label));
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
      figure.querySelector("p").textContent = chart.title;
      node.setAttribute("role", "img");
      node.setAttribute("aria-label", `${chart.title}, ${task.title}`);
      grid.append(figure);
      plots.push({ task, chart, node, hidden: new Set() });
    }
  }

  // ---- further tables ----------------------------------------------------------------------------------------------------
  const MARKS = { "holds": "good", "selected": "good", "does not hold": "bad", "undecided": "open" };

  function addSheet(sheet) {
    const section = clone("sheet-template");
    section.querySelector("h2").textContent = sheet.title;
    section.querySelector(".note").textContent = sheet.note;
    section.querySelector(".scroll").tabIndex = 0;
    for (const title of sheet.head) section.querySelector("thead tr").append(Object.assign(el("th", title), { scope: "col" }));
    for (const row of sheet.rows) {
      const line = el("tr");
      line.append(...row.map((text) => el("td", text, MARKS[text] || (text.length < 18 ? "short" : ""))));
      section.querySelector("tbody").append(line);
    }
    document.getElementById(sheet.lead ? "lead" : "sheets").append(section);
  }

  // ---- prices of the simulated time --------------------------------------------------------------------------------------
  function addPrices() {
    const field = document.getElementById("prices");
    const show = () => { field.hidden = state.x !== "time"; };
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

  data.tasks.forEach(addTask);
  addOverview();
  data.sheets.forEach(addSheet);
  addPrices();
  addFolded();
  setTheme(remembered() || (system.matches ? "dark" : "light")).then(() => { root.dataset.ready = String(plots.length); });
})();
