"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.getElementById("report");
const KINDS = { product: "products", attention: "attention", memory: "other kernels", collective: "collectives",
  wait: "waits for collectives", loop: "more rounds of a loop", run: "runs", stage: "compiler stages" };
const PARTS = { "products": "product", "attention": "attention", "other kernels": "memory",
  "collectives exposed": "collective", "stragglers": "loop" };

// Elements are made from texts, never from markup: names come from the user's program.
function make(tag, given, ...children) {
  const node = document.createElementNS(SVG.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(given || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const SVG = new Set(["svg", "rect", "path", "line"]);
const css = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function seconds(s) {
  if (!s) return "0";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]])
    if (s >= size * 0.9995 || unit === "ns") return `${three(s / size)} ${unit}`;
}
const three = x => x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2);
function bytes(b) {
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (b < 1023.5 || unit === "TiB") return unit === "B" ? `${Math.round(b)} B` : `${three(b)} ${unit}`;
    b /= 1024;
  }
}
const count = n => Math.round(n).toLocaleString("en-US");
const percent = x => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`;
const meshText = data.mesh.map(([name, size]) => `${name}=${size}`).join(" × ") || "one device";
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function section(id, title, about, ...children) {
  const head = make("div", { class: "head" }, make("h2", {}, title), about ? make("span", { class: "quiet" }, about) : null);
  const made = make("section", { id }, head, ...children);
  root.append(made);
  return made;
}
function lineOf(row) {
  if (!row.place) return make("span", { class: "quiet" }, "no source line");
  return make("span", { class: "line" }, make("span", { class: "place" }, row.place), " ", row.source ? make("code", {}, row.source) : null);
}

// Header, figures and the parts of a step

function header() {
  const theme = make("button", { id: "theme", title: "light or dark", onclick: () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    redraw();
  } }, "◐");
  root.append(make("header", {},
    make("div", {}, make("h1", {}, data.program),
      make("p", { class: "quiet" }, data.lines ? `${plural(data.devices, "worker")} · ${data.machine.name}`
        : `${meshText}, ${plural(data.devices, "device")} · ${data.machine.name}`)), theme));
  const ids = data.lines ? [["lines", "Lines"], ["timeline", "Timeline"]] : [["mesh", "Mesh"], ["layers", "Layers"], ["collectives", "Collectives"], ["timeline", "Timeline"],
    ["memory", "Memory"], ["whatif", "What if"]];
  root.append(make("nav", { "aria-label": "sections" }, ids.map(([id, name]) => make("a", { href: `#${id}` }, name))));
}

function figures() {
  const step = data.step;
  const sent = data.collectives.reduce((sum, row) => sum + row.total, 0);
  const cells = [[seconds(step.seconds), "a step, predicted"],
    step.mfu === null ? null : [percent(step.mfu), "of the rate of products (MFU)"],
    step.tokens ? [count(step.tokens), "tokens a second"] : null,
    [bytes(step.peak), `peak of ${bytes(step.limit)} a device`, step.fits ? "" : "bad"],
    [seconds(sent), `of collectives, ${seconds(step.parts["collectives exposed"] || 0)} exposed`]];
  root.append(make("div", { class: "figures" }, cells.filter(Boolean).map(([value, about, tone]) =>
    make("div", { class: "figure" }, make("b", { class: tone || "" }, value), make("span", {}, about)))));
  const parts = Object.entries(step.parts);
  const total = parts.reduce((sum, [, s]) => sum + s, 0) || 1;
  section("step", "A step", "what the compute stream spends its time on",
    make("div", { class: "bar" }, parts.map(([name, s]) =>
      make("i", { title: `${name}: ${seconds(s)}`, style: { width: `${100 * s / total}%`, background: `var(--${PARTS[name] || "loop"})` } }))),
    make("div", { class: "legend" }, parts.map(([name, s]) => make("span", {},
      make("i", { style: { background: `var(--${PARTS[name] || "loop"})` } }), `${name} `, make("b", {}, seconds(s)),
      make("span", { class: "quiet" }, ` ${percent(s / total)}`))),
      step.hidden > 0 ? make("span", { class: "quiet" }, `collectives hidden behind compute ${seconds(step.hidden)}`) : null));
}

// Predicted beside measured seconds, of a profile

