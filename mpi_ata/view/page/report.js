"use strict";
// Draws the charts and fills the tables from the data in the page.  Text from files is only ever set as text.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const SVG = "http://www.w3.org/2000/svg";
const CIVIDIS = [[0, 34, 78], [65, 77, 107], [124, 123, 120], [188, 175, 111], [254, 232, 56]];

function node(name, attributes = {}, text = "", space = null) {
  const made = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== "") made.textContent = text;
  return made;
}
const svgNode = (name, attributes, text) => node(name, attributes, text, SVG);
const colour = (number) => `var(--c${number % 7})`;

function short(value) {
  if (value === null || value === undefined) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(".00e", "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

function ticks(low, high, log) {
  const found = [];
  if (log) {
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
      for (const m of high / low > 200 ? [1] : [1, 2, 5]) found.push(m * 10 ** e);
  } else {
    const raw = (high - low) / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    for (let i = Math.ceil(low / step); i * step <= high * 1.0001; i++) found.push(i * step);
  }
  return found.filter((value) => value >= low * (low > 0 ? 0.999 : 1) && value <= high * 1.001);
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log : (value) => value;
  const span = f(high) - f(low) || 1;
  return (value) => from + ((f(value) - f(low)) / span) * (to - from);
}

function frame(holder, panel) {
  const W = 360, H = 230, box = { left: 60, right: W - 8, top: 8, bottom: H - 36 };
  const svg = svgNode("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${panel.y} against ${panel.x}` });
  holder.append(svg);
  return { svg, box, W, H };
}

function axes({ svg, box, W, H }, panel, x, y, limits) {
  for (const value of ticks(limits.y0, limits.y1, panel.log)) {
    if (!panel.edges) svg.append(svgNode("line", { x1: box.left, x2: box.right, y1: y(value), y2: y(value), class: "axis", opacity: 0.6 }));
    svg.append(svgNode("text", { x: box.left - 5, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const value of ticks(limits.x0, limits.x1, panel.logX)) {
    const anchor = x(value) > box.right - 12 ? "end" : "middle";
    svg.append(svgNode("text", { x: x(value), y: box.bottom + 14, "text-anchor": anchor }, short(value)));
  }
  svg.append(svgNode("line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, class: "axis" }));
  svg.append(svgNode("text", { x: (box.left + box.right) / 2, y: H - 5, "text-anchor": "middle" }, panel.x));
  const middle = (box.top + box.bottom) / 2;
  svg.append(svgNode("text", { x: 10, y: middle, "text-anchor": "middle", transform: `rotate(-90 10 ${middle})` }, panel.y));
}

function drawCurves(figure, panel) {
  figure.replaceChildren();
  const shown = panel.curves.filter((curve) => !hidden.has(curve.run) && curve.x.length);
  if (!shown.length) return;
  const all = (key) => shown.flatMap((curve) => curve[key]);
  const xs = all("x"), ys = all("y");
  const least = Math.min(...ys), most = Math.max(...ys), near = least >= 0 && least < most / 2;  // to 0
  const limits = { x0: Math.min(...xs), x1: Math.max(...xs), y0: near && !panel.log ? 0 : least, y1: most > least || most ? most : 1 };
  const place = frame(figure, panel), { svg, box } = place;
  const x = scale(limits.x0, limits.x1, box.left, box.right, false);
  const y = scale(limits.y0, limits.y1, box.bottom, box.top, panel.log);
  axes(place, panel, x, y, limits);
  for (const curve of shown) {
    const path = curve.x.map((value, i) => `${i ? "L" : "M"}${x(value).toFixed(1)} ${y(curve.y[i]).toFixed(1)}`).join("");
    svg.append(svgNode("path", { d: path, class: "curve", stroke: colour(curve.run) }));
  }
  const dots = shown.map((curve) => svgNode("circle", { r: 3.5, fill: colour(curve.run), visibility: "hidden" }));
  svg.append(...dots);
  hover(figure, svg, place.W, (at) => {
    const lines = shown.map((curve, number) => {
      const i = nearest(curve.x.map(x), at);
      dots[number].setAttribute("cx", x(curve.x[i]));
      dots[number].setAttribute("cy", y(curve.y[i]));
      dots[number].setAttribute("visibility", "visible");
      return `${data.runs[curve.run].name}: ${short(curve.y[i])} at ${short(curve.x[i])}`;
    });
    return lines.join("\n");
  }, () => dots.forEach((dot) => dot.setAttribute("visibility", "hidden")));
}

function nearest(values, at) {
  let best = 0;
  values.forEach((value, i) => { if (Math.abs(value - at) < Math.abs(values[best] - at)) best = i; });
  return best;
}

function hover(figure, target, width, words, left = () => {}) {
  const tip = node("div", { class: "tip" });
  figure.append(tip);
  target.addEventListener("pointermove", (event) => {
    const area = target.getBoundingClientRect();
    const across = (event.clientX - area.left) / area.width, down = (event.clientY - area.top) / area.height;
    tip.textContent = words(across * width, down);
    tip.style.display = "block";
    tip.style.top = `${event.clientY - area.top + 12}px`;
    tip.style.left = `${Math.min(across * area.width, Math.max(area.width - tip.offsetWidth, 0))}px`;
  });
  target.addEventListener("pointerleave", () => { tip.style.display = "none"; left(); });
}

function drawMeans(figure, run) {
  const panel = { x: run.row_label, y: "estimated task time [s]", log: false };
  const known = run.means.map((mean, i) => [i, mean]).filter(([, mean]) => mean !== null);
  if (!known.length) return;
  const limits = { x0: 0, x1: Math.max(run.means.length - 1, 1), y0: 0, y1: 1.04 * Math.max(...known.map(([, mean]) => mean)) };
  const place = frame(figure, panel), { svg, box } = place;
  const x = scale(limits.x0, limits.x1, box.left + 8, box.right - 8, false);
  const y = scale(0, limits.y1, box.bottom, box.top, false);
  axes(place, panel, x, y, limits);
  for (const [i, mean] of known) {
    const bound = run.bounds[i] === null ? mean : run.bounds[i];
    svg.append(svgNode("line", { x1: x(i), x2: x(i), y1: y(mean), y2: y(Math.min(bound, mean)), stroke: "var(--c4)", "stroke-width": 2.5 }));
    svg.append(svgNode("circle", { cx: x(i), cy: y(mean), r: 2.5, fill: "var(--c0)" }));
  }
  hover(figure, svg, place.W, (at) => {
    const i = nearest(run.means.map((_, j) => x(j)), at);
    const quota = run.quota === null ? "" : `\nnext quota ${short(run.quota[i])}`;
    return `${run.row_names[i]}\nestimate ${short(run.means[i])} s\nbound ${short(run.bounds[i])} s${quota}`;
  });
  figure.append(node("figcaption", {}, "the allocator's estimates of the mean times, with bars down to their lower bounds"));
}

function heat(value, most) {
  const at = Math.min(Math.max(value / (most || 1), 0), 1) * (CIVIDIS.length - 1), i = Math.min(Math.floor(at), CIVIDIS.length - 2);
  return CIVIDIS[i].map((from, c) => Math.round(from + (CIVIDIS[i + 1][c] - from) * (at - i)));
}

function drawHeat(figure, grid, words) {
  const rows = grid.values.length, columns = 300, edges = grid.edges, log = grid.log;
  if (!rows || edges.length < 2) return;
  const place = frame(figure, grid), { svg, box } = place;
  const limits = { x0: edges[0], x1: edges[edges.length - 1], y0: 0, y1: Math.max(rows - 1, 1) };
  const x = scale(limits.x0, limits.x1, box.left, box.right, log), y = scale(-0.5, rows - 0.5, box.bottom, box.top, false);
  const ends = edges.map(x), cells = [];
  for (let p = 0, c = 0; p < columns; p++) {
    const at = box.left + ((p + 0.5) / columns) * (box.right - box.left);
    while (c < edges.length - 2 && ends[c + 1] < at) c++;
    cells.push(c);
  }
  svg.append(picture(grid.values, cells, box));
  axes(place, { ...grid, log: false, logX: log }, x, y, limits);
  hover(figure, svg, place.W, (at, down) => {
    const p = Math.floor(((at - box.left) / (box.right - box.left)) * columns);
    const r = Math.round(rows - 0.5 - ((down * place.H - box.top) / (box.bottom - box.top)) * rows - 0.5);
    if (p < 0 || p >= columns || r < 0 || r >= rows) return grid.caption;
    return words(r, cells[p], grid.values[r][cells[p]]);
  });
  figure.append(node("figcaption", {}, grid.caption));
}

function drawServed(figure, grid) {
  const rows = grid.values.length, edges = grid.edges;
  if (!rows) return;
  const place = frame(figure, grid), { svg, box } = place;
  const limits = { x0: edges[0], x1: edges[edges.length - 1], y0: 0, y1: Math.max(rows - 1, 1) };
  const x = scale(limits.x0, limits.x1, box.left, box.right, false), y = scale(-0.5, rows - 0.5, box.bottom, box.top, false);
  const width = (box.right - box.left) / (edges.length - 1), height = (box.bottom - box.top) / rows;
  const cells = data.runs.map(() => []);  // of each run: as paths of its colour, they follow light and dark
  grid.values.forEach((row, r) => row.forEach((run, c) => {
    if (run !== null) cells[run].push(`M${x(edges[c]).toFixed(2)} ${y(r + 0.5).toFixed(2)}h${(width + 0.1).toFixed(2)}v${(height * 0.9).toFixed(2)}h-${(width + 0.1).toFixed(2)}z`);
  }));
  cells.forEach((parts, run) => {
    if (!hidden.has(run)) svg.append(svgNode("path", { d: parts.join(""), class: "served", fill: colour(run) }));
  });
  axes(place, { ...grid, log: false }, x, y, limits);
  hover(figure, svg, place.W, (at, down) => {
    const c = Math.floor((at - box.left) / width), r = Math.floor((box.bottom - down * place.H) / height);
    if (c < 0 || c >= edges.length - 1 || r < 0 || r >= rows) return grid.caption;
    const run = grid.values[r][c];
    return `${grid.rows[r]}\n${short(edges[c])} to ${short(edges[c + 1])} s\n${run === null ? "idle" : data.runs[run].name}`;
  });
  figure.append(node("figcaption", {}, grid.caption));
}

function picture(values, cells, box) {
  const canvas = node("canvas", { width: cells.length, height: values.length });
  const pen = canvas.getContext("2d"), image = pen.createImageData(cells.length, values.length);
  const most = Math.max(...values.map((row) => Math.max(...row.map((value) => value ?? 0))));
  values.forEach((row, r) => cells.forEach((c, p) => {
    const place = 4 * ((values.length - 1 - r) * cells.length + p);
    image.data.set([...heat(row[c] ?? 0, most), row[c] === null ? 0 : 255], place);
  }));
  pen.putImageData(image, 0, 0);
  return svgNode("image", {
    href: canvas.toDataURL(), x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top,
    preserveAspectRatio: "none", style: "image-rendering:pixelated",
  });
}

function drawWorkers() {
  const holder = document.getElementById("workers");
  holder.replaceChildren();
  for (const run of data.runs) {
    if (hidden.has(run.number)) continue;
    holder.append(node("h3", {}, run.name));
    const panels = node("div", { class: "panels" });
    const [means, times, map] = [0, 1, 2].map(() => panels.appendChild(node("figure")));
    drawMeans(means, run);
    drawHeat(times, run.times, (r, c, value) =>
      `${run.times.rows[r]}\n${short(run.times.edges[c])} to ${short(run.times.edges[c + 1])} s\n${short(100 * value)} % of its tasks`);
    drawHeat(map, run.map, (r, c, value) =>
      `${run.map.rows[r]}\nclock ${short(run.map.edges[c])} to ${short(run.map.edges[c + 1])} s\n${short(value)} tasks per round`);
    holder.append(panels, sortable(run.table));
    if (run.table.left_out) holder.append(node("p", {}, run.table.left_out));
  }
}

function sortable(table) {
  const made = node("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  const rows = table.rows.slice();
  const fill = () => body.replaceChildren(...rows.map((row) => {
    const line = node("tr");
    row.forEach((cell, i) => line.append(node("td", typeof cell === "string" && i ? { class: "text" } : {}, typeof cell === "number" ? short(cell) : cell ?? "-")));
    return line;
  }));
  table.header.forEach((name, column) => {
    const words = table.rows.length && typeof table.rows[0][column] === "string";
    const cell = node("th", { scope: "col", tabindex: 0, "aria-sort": "none", class: words ? "left" : "" }, name);
    const sort = () => {
      const down = cell.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.cells) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
      rows.sort((a, b) => compare(a[column], b[column], down));
      fill();
    };
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    head.append(cell);
  });
  fill();
  const wide = node("div", { class: "wide" });
  wide.append(made);
  return wide;
}

function compare(a, b, down) {  // what is not known comes last, either way
  if (a === null || b === null) return (a === null) - (b === null);
  return down * (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
}

function drawAll() {
  const curves = document.getElementById("curves");
  curves.replaceChildren();
  for (const panel of data.panels) drawCurves(curves.appendChild(node("figure")), panel);
  drawServed(curves.appendChild(node("figure")), data.served);
  drawWorkers();
}

const toggles = document.getElementById("runs");
for (const run of data.runs) {
  const button = node("button", { "aria-pressed": "true", type: "button" });
  const swatch = node("span", { class: "swatch" });
  swatch.style.background = colour(run.number);
  button.append(swatch, run.name);
  button.addEventListener("click", () => {
    if (!hidden.delete(run.number)) hidden.add(run.number);
    button.setAttribute("aria-pressed", String(!hidden.has(run.number)));
    drawAll();
  });
  toggles.append(button);
}
const events = document.getElementById("events");
for (const run of data.runs) events.append(node("h3", {}, run.name), sortable(run.events));
const jobs = document.getElementById("jobs");
for (const run of data.runs) jobs.append(node("h3", {}, run.name), node("pre", {}, run.job));
drawAll();
