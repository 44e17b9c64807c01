// Traces of simulated peers: the id ring coloured by load, ranked load, messages by kind and churn, played.

import uPlot from "/static/vendor/uPlot.js";
import { colourOf, token } from "/static/colours.js";
import { h, replaceIfChanged } from "/static/dom.js";
import * as format from "/static/format.js";
import { factList } from "/static/map.js";

const SPEEDS = [["0.5×", 0.5], ["1×", 1], ["4×", 4], ["16×", 16]];
const LOOKS_PER_SECOND = 8;
const STEPS = 32; // colours of load

function ramp() { // from calm to hot, readable on light and dark
  const stops = [[70, 130, 190], [60, 165, 140], [225, 170, 50], [210, 70, 40], [150, 20, 60]];
  return Array.from({ length: STEPS }, (_, place) => {
    const at = place / (STEPS - 1) * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(at)), part = at - low;
    return `rgb(${stops[low].map((value, n) => Math.round(value + (stops[low + 1][n] - value) * part)).join(" ")})`;
  });
}

export class PeersPanel {
  constructor(panel, app) {
    this.app = app;
    this.charts = [];
    this.traces = null;
    this.place = 0;
    this.position = 0;
    this.playing = false;
    this.speed = 1;
    this.colours = ramp();
    this.panel = panel;
  }

  async update() {
    if (this.traces !== null) return;
    this.traces = [];
    const answer = await fetch("/api/peers");
    this.traces = answer.ok ? await answer.json() : [];
    if (!this.traces.length) {
      this.panel.replaceChildren(h("div", { class: "card" }, h("h2", {}, "Peers"), h("p", { class: "empty" }, "No trace of peers was given. Make one with `watersmeet simulate SCENARIO --trace FILE`, and open it with `watersmeet dashboard FILE`.")));
      return;
    }
    this.build();
    this.load(0);
  }

  build() {
    this.ring = h("canvas", { id: "ring", height: 460, role: "img", "aria-label": "Peers on the id ring, coloured by load" });
    this.ranked = h("canvas", { id: "ranked", height: 200, role: "img", "aria-label": "Load of peers by rank, both axes logarithmic" });
    this.facts = h("div", { id: "peer-facts" });
    this.messages = h("div", { class: "chart-body" });
    this.churn = h("div", { class: "chart-body" });
    this.button = h("button", { type: "button", class: "quiet", id: "play", onclick: () => this.play(!this.playing) }, "Play");
    this.slider = h("input", { type: "range", min: 0, max: 1, value: 0, "aria-label": "Time of the simulation", oninput: () => { this.play(false); this.seek(Number(this.slider.value)); } });
    this.clock = h("span", { class: "soft", id: "peer-clock" });
    const speeds = h("select", { "aria-label": "Speed", onchange: (event) => { this.speed = Number(event.target.value); } }, SPEEDS.map(([name, value]) => h("option", { value, selected: value === 1 }, name)));
    const choice = h("select", { "aria-label": "Trace", onchange: (event) => this.load(Number(event.target.value)) }, this.traces.map((trace, n) => h("option", { value: n }, trace.name)));
    this.panel.replaceChildren(h("div", { class: "stack" },
      h("div", { class: "card player" }, this.traces.length > 1 ? choice : null, this.button, speeds, this.slider, this.clock),
      h("div", { class: "split" },
        h("div", { class: "card" }, h("h2", {}, "Peers on the id ring"), this.ring, h("div", { class: "legend", id: "ring-legend" })),
        h("div", { class: "stack" }, h("div", { class: "card" }, h("h2", {}, "Now"), this.facts), h("div", { class: "card" }, h("h2", {}, "Load by rank"), this.ranked))),
      h("div", { class: "cards" },
        h("figure", { class: "card chart" }, h("h2", {}, "Messages by kind", h("small", {}, "messages a second")), this.messages),
        h("figure", { class: "card chart" }, h("h2", {}, "Peers that are up", h("small", {}, "churn")), this.churn))));
    for (const figure of this.panel.querySelectorAll("figure")) figure.style.margin = "0";
    new ResizeObserver(() => this.redraw()).observe(this.panel);
  }