function lines() {
  const made = section("lines", "Lines", "seconds of one run: predicted, measured (median of the runs), and their ratio");
  for (const program of data.lines) {
    const body = make("tbody", {}, program.lines.map(row => lineRow(row, program)));
    body.append(make("tr", {}, make("td", {}, "between launches"), make("td", {}), make("td", { class: "n" }, seconds(program.between)), make("td", {}), make("td", {})));
    const heads = [["what"], ["predicted", "n"], ["measured", "n"], ["ratio", "n"], ["line", "wide"]];
    made.append(make("h3", {}, program.program), make("p", { class: "quiet" },
      `${plural(program.runs, "run")} on ${plural(program.workers, "worker")}; a run took ${seconds(program.measured)}` +
      (program.predicted === null ? "" : `, predicted ${seconds(program.predicted)} for ${program.machine}`)),
      make("div", { class: "scroll" }, make("table", {},
        make("thead", {}, make("tr", {}, heads.map(([text, tone]) => make("th", { class: tone || "" }, text)))), body)));
  }
}
function lineRow(row, program) {
  const known = row.predicted && row.measured !== null, ratio = known ? row.measured / row.predicted : 0;
  const much = Math.max(row.predicted || 0, row.measured || 0) > 0.05 * program.measured;
  return make("tr", {}, make("td", {}, make("span", { class: "mark", style: { background: `var(--${row.kind})` } }), row.name),
    make("td", { class: "n" }, row.predicted === null ? "-" : seconds(row.predicted)),
    make("td", { class: "n" }, row.measured === null ? "-" : seconds(row.measured)),
    make("td", { class: `n ${known && much && (ratio > 1.5 || ratio < 0.67) ? "warn" : "quiet"}` }, known ? ratio.toFixed(2) : ""),
    make("td", { class: "wide" }, lineOf({ place: row.line, source: row.source })));
}

// Tensors and their pieces

function pieceColor(index, pieces) {
  const split = pieces.map((n, d) => [n, d]).filter(([n]) => n > 1);
  if (!split.length) return "oklch(0.9 0.035 250)";
  const [n, first] = split[0];
  let place = 0, total = 1;
  for (const [m, d] of split.slice(1)) { place = place * m + index[d]; total *= m; }
  const shade = total > 1 ? place / (total - 1) : 0.35;
  return `oklch(${0.9 - 0.17 * shade} ${0.06 + 0.06 * shade} ${(250 + 300 * index[first] / n) % 360})`;
}

function drawing(row, side) {
  const shape = row.shape, pieces = row.pieces.length ? row.pieces : shape.map(() => 1);
  const split = pieces.map((n, d) => d).filter(d => pieces[d] > 1);
  const rest = shape.map((_, d) => d).filter(d => !split.includes(d)).reverse();
  const dims = [...split, ...rest].slice(0, 2).sort((a, b) => a - b);
  const [rows, columns] = dims.length === 2 ? dims : [null, dims.length ? dims[0] : null];
  let width = side, height = rows === null ? side / 4 : side;
  if (rows !== null) {
    const ratio = Math.min(2.4, Math.max(1 / 2.4, Math.sqrt(shape[rows] / Math.max(1, shape[columns]))));
    if (ratio > 1) width = side / ratio; else height = side * ratio;
  }
  const picture = make("svg", { width: side, height: Math.max(height, 18), viewBox: `0 0 ${side} ${Math.max(height, 18)}`, "aria-hidden": "true" });
  const cuts = dim => dim === null ? 1 : Math.min(pieces[dim], 32);
  for (let i = 0; i < cuts(rows); i++) for (let j = 0; j < cuts(columns); j++) {
    const index = shape.map(() => 0);
    if (rows !== null) index[rows] = i;
    if (columns !== null) index[columns] = j;
    const w = width / cuts(columns), h = height / cuts(rows);
    picture.append(make("rect", { x: j * w, y: i * h, width: w, height: h, fill: pieceColor(index, pieces),
      stroke: "var(--card)", "stroke-width": 1 }));
  }
  picture.append(make("rect", { x: .5, y: .5, width: width - 1, height: height - 1, fill: "none", stroke: "var(--quiet)" }));
  return picture;
}

function shardingText(row) {
  const parts = row.shape.map((size, d) => row.axes[d] && row.axes[d].length ? `${size} by ${row.axes[d].join(", ")}` : `${size}`);
  return parts.length ? `[${parts.join(" · ")}]` : "scalar";
}

