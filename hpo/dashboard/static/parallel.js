// Draws parallel coordinates of thousands of trials on a canvas. A drag along an axis filters; a click clears the filter.
import { number, words } from "./app.js";
import { COLOURS } from "./curves.js";

const MOST = 1200;      // maximum number of lines; more are thinned evenly
const LINE = 14;        // line height of the names above the axes
const HEAD = 16;        // space above the names, and for the largest values
const BOTTOM = 16;
const SIDE = 56;
const WIDEST = 110;     // maximum width of a name; wider ones are compressed
const FONT = "12px system-ui, sans-serif";

/** Return at most ``most`` of the rows, evenly spaced. */
function few(rows, most) {
  const step = rows.length / most;
  return step <= 1 ? rows : Array.from({ length: most }, (_, at) => rows[Math.floor(at * step)]);
}

/** Values as numbers along an axis; ``words`` are the values of a categorical axis, in alphabetical order at 0, 1, 2 ... */
export function placed(values) {
  if (values.some((value) => typeof value === "number")) return { values };
  const words = [...new Set(values.filter((value) => value !== null).map(String))].sort();
  return { values: values.map((value) => value === null ? null : words.indexOf(String(value))), words };
}

export class ParallelCoordinates {
  constructor(canvas, onbrush) {
    Object.assign(this, { canvas, onbrush, brushes: {}, axes: [], selected: new Set(), lines: 1 });
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", () => this.#up());
    new ResizeObserver(() => this.draw()).observe(canvas);
    document.addEventListener("themechange", () => this.draw());
  }

  /** Draw ``names`` as axes; ``rows`` are highlighted, all others are faint. */
  show(data, names, rows, selected = new Set()) {
    Object.assign(this, { rows, selected });
    if (data !== this.data) {
      this.data = data;
      this.axes = names.map((name) => this.#axis(name)).filter(Boolean);
    }
    this.#later();
  }

  select(selected) {
    this.selected = selected;
    this.#later();
  }

  #later() {
    this.frame ??= requestAnimationFrame(() => setTimeout(() => { this.frame = undefined; this.draw(); }));
  }

