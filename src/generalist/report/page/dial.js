// The dial: a slider along the evaluated mixtures, and the way between the learners.
const mixture = (dial, point) => {
  const parts = dial.endpoints.filter((e) => point.weights[e] !== 0);
  const text = parts.map((e, i) => { const w = +point.weights[e].toFixed(3); return `${i ? (w < 0 ? " − " : " + ") : w < 0 ? "−" : ""}${Math.abs(w)} ${e}`; }).join("");
  return text + (point.modules ? ", by module" : "");
};

const makeDial = (box, dial) => {
  const slider = $('input[type="range"]', box), order = $(".order", box), all = $(".all", box), figure = $('[data-chart="front"]', box);
  const threats = Object.entries(dial.threats);
  const measures = [["natural", "unattacked"], ...threats];
  const worth = (p, name) => (name === "natural" ? p.natural : p.robust[name]);
  const learner = (e) => colourOf(e, dial.endpoints);
  let places = [], current = dial.chosen ?? dial.points.findIndex((p) => p.on_front);

  const arrange = () => {
    const shown = dial.points.filter((p) => all.checked || p.on_front || p.place === current);
    places = shown.sort((a, b) => worth(a, order.value) - worth(b, order.value) || a.place - b.place).map((p) => p.place);
    slider.max = places.length - 1;
    slider.value = Math.max(0, places.indexOf(current));
    const name = order.value === "natural" ? "unattacked" : dial.threats[order.value];
    const end = (place, words) => `${words} ${name}: ${fixed(worth(dial.points[place], order.value))}\u00a0%`;
    $(".ends", box).innerHTML = `<span>${escape(end(places[0], "least"))}</span><span>${escape(end(places[places.length - 1], "most"))}</span>`;
  };

  const showWeights = (point) => {
    const total = dial.endpoints.reduce((sum, e) => sum + Math.abs(point.weights[e]), 0);
    $(".weights", box).innerHTML = dial.endpoints.map((e) => `<i class="${point.weights[e] < 0 ? "away" : ""}" style="width:${(100 * Math.abs(point.weights[e])) / total}%;--of:${learner(e)}"></i>`).join("");
    $(".mixture", box).innerHTML = dial.endpoints.map((e) => `<span><i style="background:${learner(e)}"></i>${escape(e)} ${signed(+point.weights[e].toFixed(3))}</span>`).join("");
  };
  const showFigures = (point) => {
    const figures = [["unattacked", point.natural], ...threats.map(([t, name]) => [`under ${name}`, point.robust[t]])];
    if (threats.length > 1) figures.push(["mean over norms", point.mean], ["under all of them", point.union]);
    $(".figures", box).innerHTML = figures.map(([name, value]) => `<div class="figure"><b>${fixed(value)} %</b><span>${escape(name)}</span></div>`).join("");
    const kind = point.endpoint ? "a learner as it was trained" : Object.values(point.weights).some((w) => w < 0) ? "a mixture beyond the learners" : "a mixture";
    const beaten = point.on_front ? "" : "; another mixture is better by every measure";
    $(".what", box).textContent = `${mixture(dial, point)}: ${kind}${beaten}.`;
    slider.setAttribute("aria-valuetext", `${mixture(dial, point)}: ${figures.map(([n, v]) => `${n} ${fixed(v)} percent`).join(", ")}`);
  };
  const showClasses = (point) => {
    $(".classbars", box).innerHTML = dial.classes.map((name, k) => {
      const rows = measures.map(([m], i) => `<i style="--v:${point.by_class[m][k] ?? 0}%;background:${measureColour(i)}"></i>`).join("");
      const said = measures.map(([m, label]) => `${label} ${fixed(point.by_class[m][k])} %`).join(", ");
      return `<span>${escape(name)}</span><div class="rows" role="img" aria-label="${escape(`${name}: ${said}`)}" title="${escape(said)}">${rows}</div>`;
    }).join("");
    $(".classes", box).innerHTML = measures.map(([, name], i) => `<span><i style="background:${measureColour(i)}"></i>${escape(name)}</span>`).join("");
  };
  const showPictures = (point) => {
    const cell = (src, label, [what, sure], name) => {
      const right = what === label;
      const verdict = `${right ? "✓" : "✗"} ${escape(dial.classes[what])} <small>${Math.round(100 * sure)} %</small>`;
      return `<div class="cell"><span class="muted">${escape(name)}</span><img src="${src}" alt="${escape(`${dial.classes[label]}, ${name}: taken for ${dial.classes[what]}`)}"><span class="${right ? "right" : "wrong"}">${verdict}</span></div>`;
    };
    $(".pictures", box).innerHTML = dial.pictures.map((source, k) => {
      const label = dial.labels[k], said = point.said[k];
      const attacked = threats.map(([t, name]) => cell(point.attacked[k][t], label, said[t], name)).join("");
      return `<div class="picture"><strong>Class ${escape(dial.classes[label])}</strong><div class="row">${cell(source, label, said.natural, "unattacked")}${attacked}</div></div>`;
    }).join("");
  };
  const show = () => {
    const point = dial.points[current];
    showWeights(point);
    showFigures(point);
    showClasses(point);
    showPictures(point);
    $(".python", box).textContent = `import generalist\n\ndial = ${dial.python}\npoint = dial.points[${point.place}]  # ${mixture(dial, point)}\nmodel = dial.model(point)\ndial.export("chosen", point)  # a run of its own; the test split is attacked once`;
    if (drawn.has(figure)) redraw(figure);
  };

  const front = (width) => {
    const name = order.value === "natural" ? threats[0][0] : order.value;
    const points = dial.points.map((p) => ({ x: p.natural, y: p.robust[name], colour: "var(--dial)", hollow: !p.on_front, r: p.on_front ? 4 : 3, label: p.endpoint || "", title: mixture(dial, p) }));
    dial.beside.forEach((b) => points.push({ x: b.natural, y: b.robust[name], colour: "var(--others)", label: b.name, title: b.name, r: 4.5 }));
    const here = dial.points[current];
    points.push({ x: here.natural, y: here.robust[name], colour: "var(--ours)", r: 8, label: "this mixture", title: mixture(dial, here) });
    const said = `${dial.points.length} mixtures of ${dial.endpoints.join(", ")} on the validation split; this one has ${fixed(here.natural)} % unattacked and ${fixed(here.robust[name])} % under ${dial.threats[name]}`;
    return scatter(width, { points, xLabel: "accuracy unattacked (%)", yLabel: `accuracy under ${dial.threats[name]} (%)`, label: said });
  };
  chart(figure, front);
  slider.addEventListener("input", () => { current = places[slider.value]; show(); });
  for (const control of [order, all]) control.addEventListener("change", () => { arrange(); show(); });
  $(".chosen", box)?.addEventListener("click", () => { current = dial.chosen; arrange(); show(); });
  arrange();
  show();
  showWays(box, dial, measures);
};

