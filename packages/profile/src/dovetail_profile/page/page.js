// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// Builds a page from JSON: parts of charts and tables. All text of a profile becomes text nodes.
"use strict";
const COLOURS = {compute: ["#0072b2", "#56b4e9"], collective: ["#7b2fd0", "#b08cff"], input: ["#d55e00", "#ff8c42"],
                 compile: ["#a2435b", "#ff7fa0"], dispatch: ["#00807a", "#60f0d8"], other: ["#a07800", "#d9c04a"], idle: ["#b9bcc2", "#5a5c63"]};
const OTHERS = [["#6d2900", "#d0a080"], ["#5b8c00", "#b8e060"], ["#c09000", "#f0e442"], ["#3f5b7a", "#9fb8d8"]];
const SCALES = {us: [[1, "µs"], [1e3, "ms"], [1e6, "s"]], bytes: [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]],
                flops: [[1, "FLOP"], [1e3, "kFLOP"], [1e6, "MFLOP"], [1e9, "GFLOP"], [1e12, "TFLOP"], [1e15, "PFLOP"]]};
for (const unit of ["bytes", "flops"]) SCALES[unit + "/s"] = SCALES[unit].map(([factor, name]) => [factor, name + "/s"]);
const ROWS = 50, PRINTED = 680;  // rows of a page of a table; pixels of a chart on paper
const dark = matchMedia("(prefers-color-scheme: dark)"), narrow = matchMedia("(max-width: 40rem)");
const charts = new Map();  // how to draw each chart, by its place
let printing = false;

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") node.addEventListener(name, value); else node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Plotly reads some HTML in names.
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function scale(unit, most) {
  const scales = SCALES[unit] || [[1, ""]];
  return scales.findLast(([factor]) => most >= factor) || scales[0];
}

function amount(value, unit) {
  if (unit === "share") return (100 * value).toFixed(1) + " %";
  const [factor, name] = scale(unit, Math.abs(value));
  return Number((value / factor).toPrecision(3)) + " " + name;
}

// How a column writes its numbers: times on one scale and with one precision, amounts each on its own.
function written(column, values) {
  const most = values.reduce((most, value) => Math.max(most, Math.abs(value || 0)), 0), [factor, unit] = scale(column.unit, most);
  if (column.unit === "share") return {unit: "%", most, write: value => (100 * value).toFixed(value >= 0.1 || value === 0 ? 1 : 2)};
  if (column.unit in SCALES && column.unit !== "us") return {unit: "", write: value => amount(value, column.unit)};
  if (factor === 1 && values.every(Number.isInteger)) return {unit, write: value => value.toLocaleString("en")};
  const digits = Math.min(3, Math.max(0, 3 - Math.floor(Math.log10(most / factor || 1)))), least = 10 ** -digits;
  const style = {minimumFractionDigits: digits, maximumFractionDigits: digits};
  return {unit, write: value => value && Math.abs(value / factor) < least / 2 ? "< " + least : (value / factor).toLocaleString("en", style)};
}

