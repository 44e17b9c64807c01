// Sites and links: what crosses each link now and for which purpose, and how each site is.

import { Chart } from "/static/charts.js";
import { PURPOSES, colourOf } from "/static/colours.js";
import { h, onPress, replaceIfChanged, s, table } from "/static/dom.js";
import * as format from "/static/format.js";

const BOX = { width: 168, height: 70 };

function places(sites) {
  const count = sites.length;
  const narrow = innerWidth < 560;
  const width = narrow ? 420 : 860, height = narrow ? Math.max(460, 150 * count) : Math.max(380, 300 + 26 * count);
  if (count === 1) return { width, height: 200, at: new Map([[sites[0].name, [width / 2, 100]]]) };
  const at = new Map();
  sites.forEach((site, place) => {
    const angle = (count === 2 ? Math.PI : Math.PI / 2 * 3) + place * 2 * Math.PI / count;
    const x = width / 2 + Math.cos(angle) * (width / 2 - BOX.width / 2 - 16);
    at.set(site.name, [x, height / 2 + Math.sin(angle) * (height / 2 - BOX.height / 2 - 16)]);
  });
  return { width, height, at };
}

// A curve from box to box that keeps to the right, so that both directions can be told apart.
function curve([x1, y1], [x2, y2], shift) {
  const most = innerWidth < 560 ? 18 : 46; // between boxes there is little room on a narrow page
  const length = Math.hypot(x2 - x1, y2 - y1), nx = -(y2 - y1) / length, ny = (x2 - x1) / length;
  const bend = Math.min(most, length * 0.13) + shift;
  const middle = [(x1 + x2) / 2 + nx * bend * 2, (y1 + y2) / 2 + ny * bend * 2];
  const [a, b] = [edge([x1, y1], middle), edge([x2, y2], middle)];
  const at = (t) => [0, 1].map((n) => (1 - t) ** 2 * a[n] + 2 * t * (1 - t) * middle[n] + t ** 2 * b[n]);
  return { path: `M${a[0].toFixed(1)} ${a[1].toFixed(1)}Q${middle[0].toFixed(1)} ${middle[1].toFixed(1)} ${b[0].toFixed(1)} ${b[1].toFixed(1)}`, at, end: b, from: middle };
}

// Where on its curve a tag covers no site and no other tag, as near to the middle as can be.
function spot(base, wide, high, taken) {
  const rects = Array.from({ length: 17 }, (_, n) => 0.5 + (n % 2 ? 1 : -1) * Math.ceil(n / 2) * 0.045).map((t) => base.at(t)).map(([x, y]) => ({ x, y, wide, high }));
  const hits = (one, other) => Math.abs(one.x - other.x) * 2 < one.wide + other.wide + 4 && Math.abs(one.y - other.y) * 2 < one.high + other.high + 4;
  const found = rects.find((rect) => !taken.some((other) => hits(rect, other))) ?? rects[0];
  taken.push(found);
  return found;
}

function edge([x, y], [tx, ty]) {
  const dx = tx - x, dy = ty - y;
  const scale = Math.min((BOX.width / 2 + 5) / Math.max(Math.abs(dx), 1e-9), (BOX.height / 2 + 5) / Math.max(Math.abs(dy), 1e-9));
  return [x + dx * scale, y + dy * scale];
}

const thickness = (rate) => rate > 0 ? Math.min(9, 1.2 + Math.log10(1 + rate / 50) * 1.6) : 0;
const idOf = (link) => `${link.from} → ${link.to}`;
// What was measured, as long as anything was; else what the topology says.
const latencyOf = (link) => link.measured_latency_s !== null ? format.seconds(link.measured_latency_s) : link.latency_ms ? `${format.seconds(link.latency_ms / 1000)} given` : "";

export class MapPanel {
  constructor(panel, app) {
    this.app = app;
    this.chosen = null;
    this.map = h("div", { id: "map" });
    this.legend = h("div", { class: "legend" });
    this.details = h("aside", { class: "card", "aria-label": "Details", "aria-live": "off" });
    this.chart = new Chart("bytes", app);
    panel.append(h("div", { class: "split" },
      h("div", { class: "stack" }, h("div", { class: "card" }, h("h2", {}, "Sites and links"), this.map, this.legend), this.chart.node), this.details));
    this.charts = [this.chart];
  }

  update(now) {
    const { width, height, at } = places(now.sites);
    const answering = new Set(now.queries.map((query) => query.site));
    const used = now.links.filter((link) => link.bytes > 0 || link.backlog > 0);
    const most = Math.max(...used.map((link) => link.bytes_s || 0), 0), largest = Math.max(...used.map((link) => link.bytes), 0);
    for (const link of used) link.isQuiet = !link.backlog && link.bytes_s <= most * 0.01 && (most > 0 || link.bytes < largest * 0.05) && this.chosen?.link !== idOf(link);
    const shown = [now.sites.map((site) => [site.name, site.state, site.why, site.rows_s, site.state_bytes]), used, [...answering], this.chosen, width, height];
    replaceIfChanged(this.map, shown, () => this.draw(now, used, at, width, height, answering));
    const purposes = [...new Set(used.flatMap((link) => Object.keys(link.purposes)))].sort();
    replaceIfChanged(this.legend, purposes, () => purposes.map((name) => h("span", {}, h("i", { class: "swatch", colour: PURPOSES[name] ?? colourOf(0) }), name)));
    this.detail(now);
  }