  #axis(name) {
    const { values, words: choices } = placed(this.data.values(name));
    if (choices) return this.#choices(name, values, choices);
    const numbers = values.filter((value) => typeof value === "number");
    const [low, high] = numbers.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    const log = low > 0 && high / low > 20;
    const of = (value) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low || 1);
    const back = (share) => log ? low * (high / low) ** share : low + share * (high - low || 1);
    return { name, values, of, back, low, high, ends: [number(low), number(high)] };
  }

  /** A categorical axis. */
  #choices(name, values, words) {
    if (!words.length) return null;
    const last = words.length - 1 || 1;
    return { name, values, of: (value) => value / last, back: (share) => share * last,
      ends: [words[0], words.length > 1 ? words.at(-1) : ""] };
  }

  #place(index) {
    const room = this.canvas.clientWidth - 2 * SIDE;
    return SIDE + (this.axes.length > 1 ? room * index / (this.axes.length - 1) : room / 2);
  }

  #height(share) {
    return this.canvas.clientHeight - BOTTOM - share * (this.canvas.clientHeight - this.#top - BOTTOM);
  }

  /** The top of the axes, below their names, which take as many lines as needed to keep neighbours from overlapping. */
  get #top() {
    return HEAD + LINE * this.lines;
  }

  /** Pixels between two axes. */
  get #gap() {
    return this.axes.length > 1 ? this.#place(1) - this.#place(0) : this.canvas.clientWidth;
  }

  draw() {
    const { canvas } = this;
    const ratio = devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * ratio;
    canvas.height = canvas.clientHeight * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    if (!this.axes.length) return;
    pen.font = FONT;
    const widest = Math.max(...this.axes.map((axis) => Math.min(pen.measureText(words(axis.name)).width, WIDEST)));
    this.lines = Math.max(1, Math.ceil((widest + 8) / this.#gap));
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const chosen = new Set(this.rows);
    const { columns } = this.data;
    const all = columns.number.length;
    if (chosen.size < all) this.#lines(pen, few(columns.number.map((_, row) => row).filter((row) => !chosen.has(row)), MOST / 2), colour("--line"), 0.35);
    const drawn = few(this.rows, MOST);
    for (const [rung, rows] of this.#byRung(drawn)) this.#lines(pen, rows, COLOURS[rung % COLOURS.length], Math.max(0.08, Math.min(0.8, 60 / drawn.length)));
    const picked = this.selected.size ? columns.number.flatMap((trial, row) => this.selected.has(trial) ? [row] : []) : [];
    this.#lines(pen, picked, colour("--accent"), 1, 3);
    pen.globalAlpha = 1;
    pen.font = FONT;
    this.axes.forEach((axis, index) => this.#drawAxis(pen, axis, this.#place(index), index % this.lines, colour));
  }

  #byRung(drawn) {
    const batches = [...new Set(this.data.columns.global_batch_size)].sort((a, b) => a - b);
    const groups = new Map(batches.map((_, rung) => [rung, []]));
    for (const row of drawn) groups.get(batches.indexOf(this.data.columns.global_batch_size[row])).push(row);
    return groups;
  }

  #lines(pen, rows, colour, opacity, width = 1) {
    pen.strokeStyle = colour;
    pen.globalAlpha = opacity;
    pen.lineWidth = width;
    pen.beginPath();
    for (const row of rows) {
      let drawing = false;
      this.axes.forEach((axis, index) => {
        const value = axis.values[row];
        if (value === null || typeof value !== "number") { drawing = false; return; }
        const [x, y] = [this.#place(index), this.#height(axis.of(value))];
        if (drawing) pen.lineTo(x, y); else pen.moveTo(x, y);
        drawing = true;
      });
    }
    pen.stroke();
  }

  #drawAxis(pen, axis, x, line, colour) {
    pen.lineWidth = 1;
    pen.strokeStyle = colour("--muted");
    pen.fillStyle = colour("--muted");
    pen.beginPath();
    pen.moveTo(x, this.#height(0));
    pen.lineTo(x, this.#height(1));
    pen.stroke();
    pen.textAlign = "center";
    pen.fillText(words(axis.name), x, LINE * (line + 1) - 2, WIDEST);
    const room = Math.min(100, this.#gap - 6);
    pen.fillText(axis.ends[1], x, this.#top - 5, room);
    pen.fillText(axis.ends[0], x, this.canvas.clientHeight - 3, room);
    const brush = this.brushes[axis.name];
    if (!brush) return;
    const [low, high] = brush.map((value) => this.#height(axis.of(value)));
    pen.fillStyle = colour("--accent");
    pen.globalAlpha = 0.35;
    pen.fillRect(x - 7, high, 14, low - high);
    pen.globalAlpha = 1;
  }

  /** The axis and the place on it below the pointer; ``box`` is the canvas's place on the screen. */
  #at(event, box = this.canvas.getBoundingClientRect()) {
    const x = event.clientX - box.left;
    const share = (this.canvas.clientHeight - BOTTOM - (event.clientY - box.top)) / (this.canvas.clientHeight - this.#top - BOTTOM);
    const index = this.axes.findIndex((_, place) => Math.abs(this.#place(place) - x) < 22);
    return { axis: this.axes[index], share: Math.min(1, Math.max(0, share)) };
  }

  #down(event) {
    const { axis, share } = this.#at(event);
    if (!axis) return;
    this.canvas.setPointerCapture(event.pointerId);
    // the place at the start counts for the whole drag: the filtered table may shorten the page, which moves the canvas
    this.drag = { axis, from: share, box: this.canvas.getBoundingClientRect() };
  }

  #move(event) {
    if (!this.drag) { this.canvas.style.cursor = this.#at(event).axis ? "ns-resize" : "default"; return; }
    const { axis, from, box } = this.drag;
    const { share } = this.#at(event, box);
    if (Math.abs(share - from) < 0.015) return;
    this.brushes[axis.name] = [axis.back(Math.min(from, share)), axis.back(Math.max(from, share))];
    this.drag.moved = true;
    this.onbrush();
  }

  #up() {
    if (this.drag && !this.drag.moved && this.brushes[this.drag.axis.name]) {
      delete this.brushes[this.drag.axis.name];
      this.onbrush();
    }
    this.drag = null;
  }
}