function table(sheet, label) {
  const columns = sheet.columns.map((column, c) => {
    const values = sheet.values[c], isText = column.unit === "text";
    return {...column, values, isText, ...(isText ? {unit: ""} : written(column, values)), share: column.unit === "share"};
  });
  const all = Array.from({length: sheet.rows}, (_, i) => i), lower = sheet.texts.map(text => text.toLowerCase());
  const texts = columns.filter(column => column.isText), share = columns.find(column => column.title === "share");
  let shown = all, order = null, page = 0;
  const body = make("tbody"), said = make("span", {class: "note", "aria-live": "polite"});
  const back = make("button", {type: "button", click: () => turn(-1)}, "Previous"), next = make("button", {type: "button", click: () => turn(1)}, "Next");
  const search = make("input", {type: "search", placeholder: "filter", "aria-label": "filter: " + label, input: filter});
  const heads = columns.map((column, c) => {
    const button = make("button", {type: "button", click: () => sort(c)}, column.title + (column.unit ? " [" + column.unit + "]" : ""));
    return make("th", {scope: "col", class: column.isText ? "text" : "number"}, button);
  });

  function turn(pages) { page += pages; fill(); }
  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = words.map(word => lower.map(text => text.includes(word)));
    shown = all.filter(i => fits.every(fit => texts.some(column => fit[column.values[i]])));
    arrange();
  }
  function sort(c) {
    const falls = order && order.c === c ? !order.falls : !columns[c].isText;
    order = {c, falls};
    heads.forEach((head, i) => i === c ? head.setAttribute("aria-sort", falls ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    arrange();
  }
  function arrange() {
    if (order) {
      const {values, isText} = columns[order.c], sign = order.falls ? -1 : 1, keys = isText ? values.map(code => lower[code]) : values;
      const compared = (a, b) => a < b ? -1 : a > b ? 1 : 0;
      shown = [...shown].sort((a, b) => (keys[a] === null) - (keys[b] === null) || sign * compared(keys[a], keys[b]) || a - b);
    }
    page = 0;
    fill();
  }
  function cell(column, i, c) {
    const value = column.values[i], full = column.isText ? sheet.texts[value] : value === null ? "–" : column.write(value);
    const text = full.replace(/^\/.*\/([^/]+\/[^/]+:\d+)$/, "$1");  // the end of a path to a line
    const node = c ? make("td", {class: column.isText ? "text" : "number"}, text) : make("th", {scope: "row"}, text);
    if (text !== full) node.title = full;
    if (column.isText && text.length < 30) node.classList.add("short");
    if (c && column.share && value !== null) {
      node.classList.add("share");
      node.style.setProperty("--share", Math.max(0, value) / (column.most || 1));
    }
    return node;
  }
  function fill() {
    const first = page * ROWS, rows = shown.slice(first, first + ROWS);
    body.replaceChildren(...rows.map(i => make("tr", {}, ...columns.map((column, c) => cell(column, i, c)))));
    const few = all.length === shown.length ? "" : ` of ${all.length.toLocaleString("en")}`;
    const part = share && few ? `, ${(100 * shown.reduce((sum, i) => sum + (share.values[i] || 0), 0)).toFixed(1)} % of the time` : "";
    said.textContent = `${shown.length.toLocaleString("en")}${few} rows${part}`
      + (shown.length > ROWS ? `; ${(first + 1).toLocaleString("en")} to ${(first + rows.length).toLocaleString("en")} shown` : "");
    back.disabled = page === 0;
    next.disabled = first + ROWS >= shown.length;
  }
  fill();
  const tools = sheet.rows > 10 ? [make("div", {class: "tools"}, search, ...(sheet.rows > ROWS ? [back, next] : []), said)] : [];
  const inner = make("table", {"aria-label": label}, make("thead", {}, make("tr", {}, ...heads)), body);
  return make("div", {}, ...tools, make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": label}, inner));
}

const colour = (name, i) => (COLOURS[name] || OTHERS[i % OTHERS.length])[dark.matches && !printing ? 1 : 0];

const PICTURES = {
  bars(picture) {
    const [factor, unit] = scale("us", Math.max(...picture.series.flatMap(series => series.values)));
    return {
      traces: picture.series.map(({name, values}, i) => ({
        type: "bar", name: plain(name), x: picture.x, y: values.map(value => value / factor), marker: {color: colour(name, i)},
        hovertemplate: `%{y:.4g} ${unit}<extra>${plain(name)}</extra>`})),
      layout: {barmode: "stack", bargap: picture.x.length > 40 ? 0 : 0.25, hovermode: "x unified", showlegend: true, legend: {orientation: "h", y: 1.02, yanchor: "bottom", traceorder: "normal"},
               xaxis: {title: {text: "step"}, type: "category", nticks: narrow.matches ? 6 : 20}, yaxis: {title: {text: unit}, rangemode: "tozero"}},
    };
  },
  tree(picture, by) {
    const totals = [...picture.values];
    for (let i = totals.length - 1; i > 0; i--) totals[picture.parents[i]] += totals[i];  // parents come first
    const share = i => totals[i] / totals[0], said = picture.labels.map((_, i) => {
      const fraction = picture.fractions[i] === null ? "" : `, ${amount(picture.fractions[i], "share")} of the roof`;
      return `${amount(totals[i], picture.unit)}, ${amount(share(i), "share")}${fraction}`;
    });
    const ofRoof = by === "fraction of the roof", light = !dark.matches || printing;
    return {
      traces: [{
        type: "treemap", ids: picture.labels.map((_, i) => String(i)), labels: picture.labels.map(plain), parents: picture.parents.map(i => i < 0 ? "" : String(i)),
        values: picture.values, branchvalues: "remainder", customdata: said, maxdepth: narrow.matches ? 3 : 5, tiling: {pad: 2},
        texttemplate: "%{label}<br>%{percentRoot:.1%}", hovertemplate: "%{label}<br>%{customdata}<extra></extra>",
        marker: {colors: picture.labels.map((_, i) => ofRoof ? picture.fractions[i] : i ? share(i) : 0), cmin: 0, cmax: ofRoof ? 1 : Math.max(...totals.slice(1).map(total => total / totals[0]), 0.01),
                 colorscale: ofRoof ? "Cividis" : light ? [[0, "#e8f1fa"], [1, "#2f7fc1"]] : [[0, "#1d2b3a"], [1, "#2f7fc1"]],
                 showscale: ofRoof, colorbar: {tickformat: ".0%", thickness: 12}}}],
      layout: {uniformtext: {minsize: 11, mode: "hide"}, margin: {l: 0, r: 0, t: 4, b: 0}, height: narrow.matches ? 420 : 480},
    };
  },
  points(picture) {
    const most = Math.max(...picture.size), lines = picture.lines.map(({name, x, y}, i) => ({
      type: "scatter", mode: "lines", name: plain(name), x, y, line: {width: 2, dash: i % 2 ? "dash" : "solid", color: OTHERS[i % 4][dark.matches && !printing ? 1 : 0]},
      hovertemplate: "%{y:.3s}FLOP/s<extra>" + plain(name) + "</extra>"}));
    return {
      traces: [...lines, {
        type: "scatter", mode: "markers", name: "operations", x: picture.x, y: picture.y, text: picture.text.map(plain), customdata: picture.size.map(size => amount(size, "us")),
        marker: {size: picture.size.map(size => 5 + 25 * Math.sqrt(size / most)), color: colour("compute", 0), opacity: 0.6, line: {width: 1}},
        hovertemplate: "%{text}<br>%{x:.3g} FLOP/byte, %{y:.3s}FLOP/s, %{customdata}<extra></extra>"}],
      layout: {hovermode: "closest", showlegend: lines.length > 0, legend: {orientation: "h", y: 1.02, yanchor: "bottom"}, height: 420,
               xaxis: {type: "log", title: {text: "FLOP/byte"}, dtick: narrow.matches ? 2 : 1, exponentformat: "power"}, yaxis: {type: "log", title: {text: "FLOP/s"}, dtick: 1, exponentformat: "SI"}},
    };
  },
  curve(picture) {
    const [factor, unit] = scale("bytes", Math.max(...picture.y));
    return {
      traces: [{type: "scatter", mode: "lines", line: {shape: "hv", width: 1.8, color: colour("compute", 0)}, fill: "tozeroy", x: picture.x, y: picture.y.map(value => value / factor),
                hovertemplate: `%{y:.4g} ${unit}<extra></extra>`}],
      layout: {hovermode: "x", xaxis: {title: {text: picture.along}}, yaxis: {title: {text: unit}, rangemode: "tozero"}},
    };
  },
};

function draw(place) {
  const {picture, by} = charts.get(place), {traces, layout} = PICTURES[picture.kind](picture, by);
  const style = getComputedStyle(document.body), ink = printing ? "#000" : style.getPropertyValue("--ink").trim(), rule = printing ? "#ccc" : style.getPropertyValue("--rule").trim();
  const axis = {gridcolor: rule, linecolor: rule, zeroline: false, automargin: true}, merged = {...layout};
  for (const name of ["xaxis", "yaxis"]) if (layout[name]) merged[name] = {...axis, ...layout[name]};
  return Plotly.react(place, traces, {
    height: 320, margin: {l: 48, r: 8, t: 26, b: 36}, showlegend: false, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink, size: 13},
    width: printing ? PRINTED : undefined, autosize: !printing, dragmode: narrow.matches ? false : "zoom", modebar: {bgcolor: "rgba(0,0,0,0)", color: ink},
    hoverlabel: {bgcolor: dark.matches && !printing ? "#26262b" : "#fff", font: {color: dark.matches && !printing ? "#ececf0" : "#1d1d1f"}}, ...merged,
  }, {responsive: true, displaylogo: false, displayModeBar: printing || narrow.matches ? false : "hover", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]});
}