  draw(now, used, at, width, height, answering) {
    const focused = document.activeElement?.getAttribute?.("data-id");
    const taken = [...at.values()].map(([x, y]) => ({ x, y, wide: BOX.width, high: BOX.height }));
    const links = used.filter((link) => at.has(link.from) && at.has(link.to)).sort((a, b) => b.bytes - a.bytes).map((link) => this.link(link, at, taken));
    const sites = now.sites.map((site) => this.site(site, at.get(site.name), answering.has(site.name)));
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Map of sites and links" }, links.map(([lines]) => lines), sites, links.map(([, tag]) => tag));
    if (focused) queueMicrotask(() => svg.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus());
    return svg;
  }

  link(link, at, taken) {
    const [from, to] = [at.get(link.from), at.get(link.to)];
    const id = idOf(link), purposes = Object.entries(link.purposes).filter(([, one]) => one.bytes_s > 0).sort((a, b) => b[1].bytes_s - a[1].bytes_s);
    const base = curve(from, to, 0);
    const lines = [s("path", { d: base.path, class: "hit" })];
    if (!purposes.length) lines.push(s("path", { d: base.path, class: "idle" }));
    let shift = 0;
    for (const [name, one] of purposes) {
      const wide = thickness(one.bytes_s);
      lines.push(s("path", { d: curve(from, to, shift / 2).path, class: "flow", stroke: PURPOSES[name] ?? colourOf(0), "stroke-width": wide.toFixed(1) }));
      shift += wide + 2.5;
    }
    const angle = Math.atan2(base.end[1] - base.from[1], base.end[0] - base.from[0]) * 180 / Math.PI;
    lines.push(s("path", { d: "M0 0L-9 -4.5L-9 4.5Z", transform: `translate(${base.end[0]} ${base.end[1]}) rotate(${angle})`, fill: purposes.length ? PURPOSES[purposes[0][0]] ?? colourOf(0) : "var(--line)" }));
    const text = link.bytes_s > 0 ? format.bytesRate(link.bytes_s) : format.bytes(link.bytes);
    const waiting = [latencyOf(link), link.backlog > 0 ? `${format.bytes(link.backlog)} wait` : ""].filter(Boolean).join(", ");
    const wide = 7 * Math.max(text.length, waiting.length) + 16, high = waiting ? 34 : 20;
    const place = link.isQuiet ? null : spot(base, wide, high, taken);
    const attributes = { class: `link${link.is_stuck ? " stuck" : ""}`, "data-id": id };
    return [
      s("g", { ...attributes, "aria-hidden": "true", onclick: () => this.choose({ link: id }) }, lines),
      link.isQuiet ? null : s("g", { ...attributes, role: "button", tabindex: "0", "aria-pressed": String(this.chosen?.link === id), ...onPress(() => this.choose({ link: id })) },
        s("g", { class: "tag", transform: `translate(${place.x.toFixed(1)} ${place.y.toFixed(1)})` },
          s("text", { class: "unseen" }, `link ${id} `), s("rect", { x: -wide / 2, y: -high / 2, width: wide, height: high, rx: 5 }),
          s("text", { "text-anchor": "middle", y: waiting ? -2 : 4 }, text),
          waiting ? s("text", { "text-anchor": "middle", y: 12, class: "soft" }, waiting) : null)),
    ];
  }

  site(site, [x, y], answers) {
    const lines = site.why && !["ended", "running"].includes(site.state) ? [site.why.length > 25 ? `${site.state}${/for (.*)/.test(site.why) && site.state === "silent" ? " for " + site.why.match(/for (.*)/)[1] : ""}` : site.why]
      : [`${format.rate(site.rows_s, "rows")}`, `state ${site.state_bytes === null ? format.none : format.bytes(site.state_bytes)}`];
    return s("g", {
      class: `site ${site.state}${answers ? " answers" : ""}`, role: "button", tabindex: "0", "data-id": site.name, "aria-pressed": String(this.chosen?.site === site.name),
      transform: `translate(${(x - BOX.width / 2).toFixed(1)} ${(y - BOX.height / 2).toFixed(1)})`, ...onPress(() => this.choose({ site: site.name })),
    },
    s("text", { class: "unseen" }, `site, ${site.state} `), s("rect", { width: BOX.width, height: BOX.height, rx: 9 }), s("circle", { cx: 17, cy: 19, r: 5 }),
    s("text", { class: "name", x: 30, y: 24 }, site.name.length > 16 ? site.name.slice(0, 15) + "…" : site.name),
    answers ? s("text", { class: "soft", x: BOX.width - 10, y: 23, "text-anchor": "end" }, "answers") : null,
    lines.map((text, place) => s("text", { class: "soft", x: 13, y: 44 + 16 * place }, text)));
  }

