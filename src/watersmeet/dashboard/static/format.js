// Figures for people: three digits that count, with units, aligned by tabular numerals.

const scaled = (value, steps, base) => {
  let size = Math.abs(value), place = 0;
  while (size >= base * 0.9995 && place < steps.length - 1) { size /= base; place += 1; }
  return [Math.sign(value) * size, steps[place]];
};
const digits = (value) => {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return value.toFixed(2);
};

export const none = "–";
export const count = (value) => value === null || value === undefined ? none : Math.round(value).toLocaleString("en");
export function bytes(value) {
  if (value === null || value === undefined) return none;
  const [size, unit] = scaled(value, ["B", "kB", "MB", "GB", "TB"], 1000);
  return `${unit === "B" ? Math.round(size) : digits(size)} ${unit}`;
}
export const bytesRate = (value) => value === null || value === undefined ? none : `${bytes(value)}/s`;
export function short(value) {
  if (value === null || value === undefined) return none;
  const [size, unit] = scaled(value, ["", "k", "M", "G"], 1000);
  return `${unit === "" ? (Number.isInteger(size) ? size : digits(size)) : digits(size)}${unit ? " " + unit : ""}`;
}
export const rate = (value, what = "") => value === null || value === undefined ? none : `${short(value)}${what ? " " + what : ""}/s`;
export function seconds(value) {
  if (value === null || value === undefined) return none;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${digits(value * 1000)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${Math.floor(value / 3600)} h ${Math.floor(value % 3600 / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor(value % 86400 / 3600)} h`;
}
export function percent(part, whole) {
  if (!whole) return none;
  const share = 100 * part / whole;
  return share !== 0 && Math.abs(share) < 10 ? `${share.toFixed(1)} %` : `${Math.round(share)} %`;
}
export function change(before, after) {
  return before ? `${after >= before ? "+" : "−"}${percent(Math.abs(after - before), before)}` : none;
}
// Small amounts have two digits that count, so that what a plan saves can be seen on a small run too.
export function money(value) {
  if (value === null || value === undefined) return none;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1) return value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return size < 1e-9 ? "< 0.000000001" : value.toFixed(Math.max(2, 1 - Math.floor(Math.log10(size))));
}

const two = (value) => String(value).padStart(2, "0");
export function clock(at) {
  const date = new Date(at * 1000);
  return `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}:${two(date.getUTCSeconds())}`;
}
export function instant(at) {
  if (at === null || at === undefined) return none;
  const date = new Date(at * 1000);
  return `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())} ${clock(at)}`;
}
