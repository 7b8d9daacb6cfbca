import { count, duration, el, show, table, time } from "/web/dom.js";
import { countBars, widthOf } from "/web/chart.js";
import { actForm, acting, ask, silent, wrong } from "/web/desk.js";

const found = document.getElementById("found");
const acts = document.getElementById("acts");
const name = new URLSearchParams(location.search).get("name");

const link = (topic) => el("a", { href: `/topics?name=${encodeURIComponent(topic)}` }, topic);

async function list() {
  const value = await ask("topics");
  show(found, value, () => value.topics.length
    ? [table("Topics", [{ name: "Topic" }, { name: "" }], value.topics.map((topic) => ({
      cells: [link(topic), el("a", { href: `/messages?by=key&topic=${encodeURIComponent(topic)}` }, "find messages")],
    }))), value.leftOut ? el("p", { class: "faint" }, `${count(value.leftOut)} more are not shown; rmqha topic ls lists all.`) : []]
    : el("p", { class: "faint" }, "No topic yet: the first send makes one, or rmqha topic create."));
}

const QUEUES = [{ name: "Queue" }, { name: "First", right: true }, { name: "Next", right: true }, { name: "Messages", right: true }, { name: "Newest stored" }];

function groupCard(row, topic) {
  const attributes = Object.entries(row.attributes).map(([key, value]) => `${key} = ${value}`);
  const around = (queue) => `/messages?${new URLSearchParams({ by: "place", topic, group: row.group, queue: queue.queue, offset: Math.max(queue.low, queue.high - 8), count: 8 })}`;
  return el("article", { class: "card" }, el("h2", {}, row.group),
    el("p", { class: "facts" }, [`${count(row.messages)} messages`, `${row.readQueues} queues to read`, `${row.writeQueues} to write`, `permission ${row.permission}`, ...attributes].map((item) => el("span", {}, item))),
    table(`Queues in ${row.group}`, QUEUES, row.queues.map((queue) => ({
      cells: [queue.high > queue.low ? el("a", { href: around(queue) }, `${row.group}:${queue.queue}`) : `${row.group}:${queue.queue}`,
        count(queue.low), count(queue.high), count(queue.high - queue.low), time(queue.newestAtMs, true)],
    }))));
}

async function one() {
  document.getElementById("title").textContent = name;
  const value = await ask("topic", { name });
  show(found, value, () => [...value.groups.map((row) => groupCard(row, name)), ...silent(value.silent)]);
  return value;
}

const LATE_MS = 2000; // less is the ordinary course of things

// Nothing is shown where nothing waits.
async function timers() {
  const value = await ask("timers", name === null ? {} : { name });
  const section = document.getElementById("timers");
  section.hidden = !value.waiting && !value.silent.length;
  if (section.hidden) return;
  const place = document.getElementById("waiting");
  const step = value.stepMinutes === 1 ? "minute" : `${value.stepMinutes} minutes`;
  show(place, value, () => [
    el("p", { class: "facts" }, [`${count(value.waiting)} wait${name === null ? " in all topics" : ""}`, value.unread ? `${count(value.unread)} not read yet` : null].filter(Boolean).map((item) => el("span", {}, item))),
    value.overdueMs > LATE_MS ? el("p", { class: "banner wrong" }, `The first is ${duration(value.overdueMs)} late.`) : [],
    value.rows.length ? [el("h3", {}, `What comes, by the ${step}`), countBars(`${count(value.waiting)} timer messages, by the ${step}`, value.rows, count, widthOf(place))] : [],
    name === null && value.topics.length ? table("Topics of timer messages", [{ name: "Topic" }, { name: "Waiting", right: true }],
      value.topics.map((item) => ({ cells: [link(item.topic), count(item.count)] }))) : [],
    value.topicsLeftOut ? el("p", { class: "faint" }, `${count(value.topicsLeftOut)} more topics are not shown.`) : [],
    ...silent(value.silent)]);
}

const TIMERS_PERIOD_MS = 5000;

async function timersRound() {
  if (!document.hidden) await timers().catch(wrong);
  setTimeout(timersRound, TIMERS_PERIOD_MS);
}

async function start() {
  if (name === null) {
    await list();
    acts.replaceChildren(...await acting(() => [actForm({ act: "topic.create", title: "Make a topic", button: "Make it", after: list,
      fields: [{ name: "topic", label: "Topic" }, { name: "queues", label: "Queues in each group", value: "8", kind: "number" }] })]));
    return;
  }
  const value = await one();
  const shape = value.groups[0] ?? { readQueues: 8, writeQueues: 8, permission: "both" };
  acts.replaceChildren(...await acting(() => [
    actForm({ act: "message.send", title: "Send a test message", button: "Send", fixed: { topic: name }, after: one,
      fields: [{ name: "body", label: "Body", kind: "text" }, { name: "key", label: "Key", needed: false }, { name: "tag", label: "Tag", needed: false }] }),
    actForm({ act: "topic.alter", title: "Change it in all groups", button: "Change", fixed: { topic: name }, after: one,
      fields: [{ name: "readQueues", label: "Queues to read", value: shape.readQueues, kind: "number" },
        { name: "writeQueues", label: "Queues to write", value: shape.writeQueues, kind: "number" },
        { name: "permission", label: "Clients may", kind: "choice", choices: ["both", "read", "write", "none"], value: shape.permission }] }),
    actForm({ act: "topic.delete", title: "Delete it", button: "Delete", fixed: { topic: name }, warn: "Its messages can no longer be read.",
      after: () => location.assign("/topics"), fields: [{ name: "confirm", label: "Its name, to confirm" }] }),
  ]));
}

timersRound();

start().catch((error) => {
  found.replaceChildren();
  wrong(error);
});
