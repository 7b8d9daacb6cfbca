// Lines over time as SVG, made here: no library. Every chart says its newest values in words as well.

import { el, svg, time } from "/web/dom.js";

const LEFT = 58;
const TOP = 8;
const HEIGHT = 120;
const FOOT = 18;
const COLOURS = 6;
const GAP_MS = 30000; // a longer silence is a gap in the line

// A round number at or above `value`, so that the axis reads well.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * unit).find((step) => step >= value);
}

function path(times, values, x, y) {
  let text = "";
  let before = null;
  values.forEach((value, at) => {
    if (value === null || value === undefined) return;
    const joined = before !== null && times[at] - times[before] <= GAP_MS;
    text += `${joined ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    before = at;
  });
  return text;
}

// `lines`: [{name, values}]; `marks`: [{atMs, text}], drawn as upright lines; `words` says a value.
export function chart({ title, times, lines, marks = [], words, width }) {
  const told = lines.filter((line) => line.values.some((value) => value !== null));
  if (times.length < 2 || !told.length) return [el("h3", {}, title), el("p", { class: "faint" }, "nothing to show yet")];
  const first = times[0], last = times[times.length - 1];
  const highest = Math.max(...told.flatMap((line) => line.values.filter((value) => value !== null)));
  const top = ceiling(highest);
  const x = (at) => LEFT + ((at - first) / Math.max(1, last - first)) * (width - LEFT - 4);
  const y = (value) => TOP + HEIGHT * (1 - value / top);
  const now = told.map((line) => `${line.name} ${words([...line.values].reverse().find((value) => value !== null))}`).join(", ");
  const seen = marks.filter((mark) => mark.atMs >= first && mark.atMs <= last);
  const picture = svg("svg", { width, height: TOP + HEIGHT + FOOT, viewBox: `0 0 ${width} ${TOP + HEIGHT + FOOT}`, role: "img", "aria-label": `${title}, newest: ${now}` },
    [0, 0.5, 1].map((share) => [
      svg("line", { x1: LEFT, x2: width, y1: y(top * share), y2: y(top * share), class: "grid" }),
      svg("text", { x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, words(top * share)),
    ]),
    seen.map((mark) => svg("g", { class: "mark" }, svg("title", {}, `${time(mark.atMs)} ${mark.text}`),
      svg("line", { x1: x(mark.atMs), x2: x(mark.atMs), y1: TOP, y2: TOP + HEIGHT }))),
    told.map((line, at) => svg("path", { d: path(times, line.values, x, y), class: `line line-${at % COLOURS}` })),
    svg("text", { x: LEFT, y: TOP + HEIGHT + 14 }, time(first)),
    svg("text", { x: width - 4, y: TOP + HEIGHT + 14, "text-anchor": "end" }, time(last)));
  const legend = el("p", { class: "legend" }, told.map((line, at) =>
    el("span", { class: "key" }, el("i", { class: `swatch line-${at % COLOURS}` }), " ", line.name, " ",
      el("b", {}, words([...line.values].reverse().find((value) => value !== null))))));
  return [el("h3", {}, title), picture, legend];
}

const BAR = 18;
const ROW = 44;

// One bar for each failover, its phases one behind the other, all to one scale.
export function failoverBars(items, width) {
  if (!items.length) return [el("p", { class: "faint" }, "None that the nodes remember.")];
  const ends = items.map((item) => Math.max(0, ...item.phases.map(([, ms]) => ms ?? 0)));
  const top = Math.max(1, ...ends);
  const rows = items.map((item, place) => {
    let from = 0;
    const told = item.phases.map(([name, ms], at) => ({ name, ms, at })).filter(({ ms }) => ms !== null).sort((one, other) => one.ms - other.ms);
    const parts = told.map(({ name, ms, at }) => {
      const to = Math.max(from, ms);
      const part = svg("g", {}, svg("title", {}, `${name}: ${ms} ms`),
        svg("rect", { x: (from / top) * (width - 2) + 1, width: Math.max(1, ((to - from) / top) * (width - 2)), y: place * ROW + 20, height: BAR, class: `phase-${at}` }));
      from = to;
      return part;
    });
    const words = told.map(({ name, ms }) => `${name} ${ms}`).join(" · ");
    return svg("g", {}, svg("text", { x: 1, y: place * ROW + 14 }, `${time(item.atMs, width > 500)}  ${item.kind}, epoch ${item.epoch ?? "–"}: `,
      svg("tspan", { class: "faint" }, words ? `${words} ms` : "")), parts);
  });
  return [svg("svg", { width, height: items.length * ROW, viewBox: `0 0 ${width} ${items.length * ROW}`, role: "img", "aria-label": `${items.length} failovers; the longest took ${top} ms` }, rows)];
}

// One bar for each step of time, with its count: `rows`: [{atMs, count}].
export function countBars(title, rows, words, width) {
  const most = Math.max(...rows.map((row) => row.count));
  const left = width > 500 ? 150 : 64;
  const room = Math.max(40, width - left - 80);
  return svg("svg", { width, height: rows.length * BAR + 4, viewBox: `0 0 ${width} ${rows.length * BAR + 4}`, role: "img", "aria-label": title },
    rows.map((row, place) => svg("g", {},
      svg("text", { x: 1, y: place * BAR + 14 }, time(row.atMs, width > 500).slice(0, -3)),
      row.count ? svg("rect", { x: left, y: place * BAR + 3, width: Math.max(1, (row.count / most) * room), height: BAR - 5, class: "count" }) : null,
      svg("text", { x: left + (row.count / most) * room + 6, y: place * BAR + 14 }, words(row.count)))));
}

export const widthOf = (node) => Math.max(260, Math.floor(node.clientWidth));
