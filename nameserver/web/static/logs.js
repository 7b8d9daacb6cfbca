// The logs of a group side by side: one bar for each replica, forks and cuts where they are.

import { bytes, count, el, svg, table, time } from "/web/dom.js";

const LANE = 62;
const BAR_TOP = 22;
const BAR = 18;
const CUT_TOP = 43;
const CUT = 12;
const PAD = 2;
const CHAR = 7;
const COLOURS = 6;

function pattern() {
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 7, height: 7, class: "hatch-ground" }), svg("rect", { width: 3, height: 7, class: "hatch-line" })));
}

function words(part) {
  const range = `${count(part.start)} to ${count(part.end)}, ${bytes(part.bytes)}`;
  if (part.kind === "cut") return `cut at ${time(part.atMs, true)}: ${range}${part.reason ? `; ${part.reason}` : ""}`;
  return `epoch ${part.epoch}${part.kind === "fork" ? ", fork" : ""}: ${range}`;
}

function label(part, width) {
  const choices = part.kind === "cut" ? [`cut ${bytes(part.bytes)}`, "cut"]
    : part.kind === "fork" ? [`epoch ${part.epoch} fork ${bytes(part.bytes)}`, `${part.epoch} fork`, "fork", "✕"]
      : [`epoch ${part.epoch} · ${bytes(part.bytes)}`, `epoch ${part.epoch}`, `${part.epoch}`];
  return choices.find((text) => text.length * CHAR + 4 <= width) ?? "";
}

function draw(part, top, span, colours) {
  const x = PAD + part.x1 * span;
  const width = Math.max(part.end === part.start ? 3 : 2, (part.x2 - part.x1) * span);
  const isCut = part.kind === "cut";
  const y = top + (isCut ? CUT_TOP : BAR_TOP);
  const height = isCut ? CUT : BAR;
  const tone = part.kind === "log" ? `log epoch-${colours.get(part.epoch)}` : part.kind;
  const text = label(part, width);
  return svg("g", {}, svg("title", {}, words(part)),
    svg("rect", { x, y, width, height, class: tone }),
    text ? svg("text", { x: x + width / 2, y: y + height / 2 + 4, "text-anchor": "middle", class: `on-${part.kind}` }, text) : null);
}

function picture(value, width) {
  const span = width - 2 * PAD;
  const epochs = value.lanes.flatMap((lane) => lane.parts.map((part) => part.epoch)).filter((epoch) => epoch !== null);
  const colours = new Map([...new Set(epochs)].sort((a, b) => a - b).map((epoch, at) => [epoch, at % COLOURS]));
  const lanes = value.lanes.map((lane, place) => {
    const top = place * LANE;
    const parting = lane.partsAt === null ? null : value.marks.find((mark) => mark.offset === lane.partsAt);
    return svg("g", {},
      svg("text", { x: PAD, y: top + 15, class: "lane" }, lane.name + (lane.leads ? " ★" : ""),
        svg("tspan", { class: "faint", dx: 8 }, short(lane, width))),
      lane.parts.map((part) => draw(part, top, span, colours)),
      parting ? svg("line", { x1: PAD + parting.x * span, x2: PAD + parting.x * span, y1: top + BAR_TOP - 4, y2: top + BAR_TOP + BAR + 4, class: "parting" }) : null);
  });
  const height = value.lanes.length * LANE + 18;
  const first = value.marks[0], last = value.marks[value.marks.length - 1];
  const axis = first ? svg("g", { class: "axis" },
    svg("line", { x1: PAD, x2: width - PAD, y1: height - 16, y2: height - 16 }),
    svg("text", { x: PAD, y: height - 3 }, count(first.offset)),
    svg("text", { x: width - PAD, y: height - 3, "text-anchor": "end" }, count(last.offset))) : null;
  const title = `The logs of ${value.lanes.length} replicas; the table below says the same`;
  return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, pattern(), lanes, axis);
}

// As much of a lane's words as fits beside its name.
function short(lane, width) {
  const room = Math.floor(width / 6.2) - lane.name.length - 4;
  const text = lane.forkBytes ? `parts at ${count(lane.partsAt)}, ${bytes(lane.forkBytes)} fork` : lane.words;
  return text.length <= room ? text : `${text.slice(0, Math.max(0, room - 1))}…`;
}

const COLUMNS = [{ name: "Replica" }, { name: "Part" }, { name: "From", right: true }, { name: "To", right: true }, { name: "Bytes", right: true }, { name: "About" }];

function asTable(value) {
  const rows = value.lanes.flatMap((lane) => lane.parts.map((part) => ({
    tone: part.kind === "fork" ? "wrong" : null,
    cells: [
      lane.name,
      part.kind === "cut" ? "cut" : `epoch ${part.epoch}${part.kind === "fork" ? ", fork" : ""}`,
      count(part.start), count(part.end), count(part.bytes),
      part.kind === "cut" ? `${time(part.atMs, true)} ${part.reason}` : part.kind === "fork" ? lane.words : "",
    ],
  })));
  return table("Parts of each log", COLUMNS, rows);
}

export function logs({ value, silent, width }) {
  if (!value.lanes.length) return [el("p", { class: "faint" }, "No replica tells its epochs.")];
  return [
    picture(value, width),
    el("ul", { class: "lanes" }, value.lanes.filter((lane) => short(lane, width) !== lane.words).map((lane) =>
      el("li", { class: lane.forkBytes ? "wrong" : null }, el("b", {}, lane.name), `: ${lane.words}`)),
      silent.map((address) => el("li", { class: "wrong" }, el("b", {}, address), ": does not answer, so its log is not shown"))),
    value.omittedEpochs ? el("p", { class: "faint" }, `${value.omittedEpochs} older epochs are not drawn; rmqha epochs show DIR lists them.`) : null,
    el("details", { id: "logs-table" }, el("summary", {}, "The same as a table"), asTable(value)),
  ].filter((item) => item !== null);
}
