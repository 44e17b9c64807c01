// The latest answers, which sites show only while somebody looks at them.

import { h, replaceIfChanged, table } from "/static/dom.js";
import * as format from "/static/format.js";

const MOST_KEPT = 500, MOST_SHOWN = 200;
const ASK_MS = 4000; // at the latest: sites show samples for twice that time after they were asked for them

export class AnswersPanel {
  constructor(panel, app) {
    this.app = app;
    this.found = [];
    this.samples = 0;
    this.askedAt = -Infinity;
    this.charts = [];
    this.query = h("select", { id: "answers-query", onchange: () => this.show() });
    this.filter = h("input", { type: "search", id: "answers-filter", placeholder: "text in any column", oninput: () => this.show() });
    this.count = h("span", { class: "soft", role: "status" });
    this.body = h("div", { id: "answers" });
    panel.append(h("div", { class: "card" }, h("h2", {}, "Latest answers"),
      h("div", { class: "filters" }, h("label", {}, "query", this.query), h("label", {}, "filter", this.filter), this.count), this.body));
  }

  async update(now) {
    const known = now.queries.map((query) => query.name), chosen = this.query.value;
    if (replaceIfChanged(this.query, known, () => known.map((name) => h("option", { value: name, selected: name === chosen }, name)))) this.show();
    if (now.answers < this.samples) [this.samples, this.found] = [0, []]; // another server
    if (now.answers === this.samples && performance.now() - this.askedAt < ASK_MS) return;
    this.askedAt = performance.now();
    const after = this.samples;
    const answer = await fetch(`/api/answers?after=${after}`);
    if (!answer.ok) return;
    const { samples, queries } = await answer.json();
    if (after !== this.samples) return; // another question was faster
    this.samples = samples;
    this.found = queries.map((one) => this.joined(one, this.found.find((kept) => kept.query === one.query)));
    this.show();
  }

  joined(one, kept) {
    const earlier = kept && JSON.stringify(kept.columns) === JSON.stringify(one.columns) ? kept.rows : [];
    return { ...one, rows: [...one.rows, ...earlier].slice(0, MOST_KEPT) };
  }

  show() {
    const one = this.found.find((kept) => kept.query === this.query.value);
    if (!one) {
      this.count.textContent = "";
      replaceIfChanged(this.body, "none", () => h("p", { class: "empty" }, "No answer of this query has been delivered since this panel is open. Answers are shown of runs that go on, and are kept nowhere."));
      return;
    }
    const wanted = this.filter.value.toLowerCase();
    const rows = one.rows.filter((row) => !wanted || row.values.some((value) => String(value).toLowerCase().includes(wanted)));
    this.count.textContent = `${rows.length} of ${one.rows.length} kept, the latest first`;
    const numeric = one.columns.map((_, place) => one.rows.every((row) => row.values[place] === null || typeof row.values[place] === "number"));
    replaceIfChanged(this.body, [one.query, wanted, rows.length, rows[0]], () => table(
      ["delivered (UTC)", ...one.columns.map((name, place) => (numeric[place] ? "#" : "") + name)],
      rows.slice(0, MOST_SHOWN).map((row) => ({ cells: [format.clock(row.at), ...row.values.map((value) => value === null ? "NULL" : String(value))] })), "Answers"));
  }
}