  load(number) {
    this.trace = this.traces[number];
    const count = Math.max(this.trace.places.length, ...this.trace.looks.map((look) => Math.max(-1, ...look.loads[0]) + 1));
    this.loads = new Float64Array(count);
    this.up = new Uint8Array(count);
    this.top = Math.max(1, ...this.trace.looks.map((look) => look.load?.highest ?? 0));
    this.slider.max = Math.max(0, this.trace.looks.length - 1);
    this.plots();
    this.rewind();
    this.seek(this.trace.looks.length - 1);
  }

  rewind() {
    this.loads.fill(0);
    this.up.fill(0);
    this.up.fill(1, 0, this.trace.places.length);
    this.place = -1;
  }

  // Looks have only what has changed: going back starts over.
  seek(place) {
    if (place < this.place) this.rewind();
    for (let n = this.place + 1; n <= place; n += 1) {
      const look = this.trace.looks[n];
      look.loads[0].forEach((node, i) => { this.loads[node] = look.loads[1][i]; });
      for (const node of look.came) this.up[node] = 1;
      for (const node of look.went) this.up[node] = 0;
    }
    this.place = place;
    this.position = place;
    this.slider.value = place;
    this.draw();
  }

  play(on) {
    this.playing = on;
    this.button.textContent = on ? "Pause" : "Play";
    if (!on) return;
    if (this.place >= this.trace.looks.length - 1) this.seek(0);
    let before = performance.now();
    this.frames = 0;
    const began = before;
    const frame = (clock) => {
      if (!this.playing) return;
      this.frames += 1;
      this.framesPerSecond = this.frames / Math.max(0.001, (clock - began) / 1000);
      this.position += (clock - before) / 1000 * LOOKS_PER_SECOND * this.speed;
      before = clock;
      const next = Math.min(this.trace.looks.length - 1, Math.floor(this.position));
      const kept = this.position;
      if (next !== this.place) this.seek(next);
      this.position = kept;
      if (next >= this.trace.looks.length - 1) this.play(false);
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  redraw() { if (this.trace && !this.panel.hidden) { this.plots(); this.draw(); } }

  level(load) { return load > 0 ? Math.min(STEPS - 1, Math.floor(Math.log1p(load) / Math.log1p(this.top) * (STEPS - 1))) : 0; }

  surface(canvas, height) {
    const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return null;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = `${height}px`; }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    return [g, width];
  }

  draw() {
    const look = this.trace.looks[this.place];
    if (!look) return;
    this.drawRing();
    this.drawRanked();
    this.clock.textContent = `${format.seconds(look.t)}, look ${this.place + 1} of ${this.trace.looks.length}`;
    const facts = [["overlay", this.trace.overlay ?? format.none], ["peers", `${format.count(look.up ?? this.trace.nodes)} up`], ["seed", String(this.trace.seed)], ["tuples", format.count(look.tuples)], ["answers", format.count(look.answers)],
      ["messages", format.count(Object.values(look.messages).reduce((a, b) => a + b, 0))], ["highest load", format.count(look.load?.highest)], ["mean load", look.load ? format.short(look.load.mean) : format.none], ["peers with load", format.count(look.load?.nodes)]];
    replaceIfChanged(this.facts, facts, () => factList(facts));
  }

  // Each peer is a spoke outwards from the ring, as long and as hot as its load; one path a colour.
  drawRing() {
    const height = Math.min(520, Math.max(300, this.ring.clientWidth * 0.72));
    const made = this.surface(this.ring, height);
    if (!made) return;
    const [g, width] = made;
    const x = width / 2, y = height / 2, inner = Math.min(width, height) * 0.27, room = Math.min(width, height) * 0.2;
    const paths = Array.from({ length: STEPS }, () => new Path2D());
    const gone = new Path2D();
    const places = this.trace.places;
    for (let node = 0; node < places.length; node += 1) {
      const angle = places[node] * 2 * Math.PI - Math.PI / 2, c = Math.cos(angle), d = Math.sin(angle);
      if (!this.up[node]) { gone.moveTo(x + c * (inner - 4), y + d * (inner - 4)); gone.lineTo(x + c * (inner - 1), y + d * (inner - 1)); continue; }
      const level = this.level(this.loads[node]), far = inner + 2 + level / (STEPS - 1) * room;
      paths[level].moveTo(x + c * inner, y + d * inner);
      paths[level].lineTo(x + c * far, y + d * far);
    }
    g.lineWidth = places.length > 3000 ? 0.8 : places.length > 600 ? 1.4 : 2.6;
    g.strokeStyle = token("--line");
    g.stroke(gone);
    paths.forEach((path, level) => { g.strokeStyle = this.colours[level]; g.stroke(path); });
    g.beginPath();
    g.arc(x, y, inner - 2, 0, 2 * Math.PI);
    g.strokeStyle = token("--line");
    g.lineWidth = 1;
    g.stroke();
    g.fillStyle = token("--ink");
    g.textAlign = "center";
    g.font = "600 22px system-ui, sans-serif";
    g.fillText(format.count(places.length), x, y + 2);
    g.font = "12px system-ui, sans-serif";
    g.fillStyle = token("--soft");
    g.fillText(places.length < (this.trace.nodes ?? 0) ? `of ${format.count(this.trace.nodes)} peers` : "peers", x, y + 20);
    const legend = document.getElementById("ring-legend");
    replaceIfChanged(legend, this.top, () => [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, h("i", { class: "swatch", colour: this.colours[Math.round(part * (STEPS - 1))] }), part === 0 ? "no load" : `load ${format.short(Math.round(Math.expm1(part * Math.log1p(this.top))))}`)));
  }

