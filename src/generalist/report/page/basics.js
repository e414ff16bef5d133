// What all sections use: data, text, colours, theme, tables that sort.
const page = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, from = document) => from.querySelector(selector);
const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];
const escape = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const fixed = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const signed = (value) => (value < 0 ? `−${-value}` : `${value}`);
const colour = (i) => `var(--c${i % 8})`;
// Of measures: unattacked, then the threats.
const measureColour = (i) => (i ? colour([0, 1, 6, 3][(i - 1) % 4]) : colour(7));
const dashes = ["", "6 3", "2 2", "8 3 2 3"];
const learnerColours = { natural: 1, linf: 0, l2: 2, l1: 3 };
const colourOf = (name, names) => {
  const own = learnerColours[name];
  if (own !== undefined) return colour(own);
  const others = names.filter((n) => n !== "global" && learnerColours[n] === undefined);
  return name === "global" ? "var(--ink)" : colour(4 + (others.indexOf(name) % 4));
};

// Theme: as the system, or as the reader says.
const themes = ["system", "light", "dark"];
const theme = $("#theme");
const setTheme = (name) => {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  theme.textContent = `Theme: ${name}`;
  theme.dataset.now = name;
  try { localStorage.setItem("generalist-theme", name); } catch { /* a file may not remember anything */ }
};
let remembered = "system";
try { remembered = localStorage.getItem("generalist-theme") || "system"; } catch { /* the same */ }
setTheme(themes.includes(remembered) ? remembered : "system");
theme.addEventListener("click", () => setTheme(themes[(themes.indexOf(theme.dataset.now) + 1) % 3]));

// Tables sort by the column whose head is pressed: numbers from the largest, names from the first.
const valueOf = (cell, asText) => {
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (asText) return text;
  const number = parseFloat(text.replace("−", "-"));
  return Number.isNaN(number) ? text : number;
};
const compareValues = (a, b) => {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
};
const isEmpty = (value) => value === "" || value === "–";
const sortBy = (table, head, column) => {
  const before = head.getAttribute("aria-sort");
  const names = head.classList.contains("text");
  const down = before ? before === "ascending" : !names;
  $$("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, place) => ({ value: valueOf(row.cells[column], names), place, row }));
  rows.sort((a, b) => {
    if (isEmpty(a.value) || isEmpty(b.value)) return isEmpty(a.value) - isEmpty(b.value) || a.place - b.place;
    const by = compareValues(a.value, b.value);
    return (down ? -by : by) || a.place - b.place;
  });
  rows.forEach(({ row }) => body.append(row));
};
const makeSortable = (table) => $$("thead th", table).forEach((head, column) => {
  $("button", head)?.addEventListener("click", () => sortBy(table, head, column));
});
$$("table.sortable").forEach(makeSortable);

// A table of its own: heads, rows of [name, cell as HTML, …], rows below that stay where they are.
const table = (host, { heads, rows, foot = [], caption, kind = "" }) => {
  const line = (row) => `<tr><th scope="row">${escape(row[0])}</th>${row.slice(1).join("")}</tr>`;
  const head = heads.map((h, i) => `<th scope="col"${i ? "" : ' class="text"'}><button type="button">${escape(h)}</button></th>`).join("");
  host.innerHTML = `<div class="scroll" tabindex="0" role="region" aria-label="${escape(caption)}"><table class="sortable ${kind}"><caption><span>${escape(caption)}</span></caption><thead><tr>${head}</tr></thead><tbody>${rows.map(line).join("")}</tbody>${foot.length ? `<tfoot>${foot.map(line).join("")}</tfoot>` : ""}</table></div>`;
  makeSortable($("table", host));
};

