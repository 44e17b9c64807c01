// The latest answers, which sites show only while somebody looks at them.

import { h, replaceIfChanged, table } from "/static/dom.js";
import * as format from "/static/format.js";

const MOST_SHOWN = 200;

export class AnswersPanel {
  constructor(panel, app) {
    this.app = app;
    this.found = [];
    this.charts = [];
    this.query = h("select", { id: "answers-query", onchange: () => this.show() });
    this.filter = h("input", { type: "search", id: "answers-filter", placeholder: "text in any column", oninput: () => this.show() });
    this.count = h("span", { class: "soft", role: "status" });
    this.body = h("div", { id: "answers" });
    panel.append(h("div", { class: "card" }, h("h2", {}, "Latest answers"),
      h("div", { class: "filters" }, h("label", {}, "query", this.query), h("label", {}, "filter", this.filter), this.count), this.body));
  }

  async update() {
    const answer = await fetch("/api/answers");
    if (!answer.ok) return;
    this.found = await answer.json();
    const names = this.found.map((one) => one.query);
    replaceIfChanged(this.query, names, () => names.map((name) => h("option", { value: name }, name)));
    this.show();
  }

  show() {
    const one = this.found.find((kept) => kept.query === this.query.value) ?? this.found[0];
    if (!one) {
      replaceIfChanged(this.body, "none", () => h("p", { class: "empty" }, "No answer has been delivered since this panel is open. Answers are shown of runs that go on, and are kept nowhere."));
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
