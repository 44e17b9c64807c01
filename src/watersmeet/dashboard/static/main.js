// The page: one connection that says every second how the run is, and panels that show it.

import { AnswersPanel } from "/static/answers.js";
import { h, replaceIfChanged } from "/static/dom.js";
import * as format from "/static/format.js";
import { MapPanel } from "/static/map.js";
import { PeersPanel } from "/static/peers.js";
import { QueriesPanel } from "/static/queries.js";
import { Range } from "/static/range.js";
import { TimelinePanel } from "/static/timeline.js";

const PANELS = [["map", "Map", MapPanel], ["queries", "Queries", QueriesPanel], ["timeline", "Time line", TimelinePanel], ["answers", "Answers", AnswersPanel], ["peers", "Peers", PeersPanel]];

class App {
  constructor() {
    this.now = null;
    this.notes = [];
    this.hiddenLanes = new Set(); // of what happened, not shown
    this.notesSeen = -1;
    this.historyAt = this.overviewAt = -Infinity;
    this.zoom = (from, to) => this.range.zoom(from, to);
    this.unzoom = () => this.range.reset();
    this.range = new Range(() => this.showHistory(true));
    this.panels = new Map(PANELS.map(([name, , Panel]) => [name, new Panel(document.getElementById(`panel-${name}`), this)]));
    this.tabs = PANELS.map(([name, title]) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => this.open(name), onkeydown: (event) => this.step(event) }, title));
    document.querySelector("nav").append(...this.tabs);
    this.open(PANELS.some(([name]) => name === location.hash.slice(1)) ? location.hash.slice(1) : "map", false);
    this.theme();
    this.connect();
  }

  get panel() { return this.panels.get(this.shown); }

  open(name, remember = true) {
    this.shown = name;
    PANELS.forEach(([other], place) => {
      document.getElementById(`panel-${other}`).hidden = other !== name;
      this.tabs[place].setAttribute("aria-selected", String(other === name));
      this.tabs[place].tabIndex = other === name ? 0 : -1;
    });
    if (remember) history.replaceState(null, "", `#${name}`);
    document.getElementById("range").hidden = name === "peers" || name === "answers";
    if (this.now) this.panel.update(this.now);
    this.showHistory(true);
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const place = (this.tabs.findIndex((tab) => tab.tabIndex === 0) + by + PANELS.length) % PANELS.length;
    this.open(PANELS[place][0]);
    this.tabs[place].focus();
  }

  theme() {
    const root = document.documentElement;
    const kept = localStorage.getItem("theme");
    if (kept) root.dataset.theme = kept;
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      this.redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  redraw() {
    for (const panel of this.panels.values()) panel.charts.forEach((chart) => chart.redraw());
    this.panels.get("peers").redraw();
    this.range.draw();
  }

  connect() {
    const state = document.getElementById("connection");
    const source = new EventSource("/api/events");
    source.onopen = () => { state.textContent = "connected"; };
    source.onerror = () => { state.textContent = "not connected; trying again"; };
    source.onmessage = (event) => this.take(JSON.parse(event.data));
  }

  async take(now) {
    if (!this.now && now.state === "trace" && !location.hash) this.open("peers", false);
    this.now = now;
    this.head(now);
    this.range.tick(now.began, now.now, now.is_live);
    if (now.notes !== this.notesSeen) {
      const answer = await fetch("/api/timeline");
      if (answer.ok) {
        this.notes = await answer.json();
        this.notesSeen = now.notes;
        this.range.notes = this.notes;
        this.range.draw();
      }
    }
    this.panel.update(now);
    await this.showHistory(false);
    document.body.dataset.ready = "true";
  }

  head(now) {
    const state = document.getElementById("state");
    state.textContent = now.state;
    state.className = `pill ${now.state}`;
    const bad = now.sites.filter((site) => ["silent", "failed"].includes(site.state)).map((site) => `site ${site.name}: ${site.state === "silent" ? site.why : site.state}`);
    const message = document.getElementById("message");
    message.textContent = [...bad, now.message].filter(Boolean).join("; ");
    message.hidden = !message.textContent;
    document.getElementById("version").textContent = now.version ? `Watersmeet ${now.version}` : "";
    document.title = now.queries.length ? `${now.queries.map((query) => query.name).slice(0, 3).join(", ")} – Watersmeet` : "Watersmeet";
    document.getElementById("totals").hidden = now.state === "trace";
    const t = now.totals;
    const figures = [
      ["rows in", format.count(t.rows), now.is_live ? format.rate(t.rows_s) : ""], ["answers", format.count(t.answers), now.is_live ? format.rate(t.answers_s) : ""],
      ["shipped", format.bytes(t.bytes), now.is_live ? format.bytesRate(t.bytes_s) : ""],
      ...(t.central ? [["of central", format.percent(t.bytes, t.central), t.central > t.bytes ? `saves ${format.bytes(t.central - t.bytes)}${t.central_price > t.price ? `, ${format.money(t.central_price - t.price)} in money` : ""}` : `${format.bytes(t.bytes - t.central)} more`]] : []),
      ["late", format.count(t.late), t.rows ? format.percent(t.late, t.rows) : ""], ["state", format.bytes(t.state_bytes), ""],
    ];
    replaceIfChanged(document.getElementById("totals"), figures, () => figures.map(([name, value, more]) => h("div", { "data-figure": name }, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, ` ${more}`) : null))));
  }

  async showHistory(isAsked) {
    if (!this.now || this.now.began === null) return;
    const clock = performance.now();
    const { from, to } = this.range.shown;
    if (clock - this.overviewAt > 10000 || !this.range.history) {
      this.overviewAt = clock;
      this.range.history = await this.history(this.range.began, Math.max(this.range.now, this.range.began + 10), 400, ["rows"]);
      this.range.draw();
    }
    const due = Math.max(2000, (to - from) / 300 * 1000);
    if (!this.panel.charts.length || (!isAsked && (clock - this.historyAt < due || (this.range.fixed && to < this.now.now - 5)))) return;
    this.historyAt = clock;
    const found = await this.history(from, to, 300, this.panel.charts.flatMap((chart) => chart.spec.kinds));
    if (found) this.panel.charts.forEach((chart) => chart.update(found, { from, to }));
    if (this.shown === "timeline") this.panel.show();
  }

  async history(from, to, points, kinds) {
    const answer = await fetch(`/api/history?from=${from}&to=${to}&points=${points}&kinds=${kinds.join(",")}`);
    return answer.ok ? answer.json() : null;
  }
}

window.watersmeet = new App();
