// Charts: drawn as SVG for the width that they have, and again when it changes.
const drawn = new Map();
const redraw = (figure) => {
  const { draw } = drawn.get(figure);
  drawn.set(figure, { draw, width: figure.clientWidth });
  figure.innerHTML = draw(Math.max(260, figure.clientWidth));
};
const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
  const known = drawn.get(target);
  if (known && Math.abs(known.width - target.clientWidth) > 2) redraw(target);
}));
const chart = (figure, draw) => { drawn.set(figure, { draw, width: 0 }); redraw(figure); watch.observe(figure); };
const clearCharts = (host) => { $$("figure", host).forEach((old) => { watch.unobserve(old); drawn.delete(old); }); host.innerHTML = ""; };
// On paper everything is open, and charts are drawn for the width of a page.
const PAPER_WIDTH = 720; // A4 without its margins, and the padding that paper has not
const opened = new Set();
const redrawAll = () => [...drawn.keys()].forEach(redraw);
addEventListener("beforeprint", () => {
  $$("details:not([open])").forEach((one) => { opened.add(one); one.open = true; });
  document.documentElement.style.width = `${PAPER_WIDTH}px`;
  redrawAll();
});
addEventListener("afterprint", () => {
  opened.forEach((one) => { one.open = false; });
  opened.clear();
  document.documentElement.style.width = "";
  redrawAll();
});
const addChart = (host, draw) => { const figure = document.createElement("figure"); host.append(figure); chart(figure, draw); };

const ticks = (low, high, count) => {
  const raw = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
};
const range = (values, { least = -Infinity, most = Infinity, pad = 0.08, span = 0 }) => {
  let low = Math.min(...values), high = Math.max(...values);
  if (high - low < span) { const middle = (low + high) / 2; low = middle - span / 2; high = middle + span / 2; }
  const more = (high - low || 1) * pad;
  return [Math.max(low - more, least), Math.min(high + more, most)];
};
const tickText = (value) => (Math.abs(value) >= 1000 ? value.toLocaleString("en") : String(+value.toPrecision(4)).replace("-", "−"));
const textWidth = (text) => text.length * 6.6 + 4;
const svgOpen = (width, height, label) => `<svg role="img" aria-label="${escape(label)}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">`;

