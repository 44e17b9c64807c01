// Charts over the range that is shown. Dragging over any of them zooms all; a double click goes back.
// Dashed lines are what happened: plans that came into force, starts and ends, queries, trouble.

import uPlot from "/static/vendor/uPlot.js";
import { LANES, PURPOSES, colourOf, token } from "/static/colours.js";
import { h } from "/static/dom.js";
import * as format from "/static/format.js";

const SYNC = uPlot.sync("time");
const HEIGHT = 150;
const DASHED = [5, 4]; // of 99th percentiles, which may lie on the median
const axisTime = (at, step) => step >= 86400 ? format.instant(at).slice(5, 10) : step >= 60 ? format.clock(at).slice(0, 5) : format.clock(at);

const sumBy = (list, place) => {
  const found = new Map();
  for (const one of list ?? []) {
    const name = one.labels[place];
    const before = found.get(name);
    found.set(name, before ? before.map((value, i) => value === null ? one.values[i] : value + (one.values[i] ?? 0)) : one.values);
  }
  return [...found].map(([name, values]) => ({ name, values }));
};
const named = (list, name) => (list ?? []).map((one) => ({ name: name(one.labels), values: one.values }));

export const CHARTS = {
  bytes: { kinds: ["link"], title: "Shipped by purpose", unit: "bytes a second", show: format.bytesRate, pick: (all) => sumBy(all.link, 2), colour: (name, place) => PURPOSES[name] ?? colourOf(place) },
  rows: { kinds: ["rows"], title: "Rows in by stream", unit: "rows a second", show: format.short, pick: (all) => sumBy(all.rows, 1) },
  answers: { kinds: ["answers"], title: "Answers by query", unit: "answers a second", show: format.short, pick: (all) => named(all.answers, (labels) => labels[0]) },
  delay: { kinds: ["delay"], title: "Delay of answers", unit: "median and 99th percentile", show: format.seconds, pick: (all) => named(all.delay, (labels) => `${labels[0]}, ${labels[1]}`), gaps: true },
  state: { kinds: ["state_bytes"], title: "State by site", unit: "bytes", show: format.bytes, pick: (all) => named(all.state_bytes, (labels) => labels[0]), gaps: true },
  backlog: { kinds: ["backlog"], title: "Backlog of links", unit: "bytes not taken yet", show: format.bytes, pick: (all) => named(all.backlog, (labels) => labels.join(" → ")), gaps: true },
  latency: { kinds: ["latency"], title: "Latency of links", unit: "until durable at the other site", show: format.seconds, pick: (all) => named(all.latency, (labels) => labels.join(" → ")), gaps: true },
  duration: { kinds: ["batch_seconds"], title: "Micro-batches by site", unit: "seconds each", show: format.seconds, pick: (all) => named(all.batch_seconds, (labels) => labels[0]), gaps: true },
  trouble: { kinds: ["late", "malformed"], title: "Late and malformed rows", unit: "rows a second", show: format.short, pick: (all) => [...sumBy(all.late, 1).map((one) => ({ ...one, name: `${one.name}, late` })), ...sumBy(all.malformed, 1).map((one) => ({ ...one, name: `${one.name}, malformed` }))] },
};

const isMarked = (note) => note.version !== null || note.is_bad || note.lane === "run" || note.lane === "query";

export class Chart {
  constructor(kind, app, only = () => true) {
    this.spec = CHARTS[kind];
    this.app = app;
    this.only = only;
    this.plot = null;
    this.names = "";
    this.body = h("div", {});
    this.node = h("figure", { class: "card chart", "data-chart": kind, "aria-label": `Chart: ${this.spec.title}` },
      h("h2", {}, this.spec.title, h("small", {}, this.spec.unit)), this.body);
    this.node.style.margin = "0";
    this.body.addEventListener("dblclick", () => app.unzoom());
    new ResizeObserver(() => this.resize()).observe(this.body);
  }

  resize() {
    const width = this.body.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
    else if (!this.plot && width && this.latest) this.update(...this.latest);
  }

  redraw() { // in other colours
    this.names = "";
    if (this.latest) this.update(...this.latest);
  }

  update(history, range) {
    this.latest = [history, range];
    const width = this.body.clientWidth || (this.node.hidden ? this.node.parentElement.clientWidth : 0);
    if (!width) return;
    const lines = this.spec.pick(history.series).filter((line) => this.only(line.name)).slice(0, 12);
    this.node.hidden = !lines.length;
    const times = Array.from({ length: history.count }, (_, place) => history.start + place * history.step);
    const names = JSON.stringify(lines.map((line) => line.name));
    if (names !== this.names || !this.plot) {
      this.names = names;
      this.plot?.destroy();
      this.body.replaceChildren();
      if (!lines.length) {
        this.plot = null;
        return;
      }
      this.plot = new uPlot(this.options(lines, width), [times, ...lines.map((line) => line.values)], this.body);
      this.body.querySelector("canvas").setAttribute("aria-hidden", "true");
    } else {
      this.plot.setData([times, ...lines.map((line) => line.values)], false);
    }
    this.plot.setScale("x", { min: range.from, max: range.to });
  }

  mark(plot) {
    const g = plot.ctx, { left, top, width, height } = plot.bbox, ratio = devicePixelRatio || 1;
    g.save();
    g.lineWidth = ratio;
    g.setLineDash([2 * ratio, 3 * ratio]);
    this.marked = 0;
    for (const note of this.app.notes) {
      const x = Math.round(plot.valToPos(note.at, "x", true)) + 0.5;
      if (!isMarked(note) || this.app.hiddenLanes.has(note.lane) || x < left || x > left + width + 1) continue;
      this.marked += 1;
      g.strokeStyle = LANES[note.lane];
      g.beginPath();
      g.moveTo(x, top);
      g.lineTo(x, top + height);
      g.stroke();
    }
    g.restore();
  }

  options(lines, width) {
    const soft = token("--soft"), grid = token("--grid");
    const axis = { stroke: soft, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, size: 4 }, font: "11px system-ui, sans-serif" };
    return {
      width, height: HEIGHT,
      tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "UTC"),
      cursor: { sync: { key: SYNC.key }, drag: { x: true, y: false, setScale: false }, points: { size: 5 } },
      hooks: { drawAxes: [(plot) => this.mark(plot)], setSelect: [(plot) => {
        if (plot.select.width > 4) this.app.zoom(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
        plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      }] },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis, space: 76, size: 28, values: (plot, ticks, _, __, step) => ticks.map((tick) => axisTime(tick, step)) }, { ...axis, size: 66, space: 26, values: (_, ticks) => ticks.map((tick) => this.spec.show(tick)) }],
      legend: { live: true },
      series: [
        { label: "time (UTC)", value: (_, at) => at === null ? format.none : format.clock(at) },
        ...lines.map((line, place) => ({
          label: line.name, stroke: (this.spec.colour ?? ((_, n) => colourOf(n)))(line.name, place), width: 1.6, dash: line.name.endsWith("99 %") ? DASHED : undefined,
          spanGaps: Boolean(this.spec.gaps), points: { show: false }, value: (_, value) => this.spec.show(value),
        })),
      ],
    };
  }
}