// Losses or accuracies between each two learners, and over the triangle of three.
const showWays = (box, dial, measures) => {
  const host = $(".ways", box), choice = $(".way-measure", box);
  const alike = dial.points.filter((p) => !p.modules);
  const draw = () => {
    clearCharts(host);
    const loss = choice.value === "loss";
    const value = (p, m) => (loss ? p.losses[m] : m === "natural" ? p.natural : p.robust[m]);
    const unit = loss ? "cross-entropy" : "accuracy (%)";
    dial.endpoints.forEach((a, i) => dial.endpoints.slice(i + 1).forEach((b) => {
      const along = alike.filter((p) => dial.endpoints.every((e) => e === a || e === b || p.weights[e] === 0)).sort((p, q) => p.weights[b] - q.weights[b]);
      const start = along.find((p) => p.endpoint === a), end = along.find((p) => p.endpoint === b);
      if (along.length < 3 || !start || !end) return;
      const series = measures.map(([m, name], k) => ({ name, colour: measureColour(k), dots: true, points: along.map((p) => [p.weights[b], value(p, m)]) }));
      const chords = measures.map(([m], k) => ({ from: [0, value(start, m)], to: [1, value(end, m)], colour: measureColour(k) }));
      const last = along[along.length - 1].weights[b];
      const said = `${unit} between ${a} and ${b}. ${measures.map(([m, name]) => `${name}: ${along.map((p) => fixed(value(p, m), loss ? 2 : 1)).join(", ")}`).join("; ")}`;
      addChart(host, (width) => lineChart(width, { series, chords, verticals: last > 1.001 ? [[1, b]] : [], zero: loss, title: `${a} → ${b}`, xLabel: `weight of ${b}, the rest ${a}`, yLabel: unit, label: said }));
    }));
    if (dial.endpoints.length !== 3) return;
    measures.forEach(([m, name]) => {
      const cells = alike.map((p) => ({ weights: p.weights, value: value(p, m), name: mixture(dial, p), end: p.endpoint !== null }));
      const values = cells.map((c) => c.value);
      const said = `${unit}, ${name}, of ${cells.length} mixtures of ${dial.endpoints.join(", ")}: from ${fixed(Math.min(...values), 2)} to ${fixed(Math.max(...values), 2)}`;
      addChart(host, (width) => tiles(width, { names: dial.endpoints, cells, title: `${loss ? "Loss" : "Accuracy (%)"}, ${name}`, unit: loss ? "" : "%", digits: loss ? 2 : 1, better: loss ? "low" : "high", label: said }));
    });
  };
  choice.addEventListener("change", draw);
  draw();
};
$$(".dial").forEach((box) => makeDial(box, page.dials[box.dataset.dial]));