let chosen = null;
const cards = [];
function tensorCard(row) {
  const whole = row.axes.every(axes => !axes.length);
  const card = make("button", { class: "tensor", "aria-pressed": "false", title: row.names.join("\n"), onclick: () => choose(row, card) },
    drawing(row, 62),
    make("div", {}, make("div", { class: "name" }, row.names[0] + (row.names.length + row.more > 1 ? ` + ${row.names.length + row.more - 1} more` : "")),
      make("div", { class: "mono" }, row.type), make("div", { class: whole ? "quiet" : "" }, whole ? "whole on every device" : shardingText(row)),
      make("div", { class: "quiet" }, `${row.local.join("×") || "scalar"} a device, ${bytes(row.bytes)}`,
        row.note && row.note !== "replicated" ? make("span", { class: /conflict|padded/.test(row.note) ? "warn" : "" }, ` · ${row.note}`) : null)));
  cards.push([row, card]);
  return card;
}

function layers() {
  const made = section("layers", "Layers", "every tensor with its pieces; choose one to see it on the mesh");
  data.layers.forEach((layer, n) => {
    const body = make("div", { class: "tensors" });
    const fill = () => { if (!body.childNodes.length) body.append(...layer.rows.map(tensorCard)); };
    const about = [plural(layer.rows.length, "kind") + " of tensors", layer.alike ? `and ${plural(layer.alike, "layer")} alike` : "",
      layer.name === "arguments" || layer.name === "results" ? `${bytes(layer.bytes)} on a device` : ""].filter(Boolean).join(" · ");
    const box = make("details", { ontoggle: fill }, make("summary", {}, make("b", {}, layer.name), make("span", { class: "quiet" }, about)), body);
    if (n === 0) { box.open = true; fill(); }
    if (layer.hidden) body.append(make("p", { class: "quiet" }, `and ${count(layer.hidden)} more`));
    made.append(box);
  });
}

// The mesh with the pieces of the chosen tensor

const gridBox = make("div", { class: "grid" });
const chosenBox = make("div", { class: "chosen" });
function meshSection() {
  section("mesh", "Mesh", `${meshText}: each device in the colour of its piece`, make("div", { class: "mesh" }, gridBox, chosenBox));
}
function choose(row, card) {
  chosen = row;
  for (const [, other] of cards) other.setAttribute("aria-pressed", String(other === card));
  drawMesh();
}
function pieceAt(position, row) {
  const at = Object.fromEntries(data.mesh.map(([name], n) => [name, position[n]]));
  const sizes = Object.fromEntries(data.mesh);
  return row.axes.map(axes => axes.reduce((place, axis) => {
    const match = /^(.*):\((\d+)\)(\d+)$/.exec(axis);  // a part of an axis
    if (!match) return place * sizes[axis] + at[axis];
    const after = sizes[match[1]] / (match[2] * match[3]);
    return place * match[3] + Math.floor(at[match[1]] / after) % match[3];
  }, 0));
}
function drawMesh() {
  gridBox.replaceChildren(); chosenBox.replaceChildren();
  const sizes = data.mesh.map(([, size]) => size);
  const columns = sizes.length ? sizes.length === 1 ? 0 : 1 : null, rows = sizes.length > 1 ? 0 : null;
  const wide = columns === null ? 1 : sizes[columns], tall = rows === null ? 1 : sizes[rows];
  const shownWide = Math.min(wide, 16), shownTall = Math.min(tall, 16);
  const rest = sizes.slice(2), blocks = rest.reduce((a, b) => a * b, 1);
  const shownBlocks = Math.min(blocks, Math.max(1, Math.floor(256 / (shownWide * shownTall))));
  const box = make("div", { class: "blocks" });
  for (let b = 0; b < shownBlocks; b++) {
    const deep = []; let left = b;
    for (const size of [...rest].reverse()) { deep.unshift(left % size); left = Math.floor(left / size); }
    const grid = make("div", { class: "devices", style: { gridTemplateColumns: `repeat(${shownWide}, minmax(62px, ${shownWide > 8 ? "1fr" : "128px"}))` } });
    for (let i = 0; i < shownTall; i++) for (let j = 0; j < shownWide; j++) {
      const position = columns === null ? [] : rows === null ? [j] : [i, j, ...deep];
      const device = position.reduce((place, p, n) => place * sizes[n] + p, 0);
      const pieces = chosen && chosen.pieces.length ? chosen.pieces : [];
      const index = chosen ? pieceAt(position, chosen) : [];
      const slice = chosen ? chosen.shape.map((size, d) => (pieces[d] || 1) > 1
        ? `${Math.min(size, index[d] * chosen.local[d])}:${Math.min(size, (index[d] + 1) * chosen.local[d])}` : ":").join(", ") : "";
      grid.append(make("div", { class: "device", style: { background: chosen ? pieceColor(index, pieces.length ? pieces : chosen.shape.map(() => 1)) : "oklch(0.92 0.01 250)" },
        title: data.mesh.map(([name], n) => `${name} ${position[n]}`).join(", ") },
        make("b", {}, `${device}`), chosen ? make("code", {}, slice ? `[${slice}]` : "scalar") : null));
    }
    const names = data.mesh.map(([name]) => name);
    const label = [rows === null ? "" : `${names[0]} ↓`, columns === null ? "" : `${names[columns]} →`,
      ...deep.map((at, n) => `${names[n + 2]} ${at}`)].filter(Boolean).join("  ");
    box.append(make("div", { class: "block" }, make("h3", {}, label), grid));
  }
  gridBox.append(box);
  const hidden = data.devices - shownWide * shownTall * shownBlocks;
  if (hidden > 0) gridBox.append(make("p", { class: "quiet" }, `and ${count(hidden)} more devices, in the same pattern`));
  if (chosen) {
    const holders = data.devices / (chosen.pieces.reduce((a, b) => a * b, 1) || 1);
    chosenBox.append(drawing(chosen, 132), make("div", {}, make("h3", { style: { overflowWrap: "anywhere", margin: "0 0 2px" } }, chosen.names.join(", ")),
      make("p", { class: "mono" }, chosen.type), make("p", {}, shardingText(chosen)),
      make("p", { class: "quiet" }, `${chosen.local.join("×") || "scalar"} a device, ${bytes(chosen.bytes)}; ` +
        (holders === data.devices ? "whole on every device" : holders === 1 ? "no piece twice" : `each piece on ${plural(holders, "device")}`)),
      make("p", { class: "quiet" }, chosen.note)));
  }
}

