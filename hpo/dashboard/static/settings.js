// Tables of settings, with the important settings first and all others collapsed.
import { el, number, words } from "./app.js";

/** A setting's value as text. */
export const shown = (value, digits = 5) => value === null || value === undefined ? "–" : typeof value === "number" ? number(value, digits)
  : Array.isArray(value) ? value.map((each) => shown(each, digits)).join(", ") || "–" : String(value);

/**
 * Build tables of settings: ``heads()`` are the columns besides the name, ``cells(setting)`` their texts or elements, and
 * ``rows`` are placed above the settings. Settings in ``first`` are always visible; ``marked`` settings are highlighted.
 */
export function settingsTables({ heads, rows = [], names, first, cells, marked = () => false }) {
  const row = (setting) => el(marked(setting) ? "tr.differs" : "tr", {}, el("th", { scope: "row" }, words(setting)),
    ...cells(setting).map((cell) => el("td", {}, cell)));
  const table = (...body) => el("div.scroll", { tabindex: "0", role: "region", "aria-label": "Settings" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Setting", ...heads()].map((head) => el("th", { scope: "col" }, head)))), el("tbody", {}, ...body)));
  const others = names.filter((name) => !first.includes(name));
  return [rows.length || first.length ? table(...rows, ...names.filter((name) => first.includes(name)).map(row)) : null,
    others.length ? el("details.inner", {}, el("summary", {}, first.length ? `The other ${others.length} settings` : `All ${others.length} settings`), table(...others.map(row))) : null]
    .filter(Boolean);
}