const seen = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) if (isIntersecting) { seen.unobserve(target); draw(target); }
}, {rootMargin: "300px"});

function choice(label, names, change) {
  const list = make("select", {change: () => change(names.indexOf(list.value))}, ...names.map(name => make("option", {value: name}, name)));
  return make("label", {}, label + " ", list);
}

function figure(picture) {
  const place = make("div", {class: "chart", role: "img", "aria-label": picture.title + ". The table below has the numbers."});
  const caption = make("figcaption", {}, make("span", {}, picture.title)), modes = ["share", "fraction of the roof"];
  charts.set(place, {picture, by: modes[0]});
  if (picture.kind === "tree" && picture.fractions.some(fraction => fraction !== null))
    caption.append(choice("colour by", modes, i => { charts.get(place).by = modes[i]; draw(place); }));
  seen.observe(place);
  return make("figure", {}, caption, place);
}

function section(part) {
  const body = make("div");
  function show(view) {
    for (const place of body.querySelectorAll(".chart")) { seen.unobserve(place); charts.delete(place); Plotly.purge(place); }
    const label = part.title + (part.views.length > 1 ? " by " + view.name : "");
    const nodes = view.pictures.map(figure);
    if (view.sentences.length)
      nodes.push(make("ol", {class: "sentences"}, ...view.sentences.map(([first, rest]) => make("li", {}, make("span", {}, first), make("small", {}, rest)))));
    for (const sheet of view.sheets) {
      const folded = view.pictures.length + view.sentences.length > 0;
      nodes.push(folded ? make("details", {}, make("summary", {}, "Numbers by " + sheet.columns[0].title), table(sheet, label)) : table(sheet, label));
      nodes.push(...sheet.notes.map(note => make("p", {class: "note"}, note)));
    }
    body.replaceChildren(...nodes);
  }
  const several = part.views.length > 1 ? [make("div", {class: "tools"}, choice("by", part.views.map(view => view.name), i => show(part.views[i])))] : [];
  show(part.views[0]);
  return make("section", {id: part.id}, make("h2", {}, part.title), ...(part.intro ? [make("p", {class: "note"}, part.intro)] : []), ...several, body);
}

async function unpacked() {
  const bytes = Uint8Array.from(atob(document.getElementById("content").textContent), character => character.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

async function build() {
  const content = await unpacked();
  document.getElementById("headline").append(...content.headline.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  if (content.warnings.length) document.getElementById("parts").append(make("ul", {class: "warnings", "aria-label": "warnings"}, ...content.warnings.map(text => make("li", {}, text))));
  document.getElementById("contents").append(...content.parts.map(part => make("a", {href: "#" + part.id}, part.title)));
  document.getElementById("parts").append(...content.parts.map(section));
  const again = () => { for (const place of charts.keys()) if (place.data) draw(place); };
  dark.addEventListener("change", again);
  narrow.addEventListener("change", again);
  addEventListener("beforeprint", () => { printing = true; for (const place of charts.keys()) draw(place); });
  addEventListener("afterprint", () => { printing = false; again(); });
}
const built = build().catch(error => document.getElementById("parts").append("The page cannot be built: " + error.message + ". It needs a browser of 2023 or later."));