// Collectives

function collectives() {
  const rows = data.collectives;
  const total = rows.reduce((sum, row) => sum + row.total, 0);
  const about = rows.length ? `${count(rows.reduce((n, r) => n + r.times, 0))} a step, ${seconds(total)} in all; choose a row for its reason` : "none: nothing is sent";
  const made = section("collectives", "Collectives", about);
  if (!rows.length) return;
  const body = make("tbody", {});
  for (const row of rows) {
    const line = make("tr", { class: "click", tabindex: 0, role: "button", "aria-expanded": "false" },
      make("td", {}, make("span", { class: "mark", style: { background: "var(--collective)" } }), row.kind),
      make("td", {}, row.over), make("td", { class: "n" }, count(row.times)), make("td", { class: "n" }, bytes(row.bytes)),
      make("td", { class: "n" }, seconds(row.total)), make("td", { class: `n ${row.exposed > 0.3 * row.total ? "warn" : "quiet"}` }, seconds(row.exposed)),
      make("td", { class: "wide" }, lineOf(row)));
    const toggle = () => {
      const open = line.nextSibling && line.nextSibling.className === "why";
      line.setAttribute("aria-expanded", String(!open));
      if (open) { line.nextSibling.remove(); return; }
      line.after(make("tr", { class: "why" }, make("td", { colspan: 7 },
        ...row.reasons.map(text => make("p", {}, text)),
        make("p", {}, lineOf(row)), make("p", { class: "quiet" }, `${row.track}; its time is ${row.from}`))));
    };
    line.addEventListener("click", toggle);
    line.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
    body.append(line);
  }
  const heads = [["collective"], ["over"], ["times", "n"], ["sent each", "n"], ["time", "n"], ["exposed", "n"], ["line", "wide"]];
  made.append(make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, heads.map(([text, tone]) => make("th", { class: tone || "" }, text)))), body)));
  if (data.notes.length) made.append(make("details", {}, make("summary", {}, make("b", {}, plural(data.notes.length, "note")),
    make("span", { class: "quiet" }, "on shardings that met or do not divide")), data.notes.map(text => make("p", { style: { whiteSpace: "pre-wrap" } }, text))));
}

