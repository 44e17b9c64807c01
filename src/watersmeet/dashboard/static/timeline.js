// What happened, and all charts: a time that is chosen on the strip or in a chart is that of everything here.

import { CHARTS, Chart } from "/static/charts.js";
import { LANES } from "/static/colours.js";
import { h, replaceIfChanged } from "/static/dom.js";
import * as format from "/static/format.js";

const MOST_SHOWN = 300;

export class TimelinePanel {
  constructor(panel, app) {
    this.app = app;
    this.list = h("ol", { class: "notes", id: "notes", tabindex: "0", "aria-label": "What happened, the latest first" });
    this.count = h("small", { class: "soft" });
    // Unticked, they are not in charts either.
    const lanes = Object.entries(LANES).map(([lane, colour]) => h("label", { class: "inline" },
      h("input", { type: "checkbox", checked: true, onchange: (event) => this.choose(lane, event.target.checked) }),
      h("i", { class: "swatch", colour }), lane));
    this.charts = Object.keys(CHARTS).map((kind) => new Chart(kind, app));
    panel.append(h("div", { class: "stack" },
      h("div", { class: "card" }, h("h2", {}, "What happened ", this.count), h("div", { class: "filters" }, lanes), this.list),
      h("div", { class: "cards" }, this.charts.map((chart) => chart.node))));
  }

  update() { this.show(); }

  choose(lane, isShown) {
    if (isShown) this.app.hiddenLanes.delete(lane);
    else this.app.hiddenLanes.add(lane);
    this.charts.forEach((chart) => chart.plot?.redraw(false));
    this.show();
  }

  show() {
    const { from, to } = this.app.range.shown;
    const notes = this.app.notes.filter((note) => note.at >= from - 1 && note.at <= to + 1 && !this.app.hiddenLanes.has(note.lane)).slice(-MOST_SHOWN).reverse();
    this.count.textContent = `${notes.length} in this time`;
    replaceIfChanged(this.list, notes, () => notes.length ? notes.map((note) => this.line(note)) : [h("li", { class: "empty" }, "Nothing in this time.")]);
  }

  line(note) {
    const effect = note.effect && `shipped ${format.bytesRate(note.effect.before)} before, ${format.bytesRate(note.effect.after)} after (${format.change(note.effect.before, note.effect.after)})`;
    const detail = [note.site && note.lane !== "pressure" ? `site ${note.site}` : "", note.detail, effect].filter(Boolean).join("; ");
    return h("li", { class: note.is_bad ? "bad" : null, "data-lane": note.lane },
      h("time", {}, format.instant(note.at)), h("span", { class: "lane" }, h("i", { class: "swatch", colour: LANES[note.lane] }), note.lane),
      h("div", {}, h("div", { class: "title" }, note.title), detail ? h("div", { class: "detail" }, detail) : null));
  }
}
