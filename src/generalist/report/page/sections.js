// The trade-off plane: runs, means over seeds, the papers' points, and the dial's front.
const MOST_LABELS = 16;
const dialWorth = (dial, point, column) => {
  if (column === "mean over norms") return point.mean;
  if (column === "true union") return point.union;
  return Object.entries(point.robust).find(([threat]) => column.endsWith(` ${threat}`))?.[1];
};
const planePoints = (group, name) => {
  const several = new Set(group.seeds.flatMap((s) => s.runs));
  const unit = (row) => (row.ours ? "var(--ours)" : "var(--others)");
  const points = group.rows.filter((row) => name in row.values).map((row) => {
    const one = several.has(row.name);
    return {
      x: row.values.natural, y: row.values[name], label: one ? "" : row.name, r: one ? 3 : 5.5, colour: unit(row),
      dx: one ? null : row.interval.natural, dy: one ? null : row.interval[name],
      title: `${row.name}: unattacked ${fixed(row.values.natural, 2)} %, ${name} ${fixed(row.values[name], 2)} %`,
    };
  });
  const best = (p) => !points.some((q) => q.x >= p.x && q.y >= p.y && (q.x > p.x || q.y > p.y));
  if (points.length > MOST_LABELS) points.forEach((p) => { if (!best(p)) p.label = ""; });
  for (const s of group.seeds.filter((one) => name in one.mean)) points.push({
    x: s.mean.natural, y: s.mean[name], label: `${s.name} (${s.runs.length} seeds)`, colour: unit(s),
    dx: [s.mean.natural - s.sd.natural, s.mean.natural + s.sd.natural], dy: [s.mean[name] - s.sd[name], s.mean[name] + s.sd[name]],
    title: `${s.name}, mean of ${s.runs.length} seeds: unattacked ${fixed(s.mean.natural)} ± ${fixed(s.sd.natural)} %, ${name} ${fixed(s.mean[name])} ± ${fixed(s.sd[name])} %`,
  });
  for (const row of [...group.rows, ...group.paper_rows]) if ("natural" in row.paper && name in row.paper) points.push({
    x: row.paper.natural, y: row.paper[name], label: `${row.name}, paper`, colour: "var(--theirs)", hollow: true, r: 4.5,
  });
  return points;
};
const plane = (group, name, width) => {
  const points = planePoints(group, name), lines = [];
  for (const dial of page.dials) {
    const front = dial.points.filter((p) => dialWorth(dial, p, name) !== undefined).map((p) => ({ x: p.natural, y: dialWorth(dial, p, name), title: `${mixture(dial, p)}: unattacked ${fixed(p.natural)} %, ${name} ${fixed(dialWorth(dial, p, name))} % (validation)` }));
    const upper = front.filter((p) => !front.some((q) => q.x >= p.x && q.y >= p.y && (q.x > p.x || q.y > p.y))).sort((a, b) => a.x - b.x);
    if (!upper.length) continue;
    lines.push({ points: upper, colour: "var(--dial)", dash: "5 3" });
    const middle = upper[Math.floor((upper.length - 1) / 2)];
    points.push({ x: middle.x, y: middle.y, r: 3, hollow: true, colour: "var(--dial)", label: width < 500 ? "dial" : `dial of ${dial.name}` });
  }
  const label = group.columns.find((c) => c.name === name).label;
  const said = group.rows.slice(0, 12).map((r) => `${r.name} ${fixed(r.values.natural)} and ${fixed(r.values[name])}`).join("; ");
  return scatter(width, { points, lines, xLabel: "accuracy unattacked (%)", yLabel: `${label} (%)`, label: `Accuracy in percent, unattacked and ${label}: ${said}` });
};
$$('[data-chart="plane"]').forEach((figure) => {
  const group = page.groups[figure.dataset.of], select = $(`[data-plane="${figure.dataset.of}"]`);
  chart(figure, (width) => plane(group, select.value, width));
  select.addEventListener("change", () => redraw(figure));
});