// The timeline: a canvas with tracks; wheel or pinch zooms, a drag moves

const view = { from: 0, to: 1, picked: null };
const timelineCanvas = make("canvas", { id: "events", tabindex: 0, "aria-label": "timeline of one device" });
const memoryCanvas = make("canvas", { id: "held", class: "still", "aria-label": "memory of one device over time" });
const detail = make("div", { class: "detail quiet" });
const LEFT = 118, ROW = 34, TOP = 26;
const left = () => innerWidth < 640 ? 0 : LEFT;

function prepared(canvas, height) {
  const width = canvas.clientWidth || canvas.parentNode.clientWidth, ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = `12px ${css("sans")}`;
  pen.textBaseline = "middle";
  return [pen, width];
}
const xOf = (t, width) => left() + (t - view.from) / (view.to - view.from) * (width - left());
const tOf = (x, width) => view.from + (x - left()) / (width - left()) * (view.to - view.from);

function ticks(pen, width, height) {
  const span = view.to - view.from, rough = span / Math.max(2, (width - left()) / 110);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
  pen.fillStyle = css("quiet"); pen.strokeStyle = css("line"); pen.lineWidth = 1; pen.textAlign = "left";
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    const x = Math.round(xOf(t, width)) + .5;
    pen.beginPath(); pen.moveTo(x, 0); pen.lineTo(x, height); pen.stroke();
    if (x < width - 44) pen.fillText(Math.abs(t) < step / 1e6 ? "0" : seconds(t), x + 4, 11);
  }
}

function drawTimeline() {
  const line = data.timeline, row = left() ? ROW : ROW + 16;
  const height = TOP + line.tracks.length * row + 6;
  const [pen, width] = prepared(timelineCanvas, height);
  pen.clearRect(0, 0, width, height);
  ticks(pen, width, height);
  const colors = Object.fromEntries(Object.keys(KINDS).map(kind => [kind, css(kind)]));
  pen.save(); pen.beginPath(); pen.rect(left(), 0, width - left(), height); pen.clip();
  const last = line.tracks.map(() => -1);
  for (const event of line.events) {
    const [track, start, duration, name, kind] = event;
    if (start + duration < view.from || start > view.to) continue;
    const x = Math.max(left() - 4, xOf(start, width)), end = Math.min(width + 4, xOf(start + duration, width));
    const w = Math.max(end - x, .6);
    if (w <= .6 && Math.floor(x * 2) === last[track]) continue;  // many short ones share a pixel
    last[track] = Math.floor(x * 2);
    const y = TOP + track * row + (left() ? 3 : 19);
    pen.fillStyle = colors[line.kinds[kind]] || colors.memory;
    pen.fillRect(x, y, Math.max(w - (w > 3 ? .8 : 0), .6), ROW - 8);
    if (event === view.picked) { pen.strokeStyle = css("ink"); pen.lineWidth = 2; pen.strokeRect(x, y, w, ROW - 8); }
    if (w > 34) {
      pen.fillStyle = line.kinds[kind] === "wait" ? css("quiet") : "#fff"; pen.textAlign = "left";
      const text = line.names[name], room = Math.floor((w - 10) / 6.6);
      pen.fillText(text.length > room ? text.slice(0, Math.max(1, room - 1)) + "…" : text, Math.max(x, left()) + 5, y + (ROW - 8) / 2 + 1);
    }
  }
  pen.restore();
  line.tracks.forEach((name, n) => {
    pen.fillStyle = css("quiet"); pen.textAlign = "left";
    const match = /^(.*?)(?: \((.*)\))?$/.exec(name);
    if (left()) {
      pen.fillText(match[1], 8, TOP + n * row + (match[2] ? 10 : 16));
      if (match[2]) { pen.font = `11px ${css("sans")}`; pen.fillText(match[2], 8, TOP + n * row + 24); pen.font = `12px ${css("sans")}`; }
    } else pen.fillText(name, 4, TOP + n * row + 10);
  });
}