  drawRanked() {
    const height = 200, made = this.surface(this.ranked, height);
    if (!made) return;
    const [g, width] = made;
    const ranked = Float64Array.from(this.loads).sort().reverse();
    const left = 46, base = height - 24, wide = width - left - 10, high = base - 10;
    const px = (rank) => left + Math.log(rank) / Math.log(Math.max(2, ranked.length)) * wide, py = (load) => base - Math.log1p(load) / Math.log1p(this.top) * high;
    g.strokeStyle = token("--grid");
    g.fillStyle = token("--soft");
    g.font = "11px system-ui, sans-serif";
    g.lineWidth = 1;
    for (let power = 1; power <= this.top; power *= 10) {
      g.beginPath(); g.moveTo(left, py(power)); g.lineTo(width - 10, py(power)); g.stroke();
      g.textAlign = "right"; g.fillText(format.short(power), left - 6, py(power) + 4);
    }
    for (let power = 1; power <= ranked.length; power *= 10) { g.textAlign = power * 3 > ranked.length ? "right" : "center"; g.fillText(format.short(power), px(power), height - 8); }
    g.beginPath();
    for (let rank = 1; rank <= ranked.length; rank = rank < 200 ? rank + 1 : Math.ceil(rank * 1.01)) { const y = py(ranked[rank - 1]); rank === 1 ? g.moveTo(px(rank), y) : g.lineTo(px(rank), y); }
    g.strokeStyle = token("--accent");
    g.lineWidth = 2;
    g.stroke();
  }

  plots() {
    const looks = this.trace.looks, times = looks.map((look) => look.t);
    const kinds = [...new Set(looks.flatMap((look) => Object.keys(look.messages)))];
    const rates = kinds.map((kind) => looks.map((look, n) => n === 0 ? null : ((look.messages[kind] ?? 0) - (looks[n - 1].messages[kind] ?? 0)) / Math.max(1e-9, look.t - looks[n - 1].t)));
    this.plot(this.messages, times, kinds, rates);
    const ups = looks.map((look) => look.up ?? this.trace.nodes);
    this.plot(this.churn, times, ["peers up"], [ups]);
  }

  plot(body, times, names, lines) {
    const width = body.clientWidth;
    body.replaceChildren();
    if (!width || times.length < 2) return;
    const grid = { stroke: token("--grid"), width: 1 }, stroke = token("--soft"), font = "11px system-ui, sans-serif";
    const made = new uPlot({
      width, height: 170, cursor: { drag: { x: false, y: false } }, scales: { x: { time: false }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [{ stroke, grid, font, size: 28, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { stroke, grid, font, size: 60, values: (_, ticks) => ticks.map((tick) => format.short(tick)) }],
      series: [{ label: "time", value: (_, at) => at === null ? format.none : format.seconds(at) }, ...names.map((name, n) => ({ label: name, stroke: colourOf(n), width: 1.6, points: { show: false }, value: (_, value) => format.short(value) }))],
    }, [times, ...lines], body);
    made.root.querySelector("canvas").setAttribute("aria-hidden", "true");
  }
}