// Training curves of one run.
const showCurves = () => {
  const run = page.runs[$("#curve-run").value], host = $("#curves-of-run");
  clearCharts(host);
  const panels = Object.entries(run.curves.panels);
  const names = [...new Set(panels.flatMap(([, series]) => Object.keys(series)))];
  const resets = run.curves.resets.length ? " Dotted lines: the learners take over the weights of the global model." : "";
  $("#curve-note").textContent = panels.length
    ? `${run.epochs} epochs. Accuracies are on the ${run.curves.split || "validation"} split, under PGD-20.${resets}`
    : "This run has no training of its own to show: the dial made it, or its metrics cannot be read.";
  for (const [panel, series] of panels) {
    const rows = Object.entries(series).map(([name, points], i) => ({ name, points, colour: colourOf(name, names), dash: dashes[i % 4] }));
    const ends = rows.map((s) => `${s.name} ends at ${tickText(s.points[s.points.length - 1][1])}`).join(", ");
    addChart(host, (width) => lineChart(width, { series: rows, marks: run.curves.resets, xLabel: "epoch", title: panel, zero: !panel.includes("%"), xRange: [0, run.epochs], label: `${panel} of ${run.name} over ${run.epochs} epochs: ${ends}` }));
  }
};
const lines = (run) => Object.values(run.curves.panels).reduce((sum, series) => sum + Object.keys(series).length, 0);
$("#curve-run").value = page.runs.reduce((best, run, i) => (lines(run) > lines(page.runs[best]) ? i : best), 0);
$("#curve-run").addEventListener("change", showCurves);
showCurves();

// Accuracy by class, a column per run; a table for each set of images.
const withClasses = page.runs.filter((run) => run.classes);
const showClassTable = () => {
  const measure = $("#class-measure").value, host = $("#class-table");
  const having = withClasses.filter((run) => measure in run.classes.accuracy);
  const cell = (value) => `<td class="meter" style="--v:${value ?? 0}%" data-value="${value ?? ""}">${fixed(value)}</td>`;
  const worst = (run) => Math.min(...run.classes.accuracy[measure].filter((v) => v !== null));
  host.innerHTML = "";
  for (const images of new Set(having.map((run) => run.classes.of))) {
    const like = having.filter((run) => run.classes.of === images);
    table(host.appendChild(document.createElement("div")), {
      kind: "bars",
      heads: ["class", ...like.map((run) => run.name)],
      rows: like[0].classes.names.map((name, k) => [name, ...like.map((run) => cell(run.classes.accuracy[measure][k]))]),
      foot: [["weakest class", ...like.map((run) => `<td>${fixed(worst(run))}</td>`)]],
      caption: `Accuracy by class in %, ${measure === "unattacked" ? measure : `under ${measure}`}: ${images}`,
    });
  }
};
if (withClasses.length) {
  const measures = [...new Set(withClasses.flatMap((run) => Object.keys(run.classes.accuracy)))];
  $("#class-measure").innerHTML = measures.map((m) => `<option>${escape(m)}</option>`).join("");
  $("#class-measure").value = measures[measures.length - 1];
  $("#class-measure").addEventListener("change", showClassTable);
  showClassTable();
}

// Corruptions: all runs at one severity, or one run at all severities.
const corrupted = page.runs.filter((run) => run.ood);
const showCorruptions = () => {
  const view = $("#ood-view").value;
  const heat = (value) => (value === undefined || value === null ? "<td>–</td>" : `<td class="heat" style="--n:${value}">${fixed(value)}</td>`);
  const words = (name) => name.replaceAll("_", " ");
  if (view.startsWith("run ")) {
    const { name, ood } = corrupted[+view.slice(4)];
    table($("#ood"), {
      kind: "bars",
      heads: ["corruption", "severity 1", "2", "3", "4", "5", "mean"],
      rows: Object.entries(ood.corruptions).map(([c, row]) => [words(c), ...row.map(heat), heat(row.reduce((a, b) => a + b, 0) / row.length)]),
      foot: [["mean", ...ood.means.map(heat), heat(ood.mean)]],
      caption: `Accuracy of ${name} in %, first ${ood.images} test images`,
    });
    return;
  }
  const level = +view - 1;
  const names = [...new Set(corrupted.flatMap((run) => Object.keys(run.ood.corruptions)))];
  const foot = [["mean", ...corrupted.map((run) => heat(run.ood.means[level]))], ["mean over all severities", ...corrupted.map((run) => heat(run.ood.mean))]];
  if (corrupted.some((run) => run.ood.sequences_accuracy !== null)) foot.push(["sequences, mean over frames", ...corrupted.map((run) => heat(run.ood.sequences_accuracy))]);
  if (corrupted.some((run) => run.ood.flip_rate !== null)) foot.push(["sequences, flip rate", ...corrupted.map((run) => `<td>${fixed(run.ood.flip_rate)}</td>`)]);
  table($("#ood"), {
    kind: "bars",
    heads: ["corruption", ...corrupted.map((run) => run.name)],
    rows: names.map((name) => [words(name), ...corrupted.map((run) => heat(run.ood.corruptions[name]?.[level]))]),
    foot,
    caption: `Accuracy in % at severity ${view} of 5, and how often the answer changes from frame to frame in %; first ${corrupted[0].ood.images} test images`,
  });
};
if (corrupted.length) {
  $("#ood-view").innerHTML = [5, 4, 3, 2, 1].map((s) => `<option value="${s}">all runs, severity ${s}</option>`).join("") + corrupted.map((run, i) => `<option value="run ${i}">${escape(run.name)}, all severities</option>`).join("");
  $("#ood-view").addEventListener("change", showCorruptions);
  showCorruptions();
}