function eventAt(x, y) {
  const line = data.timeline, width = timelineCanvas.clientWidth, row = left() ? ROW : ROW + 16;
  const track = Math.floor((y - TOP) / row), t = tOf(x, width), near = 3 / (width - left()) * (view.to - view.from);
  let best = null;
  for (const event of line.events) {
    if (event[0] !== track) continue;
    if (t >= event[1] - near && t <= event[1] + event[2] + near && (!best || event[2] < best[2] || t <= event[1] + event[2] && t >= event[1])) best = event;
    if (event[1] > t + near) break;
  }
  return best;
}
function eventText(event) {
  const line = data.timeline, [, start, duration, name, kind, place, times, size, exposed, over] = event;
  const parts = [`${seconds(duration)} from ${seconds(start)}`];
  if (times > 1) parts.push(`${count(times)} times`);
  if (size) parts.push(`${bytes(size)} sent over ${over}`);
  if (line.kinds[kind] === "collective") parts.push(`${seconds(exposed)} exposed`);
  return [line.names[name], parts.join(", "), line.lines[place]];
}

function move(from, to) {
  const end = data.timeline.seconds || 1, least = end / 1e5;
  let span = Math.min(Math.max(to - from, least), end * 1.02);
  from = Math.max(-end * .01, Math.min(from, end * 1.01 - span));
  view.from = from; view.to = from + span;
  drawTimeline(); drawMemory();
}
function zoom(factor, x) {
  const width = timelineCanvas.clientWidth, at = tOf(x === undefined ? (width + left()) / 2 : x, width);
  move(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

function timeline() {
  const line = data.timeline;
  const tools = make("div", { class: "tools" },
    make("button", { onclick: () => zoom(.5), "aria-label": "zoom in" }, "+"), make("button", { onclick: () => zoom(2), "aria-label": "zoom out" }, "−"),
    make("button", { onclick: () => move(0, line.seconds) }, "whole step"),
    make("button", { onclick: saveTrace, title: "JSON for ui.perfetto.dev and chrome://tracing" }, "save trace"));
  const box = make("div", { class: "canvas" }, timelineCanvas);
  const kinds = Object.entries(KINDS).filter(([kind]) => line.kinds.includes(kind));
  const made = section("timeline", "Timeline", `${data.lines ? "measured" : "one device"}, ${seconds(line.seconds)}; wheel or pinch zooms, drag moves` +
    (line.left ? `; ${count(line.left)} shorter events are left out` : ""), box, detail,
    make("div", { class: "legend" }, kinds.map(([kind, name]) => make("span", {}, make("i", { style: { background: `var(--${kind})` } }), name))));
  made.firstChild.append(tools);
  const tip = make("div", { class: "tip", hidden: "" });
  box.append(tip);
  const pointers = new Map();
  let pinch = 0, moved = false;
  timelineCanvas.addEventListener("wheel", event => {
    const across = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!across && !event.ctrlKey && !event.shiftKey && document.activeElement !== timelineCanvas) return;
    event.preventDefault();
    const span = view.to - view.from;
    if (across) move(view.from + event.deltaX / 600 * span, view.to + event.deltaX / 600 * span);
    else zoom(Math.exp(event.deltaY / 300), event.offsetX);
  }, { passive: false });
  timelineCanvas.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, event); moved = false;
    timelineCanvas.setPointerCapture(event.pointerId); timelineCanvas.classList.add("drag");
  });
  timelineCanvas.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) {
      const found = event.pointerType === "mouse" ? eventAt(event.offsetX, event.offsetY) : null;
      tip.hidden = !found;
      if (found) {
        const [name, text, place] = eventText(found);
        tip.replaceChildren(make("b", {}, name), text, place.place ? make("div", {}, `${place.place} ${place.source}`) : "");
        tip.style.left = `${Math.min(event.offsetX + 12, timelineCanvas.clientWidth - tip.offsetWidth - 4)}px`;
        tip.style.top = `${event.offsetY + 16}px`;
      }
      return;
    }
    const span = view.to - view.from, room = timelineCanvas.clientWidth - left();
    if (pointers.size === 2) {
      pointers.set(event.pointerId, event);
      const [a, b] = [...pointers.values()], apart = Math.abs(a.offsetX - b.offsetX) || 1;
      if (pinch) zoom(pinch / apart, (a.offsetX + b.offsetX) / 2);
      pinch = apart; moved = true;
      return;
    }
    const by = (before.offsetX - event.offsetX) / room * span;
    if (Math.abs(before.offsetX - event.offsetX) > 2) { moved = true; pointers.set(event.pointerId, event); move(view.from + by, view.to + by); }
  });
  const up = event => {
    if (pointers.has(event.pointerId) && !moved) pick(eventAt(event.offsetX, event.offsetY));
    pointers.delete(event.pointerId); pinch = 0; timelineCanvas.classList.remove("drag");
  };
  timelineCanvas.addEventListener("pointerup", up);
  timelineCanvas.addEventListener("pointercancel", event => { pointers.delete(event.pointerId); pinch = 0; });
  timelineCanvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  timelineCanvas.addEventListener("dblclick", event => zoom(.25, event.offsetX));
  timelineCanvas.addEventListener("keydown", event => {
    const span = view.to - view.from, keys = { ArrowLeft: -.2, ArrowRight: .2 };
    if (event.key in keys) move(view.from + keys[event.key] * span, view.to + keys[event.key] * span);
    else if (event.key === "+" || event.key === "=") zoom(.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") move(0, line.seconds);
    else return;
    event.preventDefault();
  });
}
function pick(event) {
  view.picked = event;
  detail.replaceChildren();
  if (event) {
    const [name, text, place] = eventText(event);
    detail.append(make("b", {}, name), ` ${text}  `, lineOf(place));
  } else detail.textContent = "choose an event to see its line";
  drawTimeline();
}
function saveTrace() {
  const line = data.timeline;
  const events = line.tracks.flatMap((name, n) => [{ ph: "M", pid: 0, tid: n + 1, name: "thread_name", args: { name } },
    { ph: "M", pid: 0, tid: n + 1, name: "thread_sort_index", args: { sort_index: n + 1 } }]);
  events.unshift({ ph: "M", pid: 0, tid: 0, name: "process_name", args: { name: data.program } });
  for (const [track, start, duration, name, kind, place, times, size, exposed, over] of line.events)
    events.push({ ph: "X", pid: 0, tid: track + 1, name: line.names[name], cat: line.kinds[kind], ts: 1e6 * start, dur: 1e6 * duration,
      args: { line: line.lines[place].place, times, bytes: size, over, "exposed us": 1e6 * exposed } });
  for (const [t, held] of data.memory) events.push({ ph: "C", pid: 0, name: "memory", ts: 1e6 * t, args: { bytes: held } });
  const file = new Blob([JSON.stringify({ traceEvents: events, displayTimeUnit: "ms" })], { type: "application/json" });
  const link = make("a", { href: URL.createObjectURL(file), download: `${data.program}.trace.json` });
  link.click();
  URL.revokeObjectURL(link.href);
}

