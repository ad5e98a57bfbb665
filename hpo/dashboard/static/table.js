// A table of thousands of trials, sorted and filtered by column; only visible rows are in the DOM.
import { el, home, number, path, state, words } from "./app.js";
import { placed } from "./parallel.js";

const ROW = 35;
const SPARE = 10;
const SHORT = 14;

const COMPARISON = /^\s*([a-z][a-z0-9_ ]*?)\s*(<=|>=|<|>|=)\s*(\S+)\s*$/i;
const TITLES = { number: "Trial", state: "State", global_batch_size: "Batch", seed: "Seed" };

/** Title of each column of the table, by name. */
const titles = (data) => ({ ...TITLES, ...data.figures, ...Object.fromEntries(Object.keys(data.settings).map((name) => [name, words(name)])) });

/** Parse a filter such as ``learning rate > 0.1``, with the name or the title of a column; return undefined if the text is not a comparison. */
function comparison(data, text) {
  const [, name, sign, given] = text.match(COMPARISON) ?? [];
  const plain = (text) => words(text).toLowerCase();
  const known = Object.entries({ ...Object.fromEntries(Object.keys(data.columns).map((each) => [each, each])), ...titles(data) });
  const [column] = name ? known.find((names) => names.some((each) => plain(each) === plain(name))) ?? [] : [];
  const values = column && data.values(column);
  if (!values) return undefined;
  const wanted = Number(given);
  const of = { "<": (value) => value < wanted, ">": (value) => value > wanted, "<=": (value) => value <= wanted,
    ">=": (value) => value >= wanted, "=": (value) => String(value) === given || value === wanted };
  return (row) => values[row] !== null && of[sign](values[row]);
}

/** Indices of the rows that pass every filter, in order. */
export function filtered(data, { state: wanted = "", batch = "", text = "", brushes = {} } = {}) {
  const { columns } = data;
  const fits = comparison(data, text);
  const needle = fits ? "" : text.trim().toLowerCase();
  const limits = Object.entries(brushes).map(([name, [low, high]]) => [placed(data.values(name)).values, low, high]);
  const found = [];
  for (let row = 0; row < columns.number.length; row += 1) {
    if (wanted && columns.state[row] !== wanted) continue;
    if (batch && columns.global_batch_size[row] !== Number(batch)) continue;
    if (fits && !fits(row)) continue;
    if (needle && String(columns.number[row]) !== needle && !columns.reason[row].toLowerCase().includes(needle)) continue;
    if (limits.every(([values, low, high]) => values[row] !== null && values[row] >= low && values[row] <= high)) found.push(row);
  }
  return found;
}

/** Row indices sorted by a column; missing values come last in either direction. */
export function sorted(rows, values, descending) {
  const sign = descending ? -1 : 1;
  return rows.sort((a, b) => {
    const [one, other] = [values[a], values[b]];
    if (one === null || other === null) return (one === null) - (other === null) || a - b;
    return one < other ? -sign : one > other ? sign : a - b;
  });
}

export class TrialTable {
  constructor(place, { study, onselect, onsort }) {
    Object.assign(this, { place, study, onselect, onsort, rows: [], selected: new Set(), order: "number", descending: false });
    this.body = el("tbody");
    place.addEventListener("scroll", () => this.draw(), { passive: true });
  }

  /** The columns and how each column is displayed. */
  #shown() {
    const all = titles(this.data);
    const plain = (name) => ({ name, title: all[name], number: true, text: (row) => number(this.data.values(name)[row], 4) });
    return [plain("number"), { name: "state", title: all.state, text: (row) => state(this.data.columns.state[row]) },
      plain("global_batch_size"), plain("seed"), ...Object.keys(this.data.figures).map(plain),
      ...Object.keys(this.data.settings).map((name) => ({ ...plain(name),
        text: (row) => { const value = this.data.settings[name][row]; return typeof value === "number" ? number(value, 4) : String(value ?? "–"); } }))];
  }

  show(data, rows) {
    this.data = data;
    this.rows = rows;
    this.columns = this.#shown();
    const head = el("tr", {}, el("th", { scope: "col" }, el("span.unseen", {}, "Compare")), ...this.columns.map((column) =>
      el(column.number ? "th.number" : "th", { scope: "col", "aria-sort": this.order === column.name ? (this.descending ? "descending" : "ascending") : "none" },
        el("button.sort", { type: "button", dataset: { column: column.name }, onclick: () => this.#sort(column.name) },
          `${column.title}${this.order === column.name ? (this.descending ? " ↓" : " ↑") : ""}`))));
    const sorting = this.place.querySelector("button.sort:focus")?.dataset.column;
    const focused = this.#focused();
    this.place.classList.toggle("short", rows.length <= SHORT);
    this.place.replaceChildren(el("table", { "aria-rowcount": rows.length }, el("thead", {}, head), this.body));
    this.first = -1;
    this.draw();
    if (sorting) this.place.querySelector(`button.sort[data-column="${sorting}"]`)?.focus();
    this.#focus(focused);
  }

  #sort(name) {
    this.descending = this.order === name ? !this.descending : false;
    this.order = name;
    this.onsort();
  }

  draw() {
    if (!this.data) return;
    const short = this.rows.length <= SHORT;
    const first = short ? 0 : Math.max(0, Math.floor(this.place.scrollTop / ROW) - SPARE);
    const last = short ? this.rows.length : Math.min(this.rows.length, first + Math.ceil(this.place.clientHeight / ROW) + 2 * SPARE);
    if (first === this.first && last === this.last && !this.dirty) return;
    Object.assign(this, { first, last, dirty: false });
    const focused = this.#focused();
    const gap = (count) => count > 0 ? el("tr.gap", { "aria-hidden": "true" }, el("td", { colspan: this.columns.length + 1, style: `height:${count * ROW}px` })) : null;
    this.body.replaceChildren(...[gap(first), ...this.rows.slice(first, last).map((row) => this.#row(row)), gap(this.rows.length - last)].filter(Boolean));
    this.#focus(focused);
  }

  /** The row's control that has the keyboard focus, which it loses when the rows are replaced. */
  #focused() {
    return this.body.contains(document.activeElement) ? document.activeElement.dataset : null;
  }

  #focus(focused) {
    if (focused?.trial) this.body.querySelector(`${focused.what}[data-trial="${focused.trial}"]`)?.focus({ preventScroll: true });
  }

  #row(row) {
    const trial = this.data.columns.number[row];
    const box = el("input", { type: "checkbox", dataset: { trial, what: "input" }, "aria-label": `compare trial ${trial}`, onchange: () => this.#toggle(trial) });
    box.checked = this.selected.has(trial);
    return el("tr", { "aria-selected": String(this.selected.has(trial)) }, el("td", {}, box), ...this.columns.map((column) =>
      el(column.number ? "td.number" : "td", {}, column.name === "number"
        ? el("a", { dataset: { trial, what: "a" }, href: `${home}/studies/${path(this.study)}/trials/${trial}` }, String(trial)) : column.text(row))));
  }

  #toggle(trial) {
    if (!this.selected.delete(trial)) this.selected.add(trial);
    this.dirty = true;
    this.draw();
    this.onselect([...this.selected]);
  }
}
