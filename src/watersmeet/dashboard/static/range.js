// The strip above all panels: the whole history, what happened in it, and the time that charts show.

import { LANES, token } from "/static/colours.js";
import { h } from "/static/dom.js";
import * as format from "/static/format.js";

const PRESETS = [["5 min", 300], ["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["all", Infinity]];

export class Range {
  constructor(changed) {
    this.changed = changed;
    this.span = Infinity; // that is followed, up to now
    this.fixed = null; // or a time that was chosen
    this.began = this.now = 0;
    this.history = null;
    this.notes = [];
    this.canvas = document.getElementById("brush");
    this.text = document.getElementById("range-text");
    this.buttons = PRESETS.map(([name, span]) => h("button", { type: "button", onclick: () => this.follow(span) }, name));
    document.querySelector(".presets").append(...this.buttons);
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  get shown() {
    if (this.fixed) return this.fixed;
    const all = Math.max(10, this.now - this.began);
    return { from: this.now - Math.min(all, this.span), to: this.now };
  }

  follow(span) { this.span = span; this.fixed = null; this.say(); this.changed(); }

  zoom(from, to) {
    if (to - from < 2) [from, to] = [(from + to) / 2 - 1, (from + to) / 2 + 1];
    this.fixed = { from, to };
    this.say();
    this.changed();
  }

  reset() { this.follow(this.span); }

  tick(began, now, isLive) {
    this.isLive = isLive;
    if (began === null) return;
    if (!this.began && now - began > 3600) this.span = 900;
    this.began = began;
    this.now = now;
    this.say();
  }

  say() {
    const { from, to } = this.shown;
    this.text.textContent = `${format.instant(from)} – ${format.clock(to)} UTC, ${format.seconds(to - from)}${this.fixed || !this.isLive ? "" : ", following"}`;
    this.buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(!this.fixed && this.span === PRESETS[place][1])));
    this.draw();
  }

  place(at) {
    const whole = Math.max(10, this.now - this.began);
    return (at - this.began) / whole * this.canvas.clientWidth;
  }

  time(x) {
    const whole = Math.max(10, this.now - this.began);
    return this.began + x / this.canvas.clientWidth * whole;
  }

  listen() {
    let start = null;
    const at = (event) => event.clientX - this.canvas.getBoundingClientRect().left;
    this.canvas.addEventListener("pointerdown", (event) => { start = at(event); this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointermove", (event) => {
      if (start !== null && Math.abs(at(event) - start) > 3) {
        const [a, b] = [start, at(event)].sort((x, y) => x - y);
        this.fixed = { from: this.time(Math.max(0, a)), to: this.time(b) };
        this.say();
      }
    });
    this.canvas.addEventListener("pointerup", () => {
      if (start !== null && this.fixed) this.zoom(this.fixed.from, this.fixed.to);
      start = null;
    });
    this.canvas.addEventListener("dblclick", () => this.reset());
    document.addEventListener("keydown", (event) => { if (event.key === "Escape" && this.fixed) this.reset(); });
  }

  draw() {
    const width = this.canvas.clientWidth, height = 52, ratio = devicePixelRatio || 1;
    if (!width || !this.began) return;
    if (this.canvas.width !== Math.round(width * ratio)) { this.canvas.width = Math.round(width * ratio); this.canvas.height = height * ratio; }
    const g = this.canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const { from, to } = this.shown, left = this.place(from), right = this.place(to);
    g.fillStyle = token("--accent-soft");
    g.fillRect(left, 0, Math.max(2, right - left), height - 10);
    if (this.history) this.area(g, height - 11);
    g.fillStyle = token("--accent");
    g.fillRect(left, 0, 1.5, height - 10);
    g.fillRect(Math.max(left + 1, right - 1.5), 0, 1.5, height - 10);
    for (const note of this.notes) {
      g.fillStyle = LANES[note.lane];
      g.fillRect(this.place(note.at) - 1, height - 8, 2, 8);
    }
  }

  area(g, base) {
    const { start, step, count, series } = this.history;
    const total = new Array(count).fill(0);
    for (const one of series.rows ?? []) one.values.forEach((value, place) => { total[place] += value; });
    const top = Math.max(...total, 1e-9);
    g.beginPath();
    g.moveTo(this.place(start), base);
    total.forEach((value, place) => g.lineTo(this.place(start + (place + 0.5) * step), base - value / top * (base - 6)));
    g.lineTo(this.place(start + count * step), base);
    g.fillStyle = token("--line");
    g.fill();
  }
}