// Memory over time, on the timeline's axis

function drawMemory() {
  const height = 190, [pen, width] = prepared(memoryCanvas, height);
  pen.clearRect(0, 0, width, height);
  if (!data.memory.length) return;
  const limit = data.step.limit, most = data.memory.reduce((top, [, held]) => Math.max(top, held), 1);
  const shown = limit < 1.8 * most ? Math.max(limit, most) * 1.08 : most * 1.18;
  const yOf = held => height - 8 - held / shown * (height - 34);
  ticks(pen, width, height);
  pen.save(); pen.beginPath(); pen.rect(left(), 0, width - left(), height); pen.clip();
  pen.beginPath(); pen.moveTo(xOf(data.memory[0][0], width), height);
  let before = data.memory[0][1];
  for (const [t, held] of data.memory) { pen.lineTo(xOf(t, width), yOf(before)); pen.lineTo(xOf(t, width), yOf(held)); before = held; }
  pen.lineTo(xOf(data.timeline.seconds, width), yOf(before)); pen.lineTo(xOf(data.timeline.seconds, width), height); pen.closePath();
  pen.globalAlpha = .22; pen.fillStyle = css("memory"); pen.fill(); pen.globalAlpha = 1; pen.strokeStyle = css("memory"); pen.lineWidth = 1.6; pen.stroke();
  const peak = data.memory.reduce((top, point) => point[1] > top[1] ? point : top);
  pen.fillStyle = css("ink"); pen.beginPath(); pen.arc(xOf(peak[0], width), yOf(peak[1]), 3.5, 0, 7); pen.fill();
  if (limit < shown) {
    pen.strokeStyle = css("bad"); pen.setLineDash([5, 4]); pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(left(), yOf(limit)); pen.lineTo(width, yOf(limit)); pen.stroke(); pen.setLineDash([]);
  }
  pen.restore();
  pen.fillStyle = css("quiet"); pen.textAlign = "left";
  if (left()) { pen.fillText(bytes(most), 8, yOf(most)); pen.fillText("0", 8, height - 10); if (limit < shown && Math.abs(yOf(limit) - yOf(most)) > 14) pen.fillText(bytes(limit), 8, yOf(limit)); }
  const x = Math.min(xOf(peak[0], width) + 8, width - 120);
  if (peak[0] >= view.from && peak[0] <= view.to) { pen.fillStyle = css("ink"); pen.fillText(`${bytes(peak[1])} live`, x, yOf(peak[1]) - 9); }
}
function memory() {
  const held = Object.entries(data.step.held).filter(([, size]) => size > 0).map(([name, size]) => `${bytes(size)} ${name}`).join(", ");
  const most = data.peak.length ? data.peak[0].bytes * data.peak[0].times : 1;
  const rows = data.peak.map(row => make("tr", {}, make("td", { class: "n" }, row.times > 1 ? `${row.times} × ` : "", bytes(row.bytes)),
    make("td", { class: "wide", style: { width: "110px" } }, make("div", { class: "meter" }, make("i", { style: { width: `${100 * row.bytes * row.times / most}%` } }))),
    make("td", {}, make("span", { class: "quiet" }, `${row.kind} `), make("span", { class: "line" }, row.name)), make("td", { class: "mono" }, row.type),
    make("td", { class: "wide" }, row.kind === "argument" ? "" : lineOf(row))));
  const box = make("details", {}, make("summary", {}, make("b", {}, "What is held at the peak"),
    make("span", { class: "quiet" }, `the largest of ${plural(data.held, "value")}`)),
    make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, rows))));
  box.open = true;
  section("memory", "Memory", `${bytes(data.step.peak)} reserved of ${bytes(data.step.limit)} a device: ${held}`, make("div", { class: "canvas" }, memoryCanvas),
    data.peak.length ? box : null);
}

