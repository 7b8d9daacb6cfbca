import { count, duration, el, show, table, time } from "/web/dom.js";
import { chart, widthOf } from "/web/chart.js";
import { actForm, acting, ask, hour, silent, wrong } from "/web/desk.js";

const PERIOD_MS = 5000;
const found = document.getElementById("found");
const place = document.getElementById("chart");
const name = new URLSearchParams(location.search).get("name");
const MAX_LINES = 6;

const link = (group) => el("a", { href: `/consumers?name=${encodeURIComponent(group)}` }, group);
const topicLink = (topic) => el("a", { href: `/topics?name=${encodeURIComponent(topic)}` }, topic);

async function list() {
  const value = await ask("consumers");
  show(found, value, () => value.groups.length
    ? [table("Consumer groups", [{ name: "Group" }, { name: "Waiting", right: true }, { name: "Members", right: true }, { name: "Model" }, { name: "Topics" }],
      value.groups.map((item) => ({ cells: [link(item.group), count(item.lag), count(item.members), item.model, el("span", {}, item.topics.map((topic, at) => [at ? ", " : "", topicLink(topic)]))] }))),
    ...silent(value.silent)]
    : el("p", { class: "faint" }, "No consumer group has read anything yet."));
}

const PROGRESS = [{ name: "Queue" }, { name: "Committed", right: true }, { name: "End", right: true }, { name: "Waiting", right: true }, { name: "Oldest waits", right: true }, { name: "Last read stored" }];

async function one() {
  document.getElementById("title").textContent = name;
  const value = await ask("consumer", { name });
  show(found, value, () => [
    el("p", { class: "facts" }, [`${count(value.lag)} messages wait`, value.oldestAgeMs === null ? null : `the oldest for ${duration(value.oldestAgeMs)}`,
      `${value.members.length} members`, value.model || "model unknown", `${count(value.retriesWaiting)} retries wait`, value.retriesDelayed ? `${count(value.retriesDelayed)} retries wait for their time` : null,
      value.poppedInFlight ? `${count(value.poppedInFlight)} popped, not acknowledged yet` : null].filter(Boolean).map((item) => el("span", {}, item)),
    value.deadLetters ? el("a", { href: "/dead-letters" }, `${count(value.deadLetters)} dead letters`) : el("span", {}, "no dead letters")),
    ...Object.entries(value.paused).map(([where, why]) => el("p", { class: "banner wrong" }, `${where}: ${why}`)),
    el("h2", {}, "How far it has read"),
    table("Progress", PROGRESS, value.progress.map((item) => ({
      cells: [el("span", {}, topicLink(item.topic), ` ${item.queue}`), count(item.committed), count(item.end), count(item.lag),
        item.oldestAgeMs === null ? "–" : duration(item.oldestAgeMs), time(item.readAtMs, true)],
    }))),
    el("h2", {}, "Members"),
    value.members.length ? table("Members", [{ name: "Client" }, { name: "Address" }, { name: "Language" }, { name: "Connected to" }],
      value.members.map((item) => ({ cells: [item.client_id, item.address, item.language, item.brokers.join(", ")] })))
      : el("p", { class: "faint" }, "Nobody is connected."),
    ...silent(value.silent),
  ]);
}

// The form stands beside what changes each round: what is being typed stays.
async function forms() {
  const topics = [...new Set((await ask("consumer", { name })).progress.map((item) => item.topic))];
  document.getElementById("forms").replaceChildren(...await acting(() => [actForm({
    act: "consumer.reset", title: "Go on from another place", button: "Reset", fixed: { group: name },
    warn: "Without the group's name below it only says what would change. Connected members notice at their next pull.",
    times: ["at"], after: one,
    fields: [
      { name: "topic", label: "Topic", kind: "choice", choices: topics, value: topics[0] },
      { name: "to", label: "From", kind: "choice", choices: ["first", "last", "time"], value: "first" },
      { name: "at", label: "Time, for “time”", kind: "time", needed: false },
      { name: "confirm", label: "Group's name", needed: false },
    ],
  })]));
}

async function lags() {
  const value = await hour();
  const groups = Object.entries(value.groups).filter(([group]) => name === null || group === name);
  const last = (values) => [...values].reverse().find((item) => item !== null) ?? 0;
  groups.sort((one, other) => last(other[1]) - last(one[1]));
  if (!value.times.length) return;
  show(place, value, () => [
    ...chart({ title: name === null ? "Messages that wait, by group" : "Messages that wait", times: value.times, words: count, width: widthOf(place),
      lines: groups.slice(0, MAX_LINES).map(([group, values]) => ({ name: group, values })) }),
    groups.length > MAX_LINES ? el("p", { class: "faint" }, `The ${MAX_LINES} with the most; choose a group to see its own.`) : [],
  ]);
}

async function round() {
  if (!document.hidden) await Promise.all([name === null ? list() : one(), lags()]).catch(wrong);
  setTimeout(round, PERIOD_MS);
}

round();
if (name !== null) forms().catch(wrong);
