import { bytes, count, duration, el, live, show, table, time } from "/web/dom.js";
import { chart, failoverBars, widthOf } from "/web/chart.js";
import { hour } from "/web/desk.js";
import { facts, health, nameOf, replicas, writable } from "/web/parts.js";
import { logs } from "/web/logs.js";

const place = (id) => document.getElementById(id);
const name = new URLSearchParams(location.search).get("name") ?? "";
const LINES = ["elections", "waits", "promise", "events", "logs", "replicas", "hour", "failovers"];

place("title").textContent = name || "No group is named";
document.title = `${name} · rmqha`;

let latest = null;

function drawLogs() {
  if (latest === null) return;
  const width = Math.max(260, Math.floor(place("logs").getBoundingClientRect().width));
  show(place("logs"), { value: latest.logs, silent: latest.silent, width }, logs);
}

new ResizeObserver(drawLogs).observe(place("logs"));

function elections({ items, answer, group }) {
  const rows = items.map((item) => ({
    cells: [el("span", { class: "whole" }, time(item.atMs, true)), String(item.epoch), el("span", { class: "whole" }, item.brokerId === null ? "no master" : nameOf(group, item.brokerId)), item.cause, item.reason],
  }));
  const columns = [{ name: "Time" }, { name: "Epoch", right: true }, { name: "Elected" }, { name: "Cause" }, { name: "Reason" }];
  return [
    answer ? el("p", {}, answer) : null,
    rows.length ? table("Elections, the newest first", columns, rows)
      : el("p", { class: "faint" }, "No controller of ours that leads tells of elections."),
  ].filter((item) => item !== null);
}

function promise(value) {
  if (value === null) return [el("p", { class: "faint" }, "No broker of the group tells its keys.")];
  return [
    el("p", {}, el("b", {}, `${value.kind}: `), value.acknowledged),
    el("ul", {}, value.losses.map((line) => el("li", {}, line))),
    el("ul", { class: "faint" }, value.notes.map((line) => el("li", {}, line))),
  ];
}

function events(items) {
  if (!items.length) return [el("p", { class: "faint" }, "Nothing to tell.")];
  const rows = items.map((item) => ({ cells: [el("span", { class: "whole" }, time(item.atMs, true)), item.address, el("b", {}, item.event), item.words] }));
  return [table("Events, the newest first", [{ name: "Time" }, { name: "Replica" }, { name: "Event" }, { name: "Fields" }], rows)];
}

const HOUR_PERIOD_MS = 5000;
let past = null;
let marks = [];

function drawHour() {
  if (past === null) return;
  const width = widthOf(place("hour"));
  const common = { times: past.times, marks, width };
  show(place("hour"), { past, marks, width }, () => [
    ...chart({ ...common, title: "Messages a second", words: (value) => count(Math.round(value)), lines: [{ name: "in", values: past.in }, { name: "out", values: past.out }] }),
    ...chart({ ...common, title: "Acknowledgement (upper end of its power of two)", words: (value) => duration(Math.round(value)), lines: [{ name: "p50", values: past.ackP50 }, { name: "p99", values: past.ackP99 }] }),
    ...chart({ ...common, title: "Lag behind the master", words: (value) => bytes(Math.round(value)), lines: Object.entries(past.lag).map(([replica, values]) => ({ name: replica, values })) }),
    marks.length ? el("p", { class: "faint" }, "Upright lines: elections.") : [],
  ].flat());
  show(place("failovers"), { failovers: past.failovers, width }, () => failoverBars(past.failovers, widthOf(place("failovers"))));
}

async function followHour() {
  try {
    if (!document.hidden) {
      past = await hour(name);
      drawHour();
    }
  } catch (error) {
    show(place("hour"), error.message, (words) => [el("p", { class: "note" }, words)]);
  }
  setTimeout(followHour, HOUR_PERIOD_MS);
}

new ResizeObserver(drawHour).observe(place("failovers"));

if (name) {
  followHour();
  live(`/events?group=${encodeURIComponent(name)}`, (value) => {
    document.body.dataset.seen = "1";
    if (value.error) {
      show(place("health"), value.error, (words) => [el("p", { class: "banner wrong" }, words), el("p", {}, el("a", { href: "/" }, "All groups"))]);
      for (const id of LINES) show(place(id), null, () => []);
      return;
    }
    latest = value;
    show(place("facts"), [facts(value.group), value.group.writable, value.group.whyNotWritable], () => [
      writable(value.group), ...facts(value.group).map((item) => el("span", {}, item)),
    ]);
    show(place("health"), value.health, health);
    show(place("replicas"), value.group, (group) => [replicas(group)]);
    drawLogs();
    marks = value.elections.filter((item) => item.atMs).map((item) => ({ atMs: item.atMs, text: `epoch ${item.epoch}: ${item.cause}` }));
    drawHour();
    show(place("elections"), { items: value.elections, answer: value.answer, group: value.group }, elections);
    show(place("waits"), value.waits, (lines) => (lines.length ? el("ul", {}, lines.map((line) => el("li", {}, line))) : [el("p", { class: "faint" }, "No master tells for whom it waits.")]));
    show(place("promise"), value.promise, promise);
    show(place("events"), value.events, events);
  });
} else {
  place("health").append(el("p", { class: "banner wrong" }, "The address names no group; go back to the cluster and choose one."));
}
