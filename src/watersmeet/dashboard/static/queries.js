// Queries: a line for each, and of the chosen one its SQL, its plan, and what it ships beside what was expected.

import { Chart } from "/static/charts.js";
import { h, replaceIfChanged, table } from "/static/dom.js";
import * as format from "/static/format.js";
import { factList } from "/static/map.js";

export class QueriesPanel {
  constructor(panel, app) {
    this.app = app;
    this.chosen = null;
    this.list = h("div", { class: "card", id: "query-list" });
    this.details = h("div", { class: "stack", id: "query-details" });
    const only = (name) => name === this.chosen || name.startsWith(`${this.chosen}, `);
    this.charts = [new Chart("answers", app, only), new Chart("delay", app, only)];
    panel.append(h("div", { class: "stack" }, this.list, h("div", { class: "cards" }, this.charts.map((chart) => chart.node)), this.details));
  }

  update(now) {
    if (!now.queries.some((query) => query.name === this.chosen)) this.chosen = now.queries[0]?.name ?? null;
    replaceIfChanged(this.list, [now.queries, this.chosen], () => this.lines(now.queries));
    const query = now.queries.find((one) => one.name === this.chosen);
    const states = query ? now.sites.filter((site) => site.state_bytes !== null && (site.name === query.site || query.sites.includes(site.name))).map((site) => `${site.name} ${format.bytes(site.state_bytes)}`).join(", ") : "";
    replaceIfChanged(this.details, [query ?? null, states], () => query ? this.detail(query, states) : []);
  }

  choose(name) {
    this.chosen = name;
    this.update(this.app.now);
    this.charts.forEach((chart) => chart.redraw());
  }

  lines(queries) {
    if (!queries.length) return [h("h2", {}, "Queries"), h("p", { class: "empty" }, "No query has started yet.")];
    const rows = queries.map((query) => ({
      attributes: { class: "clickable", "data-query": query.name, "aria-selected": null, onclick: () => this.choose(query.name) },
      cells: [
        h("button", { type: "button", class: "name", "aria-pressed": String(query.name === this.chosen), onclick: (event) => { event.stopPropagation(); this.choose(query.name); } }, query.name),
        h("span", { class: `pill ${query.state}` }, query.state), query.planner ?? format.none, format.count(query.version), format.count(query.rows), format.count(query.answers), format.rate(query.answers_s),
        format.seconds(query.delay_median_s), format.seconds(query.delay_p99_s), format.count(query.late), format.count(query.malformed), format.bytes(query.shipped), format.percent(query.shipped, query.central),
      ],
    }));
    return [h("h2", {}, "Queries"), table(["query", "", "planner", "#plan", "#rows in", "#answers", this.app.now.is_live ? "#now" : "#mean", "#delay, median", "#99 %", "#late", "#malformed", "#shipped", "#of central"], rows, "Queries")];
  }

  detail(query, states) {
    const saved = query.central - query.shipped;
    const facts = [
      ["answered at", query.site ?? format.none], ["streams", query.streams.join(", ") || format.none], ["rows that failed", format.count(query.failed)], ["state of its sites", states || format.none],
      ["shipped", `${format.bytes(query.shipped)}, price ${format.money(query.shipped_price)}`],
      ["central would ship", query.central ? `${format.bytes(query.central)}, price ${format.money(query.central_price)}` : format.none],
      ["saved", query.central ? `${format.bytes(saved)} (${format.percent(saved, query.central)}), price ${format.money(query.central_price - query.shipped_price)}` : format.none],
      ["this plan ships", format.bytesRate(query.measured_s)],
      ["was expected to ship", query.expected_s === null ? format.none : `${format.bytesRate(query.expected_s)}${query.measured_s === null ? "" : `, measured ${format.percent(query.measured_s, query.expected_s)} of it`}`],
    ];
    const flows = query.flows.map((flow) => ({ cells: [`${flow.from} → ${flow.to}`, flow.purpose, flow.flow, format.bytes(flow.bytes), format.bytes(flow.since_plan), format.bytesRate(flow.measured_s), format.bytesRate(flow.expected_s), flow.measured_s === null ? format.none : format.percent(flow.measured_s, flow.expected_s)] }));
    return [h("div", { class: "split" },
      h("div", { class: "card" }, h("h2", {}, `Plan of ${query.name}`), h("p", { class: "soft" }, `version ${query.version ?? format.none}, by ${query.planner ?? format.none}: as a tree, and what each site does`), h("pre", { tabindex: "0", class: "plan" }, query.plan || format.none)),
      h("div", { class: "stack" },
        h("div", { class: "card" }, h("h2", {}, "SQL"), h("pre", { tabindex: "0", class: "sql" }, query.sql || format.none)),
        h("div", { class: "card" }, h("h2", {}, "Figures"), factList(facts)))),
    h("div", { class: "card" }, h("h2", {}, "Flows: measured and expected"), h("p", { class: "soft" }, "By the second of the streams' own time, since the plan in force has taken over (or since the last start). Without watermarks and agreement, which all queries of a link share."), flows.length
      ? table(["link", "purpose", "flow", "#shipped in all", "#since this plan", "#measured", "#expected", "#of expected"], flows, "Flows")
      : h("p", { class: "empty" }, "Nothing is shipped for this query."))];
  }
}
