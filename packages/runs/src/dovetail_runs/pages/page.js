// Copyright 2026 The Dovetail Authors
// SPDX-License-Identifier: Apache-2.0
// Draws the charts of a page from the JSON beside it, and again whenever a control changes.
"use strict";
const LIGHT = ["#0072b2", "#d55e00", "#00a3b2", "#7b2fd0", "#1d1d1f", "#6d2900", "#a2435b", "#5b8c00", "#c09000", "#3f5b7a"];
const DARK = ["#56b4e9", "#ff8c42", "#60f0d8", "#b08cff", "#ececf0", "#d0a080", "#ff7fa0", "#b8e060", "#f0e442", "#9fb8d8"];
const PRINTED = 335;  // pixels of a chart on paper, two beside each other
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 40rem)");
let content = JSON.parse(document.getElementById("content").textContent);
let printing = false;

const value = id => document.getElementById(id).value;
const checked = id => document.getElementById(id).checked;
// Plotly reads some HTML in names.
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function traces(chart) {
  if (chart.heat)
    return [{type: "heatmap", ...chart.heat, colorscale: "Viridis", hovertemplate: "step %{x}, %{y:.4g}: %{z:.3g}<extra></extra>"}];
  const colours = dark.matches && !printing ? DARK : LIGHT, level = value("smoothing"), made = [];
  for (const line of chart.lines) {
    const colour = colours[line.run % colours.length], smooth = line.medians && line.medians[level];
    const dash = ["solid", "dash", "dot"][Math.floor(line.run / colours.length) % 3];
    const name = plain(content.runs[line.run]), group = "run" + line.run;
    const base = {type: "scatter", mode: line.raw[0].length < 2 ? "markers" : "lines", name, legendgroup: group,
                  hovertemplate: "%{y:.5g}<extra>" + name + "</extra>"};
    if (smooth)
      made.push({...base, x: line.raw[0], y: line.raw[1], opacity: 0.28, hoverinfo: "skip", hovertemplate: null,
                 showlegend: false, line: {color: colour, width: 1, dash}});
    const [x, y] = smooth || line.raw;
    made.push({...base, x, y, line: {color: colour, width: 1.8, dash}, marker: {color: colour}});
  }
  return made;
}

function shapes(chart) {
  const colours = dark.matches && !printing ? DARK : LIGHT, made = [];
  if (!checked("marks")) return made;
  for (const {run} of chart.lines) {
    const line = {color: colours[run % colours.length], width: 1};
    for (const x of content.marks[run].resumed)
      made.push({type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, opacity: 0.6, line: {...line, dash: "dot"}});
    for (const x of content.marks[run].skipped)
      made.push({type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 0.04, line: {...line, width: 2}});
    for (const x of chart.from_zero ? content.marks[run].stalled : [])
      made.push({type: "line", x0: x, x1: x, yref: "paper", y0: 0.96, y1: 1, line: {...line, width: 2}});
  }
  return made;
}

function layout(chart) {
  const style = getComputedStyle(document.body), ink = printing ? "#000" : style.getPropertyValue("--soft").trim();
  const rule = printing ? "#ccc" : style.getPropertyValue("--rule").trim();
  const axis = {gridcolor: rule, linecolor: rule, zeroline: false, automargin: true, fixedrange: false};
  return {
    height: 300, width: printing ? PRINTED : undefined, autosize: !printing, margin: {l: 48, r: 12, t: 26, b: 36}, showlegend: false, hovermode: chart.heat ? "closest" : "x unified", uirevision: chart.name,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink, size: narrow.matches ? 13 : 12},
    dragmode: narrow.matches ? false : "zoom",
    modebar: {bgcolor: "rgba(0,0,0,0)", color: ink},
    hoverlabel: {bgcolor: dark.matches && !printing ? "#26262b" : "#fff"},
    xaxis: {...axis, type: checked("log-x") ? "log" : "linear", title: {text: "step", standoff: 4}},
    yaxis: {...axis, type: checked("log-y") && !chart.heat ? "log" : "linear", rangemode: chart.from_zero ? "tozero" : "normal"}, shapes: shapes(chart),
  };
}

function draw(chart) {
  const place = document.getElementById("chart-" + content.charts.indexOf(chart));
  return Plotly.react(place, traces(chart), layout(chart), {responsive: true, displaylogo: false, displayModeBar: printing ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]});
}

const seen = new IntersectionObserver(entries => {
  for (const entry of entries)
    if (entry.isIntersecting) draw(content.charts[Number(entry.target.id.slice(6))]);
}, {rootMargin: "300px"});

function note(chart) {
  const lost = chart.lines.reduce((sum, line) => sum + line.lost, chart.lost || 0);
  if (chart.heat) return lost ? `NaN or infinite: ${lost.toLocaleString("en")} values.` : "";
  return lost ? `NaN or infinite, drawn as gaps: ${lost.toLocaleString("en")} values.` : "";
}

// Charts under the heading of their group: the first group before the sections, the others after.
function places() {
  const groups = [...new Set(content.charts.map(chart => chart.group))];
  for (const id of ["first", "others"]) document.getElementById(id).replaceChildren();
  groups.forEach((group, number) => {
    const section = document.createElement("section"), heading = document.createElement("h2"), grid = document.createElement("div");
    heading.textContent = group;
    grid.className = "charts";
    section.append(heading, grid);
    document.getElementById(number ? "others" : "first").append(section);
    content.charts.forEach((chart, number) => {
      if (chart.group !== group) return;
      const figure = document.createElement("figure");
      figure.append(document.createElement("figcaption"), document.createElement("div"), document.createElement("p"));
      figure.children[1].id = "chart-" + number;
      grid.append(figure);
    });
  });
}

let drawn = "";
function build() {
  seen.disconnect();
  const names = JSON.stringify(content.charts.map(chart => chart.name));
  if (names !== drawn) places();
  drawn = names;
  content.charts.forEach((chart, number) => {
    const place = document.getElementById("chart-" + number);
    place.parentNode.children[0].textContent = chart.title;
    place.parentNode.children[2].textContent = note(chart);
    seen.observe(place);
  });
  const legend = document.getElementById("legend"), colours = dark.matches && !printing ? DARK : LIGHT;
  legend.replaceChildren(...content.runs.map((name, number) => {
    const item = document.createElement("li"), swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colours[number % colours.length];
    item.append(swatch, name);
    return item;
  }));
  for (const id of ["sections", "tables"]) document.getElementById(id).innerHTML = content[id];  // escaped where it is made
}

for (const id of ["smoothing", "log-x", "log-y", "marks"])
  document.getElementById(id).addEventListener("change", build);
dark.addEventListener("change", build);
addEventListener("beforeprint", () => { printing = true; build(); content.charts.forEach(draw); });
addEventListener("afterprint", () => { printing = false; build(); });
build();

const every = Number(document.body.dataset.every);
async function refresh() {
  try {
    const answer = await fetch("content.json");
    if (!answer.ok) throw new Error(await answer.text());
    content = await answer.json();
    build();
    document.getElementById("status").textContent = "read at " + new Date().toLocaleTimeString();
  } catch (error) {
    document.getElementById("status").textContent = "not read: " + error.message;
  }
  setTimeout(refresh, 1000 * every);
}
if (every) setTimeout(refresh, 1000 * every);