// Accuracy against ε: every distance is where an image falls.
const MOST_LINES = 8;
const curved = page.runs.filter((run) => run.curve);
[...new Set(curved.flatMap((run) => run.curve.threats.map((t) => t.threat)))].forEach((threat) => {
  const having = curved.map((run) => ({ run, line: run.curve.threats.find((t) => t.threat === threat) })).filter(({ line }) => line);
  const shown = having.sort((a, b) => b.line.auc - a.line.auc).slice(0, MOST_LINES);
  const { norm, eps } = shown[0].line;
  const fallen = Math.max(...shown.map(({ line }) => line.distances[line.distances.length - 1] ?? 0));
  const end = Math.min(Math.max(1.15 * eps, 1.05 * fallen), Math.max(...shown.map(({ line }) => line.eps_max)));
  const series = shown.map(({ run, line }, i) => {
    const right = line.distances.filter((d) => d > 0), count = run.curve.images;
    const points = [[0, run.curve.natural]];
    const survivors = Math.round((run.curve.natural / 100) * count);
    right.forEach((d, k) => { if (d <= end) points.push([d, (100 * (survivors - k - 1)) / count]); });
    points.push([end, points[points.length - 1][1]]);
    return { name: run.name, colour: colour(i), dash: dashes[i % 4], points };
  });
  addChart($("#eps"), (width) => lineChart(width, { series, along: true, steps: true, zero: true, verticals: [[eps, `ε = ${threat.split(/\s/)[1]}`]], xRange: [0, end], xLabel: `ε in ${norm}, pixels from 0 to 1`, yLabel: "accuracy (%)", title: norm, label: `Accuracy against ε in ${norm} of ${shown.length} runs; all figures are in the table below` }));
});
if (curved.length) table($("#eps-table"), {
  heads: ["run and norm", ...curved[0].curve.heads],
  rows: curved.flatMap((run) => run.curve.threats.map((t) => [`${run.name}, ${t.threat}`, ...t.figures.map((v, i) => `<td data-value="${v ?? ""}">${v === null ? "none found" : i < t.figures.length - 2 ? fixed(v) : +v.toPrecision(3)}</td>`)])),
  caption: `Accuracy in % at multiples of ε; the distance at which half of the images are lost, and the area under the curve up to 4ε, in pixels from 0 to 1; first ${curved[0].curve.images} test images`,
});

// Examples of one run: the image, what was changed, and what is looked at, without and under each attack.
const showExamples = () => {
  const run = page.runs.find((one) => one.name === $("#example-run").value);
  $("#example-pictures").innerHTML = run.examples.map((example) => {
    const image = (view, src, words) => (src ? `<img src="${src}" alt="${escape(`${example.label}, ${view.view}: ${words}`)}">` : '<span class="muted">no change</span>');
    const row = (name, cell) => `<tr><th scope="row">${name}</th>${example.views.map((view, i) => `<td>${cell(view, i)}</td>`).join("")}</tr>`;
    return `<div class="picture"><strong>Class ${escape(example.label)}</strong><table class="views"><thead><tr><td></td>${example.views.map((view) => `<th scope="col">${escape(view.view)}</th>`).join("")}</tr></thead><tbody>${[
      row("image", (view) => image(view, view.image, `taken for ${view.said}`)),
      row("answer", (view) => `<span class="${view.right ? "right" : "wrong"}">${view.right ? "✓" : "✗"} ${escape(view.said)} <small>${view.sure} %</small></span>`),
      row("change", (view, i) => (i ? `${image(view, view.changed, "the change, magnified")}${view.changed ? `<small class="muted">× ${view.times}</small>` : ""}` : "")),
      row("looks at", (view) => image(view, view.heat, "what the answer looks at")),
    ].join("")}</tbody></table></div>`;
  }).join("");
};
if ($("#example-run")) {
  $("#example-run").addEventListener("change", showExamples);
  showExamples();
}