// Axes with their grid and labels; gives the scales back.
const frame = (width, { xs, ys, xLabel, yLabel, title = "", label, right = 14, height = Math.min(430, Math.max(240, width * 0.62)) }) => {
  const left = yLabel ? 50 : 36, top = title ? 30 : 12, bottom = 44;
  const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
  const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (height - bottom - top);
  const parts = [svgOpen(width, height, label)];
  for (const t of ticks(...ys, height / 60)) parts.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${y(t)}" y2="${y(t)}"/><text class="tick" x="${left - 6}" y="${y(t) + 4}" text-anchor="end">${tickText(t)}</text>`);
  for (const t of ticks(...xs, (width - left - right) / 60)) parts.push(`<line class="grid" x1="${x(t)}" x2="${x(t)}" y1="${top}" y2="${height - bottom}"/><text class="tick" x="${x(t)}" y="${height - bottom + 16}" text-anchor="middle">${tickText(t)}</text>`);
  parts.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>`);
  if (title) parts.push(`<text class="title" x="${left}" y="16">${escape(title)}</text>`);
  parts.push(`<text x="${(left + width - right) / 2}" y="${height - 8}" text-anchor="middle">${escape(xLabel)}</text>`);
  if (yLabel) parts.push(`<text transform="translate(13 ${(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">${escape(yLabel)}</text>`);
  return { x, y, parts, left, top, right: width - right, bottom: height - bottom };
};

// Labels beside their points, where they hide least; a thin line leads to those that are far.
const placeLabels = (points, box) => {
  const taken = points.map((p) => [p.px - 6, p.py - 6, p.px + 6, p.py + 6]);
  const overlap = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
  const crowd = (p) => points.reduce((sum, q) => sum + 1 / (20 + Math.hypot(p.px - q.px, p.py - q.py)), 0);
  const order = points.filter((p) => p.label).sort((a, b) => crowd(b) - crowd(a));
  return order.map((p) => {
    const w = textWidth(p.label), h = 14;
    const tried = [];
    for (const reach of [9, 16, 26, 38, 52]) for (const angle of [0, 180, 270, 90, 315, 45, 225, 135]) {
      const c = Math.cos((angle * Math.PI) / 180), s = Math.sin((angle * Math.PI) / 180);
      const cx = p.px + c * (reach + w / 2), cy = p.py + s * (reach + h / 2);
      const at = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2];
      const outside = Math.max(0, box.left - at[0]) + Math.max(0, at[2] - box.right) + Math.max(0, box.top - at[1]) + Math.max(0, at[3] - box.bottom);
      const near = [Math.min(Math.max(p.px, at[0]), at[2]), Math.min(Math.max(p.py, at[1]), at[3])];
      tried.push({ at, near, cost: taken.reduce((sum, other) => sum + overlap(at, other), 0) + 60 * outside + reach });
    }
    const best = tried.reduce((a, b) => (b.cost < a.cost ? b : a));
    taken.push(best.at);
    const far = Math.hypot(best.near[0] - p.px, best.near[1] - p.py) > 12;
    return `${far ? `<line x1="${p.px}" y1="${p.py}" x2="${best.near[0]}" y2="${best.near[1]}" stroke="${p.colour}" stroke-width=".7"/>` : ""}<text class="halo" x="${best.at[0] + 2}" y="${best.at[1] + 11}">${escape(p.label)}</text>`;
  }).join("");
};

// Where the axis ends if a few points far below would press all others together; they then stand on it.
const floorOf = (values) => {
  const order = [...values].sort((a, b) => a - b);
  for (let k = 0; k + 3 < order.length; k++) {
    const span = Math.max(order[order.length - 1] - order[k + 1], 1);
    if (order[k + 1] - order[k] > span) return Math.max(0, order[k + 1] - 0.2 * span);
  }
  return null;
};

// Points with labels and error bars; lines between some of them.
const scatter = (width, { points, lines = [], xLabel, yLabel, label }) => {
  const all = [...points, ...lines.flatMap((line) => line.points)];
  const floor = floorOf(all.map((p) => p.y));
  const low = (p) => floor !== null && p.y < floor;
  const reach = (p, bars) => [p, ...(bars || [])];
  const ys = range(all.filter((p) => !low(p)).flatMap((p) => reach(p.y, p.dy)), { least: 0, most: 100, span: 4 });
  if (floor !== null) ys[0] = floor;
  const xs = range(all.flatMap((p) => reach(p.x, p.dx)), { least: 0, most: 100, span: 4 });
  const shown = points.map((p) => (low(p) ? { ...p, y: floor, dy: null, low: true, label: p.label && `${p.label} ${fixed(p.y)} ▾` } : p));
  const f = frame(width, { xs, ys, xLabel, yLabel, label });
  const inX = (v) => Math.min(f.right, Math.max(f.left, f.x(v))), inY = (v) => Math.min(f.bottom, Math.max(f.top, f.y(v)));
  for (const line of lines) {
    const path = line.points.map((p) => `${f.x(p.x)},${inY(p.y)}`).join(" ");
    f.parts.push(`<polyline fill="none" stroke="${line.colour}" stroke-width="2" stroke-dasharray="${line.dash || ""}" points="${path}"/>`);
    for (const p of line.points) f.parts.push(`<circle cx="${f.x(p.x)}" cy="${inY(p.y)}" r="3" fill="var(--paper)" stroke="${line.colour}"><title>${escape(p.title || "")}</title></circle>`);
  }
  const placed = shown.map((p) => ({ ...p, px: f.x(p.x), py: f.y(p.y) - (p.low ? 5 : 0) }));
  for (const p of placed) {
    const bars = [];
    if (p.dx) bars.push(`M${inX(p.dx[0])} ${p.py}H${inX(p.dx[1])}`);
    if (p.dy) bars.push(`M${p.px} ${inY(p.dy[0])}V${inY(p.dy[1])}`);
    if (bars.length) f.parts.push(`<path class="error" d="${bars.join("")}" stroke="${p.colour}" fill="none"/>`);
    const look = `fill="${p.hollow ? "var(--paper)" : p.colour}" stroke="${p.colour}" stroke-width="1.5"`;
    const tip = `<title>${escape(p.title || p.label)}</title>`;
    f.parts.push(p.low ? `<path d="M${p.px - 6} ${p.py - 5}h12l-6 10z" ${look}>${tip}</path>` : `<circle cx="${p.px}" cy="${p.py}" r="${p.r || 5.5}" ${look}>${tip}</circle>`);
  }
  f.parts.push(placeLabels(placed, f), "</svg>");
  return f.parts.join("");
};

const legend = (series) => `<div class="legend">${series.map((s) => `<span><svg class="key" width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" stroke="${s.colour}" stroke-width="2.5" stroke-dasharray="${s.dash || ""}"/></svg>${escape(s.name)}</span>`).join("")}</div>`;

// Lines with their names at their ends, or in a legend below where there is no room for them.
const lineChart = (width, { series, marks = [], verticals = [], chords = [], xLabel, yLabel = "", title = "", label, zero = false, steps = false, xRange, along = false }) => {
  const flat = series.flatMap((s) => s.points);
  const wide = Math.max(...series.map((s) => textWidth(s.name))) + 8;
  const beside = !along && wide <= 0.33 * width && series.length <= 8;
  const percent = `${title} ${yLabel}`.includes("%");
  const ys = range(flat.map((p) => p[1]), { pad: verticals.length ? 0.16 : 0.06, most: percent ? (verticals.length ? 112 : 100) : Infinity, least: percent || zero ? 0 : -Infinity });
  if (zero) ys[0] = 0;
  const f = frame(width, { xs: xRange || range(flat.map((p) => p[0]), { pad: 0.01 }), ys, xLabel, yLabel, title, label, right: beside && series.length > 1 ? wide : 16 });
  for (const m of marks) f.parts.push(`<line x1="${f.x(m)}" x2="${f.x(m)}" y1="${f.top}" y2="${f.bottom}" class="mark"><title>redistribution after epoch ${m}</title></line>`);
  for (const [at, words] of verticals) f.parts.push(`<line x1="${f.x(at)}" x2="${f.x(at)}" y1="${f.top}" y2="${f.bottom}" class="mark"/><text class="tick halo" x="${f.x(at) - 4}" y="${f.top + 11}" text-anchor="end">${escape(words)}</text>`);
  for (const c of chords) f.parts.push(`<line x1="${f.x(c.from[0])}" y1="${f.y(c.from[1])}" x2="${f.x(c.to[0])}" y2="${f.y(c.to[1])}" stroke="${c.colour}" class="chord"/>`);
  for (const s of series) {
    const path = s.points.map(([a, b], k) => (k === 0 ? `M${f.x(a)} ${f.y(b)}` : steps ? `H${f.x(a)}V${f.y(b)}` : `L${f.x(a)} ${f.y(b)}`)).join("");
    f.parts.push(`<path d="${path}" fill="none" stroke="${s.colour}" stroke-width="2" stroke-dasharray="${s.dash || ""}"><title>${escape(s.name)}</title></path>`);
    if (s.points.length === 1 || s.dots) for (const [a, b] of s.points) f.parts.push(`<circle cx="${f.x(a)}" cy="${f.y(b)}" r="3" fill="${s.colour}"/>`);
  }
  if (along && series.length > 1) f.parts.push(labelsAlong(series, f));
  else if (beside && series.length > 1) f.parts.push(labelsAtEnds(series, f));
  f.parts.push("</svg>");
  if (!along && !beside && series.length > 1) f.parts.push(legend(series));
  return f.parts.join("");
};
const labelsAtEnds = (series, f) => {
  const ends = series.map((s) => ({ name: s.name, colour: s.colour, y: f.y(s.points[s.points.length - 1][1]) })).sort((a, b) => a.y - b.y);
  for (let round = 0; round < 60; round++) {
    for (let i = 1; i < ends.length; i++) {
      const short = 14 - (ends[i].y - ends[i - 1].y);
      if (short > 0) { ends[i - 1].y -= short / 2; ends[i].y += short / 2; }
    }
    ends[0].y = Math.max(ends[0].y, f.top + 2);
    ends[ends.length - 1].y = Math.min(ends[ends.length - 1].y, f.bottom - 2);
  }
  return ends.map((e) => `<text class="halo" x="${f.right + 6}" y="${e.y + 4}" style="fill:${e.colour}">${escape(e.name)}</text>`).join("");
};
// Beside falling lines, each at a height of its own.
const labelsAlong = (series, f) => {
  const area = (s) => s.points.reduce((sum, p, k) => (k ? sum + (p[0] - s.points[k - 1][0]) * s.points[k - 1][1] : 0), 0);
  return [...series].sort((a, b) => area(a) - area(b)).map((s, k) => {
    const height = Math.min(18 + (64 * (k + 0.5)) / series.length, 0.92 * s.points[0][1]);
    const at = f.x((s.points.find((p) => p[1] <= height) || s.points[s.points.length - 1])[0]);
    const w = textWidth(s.name), left = at + 6 + w > f.right ? Math.max(f.left + 2, at - 6 - w) : at + 6;
    return `<text class="halo" x="${left}" y="${f.y(height) + 4}" style="fill:${s.colour}">${escape(s.name)}</text>`;
  }).join("");
};

// Values on a regular lattice of mixtures of three: a tile for each; those of the three have an edge, those beyond are small.
const CORNERS = [[0, 0], [1, 0], [0.5, Math.sqrt(3) / 2]];
const tiles = (width, { names, cells, title, unit, digits, better, label }) => {
  const spots = cells.map((cell) => [0, 1].map((axis) => names.reduce((sum, n, k) => sum + cell.weights[n] * CORNERS[k][axis], 0)));
  const steps = spots.flatMap((a, i) => spots.slice(i + 1).map((b) => Math.hypot(a[0] - b[0], a[1] - b[1])));
  const step = Math.min(...steps.filter((d) => d > 1e-6));
  const xs = range(spots.map((s) => s[0]), { pad: 0 }), ys = range(spots.map((s) => s[1]), { pad: 0 });
  const room = Math.min(width, 460);
  const scale = Math.min((room - 70) / (xs[1] - xs[0] + step), 330 / (ys[1] - ys[0] + 1.2 * step));
  const top = 46, radius = (step / Math.sqrt(3)) * scale;
  const X = (v) => width / 2 + (v - (xs[0] + xs[1]) / 2) * scale, Y = (v) => top + radius + (ys[1] - v) * scale;
  const height = Y(ys[0]) + radius + 26;
  const values = cells.map((cell) => cell.value), least = Math.min(...values), most = Math.max(...values);
  const hexagon = (cx, cy, r) => [30, 90, 150, 210, 270, 330].map((a) => `${(cx + r * Math.cos((a * Math.PI) / 180)).toFixed(1)},${(cy + r * Math.sin((a * Math.PI) / 180)).toFixed(1)}`).join(" ");
  const parts = [svgOpen(width, height, label), `<text class="title" x="${width / 2}" y="16" text-anchor="middle">${escape(title)}</text>`];
  cells.forEach((cell, k) => {
    const share = most > least ? (cell.value - least) / (most - least) : 0.5;
    const [cx, cy] = [X(spots[k][0]), Y(spots[k][1])];
    const good = better === "high" ? share : 1 - share;
    const beyond = names.some((n) => cell.weights[n] < 0);
    const r = radius * (beyond ? 0.86 : cell.end ? 0.93 : 0.97);
    parts.push(`<polygon points="${hexagon(cx, cy, r)}" fill="color-mix(in oklab, var(--tile) ${Math.round(8 + 80 * good)}%, var(--paper))"${cell.end ? ' stroke="var(--ink)" stroke-width="2"' : ""}><title>${escape(cell.name)}: ${fixed(cell.value, digits)} ${unit}</title></polygon>`);
    if (radius > 15) parts.push(`<text x="${cx}" y="${cy + 4}" text-anchor="middle" style="font-size:${radius > 19 ? 11.5 : 10}px">${fixed(cell.value, digits)}</text>`);
  });
  names.forEach((n, k) => parts.push(`<text class="halo" x="${X(CORNERS[k][0])}" y="${k === 2 ? Y(ys[1]) - radius - 5 : Y(ys[0]) + radius + 16}" text-anchor="middle">${escape(n)}</text>`));
  return parts.join("") + "</svg>";
};