  choose(what) {
    this.chosen = JSON.stringify(this.chosen) === JSON.stringify(what) ? null : what;
    if (this.app.now) this.update(this.app.now);
    if (this.chosen && this.details.getBoundingClientRect().top > innerHeight - 80) this.details.scrollIntoView({ block: "nearest" }); // on a narrow page
  }

  detail(now) {
    const site = this.chosen?.site && now.sites.find((one) => one.name === this.chosen.site);
    const link = this.chosen?.link && now.links.find((one) => idOf(one) === this.chosen.link);
    if (site) replaceIfChanged(this.details, site, () => this.siteDetail(site));
    else if (link) replaceIfChanged(this.details, link, () => this.linkDetail(link));
    else replaceIfChanged(this.details, now.links, () => this.allLinks(now));
  }

  allLinks(now) {
    const rows = now.links.filter((link) => link.bytes > 0).sort((a, b) => b.bytes - a.bytes).map((link) => ({
      attributes: { class: "clickable", onclick: () => this.choose({ link: idOf(link) }) },
      cells: [h("button", { type: "button", class: "name", onclick: (event) => { event.stopPropagation(); this.choose({ link: idOf(link) }); } }, idOf(link)), format.bytesRate(link.bytes_s), format.bytes(link.bytes), link.backlog ? format.bytes(link.backlog) : format.none, format.seconds(link.measured_latency_s), format.money(link.bytes * link.price_per_gb / 1e9)],
    }));
    return [h("h2", {}, "Links"), rows.length ? table(["link", this.when("#"), "#sent", "#backlog", "#latency", "#price"], rows, "Links") : h("p", { class: "empty" }, "Nothing is shipped between sites."),
      h("p", { class: "soft" }, "Choose a site or a link for its details.")];
  }

  siteDetail(site) {
    const facts = [["state", `${site.state}${site.why ? ", " + site.why : ""}`], ["last sign of life", format.instant(site.seen)], ["micro-batch", format.count(site.batch)], ["it took", format.seconds(site.batch_seconds)],
      ["rows kept", format.count(site.state_rows)], ["state", format.bytes(site.state_bytes)], ["segments", format.count(site.segments)]];
    const phases = Object.entries(site.phases).map(([name, value]) => ({ cells: [name, format.seconds(value)] }));
    const streams = site.streams.map((one) => ({ cells: [one.name, format.rate(one.rows_s), format.count(one.rows), format.count(one.late), one.watermark_us === null ? format.none : format.instant(one.watermark_us / 1e6)] }));
    return [this.back(`Site ${site.name}`), factList(facts),
      ...(streams.length ? [h("h3", {}, "Streams"), table(["stream", "#rows/s", "#rows", "#late", "#watermark (UTC)"], streams, "Streams")] : []),
      ...(phases.length ? [h("h3", {}, "Phases of the last micro-batch"), table(["phase", "#time"], phases, "Phases")] : []),
      ...(site.operators.length ? [h("h3", {}, "Operators"), h("pre", { tabindex: "0" }, site.operators.join("\n"))] : [])];
  }

  linkDetail(link) {
    const facts = [[this.when(), format.bytesRate(link.bytes_s)], ["sent", format.bytes(link.bytes)], ["waits", format.bytes(link.backlog)], ["latency, as given", format.seconds(link.latency_ms / 1000)],
      ["until durable there", format.seconds(link.measured_latency_s)], ["price", `${format.money(link.bytes * link.price_per_gb / 1e9)} (${format.money(link.price_per_gb)} a GB)`]];
    const purposes = Object.entries(link.purposes).map(([name, one]) => ({ cells: [[h("i", { class: "swatch", colour: PURPOSES[name] ?? colourOf(0) }), name], format.bytesRate(one.bytes_s), format.bytes(one.bytes), format.count(one.tuples)] }));
    const flows = link.flows.map((one) => ({ cells: [one.flow, one.purpose, format.bytes(one.bytes), format.bytesRate(one.measured_s), format.bytesRate(one.expected_s)] }));
    return [this.back(`Link ${idOf(link)}`), factList(facts), h("h3", {}, "By purpose"), table(["purpose", this.when("#"), "#sent", "#tuples"], purposes, "Purposes"),
      h("h3", {}, "Flows"), table(["flow", "purpose", "#sent", "#measured", "#expected"], flows, "Flows")];
  }

  when(mark = "") { return mark + (this.app.now.is_live ? "now" : "mean"); } // rates of a run that has ended are over all its time

  back(title) {
    return h("h2", {}, h("button", { type: "button", class: "quiet", "aria-label": "Back to all links", onclick: () => this.choose(this.chosen) }, "←"), ` ${title}`);
  }
}

export const factList = (facts) => h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
