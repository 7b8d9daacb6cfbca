import { count, duration, el, show, table, time } from "/web/dom.js";
import { actForm, acting, ask, silent, wrong } from "/web/desk.js";

const found = document.getElementById("found");
const half = document.getElementById("half");

const COLUMNS = [{ name: "Group" }, { name: "Queue" }, { name: "Dead", right: true }, { name: "Not sent again", right: true }, { name: "Newest stored" }];

async function list() {
  const value = await ask("dead-letters");
  const forms = await acting(() => [...new Set(value.queues.filter((item) => item.notSentAgain).map((item) => item.group))].map((group) =>
    actForm({ act: "dlq.resend", title: `Send those of ${group} to it again`, button: "Send again", fixed: { group }, fields: [], after: list })));
  show(found, [value, forms.length], () => value.queues.length
    ? [table("Dead letters", COLUMNS, value.queues.map((item) => ({
      cells: [item.group, el("a", { href: `/messages?${new URLSearchParams({ by: "place", topic: item.topic, group: item.brokerName, queue: item.queueId, offset: item.low, count: 8 })}` }, `${item.brokerName}:${item.queueId}`),
        count(item.dead), count(item.notSentAgain), time(item.newestAtMs, true)],
    }))), ...silent(value.silent), ...forms]
    : [el("p", { class: "faint" }, "No consumer group has dead letters."), ...silent(value.silent)]);
}

async function waiting() {
  const value = await ask("transactions");
  show(half, value, () => [value.rows.length
    ? table("Transactions without an end", [{ name: "Group" }, { name: "Producer group" }, { name: "Topic" }, { name: "Open", right: true }, { name: "Oldest", right: true }, { name: "Checks", right: true }, { name: "Producers", right: true }], value.rows.map((item) => ({
      cells: [item.brokerName, item.producerGroup, item.topic, count(item.open), duration(item.oldestAgeMs), count(item.checks), count(item.producers)],
    })))
    : value.others.length ? "" : el("p", { class: "faint" }, "No transaction waits for its producer's word."),
  ...value.others.map((item) => el("p", { class: "faint" }, `${item.brokerName}: ${count(item.open)} others at most`)), ...silent(value.silent)]);
}

Promise.all([list(), waiting()]).catch((error) => {
  found.replaceChildren();
  wrong(error);
});