// Other machines

function whatif() {
  const here = data.whatif[0];
  const rows = data.whatif.map((row, n) => {
    const faster = here.seconds / row.seconds, full = row.peak / row.limit;
    return make("tr", { class: n ? "" : "here" }, make("td", {}, make("b", {}, row.machine.name), make("div", { class: "quiet wide" }, row.machine.about)),
      make("td", { class: "n" }, seconds(row.seconds)), make("td", { class: "n" }, n ? `${three(faster)}×` : "this one"),
      make("td", { class: "n" }, row.mfu === null ? "" : percent(row.mfu)), make("td", { class: "n" }, row.tokens ? count(row.tokens) : ""),
      make("td", { class: "n" }, seconds(row.parts["collectives exposed"] || 0)),
      make("td", {}, make("div", { class: "meter", title: `${bytes(row.peak)} of ${bytes(row.limit)}` },
        make("i", { class: row.fits ? "" : "over", style: { width: `${Math.min(100, 100 * full)}%` } })),
        make("span", { class: row.fits ? "quiet" : "bad" }, row.fits ? percent(full) : "does not fit")));
  });
  const heads = [["machine"], ["step", "n"], ["speed", "n"], ["MFU", "n"], [data.step.tokens ? "tokens/s" : "", "n"], ["exposed", "n"], ["memory"]];
  section("whatif", "What if", "the same program, optimized for other machines with as many devices", make("div", { class: "scroll" },
    make("table", {}, make("thead", {}, make("tr", {}, heads.map(([text, tone]) => make("th", { class: tone || "" }, text)))), make("tbody", {}, rows))));
}

function redraw() { drawTimeline(); drawMemory(); }
header();
if (data.lines) { lines(); timeline(); }
else { figures(); meshSection(); layers(); collectives(); timeline(); memory(); whatif(); }
root.append(make("footer", {}, data.lines ? "written by weft profile" : `written by weft; times are predicted by simulation for ${data.machine.name}`));
pick(null);
move(0, data.timeline.seconds || 1);
if (!data.lines) showLargest();
function showLargest() {
  const largest = cards.filter(([row]) => row.pieces.some(n => n > 1)).sort((a, b) => b[0].bytes - a[0].bytes)[0] || cards[0];
  if (largest) choose(...largest); else drawMesh();
}
new ResizeObserver(redraw).observe(root);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.documentElement.dataset.ready = "yes";
