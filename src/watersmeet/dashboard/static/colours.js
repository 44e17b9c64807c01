// One colour for a purpose wherever it is shown, the same as in drawings of plans; others in a fixed order.

export const PURPOSES = {
  "full tuples": "#2b83c6", keys: "#d98200", filters: "#b8609a", "window sync": "#159169", results: "#d1531f",
  "partial aggregates": "#8a6d1f", tables: "#4d7f3a", watermarks: "#808a94", migration: "#7668c4", agreement: "#3f8f9b",
};
const OTHERS = ["#2b83c6", "#d98200", "#159169", "#b8609a", "#d1531f", "#7668c4", "#3f8f9b", "#8a6d1f", "#4d7f3a", "#808a94"];
export const colourOf = (place) => OTHERS[place % OTHERS.length];
export const LANES = { run: "#2b83c6", plan: "#7668c4", query: "#159169", pressure: "#d98200", warning: "#c9403a" };
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
