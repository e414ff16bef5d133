"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
  const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
  const colour = (i) => `var(--c${i % 8})`;
  const dashes = ["", "6 3", "2 2", "8 3 2 3"];
  const fixed = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));

  // Theme: as the system, or as the reader says.
  const themes = ["system", "light", "dark"];
  const theme = $("#theme");
  const setTheme = (name) => {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    theme.textContent = name === "system" ? "theme: as the system" : `theme: ${name}`;
    theme.dataset.now = name;
    try { localStorage.setItem("generalist-theme", name); } catch { /* a file may not remember anything */ }
  };
  let remembered = "system";
  try { remembered = localStorage.getItem("generalist-theme") || "system"; } catch { /* the same */ }
  setTheme(themes.includes(remembered) ? remembered : "system");
  theme.addEventListener("click", () => setTheme(themes[(themes.indexOf(theme.dataset.now) + 1) % 3]));

  // Tables that sort by the column whose head is pressed.
  const valueOf = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const makeSortable = (table) => $$("thead th", table).forEach((head, column) => $("button", head)?.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") !== "descending" && column > 0 || head.getAttribute("aria-sort") === "ascending";
    $$("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = $("tbody", table);
    const rows = [...body.rows].map((row, place) => [valueOf(row.cells[column]), place, row]);
    const order = (a, b) => {
      const numbers = typeof a[0] === "number" && typeof b[0] === "number";
      if (!numbers && typeof a[0] !== typeof b[0]) return typeof a[0] === "number" ? -1 : 1;
      const by = numbers ? a[0] - b[0] : String(a[0]).localeCompare(String(b[0]));
      return (down ? -by : by) || a[1] - b[1];
    };
    rows.sort(order).forEach(([, , row]) => body.append(row));
  }));
  $$("table.sortable").forEach(makeSortable);

  // Charts: drawn for the width that they have, and again when it changes.
  const drawn = new Map();
  const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const known = drawn.get(target);
    if (known && Math.abs(known.width - target.clientWidth) > 2) redraw(target);
  }));
  const redraw = (figure) => {
    const { draw } = drawn.get(figure);
    drawn.set(figure, { draw, width: figure.clientWidth });
    figure.innerHTML = draw(Math.max(240, figure.clientWidth));
  };
  const chart = (figure, draw) => { drawn.set(figure, { draw, width: 0 }); redraw(figure); watch.observe(figure); };

  const ticks = (low, high, count) => {
    const raw = (high - low) / count || 1;
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
    return found;
  };
  const range = (values, { least, most, pad = 0.08, span = 0 }) => {
    let low = Math.min(...values), high = Math.max(...values);
    if (high - low < span) { const middle = (low + high) / 2; low = middle - span / 2; high = middle + span / 2; }
    const more = (high - low || 1) * pad;
    return [Math.max(low - more, least ?? -Infinity), Math.min(high + more, most ?? Infinity)];
  };
  const shown = (value) => (Math.abs(value) >= 1000 ? value.toLocaleString("en") : String(+value.toPrecision(4)));

  // Axes with their grid and labels; gives the scales back.
  const frame = (width, { xs, ys, xLabel, yLabel, label, height = Math.min(420, Math.max(230, width * 0.62)), right = 14 }) => {
    const left = 52, top = 10, bottom = 44;
    const x = (v) => left + ((v - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
    const y = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (height - bottom - top);
    const parts = [`<svg role="img" aria-label="${escape(label)}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">`];
    for (const t of ticks(...ys, height / 60)) parts.push(`<line class="grid" x1="${left}" x2="${width - right}" y1="${y(t)}" y2="${y(t)}"/><text class="tick" x="${left - 6}" y="${y(t) + 4}" text-anchor="end">${shown(t)}</text>`);
    for (const t of ticks(...xs, width / 90)) parts.push(`<line class="grid" x1="${x(t)}" x2="${x(t)}" y1="${top}" y2="${height - bottom}"/><text class="tick" x="${x(t)}" y="${height - bottom + 15}" text-anchor="middle">${shown(t)}</text>`);
    parts.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>`);
    parts.push(`<text x="${(left + width - right) / 2}" y="${height - 8}" text-anchor="middle">${escape(xLabel)}</text>`);
    parts.push(`<text transform="translate(13 ${(top + height - bottom) / 2}) rotate(-90)" text-anchor="middle">${escape(yLabel)}</text>`);
    return { x, y, parts, left, top, right: width - right, bottom: height - bottom };
  };

  // Labels beside their points, where they hide least.
  const placeLabels = (points, box) => {
    const taken = points.map((p) => [p.px - 5, p.py - 5, p.px + 5, p.py + 5]);
    const overlap = (a, b) => Math.max(0, Math.min(a[2], b[2]) - Math.max(a[0], b[0])) * Math.max(0, Math.min(a[3], b[3]) - Math.max(a[1], b[1]));
    return points.filter((p) => p.label).map((p) => {
      const w = p.label.length * 6.4 + 4, h = 14;
      const spots = [[9, -7], [-9 - w, -7], [-w / 2, -21], [-w / 2, 8], [8, -20], [8, 7], [-8 - w, -20], [-8 - w, 7], [10, -34], [10, 21], [-w / 2, -35], [-w / 2, 22]];
      const tried = spots.map(([dx, dy], i) => {
        const at = [p.px + dx, p.py + dy, p.px + dx + w, p.py + dy + h];
        const outside = Math.max(0, box.left - at[0]) + Math.max(0, at[2] - box.right) + Math.max(0, box.top - at[1]) + Math.max(0, at[3] - box.bottom);
        return { at, cost: taken.reduce((sum, other) => sum + overlap(at, other), 0) + 60 * outside + i };
      });
      const { at } = tried.reduce((a, b) => (b.cost < a.cost ? b : a));
      taken.push(at);
      return `<text class="halo" x="${at[0] + 2}" y="${at[1] + 11}">${escape(p.label)}</text>`;
    }).join("");
  };

  // Where the axis ends if a few points far below would press all others together; they then stand on it.
  const floorOf = (values) => {
    const order = [...values].sort((a, b) => a - b);
    for (let k = 0; k + 3 < order.length; k++) {
      const span = Math.max(order[order.length - 1] - order[k + 1], 1);
      if (order[k + 1] - order[k] > span) return order[k + 1] - 0.2 * span;
    }
    return null;
  };

  const scatter = (width, { points, lines = [], xLabel, yLabel, label }) => {
    const all = [...points, ...lines.flatMap((line) => line.points)];
    const floor = floorOf(all.map((p) => p.y));
    const low = (p) => floor !== null && p.y < floor;
    const ys = range(all.filter((p) => !low(p)).map((p) => p.y), { least: 0, most: 100.5, span: 4 });
    if (floor !== null) ys[0] = floor;
    points = points.map((p) => (low(p) ? { ...p, y: floor, dy: null, hollow: true, label: p.label && `${p.label} ▾ ${fixed(p.y)}` } : p));
    const f = frame(width, { xs: range(all.map((p) => p.x), { least: 0, most: 100.5, span: 4 }), ys, xLabel, yLabel, label });
    const inX = (v) => Math.min(f.right, Math.max(f.left, f.x(v))), inY = (v) => Math.min(f.bottom, Math.max(f.top, f.y(v)));
    for (const line of lines) {
      f.parts.push(`<polyline fill="none" stroke="${line.colour}" stroke-width="2" stroke-dasharray="${line.dash || ""}" points="${line.points.map((p) => `${f.x(p.x)},${f.y(p.y)}`).join(" ")}"/>`);
      for (const p of line.points) f.parts.push(`<circle cx="${f.x(p.x)}" cy="${f.y(p.y)}" r="3" fill="var(--paper)" stroke="${line.colour}"><title>${escape(p.title || "")}</title></circle>`);
    }
    const placed = points.map((p) => ({ ...p, px: f.x(p.x), py: f.y(p.y) }));
    for (const p of placed) {
      const bars = [];
      if (p.dx) bars.push(`M${inX(p.dx[0])} ${p.py}H${inX(p.dx[1])}`);
      if (p.dy) bars.push(`M${p.px} ${inY(p.dy[0])}V${inY(p.dy[1])}`);
      if (bars.length) f.parts.push(`<path d="${bars.join("")}" stroke="${p.colour}" stroke-width="1" opacity=".55" fill="none"/>`);
      f.parts.push(`<circle cx="${p.px}" cy="${p.py}" r="${p.r || 5.5}" fill="${p.hollow ? "var(--paper)" : p.colour}" stroke="${p.colour}" stroke-width="1.5"><title>${escape(p.title || p.label)}</title></circle>`);
    }
    f.parts.push(placeLabels(placed, f), "</svg>");
    return f.parts.join("");
  };

  // Lines with their names at their ends.
  const lineChart = (width, { series, marks = [], xLabel, yLabel, label, zero = false, steps = false, xRange }) => {
    const flat = series.flatMap((s) => s.points);
    const names = Math.min(130, Math.max(...series.map((s) => s.name.length)) * 6.6 + 12);
    const ys = range(flat.map((p) => p[1]), { least: zero ? 0 : undefined, pad: 0.06 });
    if (zero) ys[0] = 0;
    const f = frame(width, { xs: xRange || range(flat.map((p) => p[0]), { pad: 0.01 }), ys, xLabel, yLabel, label, right: names });
    for (const m of marks) f.parts.push(`<line x1="${f.x(m)}" x2="${f.x(m)}" y1="${f.top}" y2="${f.bottom}" stroke="var(--muted)" stroke-dasharray="1 3"><title>redistribution after epoch ${m}</title></line>`);
    const ends = [];
    series.forEach((s, i) => {
      const path = s.points.map(([a, b], k) => `${k ? (steps ? `H${f.x(a)}V` : "L" + f.x(a) + " ") : "M" + f.x(a) + " "}${f.y(b)}`).join("");
      f.parts.push(`<path d="${path}" fill="none" stroke="${s.colour}" stroke-width="2" stroke-dasharray="${s.dash || ""}"><title>${escape(s.name)}</title></path>`);
      if (s.points.length === 1) f.parts.push(`<circle cx="${f.x(s.points[0][0])}" cy="${f.y(s.points[0][1])}" r="3.5" fill="${s.colour}"/>`);
      const last = s.points[s.points.length - 1];
      ends.push({ name: s.name, colour: s.colour, x: f.x(last[0]), y: f.y(last[1]) });
    });
    ends.sort((a, b) => a.y - b.y);
    for (let round = 0; round < 40; round++) for (let i = 1; i < ends.length; i++) {
      const short = 13 - (ends[i].y - ends[i - 1].y);
      if (short > 0) { ends[i - 1].y -= short / 2; ends[i].y += short / 2; }
    }
    for (const e of ends) f.parts.push(`<text class="halo" x="${f.right + 6}" y="${e.y + 4}" style="fill:${e.colour}">${escape(e.name)}</text>`);
    f.parts.push("</svg>");
    return f.parts.join("");
  };

  // The trade-off plane.
  const valueAt = (point, name) => (name === "natural" ? point.natural : name === "mean over norms" ? point.mean : name === "true union" ? point.union : Object.entries(point.robust).find(([threat]) => name === threat || name.endsWith(" " + threat))?.[1]);
  const plane = (group, name) => (width) => {
    const spread = (row, column) => row.interval[column];
    const several = new Set(group.seeds.flatMap((s) => s.runs));
    const points = group.rows.filter((row) => name in row.values).map((row) => ({
      x: row.values.natural, y: row.values[name], label: several.has(row.name) ? "" : row.name, r: several.has(row.name) ? 3 : 5.5,
      dx: several.has(row.name) ? null : spread(row, "natural"), dy: several.has(row.name) ? null : spread(row, name),
      colour: row.ours ? "var(--ours)" : "var(--others)", title: `${row.name}: natural ${fixed(row.values.natural, 2)}, ${name} ${fixed(row.values[name], 2)}`,
    }));
    for (const s of group.seeds) if (name in s.mean) points.push({
      x: s.mean.natural, y: s.mean[name], label: s.name, colour: s.ours ? "var(--ours)" : "var(--others)",
      dx: [s.mean.natural - s.sd.natural, s.mean.natural + s.sd.natural], dy: [s.mean[name] - s.sd[name], s.mean[name] + s.sd[name]],
      title: `${s.name}, mean of ${s.runs.length} seeds: natural ${fixed(s.mean.natural)} ± ${fixed(s.sd.natural)}, ${name} ${fixed(s.mean[name])} ± ${fixed(s.sd[name])}`,
    });
    for (const row of [...group.rows, ...group.paper_rows]) if ("natural" in row.paper && name in row.paper) points.push({
      x: row.paper.natural, y: row.paper[name], label: `${row.name} (paper)`, colour: "var(--theirs)", hollow: true, r: 4.5,
    });
    const lines = [];
    page.dials.forEach((dial) => {
      const front = dial.points.filter((p) => p.on_front && valueAt(p, name) !== undefined)
        .map((p) => ({ x: p.natural, y: valueAt(p, name), title: `${mixture(dial, p)}: natural ${fixed(p.natural)}, ${name} ${fixed(valueAt(p, name))} (validation)` }));
      const upper = front.filter((p) => !front.some((q) => q.x >= p.x && q.y >= p.y && (q.x > p.x || q.y > p.y))).sort((a, b) => a.x - b.x);
      if (upper.length) {
        lines.push({ points: upper, colour: "var(--dial)", dash: "5 3" });
        const tip = upper[Math.floor(upper.length / 2)];
        points.push({ x: tip.x, y: tip.y, r: 3.5, hollow: true, colour: "var(--dial)", label: `dial of ${dial.name} (validation)` });
      }
    });
    const label = group.columns.find((c) => c.name === name)?.label || name;
    return scatter(width, { points, lines, xLabel: "natural accuracy (%)", yLabel: `${label} (%)`, label: `Natural against robust accuracy of ${group.rows.length} runs: ${group.rows.map((r) => `${r.name} ${fixed(r.values.natural)} and ${fixed(r.values[name])}`).join("; ")}` });
  };
  const mixture = (dial, point) => dial.endpoints.filter((e) => point.weights[e] !== 0).map((e) => `${+point.weights[e].toFixed(3)} ${e}`).join(" + ").replace(/\+ -/g, "− ") + (point.modules ? ", by module" : "");
  $$('[data-chart="plane"]').forEach((figure) => {
    const group = page.groups[figure.dataset.of];
    const select = $(`[data-plane="${figure.dataset.of}"]`);
    chart(figure, (width) => plane(group, select.value)(width));
    select.addEventListener("change", () => redraw(figure));
  });

  // The dial.
  $$(".dial").forEach((box) => {
    const dial = page.dials[box.dataset.dial];
    const slider = $('input[type="range"]', box), order = $(".order", box), all = $(".all", box), figure = $('[data-chart="front"]', box);
    const threats = Object.entries(dial.threats);
    const measures = [["natural", "natural"], ...threats];
    let places = [], current = dial.chosen ?? dial.points.findIndex((p) => p.on_front);
    const arrange = () => {
      const by = (p) => (order.value === "natural" ? p.natural : p.robust[order.value]);
      places = dial.points.filter((p) => all.checked || p.on_front || p.place === current).sort((a, b) => by(a) - by(b) || a.place - b.place).map((p) => p.place);
      slider.max = places.length - 1;
      slider.value = Math.max(0, places.indexOf(current));
    };
    const show = () => {
      const point = dial.points[current];
      const total = dial.endpoints.reduce((sum, e) => sum + Math.abs(point.weights[e]), 0);
      $(".weights", box).innerHTML = dial.endpoints.map((e, i) => `<i style="width:${(100 * Math.abs(point.weights[e])) / total}%;background:${colour(i)};opacity:${point.weights[e] < 0 ? 0.35 : 1}"></i>`).join("");
      $(".mixture", box).innerHTML = dial.endpoints.map((e, i) => `<span><i style="background:${colour(i)}"></i>${escape(e)} ${+point.weights[e].toFixed(3)}</span>`).join("");
      const figures = [["natural", point.natural], ...threats.map(([t, name]) => [name, point.robust[t]])];
      if (threats.length > 1) figures.push(["mean over norms", point.mean], ["true union", point.union]);
      $(".figures", box).innerHTML = figures.map(([name, value]) => `<div class="figure"><b>${fixed(value)} %</b><span>${escape(name)}</span></div>`).join("");
      const text = `${mixture(dial, point)}${point.endpoint ? ", a learner as it was trained" : ""}${point.on_front ? "" : ", dominated by another mixture"}. ${dial.images} validation images, ${dial.attack}.`;
      $(".what", box).textContent = text;
      slider.setAttribute("aria-valuetext", `${mixture(dial, point)}: ${figures.map(([n, v]) => `${n} ${fixed(v)} percent`).join(", ")}`);
      $(".classbars", box).innerHTML = dial.classes.map((name, k) => {
        const rows = measures.map(([m], i) => `<i style="width:${point.by_class[m][k] ?? 0}%;background:${colour(i)}" title="${fixed(point.by_class[m][k])} %"></i>`).join("");
        return `<span>${escape(name)}</span><div class="rows" role="img" aria-label="${escape(name)}: ${measures.map(([m, label]) => `${label} ${fixed(point.by_class[m][k])} percent`).join(", ")}">${rows}</div>`;
      }).join("");
      $(".classes", box).innerHTML = measures.map(([, name], i) => `<span><i style="background:${colour(i)}"></i>${escape(name)}</span>`).join("");
      $(".pictures", box).innerHTML = dial.pictures.map((source, k) => {
        const label = dial.labels[k], said = point.said[k];
        const cell = (src, m, name) => {
          const [what, sure] = said[m], right = what === label;
          return `<div class="cell"><img src="${src}" alt="${escape(dial.classes[label])}, ${escape(name)}: taken for ${escape(dial.classes[what])}"><span class="muted">${escape(name)}</span><br><span class="${right ? "right" : "wrong"}">${right ? "✓" : "✗"} ${escape(dial.classes[what])} ${Math.round(100 * sure)} %</span></div>`;
        };
        return `<div class="picture"><strong>${escape(dial.classes[label])}</strong><div class="row">${cell(source, "natural", "unattacked")}${threats.map(([t, name]) => cell(point.attacked[k][t], t, name)).join("")}</div></div>`;
      }).join("");
      $(".python", box).textContent = `import generalist\n\ndial = ${dial.python}\nmodel = dial.model(dial.points[${point.place}])  # ${mixture(dial, point)}\ndial.export("chosen", dial.points[${point.place}])  # a run of its own; the test split is attacked once`;
      if (drawn.has(figure)) redraw(figure);
    };
    const robust = () => (order.value === "natural" ? threats[0][0] : order.value);
    chart(figure, (width) => {
      const name = robust();
      const points = dial.points.map((p) => ({ x: p.natural, y: p.robust[name], colour: "var(--dial)", hollow: !p.on_front, r: p.on_front ? 4 : 3, label: p.endpoint || "", title: mixture(dial, p) }));
      dial.beside.forEach((b) => points.push({ x: b.natural, y: b.robust[name], colour: "var(--others)", label: b.name, title: b.name, r: 4.5 }));
      const here = dial.points[current];
      points.push({ x: here.natural, y: here.robust[name], colour: "var(--ours)", r: 8, label: "", title: "this mixture" });
      return scatter(width, { points, xLabel: "natural accuracy (%), validation", yLabel: `${dial.threats[name]} (%)`, label: `Mixtures of ${dial.endpoints.join(", ")} on validation; this one has ${fixed(here.natural)} natural and ${fixed(here.robust[name])} under ${dial.threats[name]}` });
    });
    slider.addEventListener("input", () => { current = places[slider.value]; show(); });
    order.addEventListener("change", () => { arrange(); show(); });
    all.addEventListener("change", () => { arrange(); show(); });
    $(".chosen", box)?.addEventListener("click", () => { current = dial.chosen; arrange(); show(); });
    arrange();
    show();

    // Losses between pairs of learners, and over the triangle of three.
    const ways = $("[data-ways]", box);
    const only = (p, names) => !p.modules && dial.endpoints.every((e) => names.includes(e) || p.weights[e] === 0);
    dial.endpoints.forEach((a, i) => dial.endpoints.slice(i + 1).forEach((b) => {
      const along = dial.points.filter((p) => only(p, [a, b])).sort((p, q) => p.weights[b] - q.weights[b]);
      if (along.length < 3) return;
      const one = document.createElement("figure");
      ways.append(one);
      const series = measures.map(([m, name], k) => ({ name, colour: colour(k), dash: dashes[k % 4], points: along.map((p) => [p.weights[b], p.losses[m]]) }));
      chart(one, (width) => lineChart(width, { series, zero: true, xLabel: `weight of ${b} (rest: ${a})`, yLabel: "cross-entropy", label: `Losses between ${a} and ${b}` }));
    }));
    if (dial.endpoints.length === 3) {
      const inside = dial.points.filter((p) => !p.modules);
      const corners = [[0, 0], [1, 0], [0.5, 0.866]];
      measures.forEach(([m, name]) => {
        const one = document.createElement("figure");
        ways.append(one);
        const values = inside.map((p) => p.losses[m]), low = Math.min(...values), high = Math.max(...values);
        chart(one, (width) => {
          const size = Math.min(width, 420), height = size * 0.9, pad = 62;
          const at = (w) => [0, 1].map((axis) => dial.endpoints.reduce((sum, e, k) => sum + w[e] * corners[k][axis], 0));
          const spots = inside.map((p) => at(p.weights));
          const xs = [Math.min(...spots.map((s) => s[0])), Math.max(...spots.map((s) => s[0]))], ys = [Math.min(...spots.map((s) => s[1])), Math.max(...spots.map((s) => s[1]))];
          const scale = Math.min((size - 2 * pad) / (xs[1] - xs[0]), (height - 90) / (ys[1] - ys[0]));
          const X = (v) => width / 2 + (v - (xs[0] + xs[1]) / 2) * scale, Y = (v) => height / 2 + 8 - (v - (ys[0] + ys[1]) / 2) * scale;
          const parts = [`<svg role="img" aria-label="${escape(`Loss (${name}) over the triangle of ${dial.endpoints.join(", ")}, from ${fixed(low, 2)} to ${fixed(high, 2)}`)}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><text x="${width / 2}" y="14" text-anchor="middle">cross-entropy, ${escape(name)}</text>`];
          parts.push(`<path d="M${corners.map(([a, b]) => `${X(a)} ${Y(b)}`).join("L")}Z" fill="none" class="axis"/>`);
          inside.forEach((p, k) => {
            const share = high > low ? (p.losses[m] - low) / (high - low) : 0;
            parts.push(`<circle cx="${X(spots[k][0])}" cy="${Y(spots[k][1])}" r="13" fill="color-mix(in srgb, var(--c1) ${Math.round(100 * share)}%, var(--panel))" stroke="var(--line)"><title>${escape(mixture(dial, p))}: ${fixed(p.losses[m], 3)}</title></circle><text x="${X(spots[k][0])}" y="${Y(spots[k][1]) + 3.5}" text-anchor="middle" style="font-size:9.5px${share > 0.55 ? ";fill:var(--paper)" : ""}">${fixed(p.losses[m], 2)}</text>`);
          });
          dial.endpoints.forEach((e, k) => parts.push(`<text class="halo" x="${X(corners[k][0])}" y="${Y(corners[k][1]) + (k === 2 ? -18 : 28)}" text-anchor="middle">${escape(e)}</text>`));
          return parts.join("") + "</svg>";
        });
      });
    }
  });

  // Training curves of one run.
  const learnerColour = (name, names) => (name === "global" ? "var(--ink)" : colour(names.filter((n) => n !== "global").indexOf(name)));
  const showCurves = () => {
    const run = page.runs[$("#curve-run").value], host = $("#curves-of-run");
    $$("figure", host).forEach((old) => { watch.unobserve(old); drawn.delete(old); });
    host.innerHTML = "";
    const panels = Object.entries(run.curves.panels);
    const names = [...new Set(panels.flatMap(([, series]) => Object.keys(series)))];
    $("#curve-note").textContent = panels.length
      ? `${run.epochs} epochs; accuracies on the ${run.curves.split || "validation"} split.${run.curves.resets.length ? " Dotted lines: learners take the global learner's weights." : ""}`
      : "This run has no training of its own: it was made by the dial, or its metrics cannot be read.";
    for (const [panel, series] of panels) {
      const figure = document.createElement("figure");
      host.append(figure);
      const rows = Object.entries(series).map(([name, points], i) => ({ name, points, colour: learnerColour(name, names), dash: dashes[i % 4] }));
      chart(figure, (width) => lineChart(width, { series: rows, marks: run.curves.resets, xLabel: "epoch", yLabel: panel, zero: !panel.includes("%"), xRange: [0, run.epochs], label: `${panel} of ${run.name} over ${run.epochs} epochs` }));
    }
  };
  $("#curve-run").addEventListener("change", showCurves);
  showCurves();

  // Accuracy by class, a column per run.
  const withClasses = page.runs.filter((run) => run.classes);
  const measure = $("#class-measure");
  measure.innerHTML = [...new Set(withClasses.flatMap((run) => Object.keys(run.classes.accuracy)))].map((m) => `<option>${escape(m)}</option>`).join("");
  const table = (head, rows, caption) => `<div class="scroll" tabindex="0" role="region" aria-label="${escape(caption)}"><table class="sortable"><caption>${escape(caption)}</caption><thead><tr>${head.map((h, i) => `<th scope="col"${i ? "" : ' class="text"'}><button type="button">${escape(h)}</button></th>`).join("")}</tr></thead><tbody>${rows.map((r) => `<tr><th scope="row">${escape(r[0])}</th>${r.slice(1).join("")}</tr>`).join("")}</tbody></table></div>`;
  const showClasses = () => {
    const host = $("#class-table");
    if (!withClasses.length) { host.innerHTML = '<p class="muted">No record says which images are right.</p>'; return; }
    const names = withClasses[0].classes.names;
    const like = withClasses.filter((run) => run.classes.names.length === names.length);
    const rows = names.map((name, k) => [name, ...like.map((run) => {
      const value = run.classes.accuracy[measure.value]?.[k];
      return `<td class="meter" style="--v:${value ?? 0}%" data-value="${value ?? -1}">${fixed(value)}</td>`;
    })]);
    host.innerHTML = table(["class", ...like.map((run) => run.name)], rows, `${measure.value} accuracy in % by class, ${withClasses[0].classes.of} of the test split`);
    makeSortable($("table", host));
  };
  measure.addEventListener("change", showClasses);
  showClasses();

  // Corruptions.
  const ood = page.runs.filter((run) => run.ood);
  if (ood.length) {
    const names = Object.keys(ood[0].ood.corruptions);
    const heat = (value) => (value === undefined ? "<td></td>" : `<td class="heat" style="--n:${value}">${fixed(value)}</td>`);
    const rows = names.map((name) => [name.replaceAll("_", " "), ...ood.map((run) => heat(run.ood.corruptions[name]?.[4]))]);
    rows.push(["mean at severity 5", ...ood.map((run) => heat(run.ood.severity5))], ["mean over all severities", ...ood.map((run) => heat(run.ood.mean))]);
    if (ood.some((run) => run.ood.sequences_accuracy !== undefined)) rows.push(["sequences: mean over frames", ...ood.map((run) => heat(run.ood.sequences_accuracy))], ["sequences: flip rate", ...ood.map((run) => `<td>${fixed(run.ood.flip_rate, 2)}</td>`)]);
    $("#ood").innerHTML = table(["corruption", ...ood.map((run) => run.name)], rows, `Accuracy in % at severity 5, first ${ood[0].ood.images} test images`);
    makeSortable($("#ood table"));
  }

  // Accuracy against ε: every distance is where an image falls.
  const curved = page.runs.filter((run) => run.curve);
  [...new Set(curved.flatMap((run) => Object.keys(run.curve.threats)))].forEach((threat) => {
    const figure = document.createElement("figure");
    $("#eps").append(figure);
    const having = curved.filter((run) => run.curve.threats[threat]);
    const most = Math.max(...having.map((run) => run.curve.threats[threat].eps_max));
    const series = having.map((run, i) => {
      const distances = run.curve.threats[threat].distances.map((d) => (d === null ? Infinity : d)).sort((a, b) => a - b);
      const points = [[0, run.curve.natural]];
      distances.forEach((d, k) => { if (d > 0 && d <= most) points.push([d, (100 * (distances.length - k - 1)) / distances.length]); });
      points.push([most, points[points.length - 1][1]]);
      return { name: run.name, colour: colour(i), dash: dashes[Math.floor(i / 8) % 4], points };
    });
    const [norm, eps] = threat.split(":");
    const radius = eps.split("/").reduce((a, b) => a / b);
    const label = { linf: "ℓ∞", l2: "ℓ2", l1: "ℓ1" }[norm] || norm;
    chart(figure, (width) => lineChart(width, { series, steps: true, zero: true, marks: [radius], xRange: [0, most], xLabel: `ε, ${label}`, yLabel: "robust accuracy (%)", label: `Robust accuracy against ε in ${label}` }));
  });

  // Examples of one run.
  const chooser = $("#example-run");
  const showExamples = () => {
    const run = page.runs.find((one) => one.name === chooser.value);
    $("#example-pictures").innerHTML = run.examples.map((example) => `<div class="picture"><strong>${escape(example.label)}</strong><div class="row">${example.views.map((view) => {
      const image = (src, words) => `<img src="${src}" alt="${escape(`${example.label}, ${view.view}: ${words}`)}">`;
      return `<div class="cell"><span class="muted">${escape(view.view)}</span>${image(view.image, `taken for ${view.said}`)}<span class="${view.right ? "right" : "wrong"}">${view.right ? "✓" : "✗"} ${escape(view.said)} ${view.sure} %</span>${image(view.heat, "what it looks at")}${view.changed ? `${image(view.changed, "the change, magnified")}<span class="muted">change × ${view.times}</span>` : ""}</div>`;
    }).join("")}</div></div>`).join("");
  };
  if (chooser) { chooser.addEventListener("change", showExamples); showExamples(); }
})();
