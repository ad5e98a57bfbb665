// The figures that the server draws: the ladder, a setting against the batch size, and its effect on the epochs.
import { api, byId, path, quietly, steady, words } from "./app.js";
import { nothing } from "./curves.js";
import { plot, whenClicked, whenSeen } from "./plots.js";

const KEYS = ["ladder", "setting", "response", "importances", "slice", "contour"];
const OF_A_SETTING = ["setting", "response"];
const WITH_LAWS = ["ladder", "setting"];

export class StudyFigures {
  /** ``fitted()`` returns whether laws can be fitted; ``open(trial)`` is called when a trial's point is clicked. */
  constructor({ where, fitted, open }) {
    Object.assign(this, { where, fitted, open, seen: new Set(), figures: new Map(), selected: [], setting: "" });
    this.refresh = steady(() => this.#all(), { rest: 1500, share: 4 });
    for (const key of KEYS) {
      whenSeen(byId(key), async () => {
        this.seen.add(key);
        await this.#draw(key, false);
        if (WITH_LAWS.includes(key)) this.refresh();
      });
    }
  }

  /** Offer buttons for the settings, with the first selected. */
  offer(names, button) {
    if (this.setting) return;
    this.offered = true;
    if (!names.length) { for (const key of this.seen) this.#draw(key, false); return; }
    byId("tuned").replaceChildren(...names.map((name) => button(words(name), () => this.choose(name))));
    this.choose(names[0]);
  }

  async choose(name) {
    this.setting = name;
    for (const button of byId("tuned").children) button.setAttribute("aria-pressed", String(button.textContent === words(name)));
    await Promise.all(OF_A_SETTING.filter((key) => this.seen.has(key)).map((key) => this.#draw(key, false)));
    if (this.seen.has("setting")) this.refresh();
  }

  /** Highlight the trials with these numbers. */
  select(trials) {
    this.selected = trials;
    for (const [key, figure] of this.figures) this.#show(key, figure);
  }

  async #all() {
    byId("fitting").hidden = !this.fitted();
    for (const key of KEYS) if (this.seen.has(key)) await this.#draw(key, this.fitted() && WITH_LAWS.includes(key));
    byId("fitting").hidden = true;
  }

  async #draw(key, laws) {
    const chosen = OF_A_SETTING.includes(key), setting = chosen ? this.setting : "";
    if (key !== "ladder" && !this.offered) return;
    if (key !== "ladder" && !this.setting) { await plot(byId(key), nothing("the study tunes no settings")); return; }
    const figure = await quietly(() => api(`${this.where}/figures/${path(key)}?${new URLSearchParams({ setting, laws })}`));
    if (!figure || (chosen && setting !== this.setting)) return;
    this.figures.set(key, figure);
    await this.#show(key, figure);
  }

  async #show(key, figure) {
    const chosen = new Set(this.selected);
    for (const trace of figure.data) {
      if (!trace.customdata || typeof trace.customdata[0] !== "number") continue;
      trace.selectedpoints = chosen.size ? trace.customdata.flatMap((trial, at) => chosen.has(trial) ? [at] : []) : null;
      Object.assign(trace, { selected: { marker: { opacity: 1, size: 15 } }, unselected: { marker: { opacity: 0.2 } } });
    }
    await plot(byId(key), figure);
    whenClicked(byId(key), (point) => { if (typeof point.customdata === "number") this.open(point.customdata); });
  }
}
